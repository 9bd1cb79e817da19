"""The collector's settings in the service, in a process of their own."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from broker_filter.service.garbage import not_collecting

SCRIPT = """
import gc
from broker_filter.service.garbage import YOUNG_OBJECTS, collect_rarely

class Node:
    pass

collect_rarely()
found = []
gc.callbacks.append(lambda phase, info: found.append(info["collected"]))
for _ in range(2 * YOUNG_OBJECTS):
    node = Node()
    node.itself = node
print(len(found), sum(found) > YOUNG_OBJECTS)
"""


def test_circles_are_found_though_rarely() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    passes, freed = done.stdout.split()
    assert 0 < int(passes) < 20
    assert freed == "True"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was_before(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with not_collecting():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
