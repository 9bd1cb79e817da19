"""Baselines and error scales of tracks: a track is one source's light curve of one star.

Epochs that leave a window fold into the running statistics of their track, one cell of the
anchor grid at a time. So the statistics depend on which epochs left, and not on the
order, the messages or the steps in which they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.photometry.statistics import (
    RESIDUAL_BINS,
    combine,
    quiet_level,
    reduced_chi2,
    residual_bin,
    residual_scale,
    roughness_scale,
    weighted_mean,
)
from broker_filter.types import HISTORY, FloatArray, IntArray
from broker_filter.windows.arrays import grown
from broker_filter.windows.nights import NightSums, night_sums

__all__ = ["COLUMNS", "Calibration", "Series", "Tracks"]

MIN_HISTORY: Final = 30
MAX_SCALE: Final = 5.0
TOLERATED: Final = 3.0
"""A point further off than this many sigma is folded as if its error made it exactly that far."""

SHORT_NIGHTS: Final = 10.0
"""So many nights weigh as much as what epochs and cells say of the error of a mean."""

_CHUNK_POINTS: Final = 1 << 20

NIGHT_COLUMNS: Final = ("nights", "night_squares", "night_expected", "within", "freedom")

SEEN_COLUMNS: Final = ("quiet", "unit")

TRACK_COLUMNS: Final = (
    *("slot", "following", "source", "reference", "reference_err"),
    *SEEN_COLUMNS,
)

HISTORY_COLUMNS: Final = (
    *("count", "weight", "mean", "squares", "cells", "between", "residuals"),
    *NIGHT_COLUMNS,
)
"""What is known of the epochs that were folded; tracks without any share one row of zeros."""

COLUMNS: Final = (*TRACK_COLUMNS, *HISTORY_COLUMNS)
"""All that a snapshot needs of `Tracks`, one row a track. Older ones lack those of nights,
and what was seen."""


@dataclass(frozen=True, slots=True)
class Series:
    """Light curves of tracks as padded rows, in order of time.

    Parameters
    ----------
    time : ndarray, shape (B, N), float64, MJD TAI
    flux, error : ndarray, shape (B, N), float32 or float64
        In the source's own unit, or in units of its baseline once it is read.
    n : ndarray, shape (B,), int64
        Epochs of each row; what is in the columns beyond them has no meaning.
    """

    time: FloatArray
    flux: NDArray[np.floating[Any]]
    error: NDArray[np.floating[Any]]
    n: IntArray

    def take(self, rows: IntArray) -> Series:
        """Some of the rows, ascending and each once, no wider than they need."""
        if len(rows) == len(self.n):
            return self
        n = self.n[rows]
        width = int(n.max(initial=1))
        return Series(
            *(self.time[rows, :width], self.flux[rows, :width], self.error[rows, :width]), n
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the points of a track are measured against.

    Parameters
    ----------
    level, level_err : ndarray, shape (B,), float64, the source's unit
        Baseline flux and its 1-sigma error; NaN where there is none.
    scale : ndarray, shape (B,), float64
        Factor on the error bars, 1 to 5.
    history : ndarray, shape (B, 5), float64
        Columns `broker_filter.types.HISTORY`.
    """

    level: FloatArray
    level_err: FloatArray
    scale: FloatArray
    history: FloatArray


class Tracks:
    """The running statistics of all tracks of a store, and which track a point belongs to.

    The tracks of one window form a linked list: a star has few sources, and nobody pays for
    those that it does not have.

    Parameters
    ----------
    floor : float
        Smallest relative error of a baseline.

    Notes
    -----
    The first columns have at least ``size`` rows, one a track. From ``count`` on a row is a
    history, which a track has once an epoch of it was folded; ``history`` says which, and is 0 for
    none. Fluxes are in the source's own unit: nJy, or the star's baseline where the source is
    relative.

    ===============  ===========  ===========  ====================================================
    column           dtype        unit         meaning
    ===============  ===========  ===========  ====================================================
    slot             int32                     window of the track
    following        int32                     another track of the same window; -1 for none
    source           uint16                    code of the source (`Instruments`)
    history          int32                     row of its history
    reference        float64      flux         catalogue flux; NaN where unknown
    reference_err    float64      flux         its 1-sigma error
    quiet            float32      flux         quiet star when the window was last read, or NaN
    unit             float32                   factor on the errors, at the same time
    count            uint32       epochs       epochs folded
    weight           float64      1 / flux^2   sum of 1 / error^2, less for outliers
    mean             float64      flux         their weighted mean
    squares          float64                   sum of weight * (flux - mean)^2
    cells            uint32       cells        cells of the anchor grid that the epochs came from
    between          float64                   the part of ``squares`` that lies between cells
    residuals        uint32, 16   epochs       histogram of ``|residual| / error`` (`residual_bin`)
    nights           uint32       nights       nights folded
    night_squares    float64      errors^2     their squared offsets, in errors of one epoch
    night_expected   float64                   what these are for white noise: sum of 1 / n
    within           float64      errors^2     squared residuals about the means of nights
    freedom          float64      epochs       what these are for right errors: epochs less nights
    ===============  ===========  ===========  ====================================================
    """

    __slots__ = ("_head", "_n_histories", "floor", "history", "size", *COLUMNS)

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.size = 0
        self._head = np.full(1, -1, np.int32)
        self.slot = np.zeros(1, np.int32)
        self.following = np.zeros(1, np.int32)
        self.source = np.zeros(1, np.uint16)
        self.quiet = np.zeros(1, np.float32)
        self.unit = np.zeros(1, np.float32)
        self.history = np.zeros(1, np.int32)
        self._n_histories = 1
        self.count = np.zeros(1, np.uint32)
        self.weight = np.zeros(1)
        self.mean = np.zeros(1)
        self.squares = np.zeros(1)
        self.cells = np.zeros(1, np.uint32)
        self.between = np.zeros(1)
        self.reference = np.zeros(1)
        self.reference_err = np.zeros(1)
        self.residuals = np.zeros((1, RESIDUAL_BINS), np.uint32)
        self.nights = np.zeros(1, np.uint32)
        self.night_squares = np.zeros(1)
        self.night_expected = np.zeros(1)
        self.within = np.zeros(1)
        self.freedom = np.zeros(1)

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return sum(getattr(self, name).nbytes for name in ("_head", "history", *COLUMNS))

    def add_rows(self, n_slots: int) -> None:
        """Make room for windows 0 to ``n_slots - 1``."""
        self._head = grown(self._head, n_slots, fill=-1)

    def first(self, slot: IntArray) -> IntArray:
        """One track of each window, -1 where it has none; `following` leads to the others."""
        return self._head[slot].astype(np.int64)

    def after(self, track: IntArray) -> IntArray:
        """The next track of the same window, -1 where there is none (or no track)."""
        return np.where(track >= 0, self.following[track], -1).astype(np.int64)

    def state(self) -> dict[str, NDArray[Any]]:
        """A copy of all tracks, as columns by the names of `COLUMNS`.

        They are in order of windows and sources, whatever the order in which they came.
        """
        order = np.lexsort((self.source[: self.size], self.slot[: self.size]))
        own = {name: getattr(self, name)[order] for name in TRACK_COLUMNS}
        same = np.diff(own["slot"], prepend=-1) == 0
        own["following"] = np.where(same, np.arange(self.size) - 1, -1).astype(np.int32)
        history = self.history[order]
        return own | {name: getattr(self, name)[history] for name in HISTORY_COLUMNS}

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave, as the first tracks.

        Raises
        ------
        ValueError
            The columns are not of one length.
        """
        self.size = len(columns["slot"])
        if any(len(column) != self.size for column in columns.values()):
            raise ValueError("columns of tracks are of several lengths")
        for name in TRACK_COLUMNS:
            setattr(self, name, grown(getattr(self, name), self.size))
            unseen = np.nan if name in SEEN_COLUMNS else None
            getattr(self, name)[: self.size] = columns.get(name, unseen)
        self.history = grown(self.history, self.size)
        folded = np.flatnonzero(columns["count"])
        row = self._histories(folded)
        for name in HISTORY_COLUMNS:
            if name in columns or name not in NIGHT_COLUMNS:
                getattr(self, name)[row] = columns[name][folded]
        self._lead()

    def _histories(self, track: IntArray) -> IntArray:
        """Row of the history of each track (no repeats), new where there was none."""
        new = track[self.history[track] == 0]
        start, self._n_histories = self._n_histories, self._n_histories + len(new)
        for name in HISTORY_COLUMNS:
            setattr(self, name, grown(getattr(self, name), self._n_histories))
        self.history[new] = np.arange(start, self._n_histories)
        return self.history[track].astype(np.int64)

    def _lead(self) -> None:
        """Let each window lead to its last track, which leads to its earlier ones."""
        self._head[self.slot[: self.size]] = np.arange(self.size)

    def keep(self, slots: IntArray) -> None:
        """Keep the tracks of ``slots`` (ascending) alone, whose i-th becomes window i."""
        renumbered = np.full(len(self._head), -1)
        renumbered[slots] = np.arange(len(slots))
        kept = np.flatnonzero(renumbered[self.slot[: self.size]] >= 0)
        track = np.full(self.size + 1, -1)  # the last is for a track that no other follows
        track[kept] = np.arange(len(kept))
        for name in ("history", *TRACK_COLUMNS):
            setattr(self, name, getattr(self, name)[kept])
        self._keep_histories()
        self.slot = renumbered[self.slot].astype(np.int32)
        self.following = track[self.following].astype(np.int32)
        self._head = np.full(len(slots), -1, np.int32)
        self.size = len(kept)
        self._lead()

    def _keep_histories(self) -> None:
        """Keep the histories of the tracks alone."""
        having = np.flatnonzero(self.history)
        rows = np.concatenate([[0], self.history[having]])
        for name in HISTORY_COLUMNS:
            setattr(self, name, getattr(self, name)[rows])
        self.history[having] = np.arange(1, len(rows))
        self._n_histories = len(rows)

    def of(self, slot: IntArray, source: int) -> IntArray:
        """The track of one source in each window, new where there was none.

        Parameters
        ----------
        slot : ndarray, shape (n,), int64
        source : int
            Code of the source.

        Returns
        -------
        ndarray, shape (n,), int64
        """
        track = self._find(slot, source)
        missing = track < 0
        if missing.any():
            self._add(np.unique(slot[missing]), source)
            track[missing] = self._find(slot[missing], source)
        return track

    def _find(self, slot: IntArray, source: int) -> IntArray:
        track = self.first(slot)
        while (other := (track >= 0) & (self.source[track] != source)).any():
            track[other] = self.following[track[other]]
        return track

    def _add(self, slot: IntArray, source: int) -> None:
        start, self.size = self.size, self.size + len(slot)
        for name in ("history", *TRACK_COLUMNS):
            setattr(self, name, grown(getattr(self, name), self.size))
        new = slice(start, self.size)
        self.slot[new] = slot
        self.source[new] = source
        self.following[new] = self._head[slot]
        self.reference[new] = self.reference_err[new] = np.nan
        self.quiet[new] = self.unit[new] = np.nan
        self._head[slot] = np.arange(start, self.size)

    def see(self, track: IntArray, quiet: FloatArray, unit: FloatArray) -> None:
        """Note what tracks were read with; rows of -1 are none, those not finite are not known."""
        real = track >= 0
        self.quiet[track[real]], self.unit[track[real]] = quiet[real], unit[real]

    def refer(self, track: IntArray, flux: FloatArray, error: FloatArray) -> None:
        """Take note of catalogue fluxes; of several, the one of smallest (error, flux) stays.

        Parameters
        ----------
        track : ndarray, shape (n,), int64
        flux, error : ndarray, shape (n,), float64
            Catalogue flux and error; ignored where either is not finite or not positive.
        """
        with np.errstate(invalid="ignore"):
            usable = (flux > 0) & (flux < np.inf) & (error > 0) & (error < np.inf)
            held, held_err = self.reference[track], self.reference_err[track]
            worse = (error > held_err) | ((error == held_err) & (flux >= held))
        better = np.flatnonzero(usable & ~worse)
        # The best comes last: of repeated indices numpy assigns the last.
        better = better[np.lexsort((flux[better], error[better]))[::-1]]
        self.reference[track[better]] = flux[better]
        self.reference_err[track[better]] = error[better]

    def fold(
        self,
        track: IntArray,
        time: FloatArray,
        flux: NDArray[np.floating[Any]],
        error: NDArray[np.floating[Any]],
    ) -> None:
        """Add epochs that left their window to the statistics of their tracks.

        Parameters
        ----------
        track : ndarray, shape (n,), int64
            Equal ones stand together.
        time, flux, error : ndarray, shape (n,)
            In order of time within a track; all the epochs that the track has in one cell.
        """
        start = np.flatnonzero(np.diff(track, prepend=-1))
        size = np.diff(start, append=len(track))
        group = np.repeat(np.arange(len(start)), size)
        t = self._histories(track[start])
        f, variance = flux.astype(np.float64), error.astype(np.float64) ** 2
        centre, scale = self._expect(t, start, Series(time, f, error, size))
        off = f - centre[group]
        weight = 1.0 / variance
        residual, known = self._studentised(t, off, weight, group)
        bins = group[known] * RESIDUAL_BINS + residual_bin(residual[known])
        histogram = np.bincount(bins, minlength=len(t) * RESIDUAL_BINS)
        self.residuals[t] += histogram.reshape(len(t), -1).astype(np.uint32)
        limit = TOLERATED * scale[group]
        weight *= (limit / np.maximum(np.abs(residual), limit)) ** 2
        more = night_sums(group, time, off, 1.0 / variance, weight, scale, self._night_sums(t))
        self._add_nights(t, more)
        mean, total = weighted_mean(off, weight, group, len(t))
        deviation = weight * (off - mean[group]) ** 2
        squares = np.asarray(np.bincount(group, deviation, len(t)), np.float64)
        self._merge(t, size, centre + mean, total, squares)

    def _merge(
        self, t: IntArray, n: IntArray, mean: FloatArray, total: FloatArray, squares: FloatArray
    ) -> None:
        """Chan, Golub & LeVeque (1979): the moments of two samples together."""
        together = self.weight[t] + total
        step = mean - self.mean[t]
        moved = step**2 * self.weight[t] * total / together
        self.between[t] += moved
        self.squares[t] += squares + moved
        self.mean[t] += step * total / together
        self.weight[t] = together
        self.count[t] += n.astype(np.uint32)
        self.cells[t] += np.uint32(1)

    def _night_sums(self, t: IntArray) -> NightSums:
        return NightSums(*(getattr(self, name)[t].astype(np.float64) for name in NIGHT_COLUMNS))

    def _add_nights(self, t: IntArray, more: NightSums) -> None:
        self.nights[t] += more.nights.astype(np.uint32)
        self.night_squares[t] += more.squares
        self.night_expected[t] += more.expected
        self.within[t] += more.within
        self.freedom[t] += more.freedom

    def _history(self, t: IntArray, scale: FloatArray) -> FloatArray:
        """Columns `broker_filter.types.HISTORY`, in units of errors times ``scale``."""
        found = np.zeros((len(t), len(HISTORY)))
        found[:, HISTORY.index("error_scale")] = 1.0 / scale
        rows = np.flatnonzero(t)  # of all others nothing is known
        sums, scale = self._night_sums(t[rows]), scale[rows]
        nights, freedom = np.maximum(sums.nights, 1.0), np.maximum(sums.freedom, 1.0)
        error_scale = np.where(sums.freedom > 0, np.sqrt(sums.within / freedom), 1.0) / scale
        squares = sums.squares / nights / np.square(scale)
        columns = (sums.nights, sums.freedom, error_scale, squares, sums.expected / nights)
        found[rows, : len(columns)] = np.stack(columns, axis=1)
        return found

    def _studentised(
        self, t: IntArray, off: FloatArray, weight: FloatArray, group: IntArray
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Residuals in units of their own standard deviation, and which of them mean something.

        A mature mean does not hold the new points and adds its variance; a young one was made
        from them too, and follows each by the point's share in it.
        """
        own = self.weight[t]
        mature = self.count[t] >= MIN_HISTORY
        total = own + np.bincount(group, weight, len(t))
        extra = np.where(mature, 1.0 / np.where(mature, own, 1.0), -1.0 / total)[group]
        relative = 1.0 + extra * weight
        known = relative > 1e-3
        return off * np.sqrt(weight / np.where(known, relative, 1.0)), known

    def _expect(
        self, t: IntArray, start: IntArray, points: Series
    ) -> tuple[FloatArray, FloatArray]:
        """Level and error scale that the new points of each track are judged by."""
        centre, scale = self.mean[t].copy(), self._scale(t)
        young = np.flatnonzero(self.count[t] < MIN_HISTORY)
        longest = int(points.n[young].max(initial=1))
        for rows in np.array_split(young, 1 + len(young) * longest // _CHUNK_POINTS):
            n = points.n[rows]
            at = start[rows, None] + np.minimum(np.arange(n.max(initial=1)), n[:, None] - 1)
            time, flux, error = points.time[at], points.flux[at], points.error[at]
            scale[rows] = _significant(roughness_scale(time, flux, error, n), n)
            level = quiet_level(flux, error, n, scale[rows])
            centre[rows], _ = combine(*self._past(t[rows], least=1), *level)
        return centre, scale

    def _past(self, t: IntArray, least: int) -> tuple[FloatArray, FloatArray]:
        """Mean of the history and its error; NaN where it has fewer than ``least`` points.

        The error is scaled by the scatter of nights, in place of that of points once there are
        enough of them, and of cells: noise that lasts for days shows in the latter alone.
        """
        found = np.full((2, len(t)), np.nan)
        rows = np.flatnonzero(self.count[t] >= least)
        t = t[rows]
        scatter = np.maximum(reduced_chi2(self.squares[t], self.count[t].astype(np.int64)), 1.0)
        nights = self._night_sums(t)
        of_nights = nights.squares / np.where(nights.expected > 0, nights.expected, 1.0)
        share = nights.nights / (nights.nights + SHORT_NIGHTS)
        scatter += share * (of_nights - scatter)
        of_cells = reduced_chi2(self.between[t], self.cells[t].astype(np.int64))
        found[0, rows] = self.mean[t]
        found[1, rows] = np.sqrt(np.maximum(scatter, of_cells) / self.weight[t])
        return found[0], found[1]

    def _scale(self, t: IntArray) -> FloatArray:
        return _significant(residual_scale(self.residuals[t]), self.count[t])

    def known(self, track: IntArray) -> tuple[FloatArray, FloatArray]:
        """Baseline and error from outside the window; NaN where there is none.

        The mean of the track's history from 30 points on, and the catalogue's flux, together by
        inverse variance.

        Parameters
        ----------
        track : ndarray, shape (B,), int64
        """
        reference = self.reference[track], self.reference_err[track]
        return combine(*self._past(self.history[track].astype(np.int64), MIN_HISTORY), *reference)

    def calibrate(self, track: IntArray, window: Series) -> Calibration:
        """Baseline and error scale of tracks at this moment.

        The baseline is the `known` one; where there is none, the quiet level of the window
        itself. The error scale comes from the history, else from the window.

        Parameters
        ----------
        track : ndarray, shape (B,), int64
        window : Series
            What the window holds of each track; at least one epoch a row.
        """
        level, error = self.known(track)
        history = self.history[track].astype(np.int64)
        scale, is_young = np.ones(len(track)), self.count[history] < MIN_HISTORY
        scale[~is_young] = self._scale(history[~is_young])
        if len(young := np.flatnonzero(is_young)):
            part = window.take(young)
            rough = roughness_scale(part.time, part.flux, part.error, part.n)
            scale[young] = _significant(rough, part.n)
        unknown = np.flatnonzero(np.isnan(level))
        if len(unknown):
            part = window.take(unknown)
            level[unknown], error[unknown] = quiet_level(
                part.flux, part.error, part.n, scale[unknown]
            )
        error = np.maximum(error, self.floor * np.abs(level))
        past = self._history(history, scale)
        past[:, HISTORY.index("catalogue")] = np.isfinite(self.reference[track])
        return Calibration(level, error, scale, past)


def _significant(scale: FloatArray, n: NDArray[np.integer[Any]]) -> FloatArray:
    """An error scale, or 1 where it is larger by no more than chance makes it."""
    chance = 1 + 3 / np.sqrt(np.maximum(n, 1))
    return np.where(scale > chance, np.minimum(scale, MAX_SCALE), 1.0)
