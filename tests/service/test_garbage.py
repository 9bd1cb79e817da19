"""The collector's settings in the service, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

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
