"""How often Python looks for objects that refer to each other in circles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["collect_rarely", "not_collecting"]

YOUNG_OBJECTS: Final = 100_000
"""New objects after which the collector looks at them."""


def collect_rarely() -> None:
    """Let the collector run after many more objects than by Python's default of 700.

    A poll makes some hundred thousand objects that end without it, as none of them refers to
    itself. Its passes over all stars took half of the time of the intake
    (``python -m tests.bench.bench_intake``). What is there already is never looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


@contextmanager
def not_collecting() -> Iterator[None]:
    """Leave the collector out within a block that makes many objects, none of which it could free.

    Its passes over what torch and numba are made of took a fifth of the time to load them.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
