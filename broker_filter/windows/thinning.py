"""Thins windows that are full: neighbouring epochs of one source become one, on a grid of time.

A window at level L > 0 holds one point for each source and cell of a grid of 2^L times its finest
step, and beside them the newest epoch of each source as it came. The point of several epochs is
their mean by inverse variance in time and flux, and has the error of that mean. The level is the
lowest at which the window holds no more than ``max_points``. It rises when the window fills up, and
ends when all merged points have left.

The cells halve those of the anchor grid again and again, so what is merged leaves its window at
once, and what one level has merged the next may merge on. A merged point stands half-way between
two ticks, where no epoch is: so it is known by its time alone. An epoch that falls into its cell
and is no newer than its source was merged already.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.photometry.statistics import weighted_mean
from broker_filter.types import FloatArray, IntArray
from broker_filter.windows.arrays import grown, spans
from broker_filter.windows.epochs import TICKS_PER_DAY, Epochs
from broker_filter.windows.instruments import Instruments
from broker_filter.windows.points import Columns, PagedPoints

__all__ = ["Thinning", "is_merged"]

CHUNK_POINTS: Final = 1 << 20
NEAR: Final = 16
"""So many points at the end of a window are searched for a source before all are."""


class Thinning:
    """Keeps the windows of one store within ``max_points``.

    Parameters
    ----------
    points : PagedPoints
    instruments : Instruments
    step_days : float
        Cell of the anchor grid.
    max_points : int
    """

    def __init__(
        self, points: PagedPoints, instruments: Instruments, step_days: float, max_points: int
    ) -> None:
        self._points, self._instruments = points, instruments
        self._step, self._max_points = step_days, max_points
        self.coarsest = math.ceil(math.log2(step_days * TICKS_PER_DAY)) + 1
        self.level = np.zeros(0, np.uint8)

    def add_rows(self, n_rows: int) -> None:
        """Make room for windows 0 to ``n_rows - 1``, none of them thinned."""
        self.level = grown(self.level, n_rows)

    def keep(self, slots: IntArray) -> None:
        """Make ``slots`` the only windows, numbered from 0."""
        self.level = self.level[slots]

    def is_crowded(self, slot: IntArray, more: IntArray) -> NDArray[np.bool_]:
        """Whether each of these windows is thinned, or is to be when so many points come."""
        full = self._points.count[slot] + more > self._max_points
        return np.asarray(full | (self.level[slot] > 0))

    def room(self, slot: IntArray) -> IntArray:
        """How many epochs each window can still hold one by one."""
        left = self._max_points - self._points.count[slot].astype(np.int64)
        return np.where(self.level[slot] > 0, 0, left)

    def covers(self, epochs: Epochs, source: int) -> NDArray[np.bool_]:
        """Whether each epoch, no newer than its window, is part of a merged point of a source."""
        points, found = self._points, np.zeros(len(epochs), np.bool_)
        thinned = np.flatnonzero(self.level[epochs.slot])
        slot, time = epochs.slot[thinned], epochs.time[thinned]
        cell = self._cell(time, slot)
        low = points.search(slot, lambda index: self._cell(points.time(index), slot) < cell)
        high = points.search(slot, lambda index: self._cell(points.time(index), slot) <= cell)
        owner, position = spans(low, high)
        index = points.index(slot[owner], position)
        mine, merged = points.source(index) == source, is_merged(points.time(index))
        # What stands in the cell as it came is the newest of its source; behind it nothing was.
        newer = mine & ~merged & (points.time(index) < time[owner])
        found[thinned[owner[mine & merged]]] = True
        found[thinned[owner[newer]]] = False
        return found

    def insert(self, epochs: Epochs, source: int) -> IntArray:
        """Insert new epochs of one source into windows that are crowded.

        Parameters
        ----------
        epochs : Epochs
            Not held and not covered.
        source : int

        Returns
        -------
        ndarray, shape (windows of ``epochs``,), int64
            Points lost because a window has more sources than can be merged: its oldest ones.
        """
        first, size = epochs.runs()
        slot = epochs.slot[first]
        # The source's newest epoch so far may be merged now.
        begin = np.minimum(epochs.time[first], self._newest(slot, source))
        cell, points = self._cell(begin, slot), self._points
        start = points.search(slot, lambda index: self._cell(points.time(index), slot) < cell)
        code = np.full(len(epochs), source, np.uint16)
        new = epochs.time, epochs.flux, epochs.error, code
        self._rewrite(slot, start, np.repeat(np.arange(len(slot)), size), new)
        return self.fit(slot)

    def fit(self, slot: IntArray) -> IntArray:
        """Thin windows (no repeats) to ``max_points``; how many points each had to lose."""
        held, lost = self._points.count[slot], np.zeros(len(slot), np.int64)
        over = np.flatnonzero(held > self._max_points)
        for rows in np.array_split(over, 1 + int(held[over].sum()) // CHUNK_POINTS):
            if len(rows):
                lost[rows] = self._coarsen(slot[rows])
        return lost

    def relax(self, slot: IntArray) -> None:
        """Note that points have left these windows: those without merged ones are not thinned."""
        slot = slot[self.level[slot] > 0]
        if not len(slot):
            return
        owner, index = self._all_points(slot)
        merged = owner[is_merged(self._points.time(index))]
        self.level[np.delete(slot, np.unique(merged))] = 0

    def _cell(self, time: FloatArray, slot: IntArray) -> IntArray:
        """Cell of each time in its window's grid."""
        cells = np.ldexp(time / self._step, self.coarsest - self.level[slot].astype(np.int64))
        return np.floor(cells).astype(np.int64)

    def _all_points(self, slot: IntArray) -> tuple[IntArray, IntArray]:
        """Row of ``slot`` and index of all points of these windows."""
        held = self._points.count[slot].astype(np.int64)
        owner, position = spans(np.zeros_like(held), held)
        return owner, self._points.index(slot[owner], position)

    def _newest(self, slot: IntArray, source: int) -> FloatArray:
        """Newest epoch of a source in each window; infinite where there is none."""
        points, newest = self._points, np.full(len(slot), np.inf)
        held = points.count[slot].astype(np.int64)
        for start in (np.maximum(held - NEAR, 0), np.zeros_like(held)):
            rows = np.flatnonzero(np.isinf(newest))
            owner, position = spans(start[rows], held[rows])
            index = points.index(slot[rows[owner]], position)
            mine = points.source(index) == source
            # Of repeated indices numpy assigns the last.
            newest[rows[owner[mine]]] = points.time(index[mine])
        return newest

    def _coarsen(self, slot: IntArray) -> IntArray:
        """Thin windows at the lowest level at which they fit; the number of points lost."""
        owner, index = self._all_points(slot)
        time, source = self._points.time(index), self._points.source(index)
        order = np.lexsort((time, source, owner))
        owner, source = owner[order], source[order]
        cell = np.floor(np.ldexp(time[order] / self._step, self.coarsest)).astype(np.int64)
        same = (owner[1:] == owner[:-1]) & (source[1:] == source[:-1])
        # The last epoch of a run is the newest of its source, and stays.
        same[:-1] &= same[1:]
        same[-1:] = False
        # Cells halve each other: two epochs share one from the highest bit on in which they differ.
        level = np.frexp((cell[1:] ^ cell[:-1]).astype(np.float64))[1][same]
        # Epochs of two cells of the anchor grid share none at any level.
        joined = level <= self.coarsest
        key = owner[1:][same][joined] * (self.coarsest + 1) + level[joined]
        merging = np.bincount(key, minlength=len(slot) * (self.coarsest + 1))
        gone = np.cumsum(merging.reshape(len(slot), -1), axis=1)
        fits = self._points.count[slot][:, None] - gone <= self._max_points
        lowest = np.where(fits.any(axis=1), fits.argmax(axis=1), self.coarsest)
        self.level[slot] = np.maximum(lowest, self.level[slot])
        nothing = np.empty(0), *np.empty((2, 0), np.float32), np.empty(0, np.uint16)
        self._rewrite(slot, np.zeros(len(slot), np.int64), np.empty(0, np.int64), nothing)
        lost = np.maximum(self._points.count[slot].astype(np.int64) - self._max_points, 0)
        if lost.any():
            self._points.drop_front(slot[lost > 0], lost[lost > 0])
        return lost

    def _rewrite(self, slot: IntArray, start: IntArray, owner: IntArray, new: Columns) -> None:
        """Put new points of windows ``slot[owner]`` among those from ``start`` on, and merge."""
        points = self._points
        held = points.count[slot].astype(np.int64)
        tail, position = spans(start, held)
        old = points.columns(points.index(slot[tail], position))
        owner = np.concatenate([tail, owner])
        time, flux, error, source = (
            *(np.concatenate([old[0], new[0]]), np.concatenate([old[1], new[1]])),
            *(np.concatenate([old[2], new[2]]), np.concatenate([old[3], new[3]])),
        )
        cell = self._cell(time, slot[owner])
        owner, columns = _merged(owner, cell, (time, flux, error, source))
        time, flux, error, source = columns
        order = np.lexsort((self._instruments.rank[source], time, owner))
        total = start + np.bincount(owner, minlength=len(slot))
        points.resize(slot, total)
        owner, position = spans(start, total)
        index = points.index(slot[owner], position)
        points.write(index, (time[order], flux[order], error[order], source[order]))


def is_merged(time: FloatArray) -> NDArray[np.bool_]:
    """Whether a point stands for several epochs: its time is between two ticks."""
    ticks = time * TICKS_PER_DAY
    return np.asarray(np.abs(ticks - np.rint(ticks)) > 0.25)


def _merged(owner: IntArray, cell: IntArray, columns: Columns) -> tuple[IntArray, Columns]:
    """One point for each owner, source and cell, but the newest of each source as it came."""
    time, flux, error, source = columns
    order = np.lexsort((time, source, owner))
    owner, cell, time, source = owner[order], cell[order], time[order], source[order]
    flux, error = flux[order], error[order]
    new_run = (owner[1:] != owner[:-1]) | (source[1:] != source[:-1])
    is_newest = np.append(new_run, True)
    starts = np.append(True, new_run | (cell[1:] != cell[:-1]) | is_newest[1:])
    first = np.flatnonzero(starts)
    group = np.cumsum(starts) - 1
    n = len(first)
    weight = error.astype(np.float64) ** -2
    mean, total = weighted_mean(flux.astype(np.float64), weight, group, n)
    after, _ = weighted_mean(time - time[first][group], weight, group, n)
    several = np.bincount(group, minlength=n) > 1
    last = time[np.append(first[1:], len(time)) - 1]
    tick = np.floor((time[first] + after) * TICKS_PER_DAY)
    tick = np.minimum(tick, np.ceil(last * TICKS_PER_DAY - 0.25) - 1)
    return owner[first], (
        np.where(several, (tick + 0.5) / TICKS_PER_DAY, time[first]),
        np.where(several, mean, flux[first]).astype(np.float32),
        np.where(several, total**-0.5, error[first]).astype(np.float32),
        source[first],
    )
