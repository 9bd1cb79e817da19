"""Robust statistics of the light of a star that may be varying; pure numpy.

Row statistics take light curves as rows of padded arrays: row ``i`` holds ``n[i]`` epochs in order
of time and padding of any value behind them. A row's result depends on its own epochs alone, bit
for bit, whatever the other rows and the width of the padding.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import FloatArray, IntArray

__all__ = [
    "NORMAL_QUARTILE",
    "RESIDUAL_BINS",
    "combine",
    "median_level",
    "quiet_level",
    "reduced_chi2",
    "residual_bin",
    "residual_scale",
    "roughness_scale",
    "weighted_mean",
]

NORMAL_QUARTILE: Final = 0.6744897501960817
"""Median of ``|z|`` for a standard normal ``z``."""

MIN_ROUGHNESS_POINTS: Final = 50
MIN_QUARTILE_POINTS: Final = 8
CLIP: Final = 2.5
CLIPPED_MEAN_VARIANCE: Final = 1.111
"""Variance of a mean clipped at 2.5 sigma over that of the plain mean, for normal noise."""

_EDGES: Final = np.geomspace(0.4, 4.5, 15)
Real = NDArray[np.floating[Any]]
RESIDUAL_BINS: Final = len(_EDGES) + 1


def median_level(flux: FloatArray, flux_err: FloatArray) -> tuple[float, float]:
    """Median of a light curve, and its error for Gaussian scatter (by the MAD).

    Parameters
    ----------
    flux, flux_err : ndarray, shape (n,), float64
        The scatter is taken for no less than the median error. NaN does not count.

    Returns
    -------
    level, error : float
        NaN where no flux is finite.
    """
    known = flux[np.isfinite(flux)]
    if not len(known):
        return math.nan, math.nan
    level = float(np.median(known))
    scatter = 1.4826 * float(np.median(np.abs(known - level)))
    spread = max(scatter, float(np.nanmedian(flux_err)))
    return level, spread * math.sqrt(math.pi / 2 / len(known))


def weighted_mean(
    flux: FloatArray, weight: FloatArray, group: IntArray, n_groups: int
) -> tuple[FloatArray, FloatArray]:
    """Weighted mean of each group of points.

    Parameters
    ----------
    flux, weight : ndarray, shape (n,), float64
        Weights are inverse variances.
    group : ndarray, shape (n,), int64
        The group of each point, 0 to ``n_groups - 1``; every group has a point.
    n_groups : int
        Number of groups.

    Returns
    -------
    mean, total_weight : ndarray, shape (n_groups,), float64
        The variance of the mean is ``1 / total_weight``.
    """
    total = np.asarray(np.bincount(group, weight, n_groups), np.float64)
    return np.bincount(group, weight * flux, n_groups) / total, total


def reduced_chi2(sum_of_squares: FloatArray, count: IntArray) -> FloatArray:
    """Chi2 about the mean per degree of freedom; 1 where there is none.

    Parameters
    ----------
    sum_of_squares : ndarray, shape (n,), float64
        Weighted squared deviations from the weighted mean.
    count : ndarray, shape (n,), int64
        Number of values.
    """
    return np.where(count > 1, sum_of_squares / np.maximum(count - 1.0, 1.0), 1.0)


def combine(
    first: FloatArray, first_err: FloatArray, second: FloatArray, second_err: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Inverse-variance mean of two measurements; one that is NaN is left out.

    Parameters
    ----------
    first, first_err, second, second_err : ndarray, shape (n,), float64
        Values and 1-sigma errors.

    Returns
    -------
    value, error : ndarray, shape (n,), float64
        NaN where both are missing.
    """
    w1 = np.where(np.isnan(first), 0.0, 1.0 / first_err**2)
    w2 = np.where(np.isnan(second), 0.0, 1.0 / second_err**2)
    total = w1 + w2
    with np.errstate(divide="ignore", invalid="ignore"):
        share = w1 / total
        value = np.where(
            w2 == 0, first, np.where(w1 == 0, second, second + share * (first - second))
        )
        return value, np.where(total > 0, 1.0 / np.sqrt(total), np.nan)


def residual_bin(residual: FloatArray) -> IntArray:
    """Bin of ``|residual|`` (in units of its error) in the histogram of `residual_scale`."""
    return np.searchsorted(_EDGES, np.abs(residual)).astype(np.int64)


def residual_scale(histogram: NDArray[np.unsignedinteger[Any]]) -> FloatArray:
    """By how much error bars are too small: the median of ``|residual|`` over that of a normal.

    The median leaves past flares and events without weight as long as they are rare.

    Parameters
    ----------
    histogram : ndarray, shape (n, RESIDUAL_BINS), unsigned
        Number of residuals in each bin of `residual_bin`.

    Returns
    -------
    ndarray, shape (n,), float64
        Clipped by the bins to about 0.6 to 6.7; 1 where the histogram is empty.
    """
    below = np.cumsum(histogram, axis=1, dtype=np.float64)
    half = 0.5 * below[:, -1:]
    where = np.clip((below < half).sum(axis=1), 1, RESIDUAL_BINS - 2)
    row = np.arange(len(where))
    inside = np.maximum(below[row, where] - below[row, where - 1], 1.0)
    fraction = np.clip((half[:, 0] - below[row, where - 1]) / inside, 0.0, 1.0)
    median = _EDGES[where - 1] + fraction * (_EDGES[where] - _EDGES[where - 1])
    return np.where(half[:, 0] > 0, median / NORMAL_QUARTILE, 1.0)


def roughness_scale(time: FloatArray, flux: Real, error: Real, n: IntArray) -> FloatArray:
    """By how much error bars are too small, from each point's distance to its neighbours' chord.

    An event is smooth on the scale of the cadence, so that it hardly counts, and the median
    leaves out the few points at a sharp peak. Noise correlated from one point to the next is not
    seen either: this is a start until the star has a history.

    Parameters
    ----------
    time, flux, error : ndarray, shape (B, N)
        Times in order within a row, days; flux and error in one unit.
    n : ndarray, shape (B,), int64
        Epochs of each row.

    Returns
    -------
    ndarray, shape (B,), float64
        1 for rows of fewer than 50 epochs.

    Notes
    -----
    Pseudo-residuals of Gasser, Sroka & Jennen-Steinmetz (1986), Biometrika 73, 625.
    """
    scale = np.ones(len(n))
    rows = np.flatnonzero(n >= MIN_ROUGHNESS_POINTS)
    if len(rows):
        residual = _chord_residual(time[rows], flux[rows], error[rows])
        scale[rows] = _quantile(residual, n[rows] - 2, 0.5) / NORMAL_QUARTILE
    return scale


def _chord_residual(time: FloatArray, flux: Real, error: Real) -> NDArray[np.float32]:
    """Absolute distance of each inner point from its neighbours' chord, in units of its error."""
    gap = np.diff(time, axis=1)
    f, variance = np.asarray(flux, np.float32), np.square(error, dtype=np.float32)
    with np.errstate(all="ignore"):  # padding
        left = (gap[:, 1:] / (gap[:, 1:] + gap[:, :-1])).astype(np.float32)
        right = 1 - left
        off = np.abs(f[:, 1:-1] - left * f[:, :-2] - right * f[:, 2:])
        spread = variance[:, 1:-1] + left**2 * variance[:, :-2] + right**2 * variance[:, 2:]
        distance: NDArray[np.float32] = off / np.sqrt(spread)
    return distance


def quiet_level(
    flux: Real, error: Real, n: IntArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Level of the quiet star, from a stretch of light curve that may hold an event.

    Microlensing only brightens: the estimate starts at the lower quartile, lifted to where the
    mean of a quiet star would be, and goes on as a mean clipped at 2.5 sigma. On a quiet
    star it is unbiased.

    Parameters
    ----------
    flux, error : ndarray, shape (B, N)
        In one unit.
    n : ndarray, shape (B,), int64
        Epochs of each row, at least 1.
    scale : ndarray, shape (B,), float64
        Factor on the errors.

    Returns
    -------
    level, level_err : ndarray, shape (B,), float64
        The error adds how far the two estimates and the row's median lie apart, which measures
        how far the row is from a quiet one. An event longer than the row looks like a
        brighter star.
    """
    f = np.asarray(flux, np.float64)
    valid = np.arange(f.shape[1]) < n[:, None]
    sigma = np.where(valid, np.asarray(error, np.float64) * scale[:, None], np.inf)
    weight = sigma**-2.0
    few = n < MIN_QUARTILE_POINTS
    lift = np.where(few, 0.0, NORMAL_QUARTILE)
    lifted = np.where(valid, f + lift[:, None] * np.where(valid, sigma, 0.0), 0.0)
    level = start = _quantile(lifted, n, np.where(few, 0.5, 0.25))
    f = np.where(valid, f, 0.0)
    total = np.zeros(len(n))
    for _ in range(4):
        inside = weight * (np.abs(f - level[:, None]) < CLIP * sigma)
        total = _row_sum(inside)
        shift = _row_sum(inside * (f - level[:, None])) / np.where(total > 0, total, 1.0)
        level = level + shift
    spread = _quantile(np.abs(f - level[:, None]), n, 0.5) / NORMAL_QUARTILE
    apart = np.maximum(np.abs(level - start), np.abs(_quantile(f, n, 0.5) - level))
    variance = np.where(
        total > 0, CLIPPED_MEAN_VARIANCE / np.where(total > 0, total, 1.0), spread**2
    )
    return level, np.sqrt(variance + apart**2)


def _quantile(values: Real, n: IntArray, q: float | FloatArray) -> FloatArray:
    """Quantile of the first ``n`` values of each row, between neighbours linearly."""
    valid = np.arange(values.shape[1]) < n[:, None]
    ordered = np.sort(np.where(valid, values, np.inf), axis=1)
    rank = (n - 1) * q
    low = np.floor(rank).astype(np.int64)
    row = np.arange(len(n))
    a, b = ordered[row, low], ordered[row, np.minimum(low + 1, n - 1)]
    return np.asarray(a + (rank - low) * (b - a), np.float64)


def _row_sum(values: FloatArray) -> FloatArray:
    """Sum of each row, added from left to right, so that padding leaves the last bit alone."""
    total: FloatArray = np.cumsum(values, axis=1)[:, -1]
    return total
