"""Priors of the lensing parameters, and the gate that says which events count as observable."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from broker_filter.inference.lens import excess
from broker_filter.inference.prior import BoxPrior

__all__ = [
    "BLENDED_GATE",
    "GROUND_PRIOR",
    "PAPER_GATE",
    "PAPER_PRIOR",
    "ROMAN_PRIOR",
    "SPARSE_PRIOR",
    "Gate",
]


@dataclass(frozen=True, slots=True)
class Gate:
    """What makes an event observable, as a named and versioned object.

    Parameters
    ----------
    name : str
        Name and version, for the card.
    near, min_near : float, int
        At least ``min_near`` epochs within ``near`` tE of the peak.
    far, min_far : float, int
        At least ``min_far`` epochs beyond ``far`` tE.
    min_snr : float
        (A_peak - 1) / sigma must exceed it.
    blended : bool
        Whether f_s multiplies A_peak - 1 there. The paper's definition leaves it out.
    """

    name: str
    near: float
    min_near: int
    far: float
    min_far: int
    min_snr: float
    blended: bool = False

    def passes(self, theta: Tensor, t: Tensor, n: Tensor, sigma: Tensor) -> Tensor:
        """Which draws pass.

        Parameters
        ----------
        theta : Tensor, shape (B, C, 5)
            C candidates for each of B observing patterns.
        t : Tensor, shape (B, N), float, days
            Sorted times; the columns beyond ``n`` are infinite.
        n : Tensor, shape (B,)
            Number of epochs.
        sigma : Tensor, shape (B,)
            Typical error of the pattern.

        Returns
        -------
        Tensor, shape (B, C), bool
        """
        t0, u0, tE = theta[..., 0], theta[..., 1], 10 ** theta[..., 2]
        near = _count(t, t0 - self.near * tE, t0 + self.near * tE)
        far = n[:, None] - _count(t, t0 - self.far * tE, t0 + self.far * tE)
        peak = excess(u0, 10 ** theta[..., 3])
        peak = peak * theta[..., 4] if self.blended else peak
        bright = peak / sigma[:, None] > self.min_snr
        return (near >= self.min_near) & (far >= self.min_far) & bright


PAPER_PRIOR = BoxPrior("paper-1", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))
PAPER_GATE = Gate("paper-1", near=1.5, min_near=5, far=3.0, min_far=5, min_snr=5.0)
# The same with the signal-to-noise of the blended light, f_s (A - 1).
BLENDED_GATE = replace(PAPER_GATE, name="paper-blended-1", blended=True)
# Peaks before, inside and after the window; t_E of 0.05-60 d; faint and heavily blended sources.
ROMAN_PRIOR = BoxPrior(
    "roman-1",
    (-2.0, 0.0, math.log10(0.05), -3.0, 0.005),
    (25.0, 1.5, math.log10(60.0), 1.0, 1.0),
    log_f_s=True,
)
# From free-floating planets to stellar lenses, in two months of nights.
GROUND_PRIOR = BoxPrior(
    "ground-1",
    (-10.0, 0.0, math.log10(0.05), -3.0, 0.02),
    (75.0, 1.5, math.log10(100.0), 1.0, 1.0),
    log_f_s=True,
)
# Events of stellar lenses in half a year of a survey that sees its fields every few nights.
SPARSE_PRIOR = BoxPrior(
    "sparse-1",
    (-30.0, 0.0, math.log10(2.0), -3.0, 0.02),
    (240.0, 1.5, math.log10(150.0), 0.0, 1.0),
    log_f_s=True,
)


def _count(t: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Epochs of each row between ``low`` and ``high``, both shape (B, C)."""
    first = torch.searchsorted(t, low.contiguous())
    return torch.searchsorted(t, high.contiguous(), right=True) - first
