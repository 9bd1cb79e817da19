"""The shapes of rivals as compiled loops.

All take times, shape (n,), and parameters of m curves, shape (m, d), and give the columns in which
a flux is linear, shape (q, n, m), float64.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, reordered
from broker_filter.inference.exponential import exponential
from broker_filter.types import FloatArray

__all__ = ["dip", "flare", "harmonics", "outburst", "step"]

FARTHEST: Final = 30.0  # widths
TWO_PI: Final = 2 * math.pi


@compiled
def flare(t: FloatArray, theta: FloatArray) -> Any:  # noqa: ANN401
    """Davenport's template: a fourth-order rise, and two exponential declines."""
    found = np.empty((1, len(t), len(theta)))
    peak, by_width = theta[:, 0].copy(), 1 / theta[:, 1]
    for i in range(len(t)):
        _flare(found[0, i], t[i], peak, by_width)
    return found


@reordered
def _flare(found: FloatArray, t: float, peak: FloatArray, by_width: FloatArray) -> None:
    for c in range(len(found)):
        x = (t - peak[c]) * by_width[c]
        r, f = min(max(x, -1.0), 0.0), min(max(x, 0.0), 100.0)
        rise = 1 + r * (1.941 + r * (-0.175 + r * (-2.246 - 1.125 * r)))
        fall = 0.6890 * exponential(-1.6 * f) + 0.3030 * exponential(-0.2783 * f)
        found[c] = 0.0 if x < -1 else (rise if x < 0 else fall)


@compiled
def outburst(t: FloatArray, theta: FloatArray) -> Any:  # noqa: ANN401
    """Linear rise, plateau, exponential decline."""
    found = np.empty((1, len(t), len(theta)))
    start, by_rise, by_decline = theta[:, 0].copy(), 1 / theta[:, 1], 1 / theta[:, 3]
    end = start + theta[:, 1] + theta[:, 2]
    for i in range(len(t)):
        _outburst(found[0, i], t[i], start, by_rise, end, by_decline)
    return found


@reordered
def _outburst(
    found: FloatArray,
    t: float,
    start: FloatArray,
    by_rise: FloatArray,
    end: FloatArray,
    by_decline: FloatArray,
) -> None:
    for c in range(len(found)):
        rising = min(max((t - start[c]) * by_rise[c], 0.0), 1.0)
        found[c] = rising * exponential(-max(t - end[c], 0.0) * by_decline[c])


@compiled
def dip(t: FloatArray, theta: FloatArray) -> Any:  # noqa: ANN401
    """A Gaussian, downwards."""
    found = np.empty((1, len(t), len(theta)))
    middle, by_width = theta[:, 0].copy(), 1 / theta[:, 1]
    for i in range(len(t)):
        _dip(found[0, i], t[i], middle, by_width)
    return found


@reordered
def _dip(found: FloatArray, t: float, middle: FloatArray, by_width: FloatArray) -> None:
    for c in range(len(found)):
        x = min(max((t - middle[c]) * by_width[c], -FARTHEST), FARTHEST)
        found[c] = -exponential(-0.5 * x * x)


@compiled
def step(t: FloatArray, theta: FloatArray) -> Any:  # noqa: ANN401
    """A change from one level to another."""
    found = np.empty((1, len(t), len(theta)))
    middle, by_width = theta[:, 0].copy(), 1 / theta[:, 1]
    for i in range(len(t)):
        _step(found[0, i], t[i], middle, by_width)
    return found


@reordered
def _step(found: FloatArray, t: float, middle: FloatArray, by_width: FloatArray) -> None:
    for c in range(len(found)):
        x = min(max((t - middle[c]) * by_width[c], -FARTHEST), FARTHEST)
        found[c] = 1 / (1 + exponential(-2 * x))


@compiled
def harmonics(t: FloatArray, theta: FloatArray) -> Any:  # noqa: ANN401
    """Sines and cosines of a period, and of its half and its third, these so many times smaller."""
    found = np.empty((6, len(t), len(theta)))
    frequency, middle = 1 / theta[:, 0], t.mean()
    for i in range(len(t)):
        _waves(found[0, i], found[1, i], t[i] - middle, frequency)
        _multiples(found[:, i])
    return found


@reordered
def _waves(sine: FloatArray, cosine: FloatArray, t: float, frequency: FloatArray) -> None:
    """Sine and cosine of the phase, from those of an eighth of what it is off a whole turn."""
    for c in range(len(sine)):
        turns = t * frequency[c]
        x = (turns - np.floor(turns + 0.5)) * (TWO_PI / 8)
        y = x * x
        # Taylor's series; |x| <= pi / 8.
        s = x * (1 - y / 6 * (1 - y / 20 * (1 - y / 42 * (1 - y / 72 * (1 - y / 110)))))
        versine = y * (1 - y / 12 * (1 - y / 30 * (1 - y / 56 * (1 - y / 90 * (1 - y / 132))))) / 2
        cos = 1 - versine
        for _ in range(3):
            s, cos = 2 * s * cos, 1 - 2 * s * s
        sine[c], cosine[c] = s, cos


@reordered
def _multiples(waves: FloatArray) -> None:
    for c in range(waves.shape[1]):
        s, cos = waves[0, c], waves[1, c]
        s2, cos2 = 2 * s * cos, 1 - 2 * s * s
        waves[2, c], waves[3, c] = s2 / 2, cos2 / 2
        waves[4, c], waves[5, c] = (s2 * cos + cos2 * s) / 3, (cos2 * cos - s2 * s) / 3
