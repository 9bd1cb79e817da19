"""Likelihood of all five parameters of a lens, for one source: what samplers of others explore.

`broker_filter.inference.likelihood` has f_s integrated out, and several sources.
"""

from __future__ import annotations

import torch
from torch import Tensor

from broker_filter.inference.lens import excess
from broker_filter.inference.network_input import split_padding

__all__ = ["LikelihoodRatio"]


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
