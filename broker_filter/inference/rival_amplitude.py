"""Marginal likelihood of shapes: amplitudes, baseline and the scale of the errors integrated out.

The flux of one source is ``g + sum of f_i s_i(t)`` plus noise of `broker_filter.inference.
rival_noise`. Given the scale k of the errors everything is Gaussian, so that the baseline g and the
amplitudes f are integrated in closed form; ln k by a quadrature around its maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from broker_filter.inference.log_sum import log_sum
from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.red_noise import by_place
from broker_filter.inference.rival_loops import (
    Sizes,
    best_at,
    best_curves,
    best_log_k,
    residuals,
)
from broker_filter.inference.rival_loops import log_by_noise as _log_by_noise
from broker_filter.inference.rival_noise import SourceNoise
from broker_filter.types import FloatArray

__all__ = [
    "Amplitude",
    "AnySign",
    "Between",
    "SourceBest",
    "chi2_left",
    "left_of",
    "log_by_noise",
    "log_marginal",
    "source_best",
    "spared",
]

NODES: Final = 5
LEAST: Final = 1e-9  # of a baseline's variance in a fit
SPARED: Final = 2  # epochs of a source that may be wrong


@dataclass(frozen=True, slots=True)
class Between:
    """One amplitude between the outer edges; all steps between the edges weigh the same.

    With edges in geometric steps it is uniform in the logarithm of the amplitude, by steps.
    """

    edges: tuple[float, ...]

    @classmethod
    def logarithmic(cls, low: float, high: float, steps: int) -> Between:
        """Uniform in the logarithm."""
        return cls(tuple(np.geomspace(low, high, steps + 1).tolist()))


@dataclass(frozen=True, slots=True)
class AnySign:
    """Amplitudes of either sign: Gaussians of zero mean, of one of a few sizes of equal weight."""

    sizes: tuple[float, ...]


Amplitude = Between | AnySign
"""A prior of the amplitudes of one shape."""


def log_marginal(noise: SourceNoise, columns: FloatArray, amplitude: Amplitude) -> FloatArray:
    """Natural log of the density of one source's fluxes under each shape, shape (m,).

    Averaged over the noises; see `log_by_noise`.
    """
    by_noise = log_by_noise(noise, columns, amplitude)
    return np.asarray(log_sum(by_noise + noise.log_share[:, None], axis=0))


def log_by_noise(noise: SourceNoise, columns: FloatArray, amplitude: Amplitude) -> FloatArray:
    """Natural log of the density of one source's fluxes under each noise and shape, shape (J, m).

    Without the factor (2 pi)^(-n/2).

    Parameters
    ----------
    noise : SourceNoise
    columns : ndarray, shape (n, m, q), float64
        Of m shapes, each of q columns; none for a constant star, whose q is 0.
    amplitude : Amplitude
    """
    gram, mixed = noise.products(columns)
    nodes, log_weight = _quadrature()
    width = math.sqrt(2) * _width(noise)
    found: FloatArray = _log_by_noise(
        *(gram, mixed, noise.fixed, noise.log_determinant, _sizes(noise), *_numbers(amplitude)),
        *(width * nodes, log_weight + math.log(width)),
    )
    return found


def left_of(noise: SourceNoise, columns: FloatArray, amplitude: Amplitude) -> FloatArray:
    """What the best curves of shapes leave of one source, as `SourceNoise.innovations`.

    Parameters
    ----------
    noise : SourceNoise
        Of the first of its noises.
    columns : ndarray, shape (n, m, q), float64
    amplitude : Amplitude
    """
    light, (f, offset, _) = noise.light, _best_curves(noise, columns, amplitude)
    return noise.innovations(residuals(by_place(columns), light.residual, f, offset))


def chi2_left(noise: SourceNoise, columns: FloatArray, amplitude: Amplitude) -> FloatArray:
    """Sum of squares of `left_of`, shape (m,)."""
    return _best_curves(noise, columns, amplitude)[2]


def _best_curves(
    noise: SourceNoise, columns: FloatArray, amplitude: Amplitude
) -> tuple[FloatArray, FloatArray, FloatArray]:
    gram, mixed = noise.products(columns)
    sizes = _sizes(noise)._replace(variance=max(noise.baseline_error**2, LEAST))
    numbers = _numbers(amplitude)
    found: tuple[FloatArray, FloatArray, FloatArray] = best_curves(
        gram[0], mixed[0], noise.fixed[0], sizes, *numbers
    )
    return found


@cache
def _quadrature() -> tuple[FloatArray, FloatArray]:
    """Nodes, and ln of their weights, in standard deviations times the root of 2."""
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    return nodes, np.log(weights) + nodes**2


@cache
def _numbers(amplitude: Amplitude) -> tuple[FloatArray, bool]:
    """Edges or sizes, and whether they are sizes."""
    if isinstance(amplitude, AnySign):
        return np.array(amplitude.sizes), True
    return np.array(amplitude.edges), False


def _sizes(noise: SourceNoise) -> Sizes:
    prior = noise.prior
    return Sizes(len(noise), noise.baseline_error**2, prior.scale, prior.spread)


def _width(noise: SourceNoise) -> float:
    """Standard deviation of ln k, from as many epochs and its prior."""
    return float((2 * len(noise) + noise.prior.spread**-2) ** -0.5)


@dataclass(frozen=True, slots=True)
class SourceBest:
    """The most likely amplitudes of one shape in one source.

    Parameters
    ----------
    scale : float
        Factor k on the errors, without its worst epochs.
    amplitude : ndarray, shape (q,), float64
    offset : float
        Of the baseline from the assumed one.
    curve : ndarray, shape (n,), float64
        Flux less the assumed baseline, at the epochs.
    """

    scale: float
    amplitude: FloatArray
    offset: float
    curve: FloatArray


def source_best(noise: SourceNoise, columns: FloatArray, amplitude: Amplitude) -> SourceBest:
    """The most likely curve of one shape, whose columns have shape (n, q)."""
    gram, mixed = noise.products(columns[:, None, :])
    prior = _sizes(noise), *_numbers(amplitude)
    log_k = best_log_k(gram, mixed, noise.fixed, *prior)[:, 0]
    found = [
        best_at(*of, *prior, k)
        for *of, k in zip(gram[:, 0], mixed[:, 0], noise.fixed, log_k, strict=True)
    ]
    log_p = np.array([one for one, _ in found]) - 0.5 * noise.log_determinant
    j = int((log_p + noise.log_share).argmax())
    f, k, variance = found[j][1], math.exp(log_k[j]), noise.baseline_error**2
    across = (noise.fixed[j, 0, 1] - mixed[j, 0, :, 1] @ f) / k**2
    offset = float(variance * across / (1 + variance * noise.fixed[j, 1, 1] / k**2))
    curve = offset + columns @ f
    return SourceBest(k * spared(noise.light, noise.light.residual - curve), f, offset, curve)


def spared(light: SourceLight, left: FloatArray) -> float:
    """The scatter of ``left``, in errors, without its two worst epochs, relative to all of it.

    Wrong epochs of one source are no reason to say that a curve does not describe the data.
    """
    squares = np.sort(np.square(left / light.sigma))
    kept = len(squares) - SPARED
    if kept < SPARED or not squares[-1] > 0:
        return 1.0
    return math.sqrt(float(squares[:kept].mean() / squares.mean()))
