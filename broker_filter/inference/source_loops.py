"""Closed forms of one lens and one source, and the integral over f_s along them.

With w = sigma^-2, r = F - 1 and e = A - 1 a source is the tuple of the variance of its baseline and
the sums of w, w r, w r e, w e and w e^2. The model of the flux is g (1 + f_s e), in which g is
integrated over its Gaussian (Woodbury).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, inlined
from broker_filter.types import FloatArray

__all__ = ["NO_ERROR", "along_f_s", "baseline", "best", "exponent", "most_likely", "with_model"]

Source = tuple[float, float, float, float, float, float]

NO_ERROR: Final = 1e-9  # stands for a baseline known exactly, in fits of it
DEEP: Final = 25.0  # of the quadrature's ends below its maximum, in ln L
NEWTON_STEPS: Final = 3


@inlined
def with_model(f_s: float, source: Source) -> Any:  # noqa: ANN401  (float, float)
    """Sums of w (F - m) m and of w m^2, where m = 1 + f_s e."""
    _, w, wr, re, e, ee = source
    return wr + f_s * (re - e) - f_s * f_s * ee, w + 2 * f_s * e + f_s * f_s * ee


@inlined
def baseline(f_s: float, source: Source) -> Any:  # noqa: ANN401  float
    """Most likely factor g, given f_s."""
    r_m, m_m = with_model(f_s, source)
    return 1 + source[0] * r_m / (1 + source[0] * m_m)


@inlined
def exponent(f_s: float, source: Source) -> Any:  # noqa: ANN401  float
    """Log likelihood at the best g, but for what neither lens nor f_s changes."""
    r_m, m_m = with_model(f_s, source)
    v = source[0]
    return f_s * (source[3] - 0.5 * f_s * source[5]) + 0.5 * v * r_m * r_m / (1 + v * m_m)


@inlined
def best(source: Source, low: float, high: float) -> Any:  # noqa: ANN401  float
    """Most likely f_s, by least squares: the flux is linear in g and in g f_s."""
    v, w, wr, re, e, ee = source
    v = max(v, NO_ERROR**2)
    total = 1 + v * w
    # The floor is for lenses of which nothing is seen.
    determinant = max(ee * total - v * e * e, 1e-300)
    g = 1 + v * (ee * wr - e * re) / determinant
    f_s = (total * re - v * e * wr) / determinant / g
    return min(max(f_s, low), high) if g > 0 and f_s == f_s else low


@inlined
def _slope(f_s: float, source: Source) -> Any:  # noqa: ANN401  float
    """Derivative of ln of the ratio by f_s."""
    v, _, _, re, e, ee = source
    r_m, m_m = with_model(f_s, source)
    grown = 1 + v * m_m
    by_m = v * (e + f_s * ee)
    inner = v * r_m * (re - e - 2 * f_s * ee) / grown
    return re - f_s * ee + inner - by_m * (v * r_m * r_m / (grown * grown) + 1 / grown)


@inlined
def _bend(f_s: float, source: Source) -> Any:  # noqa: ANN401  float
    """Minus the second derivative, about; never negative."""
    v, _, _, _, e, ee = source
    r_m, m_m = with_model(f_s, source)
    grown = 1 + v * m_m
    m_e = e + f_s * ee
    factor = 1 + v * r_m / grown
    return factor * factor * max(ee - v * m_e * m_e / grown, 0.0)


@inlined
def _around(source: Source, low: float, high: float) -> Any:  # noqa: ANN401  (float, float)
    """Where f_s may be: ends about `DEEP` below the maximum, in the prior."""
    f_s = best(source, low, high)
    for _ in range(NEWTON_STEPS):
        moved = f_s + _slope(f_s, source) / (_bend(f_s, source) + 1e-12)
        f_s = min(max(moved, low), high)
    slope = _slope(f_s, source)
    root = math.sqrt(slope * slope + 2 * _bend(f_s, source) * DEEP) + 1e-9
    down = 2 * DEEP / (root + min(max(slope, -root), root))
    up = 2 * DEEP / (root - min(max(slope, -root), root))
    return max(f_s - max(down, 0.0), low), min(f_s + up, high)


@compiled
def most_likely(sums: FloatArray, sources: FloatArray, low: float, high: float) -> Any:  # noqa: ANN401
    """The best f_s, and ln of the ratio at it and at the best baseline.

    Parameters
    ----------
    sums : ndarray, shape (3, n, S), float64
        Of w r e, w e and w e^2.
    sources : ndarray, shape (3, S), float64
        Variance of the baseline, sums of w and of w r.
    low, high : float
        Of f_s.

    Returns
    -------
    ndarray, shape (n, S), float64
    ndarray, shape (n, S), float64
    """
    f_s, log_ratio = np.empty(sums.shape[1:]), np.empty(sums.shape[1:])
    for i, s in np.ndindex(f_s.shape):
        source = _source(sums, sources, i, s)
        f_s[i, s] = best(source, low, high)
        log_ratio[i, s] = exponent(f_s[i, s], source) - exponent(0.0, source)
    return f_s, log_ratio


@compiled
def along_f_s(
    sums: FloatArray,
    sources: FloatArray,
    low: float,
    high: float,
    uniform_in_log: bool,
    places: FloatArray,
) -> Any:  # noqa: ANN401
    """Likelihood and prior along the square root of f_s, where they are not next to nothing.

    Parameters
    ----------
    sums, sources, low, high
        As of `most_likely`.
    uniform_in_log : bool
        Whether the prior is uniform in log f_s and not in f_s.
    places : ndarray, shape (N,), float64
        Of the nodes between the ends, from 0 to 1.

    Returns
    -------
    ndarray, shape (2, n, S), float64
        Ends of the root.
    ndarray, shape (n, S, N), float64
        ln of the likelihood ratio times the prior's density of the root, at the nodes.
    """
    n, n_sources = sums.shape[1:]
    ends, log = np.empty((2, n, n_sources)), np.empty((n, n_sources, len(places)))
    density = 2 / math.log(high / low) if uniform_in_log else 2 / (high - low)
    for i, s in np.ndindex((n, n_sources)):
        source = _source(sums, sources, i, s)
        v, w, wr = source[:3]
        constant = v * wr * wr / (1 + v * w)
        first, last = _around(source, low, high)
        a, b = math.sqrt(first), math.sqrt(last)
        ends[0, i, s], ends[1, i, s] = a, b
        for k in range(len(places)):
            root = a + (b - a) * places[k]
            f_s = root * root
            _, m_m = with_model(f_s, source)
            factor = density / root if uniform_in_log else density * root
            # One logarithm for the prior and for the determinants of Woodbury's formula.
            weight = factor * factor * (1 + v * w) / (1 + v * m_m)
            log[i, s, k] = exponent(f_s, source) + 0.5 * (math.log(weight) - constant)
    return ends, log


@inlined
def _source(sums: FloatArray, sources: FloatArray, i: int, s: int) -> Any:  # noqa: ANN401  Source
    v, w, wr = sources[0, s], sources[1, s], sources[2, s]
    return v, w, wr, sums[0, i, s], sums[1, i, s], sums[2, i, s]
