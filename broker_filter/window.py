"""Windows of one partition: the newest epochs of each star and band, and what came before them.

A window of T days is anchored to a grid of T/4: it starts at floor(t_newest / (T/4)) T/4 - 3T/4, so
its end lies in the future. When the anchor moves on, epochs before the new start leave; each batch
of them becomes one robust level of the star's quiet light, and the levels together its baseline.

Points lie in pages, so that a sparse star pays for one page only, and all stars of a message are
inserted by a few array operations. Nothing here is a Python object per point. A *track* is one
source of one star and band: it has a baseline and an error scale of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.photometry import (
    RESIDUAL_BINS,
    combine,
    quiet_level,
    residual_bin,
    residual_scale,
    roughness_scale,
)
from broker_filter.types import FloatArray, IntArray, Photometry, StarId, WindowBatch

__all__ = ["WindowStore"]

PAGE: Final = 64
MIN_HISTORY: Final = 30
"""Epochs that must have left the window before they count as the star's history."""

LEVEL_FLOOR: Final = 1e-4
"""Smallest relative error of a baseline: flat fields and skies are no better."""

MAX_ERROR_SCALE: Final = 5.0
TICKS_PER_DAY: Final = 1e6
"""Epochs of one track within the same tick (0.09 s) are one epoch."""

READ_POINTS: Final = 2_000_000


class _Columns:
    """Arrays of equal length that grow together by doubling."""

    def __init__(self, fills: dict[str, tuple[Any, Any, tuple[int, ...]]]) -> None:
        self._fills = fills
        self.size = 0
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.full((0, *shape), fill, dtype) for name, (dtype, fill, shape) in fills.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def grow(self, n: int) -> IntArray:
        """Make ``n`` more rows; their places."""
        first, self.size = self.size, self.size + n
        for name, array in self.arrays.items():
            if self.size > len(array):
                _, fill, shape = self._fills[name]
                room = max(2 * len(array), self.size, 64)
                grown = np.full((room, *shape), fill, array.dtype)
                grown[: len(array)] = array
                self.arrays[name] = grown
        return np.arange(first, self.size)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class WindowStore:
    """All windows of one partition.

    Parameters
    ----------
    window_days : float
        Length T of a window.
    max_points : int
        Most epochs that a window may hold; further ones are rejected as ``window_full``.
    """

    def __init__(self, window_days: float = 20.0, max_points: int = 4096) -> None:
        self.window_days = window_days
        self.max_points = max_points
        self._step = window_days / 4
        self._counts: Counter[str] = Counter()
        self._slot_of: dict[tuple[str, str], dict[StarId, int]] = {}
        self._track_of: dict[tuple[str, str, str], dict[StarId, int]] = {}
        self.star: list[StarId] = []
        self._survey_band: list[tuple[str, str]] = []
        self._coordinates: dict[int, tuple[float, float]] = {}
        pages = -(-max_points // PAGE)
        self._slots = _Columns(
            {
                "newest": (np.float64, -np.inf, ()),
                "start": (np.float64, -np.inf, ()),
                "count": (np.int64, 0, ()),
                "last_track": (np.int32, -1, ()),
                "relative": (np.bool_, False, ()),
                "page": (np.int32, -1, (pages,)),
            }
        )
        self._tracks = _Columns(
            {
                "reference": (np.float64, np.nan, ()),
                "reference_err": (np.float64, np.nan, ()),
                "level": (np.float64, np.nan, ()),
                "level_err": (np.float64, np.nan, ()),
                "history": (np.int64, 0, ()),
                "residuals": (np.uint32, 0, (RESIDUAL_BINS,)),
            }
        )
        self._points = _Columns(
            {
                "time": (np.float64, np.inf, (PAGE,)),
                "flux": (np.float32, 0, (PAGE,)),
                "error": (np.float32, 0, (PAGE,)),
                "track": (np.int32, -1, (PAGE,)),
            }
        )
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.star)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, bytes."""
        return self._slots.nbytes + self._tracks.nbytes + self._points.nbytes

    @property
    def newest(self) -> FloatArray:
        """Newest epoch of each window, shape (len(self),), MJD TAI."""
        return self._slots["newest"][: len(self)]

    @property
    def count(self) -> IntArray:
        """Epochs in each window, shape (len(self),)."""
        return self._slots["count"][: len(self)]

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
        tracks, slots = self._look_up(photometry)
        time, flux = photometry.mjd_tai, photometry.flux.astype(np.float32)
        error = photometry.flux_err.astype(np.float32)
        before = self._slots["newest"][slots]
        cell = np.floor(time / self._step)
        # One round per anchor that the message spans: nearly always one.
        for value in np.unique(cell):
            rows = np.flatnonzero(cell == value)
            self._insert_cell(slots[rows], tracks[rows], time[rows], flux[rows], error[rows])
        moved: IntArray = np.unique(slots[self._slots["newest"][slots] > before])
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
        time, flux, error, track, n = self._gather(slots)
        time, flux, error, track = _sorted(time, flux, error, track)
        level, level_err, scale = self._baselines(time, flux, error, track, n)
        valid = np.arange(time.shape[1]) < n[:, None]
        unit = np.where(valid, level, 1.0)
        last = self._slots["last_track"][slots]
        # The newest source speaks for the window.
        column = np.where(valid & (track == last[:, None]), np.arange(time.shape[1]), -1).max(1)
        column = np.where(column >= 0, column, np.maximum(n - 1, 0))
        row = np.arange(len(slots))
        good = (n > 0) & (np.where(valid, level > 0, True)).all(1)
        self._counts["no_baseline"] += int((~good).sum())
        with np.errstate(divide="ignore", invalid="ignore"):
            relative_flux = np.where(valid, flux / unit, 0).astype(np.float32)
            sigma = np.where(valid, error * scale / unit, 0).astype(np.float32)
        kept = np.flatnonzero(good)
        chosen = slots[kept]
        return WindowBatch(
            slot=chosen,
            star=[self.star[slot] for slot in chosen],
            survey=[self._survey_band[slot][0] for slot in chosen],
            band=[self._survey_band[slot][1] for slot in chosen],
            coordinates=[self._coordinates.get(slot) for slot in chosen.tolist()],
            t_start=self._slots["start"][chosen],
            mjd_tai=time[kept],
            flux=relative_flux[kept],
            sigma=sigma[kept],
            n=n[kept],
            baseline=level[row, column][kept],
            baseline_err=level_err[row, column][kept],
            relative=self._slots["relative"][chosen],
        )

    def _look_up(self, photometry: Photometry) -> tuple[IntArray, IntArray]:
        """Track and slot of each epoch; new ones come into being."""
        key = (photometry.survey, photometry.band)
        slot_of = self._slot_of.setdefault(key, {})
        track_of = self._track_of.setdefault((*key, photometry.source), {})
        self._welcome(photometry, slot_of, track_of)
        slots = np.fromiter(map(slot_of.__getitem__, photometry.star), np.int64, len(photometry))
        tracks = np.fromiter(map(track_of.__getitem__, photometry.star), np.int64, len(photometry))
        known = np.isfinite(photometry.ref_flux) & (photometry.ref_flux_err > 0)
        self._tracks["reference"][tracks[known]] = photometry.ref_flux[known]
        self._tracks["reference_err"][tracks[known]] = photometry.ref_flux_err[known]
        for star, place in photometry.coordinates.items():
            self._coordinates[slot_of[star]] = place
        return tracks, slots

    def _welcome(
        self, photometry: Photometry, slot_of: dict[StarId, int], track_of: dict[StarId, int]
    ) -> None:
        if all(map(track_of.__contains__, photometry.star)):
            return
        new = list(dict.fromkeys(star for star in photometry.star if star not in track_of))
        track_of.update(zip(new, self._tracks.grow(len(new)).tolist(), strict=True))
        new = [star for star in new if star not in slot_of]
        slots = self._slots.grow(len(new))
        slot_of.update(zip(new, slots.tolist(), strict=True))
        self._slots["relative"][slots] = photometry.relative
        self.star += new
        self._survey_band += [(photometry.survey, photometry.band)] * len(new)

    def _insert_cell(
        self,
        slots: IntArray,
        tracks: IntArray,
        time: FloatArray,
        flux: NDArray[np.float32],
        error: NDArray[np.float32],
    ) -> None:
        """Insert epochs of one cell of the anchor grid, so that no window moves in between."""
        order = np.lexsort((flux, error, _tick(time), tracks, slots))
        slots, tracks, time = slots[order], tracks[order], time[order]
        flux, error = flux[order], error[order]
        before = self._slots["newest"][slots]
        self._advance(slots, time)
        doubled = np.zeros(len(time), bool)
        doubled[1:] = (tracks[1:] == tracks[:-1]) & (_tick(time[1:]) == _tick(time[:-1]))
        late = time < self._slots["start"][slots]
        fresh = ~doubled & ~late
        suspect = np.flatnonzero(fresh & (_tick(time) <= _tick(before)))
        if len(suspect):
            known = self._settle_known(
                slots[suspect], tracks[suspect], time[suspect], flux[suspect], error[suspect]
            )
            fresh[suspect[known]] = False
            doubled[suspect[known]] = True
        rows = np.flatnonzero(fresh)
        stored = self._append(slots[rows], tracks[rows], time[rows], flux[rows], error[rows])
        self._counts["inserted"] += stored
        self._counts["window_full"] += len(rows) - stored
        self._counts["late"] += int((late & ~doubled).sum())
        self._counts["duplicate"] += int(doubled.sum())

    def _advance(self, slots: IntArray, time: FloatArray) -> None:
        """Move the windows on for new epochs, and let go of what they leave behind."""
        newest, start = self._slots["newest"], self._slots["start"]
        np.maximum.at(newest, slots, time)
        touched = np.unique(slots)
        anchor = np.floor(newest[touched] / self._step) * self._step - 3 * self._step
        moved = anchor > start[touched]
        start[touched[moved]] = anchor[moved]
        held = touched[moved & (self._slots["count"][touched] > 0)]
        for first in range(0, len(held), self._rows_at_once(held)):
            self._let_go(held[first : first + self._rows_at_once(held)])

    def _rows_at_once(self, slots: IntArray) -> int:
        """Windows that may be unpacked together within bounded memory."""
        longest = int(self._slots["count"][slots].max(initial=1))
        return max(1, READ_POINTS // max(longest, 1))

    def _let_go(self, slots: IntArray) -> None:
        """Fold the epochs before the windows' starts into the history; pack the others."""
        time, flux, error, track, n = self._gather(slots)
        time, flux, error, track = _sorted(time, flux, error, track)
        valid = np.arange(time.shape[1]) < n[:, None]
        out = valid & (time < self._slots["start"][slots][:, None])
        if not out.any():
            return
        self._fold(flux[out], error[out], track[out])
        self._release(slots)
        row, column = np.nonzero(valid & ~out)
        self._append(
            slots[row], track[row, column], time[row, column], flux[row, column], error[row, column]
        )

    def _fold(
        self, flux: NDArray[np.float32], error: NDArray[np.float32], track: NDArray[np.int32]
    ) -> None:
        """One robust level per track and batch, weighed into its history.

        A batch that is not quiet has a large error and so hardly counts.
        """
        ids, group = np.unique(track, return_inverse=True)
        f, e, n = _rows_of(group, len(ids), flux, error)
        scale = np.clip(roughness_scale(_index_like(f), f, e, n), 1.0, MAX_ERROR_SCALE)
        level, level_err = quiet_level(f, e, n, scale)
        tracks = self._tracks
        old, old_err = tracks["level"][ids], tracks["level_err"][ids]
        tracks["level"][ids], tracks["level_err"][ids] = combine(old, old_err, level, level_err)
        tracks["history"][ids] += n
        residual = (flux - level[group]) / error
        np.add.at(tracks["residuals"], (track, residual_bin(residual)), 1)

    def _baselines(
        self,
        time: FloatArray,
        flux: NDArray[np.float32],
        error: NDArray[np.float32],
        track: NDArray[np.int32],
        n: IntArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Baseline, its error and the error scale of each point's track, shape (B, N)."""
        valid = np.arange(time.shape[1]) < n[:, None]
        ids, group = np.unique(track[valid], return_inverse=True)
        level, level_err, scale = self._of_tracks(
            ids, group, time[valid], flux[valid], error[valid]
        )
        columns = []
        for values in (level, level_err, scale):
            column = np.full(time.shape, np.nan)
            column[valid] = values[group]
            columns.append(column)
        return columns[0], columns[1], columns[2]

    def _of_tracks(
        self,
        ids: NDArray[np.int32],
        group: IntArray,
        time: FloatArray,
        flux: NDArray[np.float32],
        error: NDArray[np.float32],
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """History and catalogue together; the window itself where there is neither."""
        tracks = self._tracks
        old = tracks["history"][ids] >= MIN_HISTORY
        level = np.where(old, tracks["level"][ids], np.nan)
        level_err = np.where(old, tracks["level_err"][ids], np.nan)
        scale = _significant(residual_scale(tracks["residuals"][ids]), tracks["history"][ids])
        level, level_err = combine(
            level, level_err, tracks["reference"][ids], tracks["reference_err"][ids]
        )
        young = np.flatnonzero(~old)
        if len(young):
            place = np.full(len(ids), -1)
            place[young] = np.arange(len(young))
            mine = place[group] >= 0
            t, f, e, n = _rows_of(
                place[group[mine]], len(young), time[mine], flux[mine], error[mine]
            )
            scale[young] = _significant(roughness_scale(t, f, e, n), n)
            lost = np.flatnonzero(np.isnan(level[young]))
            if len(lost):
                rows = young[lost]
                level[rows], level_err[rows] = quiet_level(f[lost], e[lost], n[lost], scale[rows])
        return level, np.maximum(level_err, LEVEL_FLOOR * np.abs(level)), scale

    def _settle_known(
        self,
        slots: IntArray,
        tracks: IntArray,
        time: FloatArray,
        flux: NDArray[np.float32],
        error: NDArray[np.float32],
    ) -> NDArray[np.bool_]:
        """Which epochs are held already; where values differ the smaller (error, flux) stays."""
        known = np.zeros(len(slots), bool)
        for first in range(0, len(slots), self._rows_at_once(slots)):
            part = slice(first, first + self._rows_at_once(slots))
            held, _, _, track, n = self._gather(slots[part])
            same = (track == tracks[part][:, None]) & (_tick(held) == _tick(time[part])[:, None])
            same &= np.arange(held.shape[1]) < n[:, None]
            found = np.flatnonzero(same.any(1))
            known[first + found] = True
            index = same[found].argmax(1)
            page = self._slots["page"][slots[part][found], index // PAGE]
            self._keep_better(page, index % PAGE, flux[part][found], error[part][found])
        return known

    def _keep_better(
        self,
        page: IntArray,
        place: IntArray,
        flux: NDArray[np.float32],
        error: NDArray[np.float32],
    ) -> None:
        held_flux, held_error = self._points["flux"], self._points["error"]
        old_f, old_e = held_flux[page, place], held_error[page, place]
        better = (error < old_e) | ((error == old_e) & (flux < old_f))
        held_flux[page[better], place[better]] = flux[better]
        held_error[page[better], place[better]] = error[better]

    def _append(
        self,
        slots: IntArray,
        tracks: IntArray | NDArray[np.int32],
        time: FloatArray,
        flux: NDArray[np.float32],
        error: NDArray[np.float32],
    ) -> int:
        """Append epochs, sorted by slot, to their windows' pages; how many found room."""
        if not len(slots):
            return 0
        first = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
        length = np.diff(np.r_[first, len(slots)])
        rank = np.arange(len(slots)) - np.repeat(first, length)
        index = self._slots["count"][slots] + rank
        room = index < self.max_points
        slots, index = slots[room], index[room]
        page = self._pages(slots, index // PAGE)
        place = index % PAGE
        for name, values in (("time", time), ("flux", flux), ("error", error), ("track", tracks)):
            self._points[name][page, place] = values[room]
        count, last = self._slots["count"], self._slots["last_track"]
        np.maximum.at(count, slots, index + 1)
        newest = time[room] >= self._slots["newest"][slots]
        last[slots[newest]] = tracks[room][newest]
        return len(slots)

    def _pages(self, slots: IntArray, ordinal: IntArray) -> IntArray:
        """Page of each epoch; pages that are missing are taken."""
        table = self._slots["page"]
        missing = np.flatnonzero(table[slots, ordinal] < 0)
        if len(missing):
            wanted = np.unique(slots[missing] * table.shape[1] + ordinal[missing])
            pages = self._take_pages(len(wanted))
            table[wanted // table.shape[1], wanted % table.shape[1]] = pages
        return np.asarray(table[slots, ordinal], np.int64)

    def _take_pages(self, n: int) -> IntArray:
        reused = [self._free.pop() for _ in range(min(n, len(self._free)))]
        new = self._points.grow(n - len(reused))
        return np.concatenate([np.array(reused, np.int64), new])

    def _release(self, slots: IntArray) -> None:
        """Empty windows; their pages go back."""
        table = self._slots["page"]
        pages = table[slots]
        self._free += pages[pages >= 0].tolist()
        table[slots] = -1
        self._slots["count"][slots] = 0

    def _gather(
        self, slots: IntArray
    ) -> tuple[FloatArray, NDArray[np.float32], NDArray[np.float32], NDArray[np.int32], IntArray]:
        """Points of windows as rows, shape (B, N), in order of arrival; infinite times beyond n."""
        n = self._slots["count"][slots]
        ordinals = max(1, -(-int(n.max(initial=0)) // PAGE))
        pages = np.maximum(self._slots["page"][slots, :ordinals], 0)
        if not self._points.size:
            self._points.grow(1)
        time, flux, error, track = (
            self._points[name][pages].reshape(len(slots), -1)
            for name in ("time", "flux", "error", "track")
        )
        beyond = np.arange(time.shape[1]) >= n[:, None]
        time[beyond] = np.inf
        track[beyond] = -1
        return time, flux, error, track, n


def _tick(time: FloatArray) -> FloatArray:
    return np.rint(time * TICKS_PER_DAY)


def _sorted(
    time: FloatArray,
    flux: NDArray[np.float32],
    error: NDArray[np.float32],
    track: NDArray[np.int32],
) -> tuple[FloatArray, NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    """Rows in order of (time, track); most are in order already."""
    later = time[:, 1:] > time[:, :-1]
    later |= np.isinf(time[:, 1:])
    rows = np.flatnonzero(~later.all(1))
    if len(rows):
        order = np.lexsort((track[rows], time[rows]), axis=-1)
        for column in (time, flux, error, track):
            column[rows] = np.take_along_axis(column[rows], order, 1)
    return time, flux, error, track


def _rows_of(group: IntArray, n_groups: int, *columns: NDArray[Any]) -> tuple[Any, ...]:
    """Values by group as padded rows, shape (n_groups, longest), and the length of each."""
    n = np.bincount(group, minlength=n_groups)
    order = np.argsort(group, kind="stable")
    first = np.r_[0, np.cumsum(n)[:-1]]
    place = np.arange(len(group)) - np.repeat(first, n)
    rows = []
    for column in columns:
        padded = np.zeros((n_groups, max(int(n.max(initial=0)), 3)), np.float64)
        padded[group[order], place] = column[order]
        rows.append(padded)
    return (*rows, n)


def _index_like(values: FloatArray) -> FloatArray:
    return np.broadcast_to(np.arange(values.shape[1], dtype=np.float64), values.shape)


def _significant(scale: FloatArray, n: IntArray) -> FloatArray:
    """An error scale, or 1 where it differs from it by no more than chance makes it."""
    chance = 1 + 3 / np.sqrt(np.maximum(n, 1))
    return np.where(scale > chance, np.minimum(scale, MAX_ERROR_SCALE), 1.0)
