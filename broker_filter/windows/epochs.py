"""Epochs on their way into windows: those of one source, grouped by window and in order of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import FloatArray, IntArray

__all__ = ["TICKS_PER_DAY", "Epochs"]

TICKS_PER_DAY: Final = 1e6
"""Times are kept to the tick (0.09 s): epochs of one track in the same tick are one epoch."""

_ONE: Final = np.ones(1, np.bool_)


@dataclass(frozen=True, slots=True)
class Epochs:
    """Epochs of one source, those of one slot together and in order of time.

    Parameters
    ----------
    slot : ndarray, shape (n,), int64
        Window of each.
    time : ndarray, shape (n,), float64, MJD TAI
        To the tick.
    cell : ndarray, shape (n,), int64
        Cell of the anchor grid.
    flux, error : ndarray, shape (n,), float32
        In the source's own unit.
    """

    slot: IntArray
    time: FloatArray
    cell: IntArray
    flux: NDArray[np.float32]
    error: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.slot)

    def take(self, rows: IntArray | NDArray[np.bool_]) -> Epochs:
        """Some of them."""
        return Epochs(
            *(self.slot[rows], self.time[rows], self.cell[rows]),
            *(self.flux[rows], self.error[rows]),
        )

    def runs(self) -> tuple[IntArray, IntArray]:
        """First row of each slot, and how many it has."""
        bounds = np.flatnonzero(np.concatenate([_ONE, _changes(self.slot), _ONE]))
        return bounds[:-1], bounds[1:] - bounds[:-1]

    def by_cell(self, cell: IntArray) -> list[Epochs]:
        """Part ``i`` holds what each slot has in the ``i``-th of its cells, which are in order."""
        group = np.cumsum(np.concatenate([~_ONE, _changes(self.slot) | _changes(cell)]))
        first, size = self.runs()
        if group[-1] == len(first) - 1:
            return [self]
        rank = group - np.repeat(group[first], size)
        by_rank = np.argsort(rank, kind="stable")
        return [self.take(rows) for rows in np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])]

    def in_order(self) -> Epochs:
        """The epochs of each slot together, by (time, error, flux)."""
        slot, time = self.slot, self.time
        later = (slot[1:] == slot[:-1]) & (time[1:] > time[:-1])
        if (later | (slot[1:] > slot[:-1])).all():
            return self
        return self.take(np.lexsort((self.flux, self.error, time, slot)))

    def once_a_tick(self) -> Epochs:
        """The first epoch of each slot and tick, which is the best one."""
        new = _changes(self.slot) | _changes(self.time)
        return self if new.all() else self.take(np.concatenate([_ONE, new]))


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value but the first differs from the one before it."""
    return np.asarray(values[1:] != values[:-1])
