"""Zuko's monotonic rational-quadratic spline as compiled loops, both ways.

Parameters of K bins are unconstrained: K widths, K heights and K - 1 derivatives at the knots
between. See `broker_filter.inference.flow_sampler`, which has the same for other devices.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled, inlined, reordered
from broker_filter.inference.exponential import exponential

__all__ = ["BOUND", "SLOPE", "forward", "inverse"]

BOUND: Final = 5.0
SLOPE: Final = math.log(1e-3)
"""Both of zuko's MonotonicRQSTransform."""

Floats = NDArray[np.float32]
WIDTHS, HEIGHTS = 0, 1


@compiled
def forward(phi: Floats, x: Floats, y: Floats, log_slope: Floats) -> None:
    """Write y and ln dy/dx at x.

    Parameters
    ----------
    phi : ndarray, shape (B, 1 or n, g, 3 K - 1), float32
        Of g splines of each window, or of each of its samples.
    x, y, log_slope : ndarray, shape (B, n, g), float32

    Notes
    -----
    Durkan et al. 2019, arXiv:1906.04032, equations 4 and 5; the identity outside of [-5, 5].
    """
    knots = _room(phi)
    for b, g, i in np.ndindex((x.shape[0], x.shape[2], x.shape[1])):
        own = phi[b, min(i, phi.shape[1] - 1), g]
        if i < phi.shape[1]:
            _place(knots, own)
        value = np.float64(x[b, i, g])
        k = _bin_of(knots[WIDTHS], value)
        if k < 0:
            y[b, i, g], log_slope[b, i, g] = value, 0.0
            continue
        x0, width, y0, height, d0, d1 = _bin(knots, own, k)
        s = height / width
        z = (value - x0) / width
        below = s + (d0 + d1 - 2 * s) * z * (1 - z)
        y[b, i, g] = y0 + height * (s * z * z + d0 * z * (1 - z)) / below
        log_slope[b, i, g] = math.log(_slope(z, s, d0, d1, below))


@compiled
def inverse(phi: Floats, y: Floats, x: Floats, log_slope: Floats) -> None:
    """Write x and ln dx/dy at y; arguments as those of `forward`, equations 6 to 8."""
    knots = _room(phi)
    for b, g, i in np.ndindex((y.shape[0], y.shape[2], y.shape[1])):
        own = phi[b, min(i, phi.shape[1] - 1), g]
        if i < phi.shape[1]:
            _place(knots, own)
        value = np.float64(y[b, i, g])
        k = _bin_of(knots[HEIGHTS], value)
        if k < 0:
            x[b, i, g], log_slope[b, i, g] = value, 0.0
            continue
        x0, width, y0, height, d0, d1 = _bin(knots, own, k)
        s = height / width
        off, bend = value - y0, d0 + d1 - 2 * s
        a2 = height * (s - d0) + off * bend
        a1, a0 = height * d0 - off * bend, -s * off
        z = 2 * a0 / (-a1 - math.sqrt(a1 * a1 - 4 * a2 * a0))
        x[b, i, g] = x0 + z * width
        log_slope[b, i, g] = -math.log(_slope(z, s, d0, d1, s + bend * z * (1 - z)))


@inlined
def _room(phi: Floats) -> Any:  # noqa: ANN401
    return np.empty((2, (phi.shape[3] + 1) // 3 + 1))


@inlined
def _place(knots: NDArray[np.float64], phi: Floats) -> None:
    """Put the knots of one spline where its widths and heights say."""
    bins = knots.shape[1] - 1
    for axis in range(2):
        own = knots[axis]
        _exponentials(own, phi[axis * bins : (axis + 1) * bins])
        total = 0.0
        for k in range(bins):
            total += own[k]
        below = 0.0
        for k in range(bins):
            share, own[k] = own[k], BOUND * (2 * below / total - 1)
            below += share
        own[bins] = BOUND


@reordered
def _exponentials(found: NDArray[np.float64], raw: Floats) -> None:
    for k in range(len(raw)):
        value = np.float64(raw[k])
        found[k] = exponential(value / (1 + abs(2 / SLOPE * value)))


@inlined
def _bin_of(knots: NDArray[np.float64], value: float) -> Any:  # noqa: ANN401  int
    """The bin in which a value lies; -1 outside of all."""
    if not (knots[0] < value <= knots[-1]):
        return -1
    k = 0
    while knots[k + 1] < value:
        k += 1
    return k


@inlined
def _bin(knots: NDArray[np.float64], phi: Floats, k: int) -> Any:  # noqa: ANN401
    """Lower corner, width, height and the slopes at both ends of a bin."""
    bins = knots.shape[1] - 1
    slopes = phi[2 * bins :]
    d0 = _derivative(slopes[k - 1]) if k > 0 else 1.0
    d1 = _derivative(slopes[k]) if k < bins - 1 else 1.0
    x, y = knots[WIDTHS], knots[HEIGHTS]
    return x[k], x[k + 1] - x[k], y[k], y[k + 1] - y[k], d0, d1


@inlined
def _derivative(raw: float) -> Any:  # noqa: ANN401  float
    value = np.float64(raw)
    return math.exp(value / (1 + abs(value / SLOPE)))


@inlined
def _slope(z: float, s: float, d0: float, d1: float, below: float) -> Any:  # noqa: ANN401  float
    """dy/dx at the share ``z`` of the bin's width."""
    grown = d1 * z * z + 2 * s * z * (1 - z) + d0 * (1 - z) ** 2
    return s * s * grown / (below * below)
