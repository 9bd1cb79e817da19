"""Puts epochs at their places among those that windows hold already.

A window's points are in order of (time, source). Of epochs of one source in the same tick one is
held; so of total and difference flux of one camera.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import FloatArray, IntArray
from broker_filter.windows.arrays import spans
from broker_filter.windows.epochs import Epochs
from broker_filter.windows.instruments import Instruments
from broker_filter.windows.points import PagedPoints
from broker_filter.windows.thinning import Thinning, is_merged

__all__ = ["Insertion"]

MOST_HELD: Final = 16
"""Points held for each epoch to be found up to which it is faster to look at all of them."""


class Insertion:
    """Inserts epochs into the points of one store.

    Parameters
    ----------
    points : PagedPoints
    instruments : Instruments
    thinning : Thinning
        Takes over where windows are full.
    counts : Counter
        Becomes the number of epochs by outcome.
    """

    def __init__(
        self,
        points: PagedPoints,
        instruments: Instruments,
        thinning: Thinning,
        counts: Counter[str],
    ) -> None:
        self._points, self._instruments = points, instruments
        self._thinning, self._counts = thinning, counts

    def known_times(
        self, slot: IntArray, time: FloatArray, source: int, within_days: float
    ) -> FloatArray:
        """The times under which windows hold these epochs, where those differ by no more.

        Parameters
        ----------
        slot : ndarray, shape (n,), int64
        time : ndarray, shape (n,), float64, MJD TAI
        source : int
            Code of the source of all.
        within_days : float
        """
        points, held = self._points, self._points.count[slot].astype(np.int64)
        after = points.search(slot, lambda index: points.time(index) < time)
        known = time
        for at in (after - 1, after):
            inside = (at >= 0) & (at < held)
            index = points.index(slot, np.where(inside, at, 0))
            code = points.source(index)
            same = inside & ((code == source) | (code == self._instruments.other[source]))
            same &= np.abs(points.time(index) - time) <= within_days
            same &= ~is_merged(points.time(index))
            known = np.where(same, points.time(index), known)
        return known

    def append(self, epochs: Epochs, source: int) -> None:
        """Add epochs that are newer than all that their windows have seen."""
        first, size = epochs.runs()
        slot = epochs.slot[first]
        crowded = self._thinning.is_crowded(slot, size)
        if crowded.any():
            of_crowded = np.repeat(crowded, size)
            self._crowd(epochs.take(of_crowded), source)
            if crowded.all():
                return
            epochs, slot, size = epochs.take(~of_crowded), slot[~crowded], size[~crowded]
        held = self._points.count[slot].astype(np.int64)
        self._counts["inserted"] += len(epochs)
        self._points.lengthen(slot, held + size)
        # One epoch of each window is the common case.
        position = held if len(slot) == len(epochs) else spans(held, held + size)[1]
        code = np.full(len(epochs), source, np.uint16)
        columns = epochs.time, epochs.flux, epochs.error, code
        self._points.write(self._points.index(epochs.slot, position), columns)

    def _crowd(self, epochs: Epochs, source: int) -> None:
        """Insert new epochs into windows that are thinned."""
        first, size = epochs.runs()
        room = self._thinning.room(epochs.slot[first])
        lost = np.minimum(self._thinning.insert(epochs, source), size)
        inserted = np.minimum(room, size - lost)
        self._counts["inserted"] += int(inserted.sum())
        self._counts["window_full"] += int(lost.sum())
        self._counts["thinned"] += int((size - lost - inserted).sum())

    def merge(self, epochs: Epochs, source: int) -> None:
        """Put epochs at their places in the order of (time, source); settle those known."""
        points = self._points
        epochs = self._of_one_kind(epochs, source)
        if not len(epochs):
            return
        position = self._position(epochs, source)
        inside = position < points.count[epochs.slot]
        index = points.index(epochs.slot, np.where(inside, position, 0))
        known = inside & (points.time(index) == epochs.time) & (points.source(index) == source)
        if known.all():
            self._settle(index, epochs)
            return
        self._settle(index[known], epochs.take(known))
        self._put(epochs.take(~known), position[~known], source)

    def _put(self, epochs: Epochs, position: IntArray, source: int) -> None:
        """Insert epochs that are not held as they are; what merged points hold is known."""
        first, size = epochs.runs()
        crowded = np.repeat(self._thinning.is_crowded(epochs.slot[first], size), size)
        if not crowded.any():
            self._splice(epochs, position, source)
            return
        covered = self._covered(epochs, source)
        self._counts["duplicate"] += int(covered.sum())
        if (new := crowded & ~covered).any():
            self._crowd(epochs.take(new), source)
        if not crowded.all():
            self._splice(epochs.take(~crowded), position[~crowded], source)

    def _covered(self, epochs: Epochs, source: int) -> NDArray[np.bool_]:
        """Whether epochs are part of merged points, of either kind of flux of their camera."""
        other = int(self._instruments.other[source])
        covered = self._thinning.covers(epochs, source)
        return covered if other < 0 else covered | self._thinning.covers(epochs, other)

    def _of_one_kind(self, epochs: Epochs, source: int) -> Epochs:
        """Settle epochs that windows hold as the camera's other kind of flux: total flux stays."""
        points, other = self._points, int(self._instruments.other[source])
        if other < 0:
            return epochs
        position = self._position(epochs, other)
        inside = position < points.count[epochs.slot]
        index = points.index(epochs.slot, np.where(inside, position, 0))
        known = inside & (points.time(index) == epochs.time) & (points.source(index) == other)
        if not known.any():
            return epochs
        self._counts["duplicate"] += int(known.sum())
        if self._instruments.difference[other]:
            total = epochs.take(known)
            code = np.full(len(total), source, np.uint16)
            points.write(index[known], (total.time, total.flux, total.error, code))
        return epochs.take(~known)

    def _position(self, epochs: Epochs, source: int) -> IntArray:
        """How many points of its window come before each epoch."""
        points, rank = self._points, self._instruments.rank

        def before(index: IntArray) -> NDArray[np.bool_]:
            held = points.time(index)
            earlier, same = held < epochs.time, held == epochs.time
            if same.any():
                earlier |= same & (rank[points.source(index)] < rank[source])
            return np.asarray(earlier)

        first, size = epochs.runs()
        slot = epochs.slot[first]
        held = points.count[slot].astype(np.int64)
        if held.sum() > MOST_HELD * len(epochs):
            return points.search(epochs.slot, before, last_few=True)
        # A history that comes again: all points are looked at, in one go.
        owner, at = spans(np.zeros_like(held), held)
        index = points.index(slot[owner], at)
        window = np.repeat(np.arange(len(slot)), size)
        key, wanted = owner + 1j * points.time(index), window + 1j * epochs.time
        position = np.searchsorted(key, wanted)
        found = np.minimum(position, len(key) - 1)
        if ((key[found] == wanted) & (points.source(index[found]) != source)).any():
            return points.search(epochs.slot, before)
        return np.asarray(position - (np.cumsum(held) - held)[window])

    def _settle(self, index: IntArray, epochs: Epochs) -> None:
        """Of two values of one epoch the smaller (error, flux) stays."""
        self._counts["duplicate"] += len(index)
        flux, error = self._points.flux[index], self._points.error(index)
        better = (epochs.error < error) | ((epochs.error == error) & (epochs.flux < flux))
        if better.any():
            index, epochs = index[better], epochs.take(better)
            time, _, _, source = self._points.columns(index)
            self._points.write(index, (time, epochs.flux, epochs.error, source))

    def _splice(self, epochs: Epochs, position: IntArray, source: int) -> None:
        """Insert new epochs before the points at ``position``: only what follows is rewritten."""
        first, size = epochs.runs()
        slot, start = epochs.slot[first], position[first]
        held = self._points.count[slot].astype(np.int64)
        owner, tail = spans(start, held)
        old = self._points.columns(self._points.index(slot[owner], tail))
        code = np.full(len(epochs.slot), source, np.uint16)
        new = epochs.time, epochs.flux, epochs.error, code
        time, flux, error, sources = (
            *(np.concatenate([old[0], new[0]]), np.concatenate([old[1], new[1]])),
            *(np.concatenate([old[2], new[2]]), np.concatenate([old[3], new[3]])),
        )
        owner = np.concatenate([owner, np.repeat(np.arange(len(slot)), size)])
        order = np.lexsort((self._instruments.rank[sources], time, owner))
        owner, at = spans(start, held + size)
        self._points.lengthen(slot, held + size)
        index = self._points.index(slot[owner], at)
        self._points.write(index, (time[order], flux[order], error[order], sources[order]))
        self._counts["inserted"] += len(epochs)
