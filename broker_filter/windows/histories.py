"""Running statistics of epochs that have left their windows: baseline, error scale, noise.

Epochs fold into the statistics one cell of the anchor grid at a time. So these depend on which
epochs left, and not on the order, the messages or the steps in which they came.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from broker_filter.windows.series import Series

__all__ = ["HISTORY_COLUMNS", "MIN_HISTORY", "NIGHT_COLUMNS", "Histories", "significant"]

MIN_HISTORY: Final = 30
MAX_SCALE: Final = 5.0
TOLERATED: Final = 3.0
"""A point further off than this many sigma is folded as if its error made it exactly that far."""

SHORT_NIGHTS: Final = 10.0
"""So many nights weigh as much as what epochs and cells say of the error of a mean."""

_CHUNK_POINTS: Final = 1 << 20

NIGHT_COLUMNS: Final = ("nights", "night_squares", "night_expected", "within", "freedom")

HISTORY_COLUMNS: Final = (
    *("count", "weight", "mean", "squares", "cells", "between", "residuals"),
    *NIGHT_COLUMNS,
)


class Histories:
    """What is known of the epochs that were folded, one row a track.

    Notes
    -----
    Row 0 is of zeros, for all tracks of which no epoch was folded.

    ===============  ===========  ===========  ====================================================
    column           dtype        unit         meaning
    ===============  ===========  ===========  ====================================================
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

    __slots__ = ("_size", *HISTORY_COLUMNS)

    def __init__(self) -> None:
        self._size = 1
        self.count = np.zeros(1, np.uint32)
        self.weight = np.zeros(1)
        self.mean = np.zeros(1)
        self.squares = np.zeros(1)
        self.cells = np.zeros(1, np.uint32)
        self.between = np.zeros(1)
        self.residuals = np.zeros((1, RESIDUAL_BINS), np.uint32)
        self.nights = np.zeros(1, np.uint32)
        self.night_squares = np.zeros(1)
        self.night_expected = np.zeros(1)
        self.within = np.zeros(1)
        self.freedom = np.zeros(1)

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return sum(getattr(self, name).nbytes for name in HISTORY_COLUMNS)

    def add(self, n: int) -> IntArray:
        """Rows for ``n`` more tracks, shape (n,), int64."""
        start, self._size = self._size, self._size + n
        for name in HISTORY_COLUMNS:
            setattr(self, name, grown(getattr(self, name), self._size))
        return np.arange(start, self._size)

    def keep(self, rows: IntArray) -> None:
        """Keep some rows alone, which become 1, 2, and so on."""
        kept = np.concatenate([[0], rows])
        for name in HISTORY_COLUMNS:
            setattr(self, name, getattr(self, name)[kept])
        self._size = len(kept)

    def state(self, rows: IntArray) -> dict[str, NDArray[Any]]:
        """A copy of some rows, as columns by the names of `HISTORY_COLUMNS`."""
        return {name: getattr(self, name)[rows] for name in HISTORY_COLUMNS}

    def restore(self, rows: IntArray, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave; older snapshots lack the columns of nights."""
        for name in HISTORY_COLUMNS:
            if name in columns or name not in NIGHT_COLUMNS:
                getattr(self, name)[rows] = columns[name]

    def fold(
        self,
        t: IntArray,
        n: IntArray,
        time: FloatArray,
        flux: NDArray[np.floating[Any]],
        error: NDArray[np.floating[Any]],
    ) -> None:
        """Add the epochs that rows have in one cell.

        Parameters
        ----------
        t, n : ndarray, shape (B,), int64
            Rows, each once, and how many epochs each gets.
        time, flux, error : ndarray, shape (sum of n,)
            Row after row, in order of time within each.
        """
        start, group = np.cumsum(n) - n, np.repeat(np.arange(len(t)), n)
        f, variance = flux.astype(np.float64), error.astype(np.float64) ** 2
        centre, scale = self._expect(t, start, Series(time, f, error, n))
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
        self._merge(t, n, centre + mean, total, squares)

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

    def noise(self, t: IntArray, scale: FloatArray) -> FloatArray:
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
        centre, scale = self.mean[t].copy(), self.scale(t)
        young = np.flatnonzero(self.count[t] < MIN_HISTORY)
        longest = int(points.n[young].max(initial=1))
        for rows in np.array_split(young, 1 + len(young) * longest // _CHUNK_POINTS):
            n = points.n[rows]
            at = start[rows, None] + np.minimum(np.arange(n.max(initial=1)), n[:, None] - 1)
            time, flux, error = points.time[at], points.flux[at], points.error[at]
            scale[rows] = significant(roughness_scale(time, flux, error, n), n)
            level = quiet_level(flux, error, n, scale[rows])
            centre[rows], _ = combine(*self.past(t[rows], least=1), *level)
        return centre, scale

    def past(self, t: IntArray, least: int) -> tuple[FloatArray, FloatArray]:
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

    def scale(self, t: IntArray) -> FloatArray:
        """Factor on the errors, from residuals; 1 where chance would do."""
        return significant(residual_scale(self.residuals[t]), self.count[t])


def significant(scale: FloatArray, n: NDArray[np.integer[Any]]) -> FloatArray:
    """An error scale, or 1 where it is larger by no more than chance makes it."""
    chance = 1 + 3 / np.sqrt(np.maximum(n, 1))
    return np.where(scale > chance, np.minimum(scale, MAX_SCALE), 1.0)
