"""Integrals of a Gaussian likelihood over a prior that is constant by steps, in compiled loops."""

from __future__ import annotations

import math
from typing import Any, Final

from broker_filter.compiled import inlined
from broker_filter.types import FloatArray

__all__ = ["LEAST", "log_mean"]

LEAST: Final = 1e-12  # of a: where nothing is seen of a shape the mean is 1 all the same
NOTHING: Final = 45.0  # nats below the largest value, from which on a tail adds nothing
FAR: Final = 30.0  # sigmas, from which on a series stands for the tail
NEAR: Final = 1.0
ROOT_2, ROOT_2_PI = math.sqrt(2.0), math.sqrt(2 * math.pi)


@inlined
def log_mean(a: float, b: float, edges: FloatArray) -> Any:  # noqa: ANN401  float
    """Log of the mean over f of exp(b f - a f^2 / 2); all steps between edges weigh the same."""
    root = math.sqrt(max(a, LEAST))
    centre = b / (root * root)
    off = (min(max(centre, edges[0]), edges[-1]) - centre) * root
    lifted, total = 0.5 * off * off, 0.0
    whole = math.exp(lifted)
    low = (edges[0] - centre) * root
    before = _at(low, lifted, whole)
    for i in range(len(edges) - 1):
        high = (edges[i + 1] - centre) * root
        after = _at(high, lifted, whole)
        total += _between(low, before, high, after, whole) / (edges[i + 1] - edges[i])
        low, before = high, after
    mean = math.log(total * ROOT_2_PI / (root * (len(edges) - 1)))
    return mean - lifted + 0.5 * b * centre


@inlined
def _at(x: float, lifted: float, whole: float) -> Any:  # noqa: ANN401  float
    """Of a standard normal number the probability from 0 to x where x is near, else beyond it.

    Times ``whole``, which is exp(lifted). In either of the two small numbers stay apart.
    """
    if -NEAR < x < NEAR:
        return 0.5 * math.erf(x / ROOT_2) * whole
    return _tail(abs(x), lifted)


@inlined
def _between(low: float, before: float, high: float, after: float, whole: float) -> Any:  # noqa: ANN401  float
    """Probability of a standard normal number between bounds, from `_at` of both."""
    if low >= NEAR:
        return before - after
    if high <= -NEAR:
        return after - before
    below = before if low > -NEAR else before - 0.5 * whole
    above = after if high < NEAR else 0.5 * whole - after
    return above - below


@inlined
def _tail(x: float, lifted: float) -> Any:  # noqa: ANN401  float
    """Probability of more than x > 0, times exp(lifted), which is at most exp(x^2 / 2)."""
    below = 0.5 * x * x - lifted
    if below > NOTHING:
        return 0.0
    if x < FAR:
        return 0.5 * math.erfc(x / ROOT_2) * math.exp(lifted)
    y = 1 / (x * x)
    return math.exp(-below) / (x * ROOT_2_PI) * (1 - y * (1 - y * (3 - y * 15)))
