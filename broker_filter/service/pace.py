"""How much is handed to the network at a time."""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

BATCH_S: Final = 2.0
"""About so long a batch may take: its first alert, a stop and a rebalance wait for all of it."""

LEAST: Final = 4
"""Windows a batch, so that several stars can be judged side by side."""


class Pace:
    """Windows a batch: as many as are evaluated in about `BATCH_S`.

    Most windows are settled within microseconds, but one that alerts takes a good part of a second.
    Where most of them alert, as in a stream that was selected for variable stars, a batch of
    thousands would take a quarter of an hour.

    Parameters
    ----------
    most : int
        Windows a batch, as long as they are evaluated fast enough.
    """

    def __init__(self, most: int) -> None:
        self._most = self.windows = most

    @property
    def is_slow(self) -> bool:
        """Whether batches are smaller than they could be."""
        return self.windows < self._most

    def note(self, windows: int, seconds: float) -> None:
        """Learn how long a batch took; it becomes smaller at once, and larger step by step."""
        fitting = windows * BATCH_S / seconds if windows and seconds > BATCH_S else 2 * self.windows
        self.windows = min(max(round(fitting), LEAST), self._most)
