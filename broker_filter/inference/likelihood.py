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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.curve_loops import curves, lens_table, sums
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.source_loops import along_f_s, baseline, most_likely
from broker_filter.types import FloatArray, StarEpochs

__all__ = ["BestCurve", "Likelihood", "Sums"]

F_S, EE = 4, 2
NODES = 32
DRAW_NODES = 65


@dataclass(frozen=True, slots=True)
class Sums:
    """Of each lens and source the sums of w r e, w e and w e^2, shape (3, n, S), float64."""

    of: Tensor

    def __getitem__(self, rows: Tensor) -> Sums:
        return Sums(self.of[:, rows])

    @classmethod
    def join(cls, parts: Sequence[Sums]) -> Sums:
        """The lenses of all parts."""
        return cls(torch.cat([part.of for part in parts], 1))


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
        order = epochs.by_source
        t, flux, sigma = (
            torch.from_numpy(column[order].astype(np.float64))
            for column in (epochs.mjd_tai - t_start, epochs.flux, epochs.sigma)
        )
        self.days, self.weight, self.residual = t, sigma**-2, flux - 1
        self.source = torch.from_numpy(epochs.source[order].astype(np.int64))
        self.sources = len(epochs.sources)
        self.variance = torch.from_numpy(epochs.error.astype(np.float64)) ** 2
        self.f_s_range, self.uniform_in_log_f_s = (prior.low[F_S], prior.high[F_S]), prior.log_f_s
        own = torch.nn.functional.one_hot(self.source, self.sources).double()
        self.own_weights = own * self.weight[:, None]
        weighted = self.weight * self.residual
        self.firsts = np.searchsorted(self.source.numpy(), np.arange(self.sources + 1))
        self.moments = torch.stack([self.variance, self.own_weights.sum(0), weighted @ own]).numpy()
        self._points = [c.numpy() for c in (self.days, self.weight, weighted)]

    def __len__(self) -> int:
        return len(self.days)

    def excess(self, theta: Tensor) -> Tensor:
        """A - 1 at each epoch, shape (n, L), float64."""
        return torch.from_numpy(curves(_rows(theta), self._points[0], lens_table()))

    def sums(self, theta: Tensor) -> Sums:
        """The sums of each lens and source."""
        return Sums(torch.from_numpy(sums(_rows(theta), *self._points, self.firsts, lens_table())))

    def __call__(self, theta: Tensor) -> Tensor:
        """Natural log of the ratio, f_s and baselines integrated out; shape (n,), float64."""
        return self.marginal(self.sums(theta)).sum(1)

    def marginal(self, sums: Sums) -> Tensor:
        """Of each source ln of the ratio with f_s integrated over its prior, shape (n, S)."""
        nodes, weight = _gauss_legendre(NODES)
        ends, log = self._along_f_s(sums, nodes)
        return (log + weight.log()).logsumexp(-1) + (ends[1] - ends[0]).log()

    def draw_f_s(self, theta: Tensor, draw: torch.Generator) -> Tensor:
        """f_s of each source from its conditional posterior, shape (n, S), float64."""
        return self.draw_f_s_of(self.sums(theta), draw)

    def draw_f_s_of(self, sums: Sums, draw: torch.Generator) -> Tensor:
        """As `draw_f_s`, of lenses whose sums are known."""
        places = torch.linspace(0, 1, DRAW_NODES, dtype=torch.float64)
        (low, high), log = self._along_f_s(sums, places)
        density = (log - log.amax(-1, keepdim=True)).exp()
        panel = (density[..., 1:] + density[..., :-1]) / 2
        total = torch.nn.functional.pad(panel.cumsum(-1), (1, 0))
        wanted = torch.rand(*low.shape, 1, generator=draw, dtype=torch.float64) * total[..., -1:]
        k = (torch.searchsorted(total, wanted) - 1).clamp(0, DRAW_NODES - 2)
        share = (wanted - total.gather(-1, k)) / panel.gather(-1, k).clamp(min=1e-300)
        place = (k + share.clamp(0, 1))[..., 0] / (DRAW_NODES - 1)
        f_s: Tensor = (low + (high - low) * place).square().clamp(*self.f_s_range)
        return f_s

    def profile(self, sums: Sums) -> Tensor:
        """As `__call__`, at the best f_s and baselines in place of integrals; shape (n,)."""
        return self._most_likely(sums)[1].sum(1)

    def best_curve(self, theta: Tensor) -> BestCurve:
        """The most likely curve of one lens, shape (4,)."""
        e = self.excess(theta[None])[0]
        sums = self.sums(theta[None])
        f_s = self._most_likely(sums)[0][0]
        of_sources = zip(self.moments.T.tolist(), sums.of[:, 0].T.tolist(), strict=True)
        g = torch.tensor(
            [
                baseline(f, (*source, *lens))
                for f, (source, lens) in zip(f_s.tolist(), of_sources, strict=True)
            ],
            dtype=torch.float64,
        )
        model = g[self.source] * (1 + f_s[self.source] * e)
        residual = (1 + self.residual - model) * self.weight.sqrt()
        return BestCurve(f_s, g, residual, f_s * sums.of[EE, 0].sqrt())

    def _most_likely(self, sums: Sums) -> tuple[Tensor, Tensor]:
        """f_s, and ln of the ratio there, shape (n, S) each."""
        f_s, log = most_likely(sums.of.numpy(), self.moments, *self.f_s_range)
        return torch.from_numpy(f_s), torch.from_numpy(log)

    def _along_f_s(self, sums: Sums, places: Tensor) -> tuple[Tensor, Tensor]:
        """As `along_f_s`."""
        prior = (*self.f_s_range, self.uniform_in_log_f_s)
        ends, log = along_f_s(sums.of.numpy(), self.moments, *prior, places.numpy())
        return torch.from_numpy(ends), torch.from_numpy(log)


def _rows(theta: Tensor) -> FloatArray:
    rows: FloatArray = theta.contiguous().numpy()
    return rows


@cache
def _gauss_legendre(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights between 0 and 1."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)
