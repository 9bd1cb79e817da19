"""Marginal likelihood of shapes: amplitudes, baseline and the scale of the errors integrated out.

The flux of one source is ``g + sum of f_i s_i(t)`` plus noise of `broker_filter.inference.
rival_noise`. Given the scale k of the errors everything is Gaussian, so that the baseline g and the
amplitudes f are integrated in closed form; ln k by a quadrature around its maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from broker_filter.inference.lens_density import log_mean_over_f_s
from broker_filter.inference.log_sum import log_sum
from broker_filter.inference.rival_noise import SourceNoise
from broker_filter.types import FloatArray

__all__ = [
    "Amplitude",
    "AnySign",
    "Between",
    "SourceBest",
    "log_by_noise",
    "log_marginal",
    "source_best",
]

NODES: Final = 5
TURNS: Final = 3
"""Steps to the most likely k: its effect on the baseline changes little."""
LEAST_K: Final = 1e-3


@dataclass(frozen=True, slots=True)
class _Reduced:
    """Sums at one scale of the errors for each noise and shape, the baseline integrated out.

    Parameters
    ----------
    square : ndarray, shape (..., q, q)
        Of the shapes with themselves.
    mixed : ndarray, shape (..., q)
        Of the shapes with the residuals.
    rest : ndarray, shape (...)
        Of the residuals with themselves.
    log_baseline : ndarray, shape (...)
        What the integral over the baseline adds to ln p.
    """

    square: FloatArray
    mixed: FloatArray
    rest: FloatArray
    log_baseline: FloatArray


class Amplitude(Protocol):
    """A prior of the amplitudes of one shape."""

    def best(self, square: FloatArray, mixed: FloatArray) -> FloatArray:
        """The most likely amplitudes, shape (..., q)."""

    def log_mean(self, square: FloatArray, mixed: FloatArray) -> FloatArray:
        """Log of the mean of exp(mixed f - f square f / 2) over the prior, shape (...)."""


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

    def best(self, square: FloatArray, mixed: FloatArray) -> FloatArray:
        """See `Amplitude`."""
        f = mixed / np.maximum(square[..., 0], 1e-12)
        return np.asarray(np.clip(f, self.edges[0], self.edges[-1]))

    def log_mean(self, square: FloatArray, mixed: FloatArray) -> FloatArray:
        """See `Amplitude`."""
        return log_mean_over_f_s(square[..., 0, 0], mixed[..., 0], np.array(self.edges))


@dataclass(frozen=True, slots=True)
class AnySign:
    """Amplitudes of either sign: Gaussians of zero mean, of one of a few sizes of equal weight."""

    sizes: tuple[float, ...]

    def best(self, square: FloatArray, mixed: FloatArray) -> FloatArray:
        """See `Amplitude`."""
        inverse = np.eye(square.shape[-1]) * max(self.sizes) ** -2
        return np.asarray(np.linalg.solve(square + inverse, mixed[..., None])[..., 0])

    def log_mean(self, square: FloatArray, mixed: FloatArray) -> FloatArray:
        """See `Amplitude`."""
        each = []
        for size in self.sizes:
            grown = square * size**2 + np.eye(square.shape[-1])
            solved = np.linalg.solve(grown, size**2 * mixed[..., None])[..., 0]
            gain = 0.5 * (mixed * solved).sum(-1) - 0.5 * np.linalg.slogdet(grown)[1]
            each.append(gain)
        return np.asarray(log_sum(each) - math.log(len(each)))


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
    centre = _best_log_k(noise, gram, mixed, amplitude)
    width = _width(noise)
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    log_k = centre[..., None] + math.sqrt(2) * width * nodes
    log_p = _log_given_k(noise, gram, mixed, amplitude, log_k) + noise.prior.log_density(log_k)
    log_weight = np.log(weights) + nodes**2 + math.log(math.sqrt(2) * width)
    return np.asarray(log_sum(log_p + log_weight, axis=-1))


def _width(noise: SourceNoise) -> float:
    """Standard deviation of ln k, from as many epochs and its prior."""
    return float((2 * len(noise) + noise.prior.spread**-2) ** -0.5)


def _best_log_k(
    noise: SourceNoise, gram: FloatArray, mixed: FloatArray, amplitude: Amplitude
) -> FloatArray:
    """About the most likely ln k of each noise and shape, shape (J, m)."""
    n, before = len(noise), noise.prior.spread**-2
    log_k = np.zeros(mixed.shape[:2])
    for _ in range(TURNS):
        sums = _reduced(noise, gram, mixed, log_k)
        chi2 = _least_square(sums, amplitude) * np.exp(2 * log_k)
        likely = 0.5 * np.log(np.maximum(chi2 / n, LEAST_K**2))
        log_k = (2 * n * likely + before * math.log(noise.prior.scale)) / (2 * n + before)
    return np.asarray(log_k)


def _least_square(sums: _Reduced, amplitude: Amplitude) -> FloatArray:
    f = amplitude.best(sums.square, sums.mixed)
    inner = np.einsum("...x,...xy,...y->...", f, sums.square, f)
    return np.asarray(sums.rest - 2 * (f * sums.mixed).sum(-1) + inner)


def _reduced(
    noise: SourceNoise, gram: FloatArray, mixed: FloatArray, log_k: FloatArray
) -> _Reduced:
    """The sums at scales ``log_k``, shape (J, m, ...), the last axes being the shapes' columns."""
    extra = (1,) * (log_k.ndim - 2)
    k2 = np.exp(-2 * log_k)
    gram = gram.reshape(*gram.shape[:2], *extra, *gram.shape[2:])
    mixed = mixed.reshape(*mixed.shape[:2], *extra, *mixed.shape[2:])
    fixed = noise.fixed.reshape(len(noise.noises), 1, *extra, 2, 2)
    variance = noise.baseline_error**2
    ones = fixed[..., 1, 1] * k2
    taken = variance / (1 + variance * ones) * k2**2
    with_ones, across = mixed[..., 1], fixed[..., 0, 1]
    square = gram * k2[..., None, None]
    square = square - taken[..., None, None] * with_ones[..., :, None] * with_ones[..., None, :]
    with_rest = mixed[..., 0] * k2[..., None] - (taken * across)[..., None] * with_ones
    rest = fixed[..., 0, 0] * k2 - taken * across**2
    return _Reduced(square, with_rest, rest, -0.5 * np.log1p(variance * ones))


def _log_given_k(
    noise: SourceNoise,
    gram: FloatArray,
    mixed: FloatArray,
    amplitude: Amplitude,
    log_k: FloatArray,
) -> FloatArray:
    """Log of the density at scales of shape (J, m, K)."""
    sums = _reduced(noise, gram, mixed, log_k)
    log_p = sums.log_baseline - 0.5 * sums.rest - len(noise) * log_k
    log_p -= 0.5 * noise.log_determinant.reshape(-1, 1, 1)
    if gram.shape[-1]:
        log_p += amplitude.log_mean(sums.square, sums.mixed)
    return np.asarray(log_p)


@dataclass(frozen=True, slots=True)
class SourceBest:
    """The most likely amplitudes of one shape in one source.

    Parameters
    ----------
    scale : float
        Factor k on the errors.
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
    group = columns[:, None, :]
    gram, mixed = noise.products(group)
    log_k = _best_log_k(noise, gram, mixed, amplitude)
    log_p = _log_given_k(noise, gram, mixed, amplitude, log_k[..., None])[..., 0]
    j = int((log_p[:, 0] + noise.log_share).argmax())
    sums = _reduced(noise, gram, mixed, log_k)
    f = amplitude.best(sums.square, sums.mixed)[j, 0] if columns.shape[1] else np.zeros(0)
    k, variance = float(np.exp(log_k[j, 0])), noise.baseline_error**2
    across = (noise.fixed[j, 0, 1] - mixed[j, 0, :, 1] @ f) / k**2
    offset = float(variance * across / (1 + variance * noise.fixed[j, 1, 1] / k**2))
    return SourceBest(k, f, offset, offset + columns @ f)
