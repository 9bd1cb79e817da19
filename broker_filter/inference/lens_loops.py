"""The density of a lensed star's data over all noises and shares f_s, as compiled loops.

Of one noise and one lens the integral over f_s is at most the largest value of what it is over,
which costs a tenth of it. Most noises of a prior are so far from the data that this alone shows
that they add nothing.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, inlined, reordered
from broker_filter.inference.normal_steps import LEAST, log_mean
from broker_filter.types import FloatArray

__all__ = ["log_densities"]

NOTHING: Final = 27.0
"""Nats below what is there, from which on hundreds of terms add less than 1e-9."""


@compiled
def log_densities(
    few: FloatArray,
    squares: FloatArray,
    mixed: FloatArray,
    log_p: FloatArray,
    variance: FloatArray,
    offsets: FloatArray,
    edges: FloatArray,
) -> Any:  # noqa: ANN401
    """Natural log of the sum over all noises, shape (m,).

    Parameters
    ----------
    few : ndarray, shape (J, c, c), float64
        Products between residuals and the columns that may be off, of J noises of scale 1.
    squares : ndarray, shape (J, m), float64
        Of the curve of each lens with itself.
    mixed : ndarray, shape (J, c, m), float64
        Of residuals and columns with the curve of each lens.
    log_p : ndarray, shape (K, J), float64
        Prior and determinants of each scale and noise.
    variance : ndarray, shape (K,), float64
        Squares of the scales.
    offsets : ndarray, shape (c - 1,), float64
        Variance by which each column is off.
    edges : ndarray, shape (steps + 1,), float64
        Of the prior of f_s; see `broker_filter.inference.normal_steps`.
    """
    n_noises, n_lenses = squares.shape
    every = len(variance) * n_noises
    start, most = np.empty(every), np.empty((every, n_lenses))
    a, b = np.empty((every, n_lenses)), np.empty((every, n_lenses))
    room = np.empty(mixed.shape[1:])
    for i in range(every):
        k, j = i // n_noises, i % n_noises
        start[i] = log_p[k, j] + _freed(
            a[i], room, few[j], squares[j], mixed[j], variance[k], offsets
        )
        b[i] = room[0]
        _largest(most[i], a[i], b[i], edges[0], edges[-1])
        most[i] += start[i]
    found = np.empty(n_lenses)
    for m in range(n_lenses):
        best = most[:, m].argmax()
        top = start[best] + log_mean(a[best, m], b[best, m], edges)
        total = 0.0
        for i in range(every):
            if most[i, m] > top - NOTHING:
                total += math.exp(start[i] + log_mean(a[i, m], b[i, m], edges) - top)
        found[m] = top + math.log(total)
    return found


@inlined
def _freed(
    square: FloatArray,
    across: FloatArray,
    few: FloatArray,
    squares: FloatArray,
    mixed: FloatArray,
    variance: float,
    offsets: FloatArray,
) -> Any:  # noqa: ANN401  float
    """Products at one scale where columns may be off by Gaussians; what ln p gains.

    ``square`` is written, and ``across``, of which row 0 then is that of the residuals. The
    inverse covariance changes by the formula of Sherman and Morrison, column by column.
    """
    own = few / variance
    _divided(square, squares, variance)
    for c in range(len(mixed)):
        _divided(across[c], mixed[c], variance)
    log_p = 0.0
    for i in range(1, len(own)):
        grown = 1 + offsets[i - 1] * own[i, i]
        share = offsets[i - 1] / grown
        log_p -= 0.5 * math.log(grown)
        _less_square(square, across[i], share)
        for c in range(len(own)):
            if c != i:
                _less(across[c], across[i], share * own[i, c])
        column = own[i].copy()
        for c in range(len(own)):
            for d in range(len(own)):
                own[c, d] -= share * column[c] * column[d]
    return log_p - 0.5 * own[0, 0]


@reordered
def _divided(found: FloatArray, x: FloatArray, by: float) -> None:
    factor = 1 / by
    for m in range(len(x)):
        found[m] = x[m] * factor


@reordered
def _less_square(found: FloatArray, x: FloatArray, share: float) -> None:
    for m in range(len(x)):
        found[m] -= share * x[m] * x[m]


@reordered
def _less(found: FloatArray, x: FloatArray, share: float) -> None:
    for m in range(len(x)):
        found[m] -= share * x[m]


@reordered
def _largest(found: FloatArray, a: FloatArray, b: FloatArray, low: float, high: float) -> None:
    """The largest value of b f - a f^2 / 2 between the outer edges."""
    for m in range(len(a)):
        own = max(a[m], LEAST)
        f = min(max(b[m] / own, low), high)
        found[m] = f * (b[m] - 0.5 * own * f)
