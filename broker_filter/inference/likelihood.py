"""Likelihood of a lens for the epochs of one star, factorised by source.

Under the model the flux of a source (a site, camera or field of one band) is g (1 + f_s (A - 1))
plus Gaussian noise, and g for a constant star. The factor g = 1 +- b stands for the error of the
source's baseline, and the share f_s of its flux that is lensed is its own too: another site sees
other neighbours. Both are integrated out, so that four parameters are left, which all sources
share: t0, u0, log10 tE and log10 rho.

Given these and e = A - 1, a source enters through the sums of w, w r, w e, w r e and w e^2 alone
(w = sigma^-2, r = F - 1). With them the integral over g is closed (Woodbury), and that over f_s is
a quadrature in one dimension around its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.lens import excess_by_curve
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import StarEpochs

__all__ = ["BestCurve", "Likelihood", "Sums", "bounded_excess"]

F_S = 4
NODES = 32
DEEP = 25.0  # of the quadrature's ends below its maximum, in ln L
NEWTON_STEPS = 3
DRAW_NODES = 65
POINTS_AT_ONCE = 1 << 16  # so that intermediate results stay in the processor's cache
EXCESS_MAX = 1e6  # of a point source that the lens hits
NO_ERROR = 1e-9  # stands for a baseline known exactly, in fits of it


@dataclass(frozen=True, slots=True)
class Sums:
    """Of each lens and source the sums of w r e, w e and w e^2, shape (n, S), float64."""

    re_sum: Tensor
    e_sum: Tensor
    ee_sum: Tensor

    def __getitem__(self, rows: Tensor) -> Sums:
        return Sums(self.re_sum[rows], self.e_sum[rows], self.ee_sum[rows])

    @classmethod
    def join(cls, parts: Sequence[Sums]) -> Sums:
        """The lenses of all parts."""
        columns = ([p.re_sum for p in parts], [p.e_sum for p in parts], [p.ee_sum for p in parts])
        return cls(*(torch.cat(column) for column in columns))


@dataclass(frozen=True, slots=True)
class BestCurve:
    """Most likely curve of one lens.

    Parameters
    ----------
    f_s, baseline : Tensor, shape (S,), float64
        Of each source.
    residual : Tensor, shape (L,), float64
        Of each epoch in its errors, in the order of `Likelihood.source`.
    snr : Tensor, shape (S,), float64
        Signal-to-noise of the lens in each source.
    """

    f_s: Tensor
    baseline: Tensor
    residual: Tensor
    snr: Tensor


class Likelihood:
    """ln L(lens) / L(no lens) of the epochs of one star.

    Parameters
    ----------
    epochs : StarEpochs
        Finite, each with an error above zero.
    t_start : float, MJD TAI
        Zero of t0.
    prior : BoxPrior
        Of which the part for f_s is taken, for each source anew.

    Notes
    -----
    Lenses are ``theta``, shape (n, 4), float64, columns t0 (days), u0, log10 tE, log10 rho. All
    sums are in float64. Epochs are kept source by source, each in order of time.
    """

    def __init__(self, epochs: StarEpochs, t_start: float, prior: BoxPrior) -> None:
        order = np.argsort(epochs.source, kind="stable")
        t, flux, sigma = (
            torch.from_numpy(column[order].astype(np.float64))
            for column in (epochs.mjd_tai - t_start, epochs.flux, epochs.sigma)
        )
        self.days, self.weight, self.residual = t, sigma**-2, flux - 1
        self.source = torch.from_numpy(epochs.source[order].astype(np.int64))
        self.sources = len(epochs.sources)
        self.variance = torch.from_numpy(epochs.error.astype(np.float64)) ** 2
        self.f_s_range, self.uniform_in_log_f_s = (prior.low[F_S], prior.high[F_S]), prior.log_f_s
        self._low, self._high = self.f_s_range
        own = torch.nn.functional.one_hot(self.source, self.sources).double()
        self.own_weights = own * self.weight[:, None]
        self._moments = torch.cat([self.own_weights * self.residual[:, None], self.own_weights], 1)
        self._sum_wr, self._sum_w = torch.split(self._moments.sum(0), self.sources)
        grown = 1 + self.variance * self._sum_w
        self._null = 0.5 * (self.variance * self._sum_wr**2 / grown - grown.log())

    def __len__(self) -> int:
        return len(self.days)

    def excess(self, theta: Tensor) -> Tensor:
        """A - 1 at each epoch, shape (n, L), float64."""
        t0, u0, log_tE, log_rho = theta.unbind(-1)
        u = (self.days - t0[:, None]).div_((10**log_tE)[:, None])
        u = u.square_().add_(u0.square()[:, None]).sqrt_()
        return bounded_excess(u, 10**log_rho)

    def sums(self, theta: Tensor) -> Sums:
        """The sums of each lens and source."""
        return Sums.join([Sums(*self.sums_of(self.excess(part))) for part in self._parts(theta)])

    def sums_of(self, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three sums, shape (n, S), of A - 1 at each epoch, shape (n, L)."""
        re_sum, e_sum = torch.split(e @ self._moments, self.sources, 1)
        return re_sum, e_sum, e.square() @ self.own_weights

    def _parts(self, theta: Tensor) -> Iterator[Tensor]:
        yield from torch.split(theta, max(1, POINTS_AT_ONCE // max(len(self), 1)))

    def __call__(self, theta: Tensor) -> Tensor:
        """Natural log of the ratio, f_s and baselines integrated out; shape (n,), float64."""
        return self.marginal(self.sums(theta)).sum(1)

    def marginal(self, sums: Sums) -> Tensor:
        """Of each source ln of the ratio with f_s integrated over its prior, shape (n, S)."""
        low, high = (end.sqrt()[..., None] for end in self._around(sums))
        nodes, weight = _gauss_legendre(NODES)
        root = low + (high - low) * nodes
        log_weight = (weight * (high - low)).log() + self._log_density_of_root(root)
        return (self._log_ratio(sums, root.square()) + log_weight).logsumexp(-1)

    def draw_f_s(self, theta: Tensor, draw: torch.Generator) -> Tensor:
        """f_s of each source from its conditional posterior, shape (n, S), float64."""
        return self.draw_f_s_of(self.sums(theta), draw)

    def draw_f_s_of(self, sums: Sums, draw: torch.Generator) -> Tensor:
        """As `draw_f_s`, of lenses whose sums are known."""
        low, high = (end.sqrt()[..., None] for end in self._around(sums))
        root = low + (high - low) * torch.linspace(0, 1, DRAW_NODES, dtype=torch.float64)
        log = self._log_ratio(sums, root.square()) + self._log_density_of_root(root)
        density = (log - log.amax(-1, keepdim=True)).exp()
        panel = (density[..., 1:] + density[..., :-1]) / 2
        total = torch.nn.functional.pad(panel.cumsum(-1), (1, 0))
        wanted = torch.rand(*sums.e_sum.shape, 1, generator=draw, dtype=torch.float64)
        wanted = wanted * total[..., -1:]
        k = (torch.searchsorted(total, wanted) - 1).clamp(0, DRAW_NODES - 2)
        share = (wanted - total.gather(-1, k)) / panel.gather(-1, k).clamp(min=1e-300)
        step = (high - low) / (DRAW_NODES - 1)
        f_s = (root.gather(-1, k) + share.clamp(0, 1) * step).square()[..., 0]
        return f_s.clamp(self._low, self._high)

    def profile(self, sums: Sums) -> Tensor:
        """As `__call__`, at the best f_s and baselines in place of integrals; shape (n,)."""
        f = self.best_f_s(sums)
        return (self._exponent(sums, f) - self._exponent(sums, torch.zeros_like(f))).sum(1)

    def best_f_s(self, sums: Sums) -> Tensor:
        """Most likely f_s of each lens and source within its prior, shape (n, S).

        The flux is linear in g and g f_s, of which a least-squares fit is closed.
        """
        v, wr = self.variance, self._sum_wr
        v = v.clamp(min=NO_ERROR**2)
        total = 1 + v * self._sum_w
        # The floor is for lenses of which nothing is seen.
        determinant = (sums.ee_sum * total - v * sums.e_sum**2).clamp(min=1e-300)
        scaled = (total * sums.re_sum - v * sums.e_sum * wr) / determinant
        g = 1 + v * (sums.ee_sum * wr - sums.e_sum * sums.re_sum) / determinant
        f = torch.where(g > 0, scaled / g, self._low)
        return f.nan_to_num(nan=self._low).clamp(self._low, self._high)

    def baseline(self, sums: Sums, f_s: Tensor) -> Tensor:
        """Most likely factor g of each lens and source, given f_s; shape (n, S)."""
        r_m, m_m = self._with_model(sums, f_s)
        return 1 + self.variance * r_m / (1 + self.variance * m_m)

    def best_curve(self, theta: Tensor) -> BestCurve:
        """The most likely curve of one lens, shape (4,)."""
        e = self.excess(theta[None])
        sums = Sums(*self.sums_of(e))
        f_s = self.best_f_s(sums)
        g = self.baseline(sums, f_s)
        model = g[0, self.source] * (1 + f_s[0, self.source] * e[0])
        residual = (1 + self.residual - model) * self.weight.sqrt()
        return BestCurve(f_s[0], g[0], residual, (f_s * sums.ee_sum.sqrt())[0])

    def curvature(self, sums: Sums, f_s: Tensor) -> Tensor:
        """Minus the second derivative of ln L by f_s, about; never negative, shape (n, S)."""
        v = self.variance
        r_m, m_m = self._with_model(sums, f_s)
        grown = 1 + v * m_m
        m_e = sums.e_sum + f_s * sums.ee_sum
        return (1 + v * r_m / grown) ** 2 * (sums.ee_sum - v * m_e**2 / grown).clamp(min=0)

    def _with_model(self, sums: Sums, f_s: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of w (F - m) m and of w m^2, where m = 1 + f_s e."""
        r_m = self._sum_wr + f_s * (sums.re_sum - sums.e_sum) - f_s**2 * sums.ee_sum
        return r_m, self._sum_w + 2 * f_s * sums.e_sum + f_s**2 * sums.ee_sum

    def _exponent(self, sums: Sums, f_s: Tensor) -> Tensor:
        """Log likelihood at the best g, but for what neither lens nor f_s changes; shape (n, S)."""
        v = self.variance
        r_m, m_m = self._with_model(sums, f_s)
        return f_s * (sums.re_sum - 0.5 * f_s * sums.ee_sum) + 0.5 * v * r_m**2 / (1 + v * m_m)

    def _log_ratio(self, sums: Sums, f_s: Tensor) -> Tensor:
        """Natural log of the ratio for f_s of shape (n, S, N)."""
        re_sum, e_sum, ee_sum = (
            column[..., None] for column in (sums.re_sum, sums.e_sum, sums.ee_sum)
        )
        v, wr, w = (column[:, None] for column in (self.variance, self._sum_wr, self._sum_w))
        square = f_s * f_s * ee_sum
        r_m = wr + f_s * (re_sum - e_sum) - square
        grown = 1 + v * (w + 2 * f_s * e_sum + square)
        marginal = 0.5 * (v * r_m * r_m / grown - grown.log())
        ratio: Tensor = f_s * re_sum - 0.5 * square + marginal - self._null[:, None]
        return ratio

    def _around(self, sums: Sums) -> tuple[Tensor, Tensor]:
        """Where f_s may be: ends, shape (n, S), about `DEEP` below the maximum, in the prior."""
        f = self.best_f_s(sums)
        for _ in range(NEWTON_STEPS):
            slope, bend = self._slope(sums, f), self.curvature(sums, f)
            f = (f + slope / (bend + 1e-12)).clamp(self._low, self._high)
        slope, bend = self._slope(sums, f), self.curvature(sums, f)
        root = (slope**2 + 2 * bend * DEEP).sqrt() + 1e-9
        down, up = (2 * DEEP / (root + sign * slope.clamp(-root, root)) for sign in (1, -1))
        return (f - down.clamp(min=0)).clamp(min=self._low), (f + up).clamp(max=self._high)

    def _slope(self, sums: Sums, f_s: Tensor) -> Tensor:
        """Derivative of ln of the ratio by f_s, shape (n, S)."""
        v = self.variance
        r_m, m_m = self._with_model(sums, f_s)
        grown = 1 + v * m_m
        by_r = sums.re_sum - sums.e_sum - 2 * f_s * sums.ee_sum
        by_m = v * (sums.e_sum + f_s * sums.ee_sum)
        inner = v * r_m * by_r / grown - by_m * (v * r_m**2 / grown**2 + 1 / grown)
        return sums.re_sum - f_s * sums.ee_sum + inner

    def _log_density_of_root(self, root: Tensor) -> Tensor:
        """Natural log of the prior density of the square root of f_s."""
        if self.uniform_in_log_f_s:
            return math.log(2 / math.log(self._high / self._low)) - root.log()
        return math.log(2 / (self._high - self._low)) + root.log()


def bounded_excess(u: Tensor, rho: Tensor) -> Tensor:
    """A - 1 of a point source that the lens hits is infinite; here it is `EXCESS_MAX`."""
    return excess_by_curve(u, rho).clamp_(max=EXCESS_MAX)


@cache
def _gauss_legendre(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights between 0 and 1."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)
