"""Proposals for importance sampling: mixtures of Gaussians fitted to weighted samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from broker_filter.compiled import compiled, reordered
from broker_filter.inference.exponential import exponential
from broker_filter.inference.flow_sampler import LN_2_PI
from broker_filter.inference.lens_coordinates import Bend
from broker_filter.types import FloatArray

__all__ = ["Mixture", "effective", "tempered"]


def effective(weight: Tensor) -> float:
    """Effective number of samples whose normalised weights these are."""
    return 1 / float(weight.square().sum())


@dataclass(frozen=True, slots=True)
class Mixture:
    """Prior and Gaussians, of whose samples some are spread wider.

    The prior's share keeps every weight bounded: by the likelihood ratio over that share
    (Owen & Zhou 2000, J. Am. Stat. Assoc. 95, 135).

    Parameters
    ----------
    share : Tensor, shape (M,)
        Of the Gaussians; sums to one.
    centre : Tensor, shape (M, d)
    cholesky : Tensor, shape (M, d, d)
        Lower triangular roots of the covariances.
    bend : Bend
        Of the coordinates in which they are Gaussians.
    """

    share: Tensor
    centre: Tensor
    cholesky: Tensor
    bend: Bend

    PRIOR_SHARE: ClassVar[float] = 0.1
    WIDE_SHARE: ClassVar[float] = 0.4
    WIDE: ClassVar[float] = 2.0
    COMPONENTS: ClassVar[int] = 12
    EM_STEPS: ClassVar[int] = 6
    STEPS: ClassVar[int] = 2
    MOST: ClassVar[int] = 28  # Gaussians that are kept,
    LEAST: ClassVar[float] = 5e-4  # of at least this share
    HOLD: ClassVar[float] = 10.0  # effective samples that weigh as much as what was before
    GROW: ClassVar[float] = 1.25  # of covariances, against holes between Gaussians
    AROUND: ClassVar[float] = 1.5  # of the covariance of all samples
    AROUND_SHARE: ClassVar[float] = 0.15

    @classmethod
    def fit(cls, z: Tensor, weight: Tensor, bend: Bend, draw: torch.Generator) -> Mixture:
        """Fit samples, shape (n, d), by expectation maximisation; `weight` sums to one.

        Each component's covariance is drawn towards that of all samples, the more the fewer it
        has.
        """
        kept = weight > 1e-9 * weight.max()
        z, weight = bend.straight(z[kept]), weight[kept] / weight[kept].sum()
        m, d = cls.COMPONENTS, z.shape[1]
        rows = torch.multinomial(weight, m, replacement=True, generator=draw)
        pooled = _covariance(z, weight[None], (weight @ z)[None]) * m ** (-2 / d)
        share = torch.full((m,), 1 / m, dtype=z.dtype)
        mixture = cls(share, z[rows], torch.linalg.cholesky(pooled.repeat(m, 1, 1)), bend)
        for _ in range(cls.EM_STEPS):
            mixture = mixture._maximised(z, weight, pooled)
        return mixture

    def improved(self, straight: Tensor, weight: Tensor) -> Mixture:
        """The same Gaussians after expectation maximisation on samples, shape (n, d).

        Each stays near to what it was, the more the fewer samples it has; those without are left
        out. ``straight`` has the samples as `Bend.straight` gives them; ``weight`` sums to one.
        """
        kept = weight > 1e-9 * weight.max()
        z, weight = straight[kept], weight[kept] / weight[kept].sum()
        mixture = self
        for _ in range(self.STEPS):
            mixture = mixture._nearer(z, weight, mixture._largest())
        return mixture.joined(self._around(z, weight), self.AROUND_SHARE)

    def _around(self, z: Tensor, weight: Tensor) -> Mixture:
        """One Gaussian of all samples, against holes between the others."""
        centre = (weight @ z)[None]
        root = torch.linalg.cholesky(self.AROUND * _covariance(z, weight[None], centre))
        return Mixture(torch.ones(1, dtype=z.dtype), centre, root, self.bend)

    def _largest(self) -> Tensor:
        """Rows of the Gaussians that are kept."""
        rows = self.share.topk(min(self.MOST, len(self.share))).indices
        return rows[self.share[rows] > self.LEAST]

    def _nearer(self, z: Tensor, weight: Tensor, rows: Tensor) -> Mixture:
        """One step of expectation maximisation, of some of the Gaussians."""
        share, old, root = self.share[rows], self.centre[rows], self.cholesky[rows]
        belongs = _belonging_to(share, old, root, z, weight)
        mass = belongs.sum(1) + 1e-12
        held = self.HOLD * float(weight.square().sum())
        centre = (belongs @ z + held * old) / (mass + held)[:, None]
        own = _covariance(z, belongs / mass[:, None], centre)
        pull = (held / (held + mass))[:, None, None]
        covariance = self.GROW * (1 - pull) * own + pull * root @ root.mT
        # Without their own part of it Gaussians that one round missed would be gone for good.
        share = mass + held * share
        return Mixture(share / share.sum(), centre, torch.linalg.cholesky(covariance), self.bend)

    def joined(self, other: Mixture, other_share: float) -> Mixture:
        """Components of both."""
        share = torch.cat([(1 - other_share) * self.share, other_share * other.share])
        centre = torch.cat([self.centre, other.centre])
        return Mixture(share, centre, torch.cat([self.cholesky, other.cholesky]), self.bend)

    def sample(self, n: int, draw: torch.Generator) -> Tensor:
        """Samples, shape (n, d); the prior has its share of them exactly."""
        first, d = self._first(n), self.centre.shape[1]
        noise = torch.randn(n, d, generator=draw, dtype=torch.float64)
        which = torch.multinomial(self.share, n - first, replacement=True, generator=draw)
        wide = torch.rand(n - first, 1, generator=draw, dtype=torch.float64) < self.WIDE_SHARE
        scaled = noise[first:] * torch.where(wide, self.WIDE, 1.0)
        moved = (self.cholesky[which] @ scaled[:, :, None])[..., 0]
        return torch.cat([noise[:first], self.bend.bent(self.centre[which] + moved)])

    def log_density(self, z: Tensor, n: int, straight: Tensor | None = None) -> Tensor:
        """Natural log of the density of ``n`` samples together, at z, shape (k, d); shape (k,).

        ``straight`` has z as `Bend.straight` gives it, where that is known.
        """
        straight = self.bend.straight(z) if straight is None else straight
        places = z.numpy(), straight.T.contiguous().numpy()
        gaussians = self.share.numpy(), self.centre.numpy(), self.cholesky.numpy()
        found = _log_density(*places, *gaussians, self.WIDE_SHARE, self._first(n) / n)
        return torch.from_numpy(found)

    def _first(self, n: int) -> int:
        return max(1, round(self.PRIOR_SHARE * n))

    def _maximised(self, z: Tensor, weight: Tensor, pooled: Tensor) -> Mixture:
        belongs = _belonging_to(self.share, self.centre, self.cholesky, z, weight)
        mass = belongs.sum(1) + 1e-12
        centre = (belongs @ z) / mass[:, None]
        prior_mass = 10 * weight.square().sum()  # as much as ten samples have
        pull = (prior_mass / (prior_mass + mass))[:, None, None]
        own = _covariance(z, belongs / mass[:, None], centre)
        share = (mass / mass.sum()).clamp(min=1e-3)
        covariance = (1 - pull) * own + pull * pooled
        return Mixture(share / share.sum(), centre, torch.linalg.cholesky(covariance), self.bend)


@compiled
def _log_density(
    z: FloatArray,
    straight: FloatArray,
    share: FloatArray,
    centre: FloatArray,
    root: FloatArray,
    wide: float,
    prior_share: float,
) -> Any:  # noqa: ANN401
    """As `Mixture.log_density`; of the Gaussians ``wide`` are `Mixture.WIDE` times as wide.

    ``z`` has shape (k, d), and ``straight``, in which they are Gaussians, (d, k).
    """
    d, n = straight.shape
    density, square, found = np.zeros(n), np.empty(n), np.empty(n)
    for m in range(len(centre)):
        part = share[m]
        for a in range(d):
            part /= root[m, a, a]
        _distances(square, straight, centre[m], root[m])
        _add_gaussians(density, square, (1 - wide) * part, wide / 2**d * part)
    log_prior_share, log_share = math.log(prior_share), math.log(1 - prior_share)
    for k in range(n):
        own, prior = math.log(density[k]) + log_share, log_prior_share
        for a in range(d):
            prior -= 0.5 * z[k, a] * z[k, a]
        found[k] = max(own, prior) + math.log1p(math.exp(-abs(own - prior))) - 0.5 * d * LN_2_PI
    return found


def _belonging_to(
    share: Tensor, centre: Tensor, cholesky: Tensor, z: Tensor, weight: Tensor
) -> Tensor:
    """How much of each weight belongs to each Gaussian, shape (M, k)."""
    log_share = share.log() - cholesky.diagonal(dim1=1, dim2=2).log().sum(1)
    places = z.T.contiguous().numpy(), weight.numpy()
    gaussians = log_share.numpy(), centre.numpy(), cholesky.numpy()
    return torch.from_numpy(_belonging(*places, *gaussians))


@compiled
def _belonging(
    z: FloatArray, weight: FloatArray, log_share: FloatArray, centre: FloatArray, root: FloatArray
) -> Any:  # noqa: ANN401
    """As `_belonging_to`, of z of shape (d, k)."""
    found, top = np.empty((len(centre), z.shape[1])), np.full(z.shape[1], -np.inf)
    total = np.zeros(z.shape[1])
    for m in range(len(centre)):
        _distances(found[m], z, centre[m], root[m])
        _raise(top, found[m], log_share[m])
    for m in range(len(centre)):
        _add_exponentials(total, found[m], top)
    for m in range(len(centre)):
        _part(found[m], weight, total)
    return found


@reordered
def _raise(top: FloatArray, square: FloatArray, log_share: float) -> None:
    """Squared distances become logarithms, of which the largest are kept."""
    for k in range(len(top)):
        square[k] = log_share - 0.5 * square[k]
        top[k] = max(top[k], square[k])


@reordered
def _add_exponentials(total: FloatArray, log_part: FloatArray, top: FloatArray) -> None:
    for k in range(len(total)):
        log_part[k] = exponential(log_part[k] - top[k])
        total[k] += log_part[k]


@reordered
def _part(part: FloatArray, weight: FloatArray, total: FloatArray) -> None:
    for k in range(len(part)):
        part[k] *= weight[k] / total[k]


@reordered
def _distances(square: FloatArray, z: FloatArray, centre: FloatArray, root: FloatArray) -> Any:  # noqa: ANN401
    """Squared distance of each z, shape (4, k), from a centre, by its lower triangular root."""
    by0, by1, by2, by3 = 1 / root[0, 0], 1 / root[1, 1], 1 / root[2, 2], 1 / root[3, 3]
    for k in range(len(square)):
        a = (z[0, k] - centre[0]) * by0
        b = (z[1, k] - centre[1] - root[1, 0] * a) * by1
        c = (z[2, k] - centre[2] - root[2, 0] * a - root[2, 1] * b) * by2
        d = (z[3, k] - centre[3] - root[3, 0] * a - root[3, 1] * b - root[3, 2] * c) * by3
        square[k] = a * a + b * b + c * c + d * d


@reordered
def _add_gaussians(density: FloatArray, square: FloatArray, narrow: float, wide: float) -> Any:  # noqa: ANN401
    for k in range(len(square)):
        far = exponential(-0.125 * square[k])
        near = far * far  # twice as narrow: the fourth power
        density[k] += wide * far + narrow * near * near


def _covariance(z: Tensor, weight: Tensor, centre: Tensor) -> Tensor:
    """Covariances, shape (M, d, d), under weights of shape (M, n) that sum to one."""
    places = z.T.contiguous().numpy(), weight.contiguous().numpy()
    return torch.from_numpy(_scatter(*places, centre.contiguous().numpy()))


@compiled
def _scatter(z: FloatArray, weight: FloatArray, centre: FloatArray) -> Any:  # noqa: ANN401
    """As `_covariance`, of z of shape (d, n)."""
    n_gaussians, d = centre.shape
    found, off, weighted = np.empty((n_gaussians, d, d)), np.empty(z.shape), np.empty(z.shape[1])
    for m in range(n_gaussians):
        for a in range(d):
            _centred(off[a], weighted, z[a], centre[m, a], weight[m])
            for b in range(a + 1):
                inner = _product(weighted, off[b])
                found[m, a, b] = found[m, b, a] = inner + (1e-10 if a == b else 0.0)
    return found


@reordered
def _centred(
    off: FloatArray, weighted: FloatArray, x: FloatArray, centre: float, weight: FloatArray
) -> None:
    for k in range(len(x)):
        off[k] = x[k] - centre
        weighted[k] = weight[k] * off[k]


@reordered
def _product(x: FloatArray, y: FloatArray) -> Any:  # noqa: ANN401
    total = 0.0
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


def tempered(log_weight: Tensor, least: float) -> Tensor:
    """Normalised weights to the highest power at most 1 that leaves ``least`` effective samples."""
    low, high = 0.0, 1.0
    weight = log_weight.softmax(0)
    if effective(weight) >= least:
        return weight
    for _ in range(20):
        middle = (low + high) / 2
        weight = (middle * log_weight).softmax(0)
        low, high = (middle, high) if effective(weight) >= least else (low, middle)
    return (low * log_weight).softmax(0)
