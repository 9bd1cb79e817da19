"""Marginal likelihood of a curved shape: climbs to its maxima, then samples around them.

Parameters are functions of standard normal numbers z, so that the prior is a normal distribution.
As in `broker_filter.inference.fit` samples of mixtures of Gaussians and of the prior are weighted
by likelihood x prior / proposal; the marginal likelihood is their mean weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, reordered
from broker_filter.inference.exponential import exponential
from broker_filter.inference.log_sum import log_sum
from broker_filter.types import FloatArray

__all__ = ["Marginal", "Peaks", "climb_to", "heights", "log_mean_weight", "sample_marginal"]

LN_2_PI: Final = math.log(2 * math.pi)
STEPS: Final = 10
SMALL: Final = 1e-4
FARTHEST: Final = 5.5
ROUND: Final = 150
ROUNDS: Final = 3
LOCAL: Final = 8
TEMPER: Final = 0.6
PRIOR_SHARE: Final = 0.15
WIDENED: Final = (1.0, 2.5)
"""Sizes of the Gaussians of a mixture, in standard deviations of the peak that they stand for."""
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
    damping = np.full(k, 1e-2)
    height, gradient, curvature = _slopes(residuals, z)
    for _ in range(STEPS):
        diagonal = np.einsum("kii->ki", curvature)
        damped = curvature + damping[:, None, None] * diagonal[:, None, :] * np.eye(d)
        step = np.linalg.solve(damped, gradient[..., None])[..., 0]
        tried = np.clip(z + step, -FARTHEST, FARTHEST)
        found = _slopes(residuals, tried)
        better = found[0] > height
        damping = np.clip(np.where(better, 0.2 * damping, 8 * damping), 1e-7, 1e7)
        z = np.where(better[:, None], tried, z)
        height = np.where(better, found[0], height)
        gradient = np.where(better[:, None], found[1], gradient)
        curvature = np.where(better[:, None, None], found[2], curvature)
    return Peaks(z, np.asarray(np.linalg.inv(curvature)), height)


def _slopes(residuals: Residuals, z: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Height, gradient and curvature of ln(likelihood x prior), the scale of the errors free."""
    k, d = z.shape
    moved = z[None] + SMALL * np.concatenate([np.zeros((1, d)), np.eye(d)])[:, None]
    off = residuals(moved.reshape(-1, d))
    chi2, gradient, curvature = _products(off.reshape(len(off), d + 1, k))
    scale = _scale_of(chi2, len(off))
    gradient, curvature = gradient / scale[:, None] - z, curvature / scale[:, None, None]
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
    chi2, gradient, curvature = np.zeros(k), np.zeros((k, d)), np.zeros((k, d, d))
    slope = np.empty(d)
    for i, c in np.ndindex((n, k)):
        here = off[i, 0, c]
        chi2[c] += here * here
        for a in range(d):
            slope[a] = (off[i, 1 + a, c] - here) / SMALL
            gradient[c, a] -= slope[a] * here
            for b in range(a + 1):
                curvature[c, a, b] += slope[a] * slope[b]
    for a in range(d):
        for b in range(a):
            curvature[:, b, a] = curvature[:, a, b]
    return chi2, gradient, curvature


def heights(chi2: FloatArray, n: int, z: FloatArray) -> FloatArray:
    """Natural log of likelihood x prior of n residuals with these chi2, shape (k,), at z."""
    scale = _scale_of(chi2, n)
    return np.asarray(-0.5 * n * np.log(scale) - 0.5 * chi2 / scale - 0.5 * (z**2).sum(1))


def _scale_of(chi2: FloatArray, n: int) -> FloatArray:
    """k^2 of the errors, never below what they claim."""
    return np.asarray(np.maximum(chi2 / n, 1.0))


def sample_marginal(log_target: LogTarget, peaks: Peaks, draw: np.random.Generator) -> Marginal:
    """Estimate the marginal likelihood from samples around the peaks and of the prior.

    Parameters
    ----------
    log_target : callable
        Of z, shape (m, d): natural log of the likelihood, shape (m,).
    peaks : Peaks
    draw : Generator
    """
    kept = peaks.height > peaks.height.max() - DEEP
    mixtures = [_Mixture.around(peaks.z[kept], peaks.covariance[kept])]
    z = mixtures[0].sample(ROUND, draw)
    log_p = log_target(z) + _log_prior(z)
    for _ in range(ROUNDS - 1):
        log_weight = log_p - _log_drawn(mixtures, z)
        mixtures.append(mixtures[0].with_local(z, log_weight, draw))
        new = mixtures[-1].sample(ROUND, draw)
        z = np.concatenate([z, new])
        log_p = np.concatenate([log_p, log_target(new) + _log_prior(new)])
    log_weight = log_p - _log_drawn(mixtures, z)
    return Marginal(*log_mean_weight(log_weight), z[int(log_p.argmax())])


def log_mean_weight(log_weight: FloatArray) -> tuple[float, float]:
    """Natural log of the mean of weights, shape (n,), and its standard error."""
    n, total = len(log_weight), float(log_sum(log_weight))
    effective = math.exp(2 * total - float(log_sum(2 * log_weight)))
    return total - math.log(n), math.sqrt(max(1 / effective - 1 / n, 0.0))


def _log_drawn(mixtures: Sequence[_Mixture], z: FloatArray) -> FloatArray:
    """Log of the mean density of the proposals: all samples are as if drawn from all of them."""
    each = [mixture.log_density(z) for mixture in mixtures]
    return np.asarray(log_sum(each) - math.log(len(each)))


def _log_prior(z: FloatArray) -> FloatArray:
    return np.asarray(-0.5 * (z**2 + LN_2_PI).sum(axis=-1))


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
        """The same and Gaussians at weighted samples, together as wide as those are."""
        weight = np.exp(TEMPER * (log_weight - log_weight.max()))  # few samples may hold it all
        weight /= weight.sum()
        off = z - weight @ z
        covariance = (weight[:, None] * off).T @ off + 1e-10 * np.eye(z.shape[1])
        rows = draw.choice(len(z), LOCAL, p=weight)
        narrow = np.broadcast_to(covariance / 3, (LOCAL, *covariance.shape))
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
