"""Drops the windows that have been quiet longest where a partition holds more than it may.

What is dropped follows from the messages alone: from event time, and from the names of stars where
times are equal. So a replay, or a restart from a snapshot, drops the same. Whether a star has an
open event is known later, in another thread, and must not count; but such a star is being observed,
and is the last to go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from broker_filter.types import FloatArray, IntArray, StarId

__all__ = ["SHARE", "Shed", "quietest"]

SHARE: Final = 8
"""One in so many windows goes at once, so that it happens seldom."""


@dataclass(frozen=True, slots=True)
class Shed:
    """Which windows stayed, and which went.

    Parameters
    ----------
    kept : ndarray, shape (n,), int64
        Their slots, ascending; from now on the i-th of them is slot i.
    quiet, observed : int
        How many went that had no epoch for the length of a window, and how many that had.
    gone : list of (str, StarId, str)
        Survey, star and band of those that went.
    """

    kept: IntArray
    quiet: int
    observed: int
    gone: list[tuple[str, StarId, str]]


def quietest(newest: FloatArray, n: int, name: Callable[[int], tuple[str, ...]]) -> IntArray:
    """The ``n`` rows of lowest ``newest``, shape (m,); of equal ones those of lowest name."""
    bound = np.partition(newest, n - 1)[n - 1]
    below, equal = np.flatnonzero(newest < bound), np.flatnonzero(newest == bound)
    chosen = sorted(equal.tolist(), key=name)[: n - len(below)]
    return np.concatenate([below, np.array(chosen, np.int64)])
