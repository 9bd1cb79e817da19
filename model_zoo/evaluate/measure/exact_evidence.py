"""Exact Bayes factors of simulated curves by integration.

Of the five parameters two are integrated without sampling. The source's share f_s scales the
signal, so the likelihood at any f_s follows from three sums over the epochs, and a quadrature does
the rest. Simulated epochs lie on a grid, on which these sums for all peak times t0 at once are
correlations with a template, made by FFT. What is left, u0, log10 tE and log10 rho, is sampled:
first from the prior, then around what was found there (adaptive importance sampling), so that a
narrow posterior costs little. Each estimate comes with its own Monte Carlo error.

The event class is the prior truncated by the simulator's gate, given the observing pattern; so the
share of the prior that the gate lets pass divides the integral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.lens import excess
from broker_filter.inference.network_input import split_padding
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.pattern import GRID

__all__ = ["Evidence", "ExactEvidence"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """log10 K of one curve, its Monte Carlo standard error in dex, and the templates it took."""

    log10_k: float
    error: float
    templates: int


@dataclass(frozen=True, slots=True)
class _Templates:
    """Light curves of M shapes at f_s = 1, as spectra on the grid of all peak times.

    ``unit``, shape (M, 3): u0, log10 tE, log10 rho as places between the edges of the prior.
    ``shift``, shape (M,): peak times are low + (j + shift) x step. ``tE`` and ``peak`` (A - 1 at
    the peak), shape (M,). ``spectrum`` and ``square``, shape (M, F), complex: of A - 1 and of its
    square.
    """

    unit: Tensor
    shift: Tensor
    tE: Tensor  # noqa: N815  the field's symbol
    peak: Tensor
    spectrum: Tensor
    square: Tensor

    def __len__(self) -> int:
        return len(self.unit)

    def __getitem__(self, rows: slice | Tensor) -> _Templates:
        return _Templates(*(getattr(self, f.name)[rows] for f in fields(_Templates)))


@dataclass(frozen=True, slots=True)
class _Data:
    """One curve: spectra of w r and w, with w = 1 / sigma^2 and r = F - 1; their sums; epochs.

    ``seen``, shape (places, J), int16: row i has the epochs before the points of the grid from
    i - `reach` on; ``n`` counts all. ``level``: mean sigma. ``variance``: of the baseline's error.
    """

    residual: Tensor
    weight: Tensor
    residual_sum: float
    weight_sum: float
    seen: Tensor
    n: int
    level: float
    variance: float


class ExactEvidence:
    """Integrates the evidence of a simulator's curves.

    Parameters
    ----------
    simulator : Simulator
        Whose prior, gate and baseline error define the Bayes factor.
    templates : int
        Templates drawn from the prior, shared by all curves; a multiple of 8.
    adapted : int
        Templates of each further round, drawn where the curve needs them.
    rounds : int
        Most of these.
    target : float
        Monte Carlo error at which the rounds end, in dex.
    """

    # Of the quadrature in ln f_s, an e-fold: in any case, and by the signal-to-noise found.
    NODES, NODES_PER_SNR = 3.0, 0.8
    CHUNK = 16  # templates at a time, so that their sums stay in the cache
    NEGLIGIBLE = 20.0  # in ln L below the best
    BRIGHTEST = 2000.0  # A - 1; brighter epochs rule a template out all the same

    def __init__(
        self,
        simulator: Simulator,
        *,
        templates: int = 512,
        adapted: int = 512,
        rounds: int = 5,
        target: float = 0.03,
        seed: int = 0,
    ) -> None:
        prior, days = simulator.prior, simulator.pattern.days
        self._prior, self._gate = prior, simulator.gate
        self._step, self._t0_low = days / (GRID - 1), prior.low[0]
        self._t0_range = prior.high[0] - prior.low[0]
        self._places = math.ceil(self._t0_range / self._step - 1e-9)
        self._length = _fast_length(GRID - 1 + self._places)
        self._adapted, self._rounds, self._target = adapted, rounds, target
        # Farther from the window than this no count of epochs can change.
        self._reach = GRID + self._places
        sobol: Any = torch.quasirandom.SobolEngine
        unit = sobol(4, scramble=True, seed=seed).draw(templates, dtype=torch.float64)
        self._first = self._make(unit[:, :3], unit[:, 3])
        self._seed = seed

    @torch.inference_mode()
    def __call__(self, x: Tensor, baseline_error: float) -> Evidence:
        """Evidence of one curve.

        Parameters
        ----------
        x : Tensor, shape (L, 3), float32
            Network input whose epochs were not thinned.
        baseline_error : float

        Raises
        ------
        ValueError
            If an epoch does not lie on the simulator's grid.
        """
        data = self._data(x, baseline_error)
        draw = torch.Generator().manual_seed(self._seed)
        log_mean, passed = self._integrate(data, self._first)
        share = passed.mean()
        share_error = float(passed.reshape(8, -1).mean(1).std() / share) / math.sqrt(8)
        unit, proposals = self._first.unit, [_Proposal.prior(len(self._first))]
        log_weight = log_mean
        for _ in range(self._rounds):
            if _relative_error(log_weight) < self._target * LN_10:
                break
            proposals.append(_Proposal.fit(unit, log_weight, self._adapted, draw))
            more = proposals[-1].sample(draw)
            shift = torch.rand(len(more), generator=draw, dtype=torch.float64)
            log_mean = torch.cat([log_mean, self._integrate(data, self._make(more, shift))[0]])
            unit = torch.cat([unit, more])
            log_weight = log_mean - _mixture_log_density(proposals, unit)
        ln_k = float(log_weight.logsumexp(0)) - math.log(len(unit)) - math.log(share)
        error = math.hypot(_relative_error(log_weight), share_error) / LN_10
        return Evidence(ln_k / LN_10, error, len(unit))

    def _make(self, unit: Tensor, shift: Tensor) -> _Templates:
        low, high = (
            torch.tensor(e[1:4], dtype=unit.dtype) for e in (self._prior.low, self._prior.high)
        )
        u0, log10_tE, log10_rho = (low + (high - low) * unit).unbind(-1)
        tE, rho = 10**log10_tE, 10**log10_rho
        n = torch.arange(self._length, dtype=unit.dtype)
        # Place n of the circle stands for a peak n steps after the epoch, or before it.
        n = torch.where(n < self._places, n, n - self._length)
        since = self._t0_low + (n + shift[:, None]) * self._step
        u = torch.sqrt(u0[:, None] ** 2 + (since / tE[:, None]) ** 2)
        signal = excess(u, rho[:, None]).double().clamp(max=self.BRIGHTEST)
        spectra = (torch.fft.rfft(values) for values in (signal, signal.square()))
        return _Templates(unit, shift, tE, excess(u0, rho).double(), *spectra)

    def _data(self, x: Tensor, baseline_error: float) -> _Data:
        rows, valid = split_padding(x)
        t_norm, flux, sigma = rows[valid].double().unbind(-1)
        place = (t_norm + 1) / 2 * (GRID - 1)
        i = place.round().long()
        if bool(((place - i).abs() > 0.01).any()) or bool((i.diff() < 1).any()):
            raise ValueError(
                "epochs off the simulator's grid: exact evidence needs unthinned curves"
            )
        weight = torch.zeros(self._length, dtype=torch.float64)
        residual = torch.zeros_like(weight)
        weight[i] = sigma**-2
        residual[i] = sigma**-2 * (flux - 1)
        seen = torch.zeros(GRID + 1, dtype=torch.int16)
        seen[i + 1] = 1
        seen = seen.cumsum(0, dtype=torch.int16)
        before, after = seen.new_zeros(self._reach), seen[-1:].expand(self._reach + self._places)
        return _Data(
            torch.fft.rfft(residual),
            torch.fft.rfft(weight),
            float(residual.sum()),
            float(weight.sum()),
            torch.cat([before, seen, after]).unfold(0, self._places, 1),
            len(i),
            float(sigma.mean()),
            baseline_error**2,
        )

    def _integrate(self, data: _Data, templates: _Templates) -> tuple[Tensor, Tensor]:
        """Of each template, ln of the mean likelihood ratio where the gate is open, and its share.

        Means are over t0 and f_s of the prior; shape (M,) each.
        """
        visible, low = self._gate_at(data, templates)
        passed = visible.sum(1) * self._step / self._t0_range * self._f_s_share(low)
        log_mean, best = torch.full_like(passed, -math.inf), -math.inf
        for rows in torch.split(visible.any(1).nonzero()[:, 0], self.CHUNK):
            part, here = templates[rows], visible[rows]
            log_mean[rows], best = self._integrate_chunk(data, part, here, low[rows], best)
        return log_mean, passed

    def _integrate_chunk(
        self, data: _Data, part: _Templates, visible: Tensor, low: Tensor, best: float
    ) -> tuple[Tensor, float]:
        a, b, c = (
            torch.fft.irfft(spectrum, n=self._length)[:, : self._places]
            for spectrum in (
                data.residual * part.spectrum,
                data.weight * part.spectrum,
                data.weight * part.square,
            )
        )
        bound = self._bound(data, a, b, c, low[:, None]).where(visible, -math.inf)
        best = max(best, float(bound.max()))
        m, j = (bound > best - self.NEGLIGIBLE).nonzero().unbind(1)
        f_s, prior = self._f_s_nodes(
            low, self.NODES + self.NODES_PER_SNR * math.sqrt(abs(2 * best))
        )
        # What is left is near its best, so that single precision has digits enough.
        f, a, b, c = (values.float() for values in (f_s[m], *(s[m, j, None] for s in (a, b, c))))
        ln_ratio = _log_ratio(data, f * a, f * b, f * f * c)
        mean = (prior.float()[m] * torch.exp(ln_ratio - best)).sum(1).double()
        total = torch.zeros(len(part), dtype=mean.dtype).index_add(0, m, mean)
        return torch.log(total * self._step / self._t0_range) + best, best

    def _f_s_share(self, low: Tensor) -> Tensor:
        """Share of the prior of f_s above ``low``."""
        edge, high = self._prior.low[4], self._prior.high[4]
        if self._prior.log_f_s:
            return (high / low).log() / math.log(high / edge)
        return (high - low) / (high - edge)

    def _f_s_nodes(self, low: Tensor, per_e_fold: float) -> tuple[Tensor, Tensor]:
        """Nodes of a quadrature in ln f_s from ``low`` on, and their weights by the prior.

        Both have shape (M, nodes).
        """
        edge, high = self._prior.low[4], self._prior.high[4]
        place, weight = _gauss_legendre(math.ceil(per_e_fold * math.log(high / edge)))
        span = (high / low).log()[:, None]
        f_s = low[:, None] * (span * place).exp()
        if self._prior.log_f_s:
            return f_s, span * weight / math.log(high / edge)
        return f_s, span * weight * f_s / (high - edge)

    def _gate_at(self, data: _Data, part: _Templates) -> tuple[Tensor, Tensor]:
        """At which t0 the gate opens, shape (M, J), and from which f_s on, shape (M,)."""
        steps = (torch.arange(self._places) + part.shift[:, None]) * self._step
        visible = (steps <= self._t0_range) & ((part.unit >= 0) & (part.unit <= 1)).all(1, True)
        edge = torch.full_like(part.tE, self._prior.low[4])
        gate, high = self._gate, self._prior.high[4]
        if gate is None:
            return visible, edge
        near, far = (self._epochs_within(data, part, r) for r in (gate.near, gate.far))
        visible &= (near >= gate.min_near) & (data.n - far >= gate.min_far)
        needed = gate.min_snr * data.level / part.peak
        if gate.blended:
            edge = torch.maximum(edge, needed)
            return visible & (edge < high)[:, None], edge.clamp(max=high)
        return visible & (needed < 1)[:, None], edge

    def _epochs_within(self, data: _Data, part: _Templates, radius: float) -> Tensor:
        """Epochs within ``radius`` tE of each t0, shape (M, J), int16."""
        middle = self._t0_low / self._step + part.shift
        reach = radius * part.tE / self._step
        first, last = (middle - reach).ceil().long(), (middle + reach).floor().long() + 1
        until, before = ((self._reach + i).clamp(0, len(data.seen) - 1) for i in (last, first))
        return data.seen[until] - data.seen[before]

    def _bound(self, data: _Data, a: Tensor, b: Tensor, c: Tensor, low: Tensor) -> Tensor:
        """About the largest ln likelihood ratio over f_s: as if the baseline were added."""
        if data.variance == 0:
            f = (a / c.clamp(min=1e-12)).clamp(max=self._prior.high[4]).maximum(low)
            return f * (a - 0.5 * f * c)
        gain = data.variance / (1 + data.variance * data.weight_sum)
        a, c = a - gain * data.residual_sum * b, (c - gain * b * b).clamp(min=1e-12)
        f = (a / c).clamp(max=self._prior.high[4]).maximum(low)
        return f * (a - 0.5 * f * c)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """``n`` draws: a share of the prior, and Gaussian kernels in (u0, log10 tE, log10 rho).

    Coordinates are places between the edges of the prior, so its density is one inside of them.
    """

    n: int
    prior_share: float
    centre: Tensor
    cholesky: Tensor

    KERNELS: ClassVar[int] = 64
    LEAST_EFFECTIVE: ClassVar[float] = 30.0

    @classmethod
    def prior(cls, n: int) -> _Proposal:
        return cls(n, 1.0, torch.zeros(1, 3, dtype=torch.float64), torch.eye(3).double())

    @classmethod
    def fit(cls, unit: Tensor, log_weight: Tensor, n: int, draw: torch.Generator) -> _Proposal:
        """Kernels on templates drawn by their weights, tempered until enough of them count."""
        power, weight = 1.0, log_weight.softmax(0)
        while 1 / float(weight.square().sum()) < cls.LEAST_EFFECTIVE and power > 1e-2:
            power *= 0.8
            weight = (power * log_weight).softmax(0)
        d = unit.shape[1]
        off = unit - weight @ unit
        covariance = (weight[:, None] * off).mT @ off + 1e-6 * torch.eye(d, dtype=unit.dtype)
        # Silverman 1986, Density Estimation, equation 4.14.
        bandwidth = (4 / ((d + 2) * cls.KERNELS)) ** (1 / (d + 4))
        rows = torch.multinomial(weight, cls.KERNELS, replacement=True, generator=draw)
        return cls(n, 0.1, unit[rows], bandwidth * torch.linalg.cholesky(covariance))

    def sample(self, draw: torch.Generator) -> Tensor:
        n_prior, d = round(self.prior_share * self.n), self.centre.shape[1]
        prior = torch.rand(n_prior, d, generator=draw, dtype=torch.float64)
        which = torch.randint(len(self.centre), (self.n - n_prior,), generator=draw)
        noise = torch.randn(len(which), d, generator=draw, dtype=torch.float64)
        return torch.cat([prior, self.centre[which] + noise @ self.cholesky.mT])

    def density(self, unit: Tensor) -> Tensor:
        """Shape (n,); right inside of the prior alone."""
        whiten = torch.linalg.inv(self.cholesky).mT
        square = torch.cdist(unit @ whiten, self.centre @ whiten).square()
        kernels: Tensor = (-0.5 * square).exp().mean(1) * whiten.diagonal().prod()
        density: Tensor = self.prior_share + (1 - self.prior_share) * kernels / math.tau**1.5
        return density


@cache
def _gauss_legendre(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights between 0 and 1."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)


def _mixture_log_density(proposals: list[_Proposal], unit: Tensor) -> Tensor:
    """Natural log of the density of all draws together.

    Notes
    -----
    The balance heuristic over rounds of Cornuet et al. 2012, Scand. J. Stat. 39, 798.
    """
    total = sum(p.n for p in proposals)
    density = torch.stack([p.n / total * p.density(unit) for p in proposals])
    return torch.log(density.sum(0))


def _log_ratio(data: _Data, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Natural log of the likelihood ratio for signals s with sums a = w r s, b = w s and c = w s^2.

    The flux is g (1 + s) with g ~ N(1, v), so the residual r - s has covariance 1 / w + v m m^T
    with m = 1 + s (inverse by Sherman and Morrison). The same with s = 0 is divided out.
    """
    if data.variance == 0:
        return a - 0.5 * c
    v = data.variance

    def baseline(r_m: Tensor, m_m: Tensor) -> Tensor:
        return 0.5 * v * r_m**2 / (1 + v * m_m) - 0.5 * torch.log1p(v * m_m)

    r, w = (torch.tensor(s, dtype=a.dtype) for s in (data.residual_sum, data.weight_sum))
    return a - 0.5 * c + baseline(r + a - b - c, w + 2 * b + c) - baseline(r, w)


def _relative_error(log_weight: Tensor) -> float:
    """Standard error of the mean of the weights over that mean."""
    weight = (log_weight - log_weight.max()).exp()
    return float(weight.std() / weight.mean()) / math.sqrt(len(weight))


def _fast_length(least: int) -> int:
    """The next number of at least ``least`` that has no prime factor beyond 5."""
    n = least
    while True:
        rest = n
        for p in (2, 3, 5):
            while rest % p == 0:
                rest //= p
        if rest == 1:
            return n
        n += 1
