"""Certified K: an estimate of the Bayes factor that holds for any network, however poor.

The network proposes where the event may be; the likelihood decides. The mean over proposals of
likelihood ratio x prior / proposal density is an unbiased estimate of K, so with no event in the
data P(certified K >= k) <= 1/k by Markov's inequality, whatever the proposal was. A better one
only makes the estimate less noisy. Some rounds of adaptation sharpen the flow's samples
(population Monte Carlo, Cappe et al. 2004, J. Comput. Graph. Stat. 13, 907); the estimate comes
from a last round of fresh samples, drawn from a mixture that was fixed before.

Under the model the flux is g (1 + f_s (A - 1)) plus Gaussian noise, and g for a constant star,
with the same factor g = 1 +- b for the error of the baseline, which is integrated out exactly under
both hypotheses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.flow_sampler import LN_2_PI, FlowSampler
from broker_filter.inference.lens import excess
from broker_filter.inference.network_input import split_padding
from broker_filter.inference.prior import BoxPrior

__all__ = ["Certificate", "Certifier", "LikelihoodRatio"]

ROUNDS = 8
COMPONENTS, EM_STEPS = 8, 4
PRIOR_SHARE = 0.1
ADAPT_ESS = 100.0
EDGE = 1e-6  # nearest that a parameter may come to the edge of the box, as a share of it


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certified K of one window, with the weighted samples behind it.

    Parameters
    ----------
    log10_k : float
    log10_k_error : float
        Its Monte Carlo standard error, in dex.
    effective_sample_size : float
    theta : Tensor, shape (n, 5), float32
    weight : Tensor, shape (n,), float64
        Sums to one: with these the samples follow the exact posterior.
    """

    log10_k: float
    log10_k_error: float
    effective_sample_size: float
    theta: Tensor
    weight: Tensor


class LikelihoodRatio:
    """ln L(theta) / L(no event) of one window, with its baseline integrated out.

    Parameters
    ----------
    x : Tensor, shape (L, 3), float32
        Network input.
    baseline_error : float
        1-sigma relative error of the baseline.
    days : float
        Length of the window.
    """

    def __init__(self, x: Tensor, baseline_error: float, days: float) -> None:
        rows, valid = split_padding(x)
        t_norm, flux, sigma = rows[valid].double().unbind(-1)
        self._t = ((t_norm + 1) / 2 * days).float()
        weight = sigma**-2
        residual = weight * (flux - 1)
        self._moments = torch.stack([residual, weight], dim=1)
        self._weight = weight
        self._residual_sum, self._weight_sum = float(residual.sum()), float(weight.sum())
        self._variance = baseline_error**2
        # float64: at a large offset from the baseline it is the difference of large numbers.
        nothing = torch.zeros((), dtype=torch.float64)
        self._null = self._baseline_term(nothing, nothing, nothing)

    def __call__(self, theta: Tensor) -> Tensor:
        """Natural log of the ratio, shape (n,), float64, for ``theta`` of shape (n, 5)."""
        t0, u0, tE, rho, f_s = (column[:, None] for column in theta.float().unbind(-1))
        u = torch.sqrt(u0**2 + ((self._t - t0) / 10**tE) ** 2)
        signal = (f_s * excess(u, 10**rho)).double()
        a, b = (signal @ self._moments).unbind(-1)
        c = signal.square() @ self._weight
        return a - 0.5 * c + self._baseline_term(a, b, c) - self._null

    def _baseline_term(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """What integrating g over N(1, b^2) adds to ln L for a signal with sums a, b and c.

        With r the residual and m = 1 + signal the model: S_rm^2 v / (2 (1 + v S_mm)) minus
        ln(1 + v S_mm) / 2, where v is the variance of g (Woodbury).
        """
        r_m = self._residual_sum + a - b - c
        m_m = self._weight_sum + 2 * b + c
        grown = 1 + self._variance * m_m
        return 0.5 * (self._variance * r_m**2 / grown - torch.log(grown))


class Certifier:
    """Makes certificates for the windows of one entry.

    Parameters
    ----------
    sampler : FlowSampler
        Of the entry's flow.
    prior : BoxPrior
    days : float
        Length of the window.
    samples : int
        Of the last round; each round of adaptation takes 2/5 of it.
    """

    def __init__(
        self, sampler: FlowSampler, prior: BoxPrior, days: float, *, samples: int = 1000
    ) -> None:
        self._sampler, self._prior = sampler, prior
        self._box, self._days, self._samples = _Box(prior), days, samples

    @torch.inference_mode()
    def __call__(self, x: Tensor, baseline_error: float, s: Tensor, seed: int) -> Certificate:
        """Certify one window.

        Parameters
        ----------
        x : Tensor, shape (L, 3), float32
            Network input.
        baseline_error : float
            1-sigma relative error of the baseline.
        s : Tensor, shape (1, d)
            The encoder's summary of the window.
        seed : int
            The same seed gives the same certificate.
        """
        draw = torch.Generator().manual_seed(seed)
        ratio = LikelihoodRatio(x.cpu(), baseline_error, self._days)
        part: _Flow | _Components = _Flow(self._sampler, s.cpu())
        seen: list[tuple[Tensor, Tensor]] = []
        for _ in range(ROUNDS):
            seen.append(self._weigh(ratio, part, 2 * self._samples // 5, draw))
            theta, log_weight = (torch.cat(column) for column in zip(*seen, strict=True))
            part = _Components.fit(self._box, theta, log_weight, draw)
        theta, log_weight = self._weigh(ratio, part, self._samples, draw)
        return _certificate(theta, log_weight)

    def _weigh(
        self, ratio: LikelihoodRatio, part: _Flow | _Components, n: int, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        theta, log_density = _mixture(self._prior, part, n, draw)
        return theta, ratio(theta) + self._prior.log_density(theta).double() - log_density


def _mixture(
    prior: BoxPrior, part: _Flow | _Components, n: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Samples, shape (n, 5), float64, of prior and part together, and their log density, (n,).

    Each gives a fixed share of the samples, and the density is that of the mixture (Owen & Zhou
    2000, J. Am. Stat. Assoc. 95, 135). The prior's share keeps every weight bounded: by the
    likelihood ratio over `PRIOR_SHARE`.
    """
    n_prior = round(PRIOR_SHARE * n)
    theta = torch.cat([prior.sample(n_prior, draw).double(), part.sample(n - n_prior, draw)])
    log_density = torch.logaddexp(
        math.log(n_prior / n) + prior.log_density(theta),
        math.log(1 - n_prior / n) + part.log_density(theta),
    )
    return theta, log_density


@dataclass(frozen=True, slots=True)
class _Flow:
    """The flow's posterior of one window."""

    sampler: FlowSampler
    s: Tensor

    def sample(self, n: int, draw: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**62, (1,), generator=draw))
        return self.sampler(self.s, n, [seed])[0][0].double()

    def log_density(self, theta: Tensor) -> Tensor:
        return self.sampler.log_density(self.s, theta.float()).double()


class _Box:
    """The prior's box as all of space: z = probit of the place between its edges.

    A posterior that is flat up to an edge has Gaussian tails there, as the proposals have.
    """

    def __init__(self, prior: BoxPrior) -> None:
        self._low = torch.tensor(prior.low, dtype=torch.float64)
        self._width = torch.tensor(prior.high, dtype=torch.float64) - self._low

    def z(self, theta: Tensor) -> Tensor:
        place = (theta - self._low) / self._width
        z: Tensor = torch.special.ndtri(place.clamp(EDGE, 1 - EDGE))
        return z

    def theta(self, z: Tensor) -> Tensor:
        theta: Tensor = self._low + self._width * torch.special.ndtr(z)
        return theta

    def log_slope(self, z: Tensor) -> Tensor:
        """Natural log of |dz / dtheta|, summed over the parameters."""
        return (0.5 * z.square() + 0.5 * LN_2_PI - self._width.log()).sum(-1)


@dataclass(frozen=True, slots=True)
class _Components:
    """Mixture of Gaussians in the space of the box; some samples are spread wider.

    ``share``, ``centre`` and ``cholesky`` have shapes (M,), (M, 5) and (M, 5, 5).
    """

    box: _Box
    share: Tensor
    centre: Tensor
    cholesky: Tensor

    WIDE_SHARE: ClassVar[float] = 0.15
    WIDE: ClassVar[float] = 2.5

    @classmethod
    def fit(
        cls, box: _Box, theta: Tensor, log_weight: Tensor, draw: torch.Generator
    ) -> _Components:
        """Fit weighted samples by expectation maximisation.

        Where few samples carry all the weight, the weights are tempered until more do. Each
        component's covariance is drawn towards that of all samples, the more the fewer it has.
        """
        weight = _tempered(log_weight, ADAPT_ESS)
        kept = weight > 1e-9 * weight.max()
        z, weight = box.z(theta[kept]), weight[kept] / weight[kept].sum()
        rows = torch.multinomial(weight, COMPONENTS, replacement=True, generator=draw)
        pooled = _covariance(z, weight[None], (weight @ z)[None]) * COMPONENTS ** (-2 / z.shape[1])
        share = torch.full((COMPONENTS,), 1 / COMPONENTS, dtype=z.dtype)
        mixture = cls(box, share, z[rows], torch.linalg.cholesky(pooled.repeat(COMPONENTS, 1, 1)))
        for _ in range(EM_STEPS):
            mixture = mixture._maximised(z, weight, pooled)
        return mixture

    def _maximised(self, z: Tensor, weight: Tensor, pooled: Tensor) -> _Components:
        log_part = self.share.log()[:, None] - self._norm()[:, None] - 0.5 * self._square(z)
        belongs = log_part.softmax(0) * weight
        mass = belongs.sum(1) + 1e-12
        centre = (belongs @ z) / mass[:, None]
        prior_mass = 10 * weight.square().sum()  # as much as ten samples have
        pull = (prior_mass / (prior_mass + mass))[:, None, None]
        own = _covariance(z, belongs / mass[:, None], centre)
        share = (mass / mass.sum()).clamp(min=1e-3)
        covariance = (1 - pull) * own + pull * pooled
        return _Components(self.box, share / share.sum(), centre, torch.linalg.cholesky(covariance))

    def sample(self, n: int, draw: torch.Generator) -> Tensor:
        which = torch.multinomial(self.share, n, replacement=True, generator=draw)
        wide = torch.rand(n, 1, generator=draw, dtype=torch.float64) < self.WIDE_SHARE
        noise = torch.randn(n, self.centre.shape[1], generator=draw, dtype=torch.float64)
        scaled = noise * torch.where(wide, self.WIDE, 1.0)
        return self.box.theta(
            self.centre[which] + (self.cholesky[which] @ scaled[:, :, None])[..., 0]
        )

    def log_density(self, theta: Tensor) -> Tensor:
        z, d = self.box.z(theta), theta.shape[1]
        square = self._square(z)
        narrow = math.log(1 - self.WIDE_SHARE) - 0.5 * square
        wide = math.log(self.WIDE_SHARE / self.WIDE**d) - 0.5 * square / self.WIDE**2
        part = (self.share.log() - self._norm() - 0.5 * d * LN_2_PI)[:, None]
        return (part + torch.logaddexp(narrow, wide)).logsumexp(0) + self.box.log_slope(z)

    def _square(self, z: Tensor) -> Tensor:
        """Squared distance of each z from each centre in its own metric, shape (M, n)."""
        off = (z - self.centre[:, None]).mT
        whitened: Tensor = torch.linalg.solve_triangular(self.cholesky, off, upper=False)
        return whitened.square().sum(1)

    def _norm(self) -> Tensor:
        return self.cholesky.diagonal(dim1=1, dim2=2).log().sum(1)


def _covariance(z: Tensor, weight: Tensor, centre: Tensor) -> Tensor:
    """Covariances, shape (M, 5, 5), under weights of shape (M, n) that sum to one."""
    off = z - centre[:, None]
    floor = 1e-8 * torch.eye(z.shape[1], dtype=z.dtype)
    return (weight[..., None] * off).mT @ off + floor


def _tempered(log_weight: Tensor, least: float) -> Tensor:
    """Normalised weights to the highest power at most 1 that leaves ``least`` effective samples."""
    low, high = 0.0, 1.0
    weight = log_weight.softmax(0)
    if 1 / float(weight.square().sum()) >= least:
        return weight
    for _ in range(20):
        middle = (low + high) / 2
        weight = (middle * log_weight).softmax(0)
        low, high = (middle, high) if 1 / float(weight.square().sum()) >= least else (low, middle)
    return (low * log_weight).softmax(0) if low > 0 else weight


def _certificate(theta: Tensor, log_weight: Tensor) -> Certificate:
    n = len(log_weight)
    weight = log_weight.softmax(0)
    effective = 1 / float(weight.square().sum())
    ln_k = float(log_weight.logsumexp(0)) - math.log(n)
    # Relative variance of a mean of n weights, from their effective number.
    error = math.sqrt(max(1 / effective - 1 / n, 0.0)) / LN_10
    return Certificate(ln_k / LN_10, error, effective, theta.float(), weight)
