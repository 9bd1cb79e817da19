"""Windows of one partition: the newest epochs of each star and band.

A window of T days is anchored to a grid of T/4: it starts at floor(t_newest / (T/4)) T/4 - 3T/4, so
its end lies in the future. When the anchor moves on, epochs before the new start leave the window
and become history (`broker_filter.baseline`).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.baseline import Tracks
from broker_filter.pages import Columns, Pages, Points
from broker_filter.types import FloatArray, IntArray, Photometry, StarId, WindowBatch

__all__ = ["WindowStore"]

TICKS_PER_DAY: Final = 1e6
"""Epochs of one track within the same tick (0.09 s) are one epoch."""

READ_POINTS: Final = 2_000_000
"""Points that are unpacked together, which bounds memory."""


class WindowStore:
    """All windows of one partition.

    Parameters
    ----------
    window_days : float
        Length T of a window.
    max_points : int
        Most epochs that a window may hold; further ones are rejected as ``window_full``.

    Attributes
    ----------
    star : list of (str or int)
        Star of each window.
    """

    def __init__(self, window_days: float = 20.0, max_points: int = 4096) -> None:
        self.window_days = window_days
        self.star: list[StarId] = []
        self._step = window_days / 4
        self._counts: Counter[str] = Counter()
        self._slot_of: dict[tuple[str, str], dict[StarId, int]] = {}
        self._track_of: dict[tuple[str, str, str], dict[StarId, int]] = {}
        self._survey_band: list[tuple[str, str]] = []
        self._coordinates: dict[int, tuple[float, float]] = {}
        self._tracks = Tracks()
        self._pages = Pages(max_points)
        self._windows = Columns(
            newest=(np.float64, -np.inf, ()),
            start=(np.float64, -np.inf, ()),
            last_track=(np.int32, -1, ()),
            relative=(np.bool_, False, ()),
        )

    def __len__(self) -> int:
        return len(self.star)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, bytes."""
        return self._windows.nbytes + self._pages.nbytes + self._tracks.nbytes

    @property
    def newest(self) -> FloatArray:
        """Newest epoch of each window, shape (len(self),), MJD TAI."""
        return self._windows["newest"][: len(self)]

    @property
    def count(self) -> IntArray:
        """Epochs in each window, shape (len(self),)."""
        return self._pages.count[: len(self)]

    def take_counts(self) -> dict[str, int]:
        """Epochs by outcome since the last call: inserted, duplicate, late, window_full.

        ``no_baseline`` counts windows that could not be read.
        """
        counts, self._counts = self._counts, Counter()
        return dict(counts)

    def insert(self, photometry: Photometry) -> IntArray:
        """Insert the epochs of a message.

        Parameters
        ----------
        photometry : Photometry
            Usable epochs in total flux (`broker_filter.photometry.accept`), in any order.

        Returns
        -------
        ndarray, shape (m,), int64
            Slots whose newest epoch is new, each once, sorted.

        Notes
        -----
        The result does not depend on how epochs are spread over messages, nor on their order as
        long as none comes after its window has moved past it (such are ``late``). Of epochs of one
        track at the same time the one with the smaller (error, flux) stays.
        """
        if not len(photometry):
            return np.empty(0, np.int64)
        slots, tracks = self._look_up(photometry)
        points = Points(
            photometry.mjd_tai,
            photometry.flux.astype(np.float32),
            photometry.flux_err.astype(np.float32),
            tracks.astype(np.int32),
        )
        before = self._windows["newest"][slots]
        cell = np.floor(points.time / self._step)
        # One round per anchor that the message spans: nearly always one.
        for value in np.unique(cell):
            rows = np.flatnonzero(cell == value)
            self._insert_cell(slots[rows], points[rows])
        moved: IntArray = np.unique(slots[self._windows["newest"][slots] > before])
        return moved

    def read(self, slots: IntArray) -> WindowBatch:
        """Read windows in units of their baselines.

        Parameters
        ----------
        slots : ndarray, shape (B,), int64

        Returns
        -------
        WindowBatch
            In the order of ``slots``; windows without a usable baseline are left out and counted.
        """
        points, n = self._pages.gather(slots)
        points = points.in_order()
        valid = np.arange(points.time.shape[1]) < n[:, None]
        level, level_err, scale = self._tracks.of_points(points, valid)
        good = (n > 0) & ((level > 0) | ~valid).all(1)
        self._counts["no_baseline"] += int((~good).sum())
        kept = np.flatnonzero(good)
        chosen, inside = slots[kept], valid[kept]
        unit = np.where(inside, level[kept], 1.0)
        row, column = np.arange(len(kept)), self._spokesman(points, valid, n, slots)[kept]
        return WindowBatch(
            slot=chosen,
            star=[self.star[slot] for slot in chosen],
            survey=[self._survey_band[slot][0] for slot in chosen],
            band=[self._survey_band[slot][1] for slot in chosen],
            coordinates=[self._coordinates.get(slot) for slot in chosen.tolist()],
            t_start=self._windows["start"][chosen],
            mjd_tai=points.time[kept],
            flux=np.where(inside, points.flux[kept] / unit, 0).astype(np.float32),
            sigma=np.where(inside, points.error[kept] * scale[kept] / unit, 0).astype(np.float32),
            n=n[kept],
            baseline=level[kept][row, column],
            baseline_err=level_err[kept][row, column],
            relative=self._windows["relative"][chosen],
        )

    def _spokesman(
        self, points: Points, valid: NDArray[np.bool_], n: IntArray, slots: IntArray
    ) -> IntArray:
        """Column of each window's newest source, whose baseline stands for the window's."""
        last = self._windows["last_track"][slots]
        mine = valid & (points.track == last[:, None])
        column = np.where(mine, np.arange(valid.shape[1]), -1).max(1)
        return np.where(column >= 0, column, np.maximum(n - 1, 0))

    def _look_up(self, photometry: Photometry) -> tuple[IntArray, IntArray]:
        """Slot and track of each epoch; new ones come into being."""
        key = (photometry.survey, photometry.band)
        slot_of = self._slot_of.setdefault(key, {})
        track_of = self._track_of.setdefault((*key, photometry.source), {})
        self._welcome(photometry, slot_of, track_of)
        slots, tracks = (
            np.fromiter(map(table.__getitem__, photometry.star), np.int64, len(photometry))
            for table in (slot_of, track_of)
        )
        self._tracks.set_reference(tracks, photometry.ref_flux, photometry.ref_flux_err)
        for star, place in photometry.coordinates.items():
            if star in slot_of:
                self._coordinates[slot_of[star]] = place
        return slots, tracks

    def _welcome(
        self, photometry: Photometry, slot_of: dict[StarId, int], track_of: dict[StarId, int]
    ) -> None:
        if all(map(track_of.__contains__, photometry.star)):
            return
        new = list(dict.fromkeys(star for star in photometry.star if star not in track_of))
        track_of.update(zip(new, self._tracks.grow(len(new)).tolist(), strict=True))
        new = [star for star in new if star not in slot_of]
        slots = self._windows.grow(len(new))
        self._pages.grow(len(new))
        slot_of.update(zip(new, slots.tolist(), strict=True))
        self._windows["relative"][slots] = photometry.relative
        self.star += new
        self._survey_band += [(photometry.survey, photometry.band)] * len(new)

    def _insert_cell(self, slots: IntArray, points: Points) -> None:
        """Insert epochs of one cell of the anchor grid, so that no window moves in between."""
        tick = _tick(points.time)
        order = np.lexsort((points.flux, points.error, tick, points.track, slots))
        slots, points, tick = slots[order], points[order], tick[order]
        before = self._windows["newest"][slots]
        self._advance(slots, points.time)
        doubled = np.zeros(len(points), bool)
        doubled[1:] = (points.track[1:] == points.track[:-1]) & (tick[1:] == tick[:-1])
        late = points.time < self._windows["start"][slots]
        fresh = ~doubled & ~late
        # Only an epoch that is not newer than all of its window can be there already.
        suspect = np.flatnonzero(fresh & (tick <= _tick(before)))
        if len(suspect):
            held = suspect[self._settle_held(slots[suspect], points[suspect])]
            fresh[held], doubled[held] = False, True
        rows = np.flatnonzero(fresh)
        stored = rows[self._pages.append(slots[rows], points[rows])]
        newest = stored[points.time[stored] >= self._windows["newest"][slots[stored]]]
        self._windows["last_track"][slots[newest]] = points.track[newest]
        self._counts["inserted"] += len(stored)
        self._counts["window_full"] += len(rows) - len(stored)
        self._counts["late"] += int((late & ~doubled).sum())
        self._counts["duplicate"] += int(doubled.sum())

    def _advance(self, slots: IntArray, time: FloatArray) -> None:
        """Move the windows on for new epochs, and let go of what they leave behind."""
        newest, start = self._windows["newest"], self._windows["start"]
        np.maximum.at(newest, slots, time)
        touched = np.unique(slots)
        anchor = np.floor(newest[touched] / self._step) * self._step - 3 * self._step
        moved = anchor > start[touched]
        start[touched[moved]] = anchor[moved]
        held = touched[moved & (self._pages.count[touched] > 0)]
        for part in self._parts(held):
            self._let_go(held[part])

    def _let_go(self, slots: IntArray) -> None:
        """Fold the epochs before the windows' starts into the history; keep the others."""
        points, n = self._pages.gather(slots)
        points = points.in_order()
        valid = np.arange(points.time.shape[1]) < n[:, None]
        out = valid & (points.time < self._windows["start"][slots][:, None])
        if out.any():
            self._tracks.fold(points[out])
            self._pages.release(slots)
            row, column = np.nonzero(valid & ~out)
            self._pages.append(slots[row], points[row, column])

    def _settle_held(self, slots: IntArray, points: Points) -> IntArray:
        """Which epochs are held already; where values differ the better ones stay."""
        held = [np.empty(0, np.int64)]
        for part in self._parts(slots):
            rows, n = self._pages.gather(slots[part])
            same = rows.track == points.track[part][:, None]
            same &= _tick(rows.time) == _tick(points.time[part])[:, None]
            same &= np.arange(same.shape[1]) < n[:, None]
            found = np.flatnonzero(same.any(1))
            mine = part.start + found
            self._pages.keep_better(slots[mine], same[found].argmax(1), points[mine])
            held.append(mine)
        return np.concatenate(held)

    def _parts(self, slots: IntArray) -> list[slice]:
        """Cut a list of windows so that each part unpacks within bounded memory."""
        longest = int(self._pages.count[slots].max(initial=1))
        size = max(1, READ_POINTS // max(longest, 1))
        return [slice(first, first + size) for first in range(0, len(slots), size)]


def _tick(time: FloatArray) -> FloatArray:
    return np.rint(time * TICKS_PER_DAY)
