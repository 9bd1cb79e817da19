"""Which windows are due, by event time alone.

A star is looked at when its newest epoch enters a new cell of a grid of its own, and as soon as its
new epochs can have made an event of it (`broker_filter.windows.news`). No clock and no
poll decides, so a replay looks at the same windows and gives the same alerts.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from broker_filter.state.columns import Column, Columns, arrays_of, reading
from broker_filter.types import FloatArray, IntArray, StarId
from broker_filter.windows.store import WindowStore

__all__ = ["Schedule"]


class Schedule:
    """When each window of one store was last due.

    Parameters
    ----------
    every_days : float
        Width of a cell; 0 makes a window due at every new newest epoch. Each star's cells are
        shifted by a share of it that its id decides, so that stars are due at different times.
    min_points : int
        Epochs that a window needs to be due.
    """

    def __init__(self, every_days: float, min_points: int) -> None:
        self._every, self.min_points = every_days, min_points
        self._phase = np.empty(0)
        self._last = np.empty(0)

    def due(self, store: WindowStore, slots: IntArray) -> IntArray:
        """Choose those windows that are due, and take note of it.

        Parameters
        ----------
        store : WindowStore
        slots : ndarray, shape (m,), int64
            Windows with a new newest epoch, each once (`WindowStore.insert`).

        Returns
        -------
        ndarray, shape (k,), int64
            In the order of ``slots``.
        """
        self._follow(store)
        cell = self._cell(store.newest[slots], slots)
        due = (cell > self._last[slots]) | store.is_news(slots)
        due &= store.count[slots] >= self.min_points
        self._last[slots[due]] = cell[due]
        return slots[due]

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, bytes."""
        return self._phase.nbytes + self._last.nbytes

    def keep(self, slots: IntArray) -> None:
        """Follow a store that keeps ``slots`` alone (`WindowStore.shed`)."""
        self._phase, self._last = self._phase[slots], self._last[slots]

    def state(self) -> dict[str, Column]:
        """A copy of when each window was last due, as columns for a snapshot."""
        return {"every_days": np.array([self._every]), "last": self._last.copy()}

    def restore(self, store: WindowStore, columns: Columns) -> None:
        """Take over what another schedule of the same windows knew.

        Cells of another width mean nothing here: where ``every_days`` was changed, every window
        counts as looked at up to its newest epoch, and is due in its next cell.

        Parameters
        ----------
        store : WindowStore
            Restored from the same snapshot.
        columns : mapping of str to array or Streamed
            What `state` gave.

        Raises
        ------
        StateError
            If columns are missing or do not fit the windows.
        """
        self._follow(store)
        with reading("schedule"):
            known = arrays_of(columns)
            if len(known["last"]) != len(store):
                raise ValueError(f"{len(known['last'])} windows, and the store has {len(store)}")
            if known["every_days"].tolist() == [self._every]:
                self._last[:] = known["last"]
            else:
                self._last[:] = self._cell(store.newest, np.arange(len(store)))

    def _cell(self, newest: FloatArray, slots: IntArray) -> FloatArray:
        if self._every == 0:
            return newest
        return np.asarray(np.floor(newest / self._every + self._phase[slots]), np.float64)

    def _follow(self, store: WindowStore) -> None:
        """Make room for windows that came into being."""
        known = len(self._phase)
        if known < len(store):
            self._phase = np.r_[self._phase, [_phase(star) for star in store.star[known:]]]
            self._last = np.r_[self._last, np.full(len(store) - known, -np.inf)]


def _phase(star: StarId) -> float:
    return crc32(repr(star).encode()) / 2**32
