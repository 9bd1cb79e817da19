"""Reads windows in units of their baselines, each source in units of its own.

Difference flux without a reference flux has a quiet level of its own, and is read in units of the
baseline that the total flux of the same star and band has, once that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.photometry.statistics import combine
from broker_filter.photometry.usable import MAX_FLUX, MAX_SIGNIFICANCE, plausible
from broker_filter.types import HISTORY, FloatArray, IntArray
from broker_filter.windows.instruments import Instruments
from broker_filter.windows.points import PagedPoints
from broker_filter.windows.series import Series
from broker_filter.windows.tracks import Tracks

__all__ = ["Reading", "Readout"]


LAST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Units:
    """How the points of the tracks of each window are read, shape (B, D), NaN where there are none.

    Parameters
    ----------
    level, level_err : ndarray, float64
        Flux of the quiet star, the unit, and its 1-sigma error.
    offset : ndarray, float64
        What turns the points' flux into total flux; 0 where it is that already.
    error : ndarray, float64
        1-sigma error of the track's quiet light in that unit.
    scale : ndarray, float64
        Factor on the error bars.
    history : ndarray, shape (B, D, 6), float64
        Columns `HISTORY`, zero where there are none.
    """

    level: FloatArray
    level_err: FloatArray
    offset: FloatArray
    error: FloatArray
    scale: FloatArray
    history: FloatArray

    @property
    def usable(self) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(self.level + self.level_err + self.offset)
            return np.asarray((self.level > 0) & finite)


@dataclass(frozen=True, slots=True)
class Reading:
    """Windows as they were read; rows that hold no usable point are empty.

    Parameters
    ----------
    window : Series
        The usable points, in units of their baselines.
    which : ndarray, shape (B, N), or (B, 1) where there is one track, int64
        Track of each point, as a column of ``units``.
    units : Units
    track : ndarray, shape (B, D), int64
        The tracks, -1 where there is none.
    code : ndarray, shape (B, D), int64
        Number of each track's source, -1 where there is no track.
    losses : mapping of str to int
        What could not be read: ``no_baseline`` and ``difference_without_reference`` of the sources
        of windows, ``not_finite`` of the points.
    """

    window: Series
    which: IntArray
    units: Units
    track: IntArray
    code: IntArray
    losses: Mapping[str, int]

    def newest(self, column: FloatArray) -> FloatArray:
        """Of a column of ``units`` what belongs to the newest source of each window, shape (B,)."""
        last = np.minimum(self.window.n[:, None], self.which.shape[1]) - 1
        track = np.take_along_axis(self.which, np.maximum(last, 0), axis=1)
        return np.asarray(np.take_along_axis(column, track, axis=1)[:, 0])

    def source(self) -> NDArray[np.int16]:
        """Track of each point, shape (B, N)."""
        return np.broadcast_to(self.which, self.window.time.shape).astype(np.int16)

    def common_error(self) -> FloatArray:
        """Relative error of the weighted mean of the baselines of each window's tracks, shape (B,).

        The errors of different tracks are independent.
        """
        if self.units.error.shape[1] == 1:
            return np.where(self.window.n > 0, self.units.error[:, 0], 0.0)
        sigma = np.where(_valid(self.window), self.window.error, np.inf).astype(np.float64)
        weight = sigma**-2
        total = weight.sum(axis=1)
        error = np.zeros(len(total))
        for d in range(self.units.error.shape[1]):
            share = np.where(self.which == d, weight, 0).sum(axis=1) / np.where(total > 0, total, 1)
            error += (share * np.where(share > 0, self.units.error[:, d], 0)) ** 2
        return np.sqrt(error)


class Readout:
    """Reads the windows of one store.

    Parameters
    ----------
    points : PagedPoints
    tracks : Tracks
    instruments : Instruments
    """

    def __init__(self, points: PagedPoints, tracks: Tracks, instruments: Instruments) -> None:
        self._points, self._tracks, self._instruments = points, tracks, instruments

    def __call__(self, slots: IntArray) -> Reading:
        """Read windows, in the order of ``slots``, shape (B,), int64."""
        window, source = self._gather(slots)
        which, track, present = self._which(slots, window, source)
        units = self._units(window, which, track, present)
        window, good = _in_units(window, which, units)
        lost, difference = present & ~units.usable, self._is_difference(track)
        readable = _pick(units.usable, which) & _valid(window)
        losses = {
            "no_baseline": int((lost & ~difference).sum()),
            "difference_without_reference": int((lost & difference).sum()),
            "not_finite": int((readable & ~good).sum()),
        }
        code = np.where(track >= 0, self._tracks.source[track].astype(np.int64), -1)
        return Reading(*_packed(window, which, good), units, track, code, losses)

    def _gather(self, slots: IntArray) -> tuple[Series, NDArray[np.uint16]]:
        """Points of windows as padded rows, and the source of each; padding repeats the last."""
        n = self._points.count[slots].astype(np.int64)
        index = self._points.indices(slots, max(int(n.max(initial=1)), 1))
        time, flux, error, source = self._points.columns(index)
        return Series(time, flux, error, n), source

    def _which(
        self, slots: IntArray, window: Series, source: NDArray[np.uint16]
    ) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
        """Tracks of each window, shape (B, D), which has points, and the track of each point.

        The last has shape (B, N), or (B, 1) where no window has more than one track.
        """
        columns = [self._tracks.first(slots)]
        while (more := self._tracks.after(columns[-1])).max(initial=-1) >= 0:
            columns.append(more)
        track = np.stack(columns, axis=1)
        if len(columns) == 1:
            return np.zeros((len(slots), 1), np.int64), track, window.n[:, None] > 0
        # By name, whatever came first; rows without a track stay behind the others.
        rank = np.where(track >= 0, self._instruments.rank[self._tracks.source[track]], LAST)
        track = np.take_along_axis(track, np.argsort(rank, axis=1, kind="stable"), axis=1)
        which, valid = np.zeros(source.shape, np.int64), _valid(window)
        present = np.zeros(track.shape, np.bool_)
        for d, column in enumerate(track.T):
            mine = valid & (source == self._tracks.source[column][:, None])
            mine &= column[:, None] >= 0
            which[mine] = d
            present[:, d] = mine.any(axis=1)
        return which, track, present

    def _is_difference(self, track: IntArray) -> NDArray[np.bool_]:
        """Which tracks hold difference flux; false where there is none."""
        return np.asarray(self._instruments.difference[self._tracks.source[track]] & (track >= 0))

    def _units(
        self, window: Series, which: IntArray, track: IntArray, present: NDArray[np.bool_]
    ) -> Units:
        """How each track of each window is read."""
        level, level_err, scale = np.full((3, *track.shape), np.nan)
        history = np.zeros((*track.shape, len(HISTORY)))
        for d in range(track.shape[1]):
            rows = np.flatnonzero(present[:, d])
            part = window.take(rows)
            if track.shape[1] > 1:
                of = which[rows, : part.time.shape[1]]
                part, _ = _packed(part, of, (of == d) & _valid(part))
            found = self._tracks.calibrate(track[rows, d], part)
            level[rows, d], level_err[rows, d] = found.level, found.level_err
            scale[rows, d], history[rows, d] = found.scale, found.history
        with np.errstate(divide="ignore", invalid="ignore"):
            error = level_err / level
        units = Units(level, level_err, np.zeros(level.shape), error, scale, history)
        return self._tied(units, track) if self._instruments.difference.any() else units

    def _tied(self, units: Units, track: IntArray) -> Units:
        """Give tracks of difference flux the baseline that their star's total flux has.

        Their own level is that of the quiet star above the reference image, whatever that shows:
        total = difference - level + baseline. So an error of the baseline scales what happens to
        the star, as blending does, and only that of the level shifts its quiet light.
        """
        difference = self._is_difference(track)
        base, base_err = self._known_total(track)
        relative = self._instruments.relative[self._tracks.source[track]]
        base = np.where(relative, 1.0, base)
        base_err = np.maximum(np.where(relative, 0.0, base_err), self._tracks.floor * base)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.maximum(units.level_err / base, self._tracks.floor)
        return Units(
            np.where(difference, base, units.level),
            np.where(difference, base_err, units.level_err),
            np.where(difference, base - units.level, units.offset),
            np.where(difference, error, units.error),
            units.scale,
            units.history,
        )

    def _known_total(self, track: IntArray) -> tuple[FloatArray, FloatArray]:
        """Baseline in nJy of the total flux in each track's band, and its error, shape (B, D).

        From outside the window.
        """
        level, error = np.full((2, *track.shape), np.nan)
        source = self._tracks.source[track]
        total = (track >= 0) & ~self._is_difference(track) & ~self._instruments.relative[source]
        band = self._instruments.band[source]
        for d in range(track.shape[1]):
            rows = np.flatnonzero(total[:, d])
            known = self._tracks.known(track[rows, d])
            i, at = np.nonzero(band[rows] == band[rows, d, None])
            cell = rows[i], at
            found = combine(level[cell], error[cell], *(column[i] for column in known))
            level[cell], error[cell] = found
        return level, error


def _valid(window: Series) -> NDArray[np.bool_]:
    return np.asarray(np.arange(window.time.shape[1]) < window.n[:, None])


def _pick(values: NDArray[Any], which: IntArray) -> NDArray[Any]:
    """The value of each point's track, shape (B, N), or (B, 1) where there is one track."""
    return values if values.shape[1] == 1 else np.take_along_axis(values, which, axis=1)


def _in_units(window: Series, which: IntArray, units: Units) -> tuple[Series, NDArray[np.bool_]]:
    """Flux and error in units of each point's baseline, and which of them can be used."""
    usable = units.usable
    level = np.where(usable, units.level, 1.0)
    with np.errstate(over="ignore", under="ignore"):
        flux = window.flux * _pick((1.0 / level).astype(np.float32), which)
        if (offset := np.where(usable, units.offset / level, 0.0)).any():
            flux = flux + _pick(offset.astype(np.float32), which)
        sigma = window.error * _pick((units.scale / level).astype(np.float32), which)
    good = _valid(window) & _pick(usable, which)
    if not _all_plausible(flux, sigma):
        good &= plausible(flux, sigma)
    return Series(window.time, flux, sigma, window.n), good


def _all_plausible(flux: NDArray[np.floating[Any]], sigma: NDArray[np.floating[Any]]) -> bool:
    """Whether the extremes alone show that all points are within the bounds; quick, and usual."""
    if not flux.size:
        return True
    farthest = max(float(flux.max()), 2.0 - float(flux.min()), 2.0) - 1.0
    # Where there is a NaN, both extremes are NaN, and no comparison holds.
    within = farthest < MAX_FLUX and float(sigma.max()) <= MAX_FLUX
    bounded = farthest <= MAX_SIGNIFICANCE * float(sigma.min())
    return within and bounded and not np.isnan(flux.max())


def _packed(window: Series, which: IntArray, good: NDArray[np.bool_]) -> tuple[Series, IntArray]:
    """The good points of each row moved to its front, and zero behind them."""
    n = good.sum(axis=1)
    time, flux, error = window.time, window.flux, window.error
    if not np.array_equal(good, np.arange(good.shape[1]) < n[:, None]):
        order = np.argsort(~good, axis=1, kind="stable")
        time = np.take_along_axis(time, order, axis=1)
        flux, error = (np.take_along_axis(column, order, axis=1) for column in (flux, error))
        which = which if which.shape[1] == 1 else np.take_along_axis(which, order, axis=1)
    kept = np.arange(good.shape[1]) < n[:, None]
    if not kept.all():  # copies: a row may be packed once for each of its tracks
        time = np.where(kept, time, 0)
        flux, error = np.where(kept, flux, 0), np.where(kept, error, 0)
    return Series(time, flux, error, n), which
