"""Where windows stand on the anchor grid, and what becomes of the epochs that leave them.

A window anchored to cell c holds cells c - 3 to c. When it moves on, the epochs of the cells before
fold into the running statistics of their tracks, cell by cell.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import FloatArray, IntArray
from broker_filter.windows.arrays import grown, spans
from broker_filter.windows.epochs import Epochs
from broker_filter.windows.points import PagedPoints
from broker_filter.windows.thinning import Thinning
from broker_filter.windows.tracks import Tracks

__all__ = ["NEVER", "Folding"]

NEVER: Final = -(1 << 40)
"""Cell of a window that has not been moved anywhere yet."""
CHUNK_POINTS: Final = 1 << 21


class Folding:
    """Moves the windows of one store on, and folds what leaves them.

    Parameters
    ----------
    points : PagedPoints
    tracks : Tracks
    thinning : Thinning
    step_days : float
        Cell of the anchor grid.

    Attributes
    ----------
    anchor : ndarray, shape (windows or more,), int64
        Last cell of each window.
    """

    def __init__(
        self, points: PagedPoints, tracks: Tracks, thinning: Thinning, step_days: float
    ) -> None:
        self._points, self._tracks, self._thinning = points, tracks, thinning
        self._step = step_days
        self.anchor = np.zeros(0, np.int64)

    def add_rows(self, n_rows: int) -> None:
        """Make room for windows 0 to ``n_rows - 1``, none of them moved yet."""
        self.anchor = grown(self.anchor, n_rows, NEVER)

    def keep(self, slots: IntArray) -> None:
        """Make ``slots`` the only windows, numbered from 0."""
        self.anchor = self.anchor[slots]

    def cell(self, time: FloatArray) -> IntArray:
        """Cell of the anchor grid in which each time (MJD TAI) falls."""
        return np.floor(time / self._step).astype(np.int64)

    def start(self, slot: IntArray) -> FloatArray:
        """Start of each window, shape of ``slot``, MJD TAI."""
        return np.asarray((self.anchor[slot] - 3).astype(np.float64) * self._step)

    def is_late(self, epochs: Epochs) -> NDArray[np.bool_]:
        """Whether each epoch lies before its window's start."""
        return np.asarray(epochs.cell < self.anchor[epochs.slot] - 3)

    def steps(self, epochs: Epochs) -> list[Epochs]:
        """Epochs in the order of time in which their windows must see them.

        Step ``i`` holds what each slot has in the ``i``-th cell that its window has to move to.
        Those in cells that it has been moved to already move nothing, and go together.
        """
        return epochs.by_cell(np.maximum(epochs.cell, self.anchor[epochs.slot]))

    def advance(self, slot: IntArray, cell: IntArray) -> None:
        """Move windows on, cell by cell, and fold what leaves them into their tracks."""
        moved = cell > self.anchor[slot]
        slot, cell = slot[moved], cell[moved]
        self.anchor[slot] = cell
        while len(slot):
            oldest = self.cell(self._points.time(self._points.index(slot, 0)))
            leaving = (self._points.count[slot] > 0) & (oldest < cell - 3)
            slot, cell, oldest = slot[leaving], cell[leaving], oldest[leaving]
            points = int(self._points.count[slot].sum())
            for rows in np.array_split(np.arange(len(slot)), 1 + points // CHUNK_POINTS):
                self._fold(slot[rows], oldest[rows])

    def begin(self, epochs: Epochs, new: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Put new windows where their newest epoch belongs.

        Parameters
        ----------
        epochs : Epochs
        new : ndarray, shape (windows of ``epochs``,), bool
            Which windows to put in place.

        Returns
        -------
        ndarray, shape (len(epochs),), bool
            Which epochs would only pass through these windows.
        """
        first, size = epochs.runs()
        newest = epochs.cell[first + size - 1]
        past = epochs.cell < np.repeat(np.where(new, newest - 3, NEVER), size)
        if past.any():
            self.anchor[epochs.slot[first[new]]] = newest[new]
        return np.asarray(past)

    def fold(self, epochs: Epochs, source: int) -> None:
        """Fold epochs of one source that no window holds, cell by cell."""
        for part in epochs.by_cell(epochs.cell):
            track = self._tracks.of(part.slot, source)
            self._tracks.fold(track, part.time, part.flux, part.error)

    def _fold(self, slot: IntArray, oldest: IntArray) -> None:
        """Fold all points of the oldest cell of each window."""
        n = self._points.search(slot, lambda p: self.cell(self._points.time(p)) <= oldest)
        owner, position = spans(np.zeros_like(n), n)
        index = self._points.index(slot[owner], position)
        time, flux, error, source = self._points.columns(index)
        for code in np.unique(source).tolist():
            of = np.flatnonzero(source == code)
            track = self._tracks.of(slot[owner[of]], code)
            self._tracks.fold(track, time[of], flux[of], error[of])
        self._points.drop_front(slot, n)
        self._thinning.relax(slot)
