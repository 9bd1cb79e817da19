"""Marginal likelihood of a curved shape: climbs to its maxima, then samples around them.

Parameters are functions of standard normal numbers z, so that the prior is a normal distribution.
As in `broker_filter.inference.fit` samples of mixtures of Gaussians and of the prior are weighted
by likelihood x prior / proposal; the marginal likelihood is their mean weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, reordered
from broker_filter.inference.exponential import exponential
from broker_filter.inference.log_sum import log_sum
from broker_filter.types import FloatArray, IntArray

__all__ = ["Marginal", "Peaks", "climb_to", "heights", "log_mean_weight", "sample_marginal"]

LN_2_PI: Final = math.log(2 * math.pi)
STEPS, FIRST_STEPS, GO_ON = 10, 4, 4
"""Of a climb; of all climbs; and how many go on after these."""
SMALL: Final = 1e-4
ENOUGH, HOPELESS = 1e-2, 1e4
"""Gain of ln p from which on a climb goes no further, and damping from which on no step goes up."""
SAME: Final = 0.3
"""So near to each other, in z, climbs have come to the same place."""
FARTHEST: Final = 9.0
"""|z| that a climb reaches at most: an outburst that is brighter by far than most lies beyond 5."""
ROUNDS: Final = 5
LOCAL: Final = 6
NARROWER: Final = 2.0
"""Local Gaussians, and by how much their variance is less than that of all samples."""
ADAPT_SAMPLES: Final = 20.0
"""Effective ones that those are fitted to: few samples may hold all of the weight."""
HALVINGS: Final = 12
PRIOR_SHARE: Final = 0.15
WIDENED: Final = (1.0, 2.5)
"""Sizes of the Gaussians of a mixture, in standard deviations of the peak that they stand for."""
SHARPEST: Final = 1e10
"""Curvature of the narrowest Gaussians."""
DEEP: Final = 12.0
"""Maxima so many nats below the highest have no Gaussian of their own."""

LogTarget = Callable[[FloatArray], FloatArray]
Residuals = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Marginal:
    """Natural log of a marginal likelihood, its standard error, and the best sample, shape (d,)."""

    log_p: float
    error: float
    best: FloatArray


@dataclass(frozen=True, slots=True)
class Peaks:
    """Maxima, shape (k, d), and the inverse curvature there, shape (k, d, d)."""

    z: FloatArray
    covariance: FloatArray
    height: FloatArray


def climb_to(residuals: Residuals, z: FloatArray) -> Peaks:
    """Levenberg and Marquardt's climb from each start, shape (k, d).

    Parameters
    ----------
    residuals : callable
        Of z, shape (m, d): residuals in units of the errors, shape (n, m), the amplitudes being
        the best ones.
    """
    k, d = z.shape
    z = np.clip(z, -FARTHEST, FARTHEST)
    damping, climbing = np.full(k, 1e-2), np.ones(k, np.bool_)
    height, gradient, curvature = _slopes(residuals, z)
    for turn in range(STEPS):
        if turn == FIRST_STEPS:
            rows = _highest(z, height)
            z, damping, height = z[rows], damping[rows], height[rows]
            gradient, curvature, climbing = gradient[rows], curvature[rows], climbing[rows]
            if not climbing.any():
                break
        diagonal = np.einsum("kii->ki", curvature)
        damped = curvature + damping[:, None, None] * diagonal[:, None, :] * np.eye(d)
        step = np.linalg.solve(damped, gradient[..., None])[..., 0]
        on = np.flatnonzero(climbing)
        tried = np.clip(z[on] + step[on], -FARTHEST, FARTHEST)
        found = _slopes(residuals, tried)
        gain = found[0] - height[on]
        better = gain > 0
        damping[on] = np.clip(np.where(better, 0.2, 8.0) * damping[on], 1e-7, 1e7)
        up = on[better]
        z[up], height[up] = tried[better], found[0][better]
        gradient[up], curvature[up] = found[1][better], found[2][better]
        climbing[on] = np.where(better, gain > ENOUGH, damping[on] < HOPELESS)
        if not climbing.any():
            break
    return Peaks(z, _covariance(curvature), height)


def _covariance(curvature: FloatArray) -> FloatArray:
    """The inverse of curvatures, shape (k, d, d), which the prior alone makes 1 along any axis.

    What rounding took from that is given back, and no peak is narrower than samples can be told
    apart: of few epochs with tiny errors a curvature has both.
    """
    along, axes = np.linalg.eigh(curvature)
    variance = 1 / np.clip(along, 1.0, SHARPEST)
    return np.asarray((axes * variance[:, None, :]) @ axes.mT)


def _highest(z: FloatArray, height: FloatArray) -> IntArray:
    """Rows of the best that have not come to the same place."""
    chosen: list[int] = []
    for i in np.argsort(-height).tolist():
        if all(np.abs(z[i] - z[j]).max() > SAME for j in chosen):
            chosen.append(i)
        if len(chosen) == GO_ON:
            break
    return np.array(chosen)


def _slopes(residuals: Residuals, z: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Height, gradient and curvature of ln(likelihood x prior), the scale of the errors free."""
    k, d = z.shape
    moved = z[None] + SMALL * np.concatenate([np.zeros((1, d)), np.eye(d)])[:, None]
    off = residuals(moved.reshape(-1, d))
    chi2, gradient, curvature = _products(off.reshape(len(off), d + 1, k))
    scale = _scale_of(chi2, len(off))
    gradient, curvature = (gradient / scale).T - z, np.moveaxis(curvature / scale, -1, 0)
    return heights(chi2, len(off), z), gradient, curvature + np.eye(d)


@compiled
def _products(off: FloatArray) -> Any:  # noqa: ANN401
    """Sums of squares of residuals, and what their slopes make of gradient and curvature.

    Parameters
    ----------
    off : ndarray, shape (n, d + 1, k), float64
        At each place, and moved by `SMALL` along each axis.
    """
    n, d, k = len(off), off.shape[1] - 1, off.shape[2]
    chi2, gradient, curvature = np.zeros(k), np.zeros((d, k)), np.zeros((d, d, k))
    slope = np.empty((d, k))
    for i in range(n):
        _add_products(chi2, gradient, curvature, slope, off[i])
    for a in range(d):
        for b in range(a):
            curvature[b, a] = curvature[a, b]
    return chi2, gradient, curvature


@reordered
def _add_products(
    chi2: FloatArray,
    gradient: FloatArray,
    curvature: FloatArray,
    slope: FloatArray,
    off: FloatArray,
) -> None:
    """Those of one epoch."""
    for c in range(len(chi2)):
        chi2[c] += off[0, c] * off[0, c]
    for a in range(len(slope)):
        for c in range(len(chi2)):
            slope[a, c] = (off[1 + a, c] - off[0, c]) * (1 / SMALL)
            gradient[a, c] -= slope[a, c] * off[0, c]
        for b in range(a + 1):
            for c in range(len(chi2)):
                curvature[a, b, c] += slope[a, c] * slope[b, c]


def heights(chi2: FloatArray, n: int, z: FloatArray) -> FloatArray:
    """Natural log of likelihood x prior of n residuals with these chi2, shape (k,), at z."""
    scale = _scale_of(chi2, n)
    return np.asarray(-0.5 * n * np.log(scale) - 0.5 * chi2 / scale - 0.5 * (z**2).sum(1))


def _scale_of(chi2: FloatArray, n: int) -> FloatArray:
    """k^2 of the errors, never below what they claim."""
    return np.asarray(np.maximum(chi2 / n, 1.0))


def sample_marginal(
    log_target: LogTarget, peaks: Peaks, draw: np.random.Generator, size: int
) -> Marginal:
    """Estimate the marginal likelihood from samples around the peaks and of the prior.

    Parameters
    ----------
    log_target : callable
        Of z, shape (m, d): natural log of the likelihood, shape (m,).
    peaks : Peaks
    draw : Generator
    size : int
        Samples of each of the rounds.
    """
    kept = peaks.height > peaks.height.max() - DEEP
    mixtures = [_Mixture.around(peaks.z[kept], peaks.covariance[kept])]
    z = mixtures[0].sample(size, draw)
    log_p, log_drawn = log_target(z) + _log_prior(z), mixtures[0].log_density(z)
    for _ in range(ROUNDS - 1):
        mixture = mixtures[-1].with_local(z, log_p - log_drawn, draw)
        new = mixture.sample(size, draw)
        # Each round has as many samples: together they are as if drawn from all proposals.
        log_drawn = np.logaddexp(log_drawn, mixture.log_density(z))
        mixtures.append(mixture)
        own = log_sum([one.log_density(new) for one in mixtures])
        z, log_drawn = np.concatenate([z, new]), np.concatenate([log_drawn, own])
        log_p = np.concatenate([log_p, log_target(new) + _log_prior(new)])
    log_weight = log_p - log_drawn + math.log(ROUNDS)
    return Marginal(*log_mean_weight(log_weight), z[int(log_p.argmax())])


def log_mean_weight(log_weight: FloatArray) -> tuple[float, float]:
    """Natural log of the mean of weights, shape (n,), and its standard error."""
    n, total = len(log_weight), float(log_sum(log_weight))
    effective = math.exp(2 * total - float(log_sum(2 * log_weight)))
    return total - math.log(n), math.sqrt(max(1 / effective - 1 / n, 0.0))


def _log_prior(z: FloatArray) -> FloatArray:
    return np.asarray(-0.5 * (z**2 + LN_2_PI).sum(axis=-1))


@compiled
def _tempered(log_weight: FloatArray) -> Any:  # noqa: ANN401
    """Normalised weights to the highest power up to 1 that leaves `ADAPT_SAMPLES` effective."""
    relative = log_weight - log_weight.max()
    low, high, power = 0.0, 1.0, 1.0
    for _ in range(HALVINGS):
        weight = np.exp(power * relative)
        weight /= weight.sum()
        if 1 / (weight * weight).sum() >= ADAPT_SAMPLES:
            low = power
        else:
            high = power
        if low == 1.0:
            return weight
        power = 0.5 * (low + high)
    weight = np.exp(low * relative)
    return weight / weight.sum()


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The prior and Gaussians of equal shares, each in a few sizes.

    Parameters
    ----------
    centre : ndarray, shape (M, d), float64
    root : ndarray, shape (M, d, d), float64
        Cholesky roots of the covariances.
    """

    centre: FloatArray
    root: FloatArray

    @classmethod
    def around(cls, centre: FloatArray, covariance: FloatArray) -> _Mixture:
        """Around peaks."""
        roots = [size * np.linalg.cholesky(covariance) for size in WIDENED]
        return cls(np.tile(centre, (len(WIDENED), 1)), np.concatenate(roots))

    def with_local(
        self, z: FloatArray, log_weight: FloatArray, draw: np.random.Generator
    ) -> _Mixture:
        """The same and Gaussians at weighted samples, each about as wide as all of them."""
        weight = _tempered(log_weight)
        off = z - weight @ z
        covariance = (weight[:, None] * off).T @ off + np.eye(z.shape[1]) / SHARPEST
        rows = draw.choice(len(z), LOCAL, p=weight)
        narrow = np.broadcast_to(covariance / NARROWER, (LOCAL, *covariance.shape))
        own = _Mixture.around(z[rows], narrow)
        return _Mixture(
            np.concatenate([self.centre, own.centre]), np.concatenate([self.root, own.root])
        )

    def sample(self, n: int, draw: np.random.Generator) -> FloatArray:
        """Shape (n, d); the prior has its share exactly."""
        z = draw.normal(size=(n, self.centre.shape[1]))
        first = self._of_prior(n)
        which = draw.integers(0, len(self.centre), n - first)
        moved = (self.root[which] @ z[first:, :, None])[..., 0]
        z[first:] = self.centre[which] + moved
        return z

    def log_density(self, z: FloatArray) -> FloatArray:
        """Natural log of the density of n samples together, at those samples, shape (n,)."""
        share = self._of_prior(len(z)) / len(z)
        by_axis = np.ascontiguousarray(z.T)
        own = np.log(_density(by_axis, self.centre, self.root)) - 0.5 * len(by_axis) * LN_2_PI
        return np.asarray(np.logaddexp(math.log(share) + _log_prior(z), math.log1p(-share) + own))

    def _of_prior(self, n: int) -> int:
        return max(1, round(PRIOR_SHARE * n))


@compiled
def _density(z: FloatArray, centre: FloatArray, root: FloatArray) -> Any:  # noqa: ANN401
    """Mean density of Gaussians, of lower triangular roots, at z, shape (d, n); shape (n,).

    Without (2 pi)^(-d/2).
    """
    density, white = np.zeros(z.shape[1]), np.empty(z.shape)
    square = np.empty(z.shape[1])
    for m in range(len(centre)):
        share, square[:] = 1 / len(centre), 0.0
        for a in range(len(z)):
            _move(white[a], z[a], centre[m, a])
            for b in range(a):
                _take_away(white[a], white[b], root[m, a, b])
            _scale(white[a], square, 1 / root[m, a, a])
            share /= root[m, a, a]
        _add_exponential(density, square, share)
    return density


@reordered
def _move(white: FloatArray, z: FloatArray, centre: float) -> None:
    for k in range(len(white)):
        white[k] = z[k] - centre


@reordered
def _take_away(white: FloatArray, other: FloatArray, factor: float) -> None:
    for k in range(len(white)):
        white[k] -= factor * other[k]


@reordered
def _scale(white: FloatArray, square: FloatArray, factor: float) -> None:
    for k in range(len(white)):
        white[k] *= factor
        square[k] += white[k] * white[k]


@reordered
def _add_exponential(density: FloatArray, square: FloatArray, share: float) -> None:
    for k in range(len(density)):
        density[k] += share * exponential(-0.5 * square[k])
