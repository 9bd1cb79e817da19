"""Integrals of a Gaussian likelihood over a prior that is constant by steps, in compiled loops."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, inlined
from broker_filter.types import FloatArray

__all__ = ["log_mean", "log_mean_over_f_s"]

LEAST: Final = 1e-12  # of a: where nothing is seen of a shape the mean is 1 all the same
NOTHING: Final = 45.0  # nats below the largest value, from which on a tail adds nothing
FAR: Final = 30.0  # sigmas, from which on a series stands for the tail
ROOT_2, ROOT_2_PI = math.sqrt(2.0), math.sqrt(2 * math.pi)


@inlined
def log_mean(a: float, b: float, edges: FloatArray) -> Any:  # noqa: ANN401  float
    """Log of the mean over f of exp(b f - a f^2 / 2); all steps between edges weigh the same."""
    root = math.sqrt(max(a, LEAST))
    centre = b / (root * root)
    off = (min(max(centre, edges[0]), edges[-1]) - centre) * root
    lifted, total = 0.5 * off * off, 0.0
    for i in range(len(edges) - 1):
        low, high = (edges[i] - centre) * root, (edges[i + 1] - centre) * root
        total += _between(low, high, lifted) / (edges[i + 1] - edges[i])
    mean = math.log(total * ROOT_2_PI / (root * (len(edges) - 1)))
    return mean - lifted + 0.5 * b * centre


@inlined
def _between(low: float, high: float, lifted: float) -> Any:  # noqa: ANN401  float
    """Probability of a standard normal number between bounds, times exp(lifted)."""
    if low < 0:
        low, high = -high, -low  # the tail in which small numbers stay apart
    if low < 1:
        inner = math.erf(high / ROOT_2) - math.erf(low / ROOT_2)
        return 0.5 * inner * math.exp(lifted)
    return _tail(low, lifted) - _tail(high, lifted)


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


def log_mean_over_f_s(a: FloatArray, b: FloatArray, edges: FloatArray) -> FloatArray:
    """As `log_mean`, of arrays of one shape.

    Parameters
    ----------
    a, b : ndarray, float64
    edges : ndarray, shape (steps + 1,), float64
    """
    return np.asarray(_log_means(a.ravel(), b.ravel(), edges)).reshape(a.shape)


@compiled
def _log_means(a: FloatArray, b: FloatArray, edges: FloatArray) -> Any:  # noqa: ANN401
    found = np.empty(len(a))
    for i in range(len(found)):
        found[i] = log_mean(a[i], b[i], edges)
    return found
