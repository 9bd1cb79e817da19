"""Coordinates of the flow: the prior's box, mapped onto all of space.

A flow is a Gaussian that is bent by splines. In ``logit`` coordinates a uniform prior has logistic
tails, which that Gaussian cannot have; in ``probit`` coordinates it is the Gaussian itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["COORDINATES", "BoxMap", "ProbitBox"]

COORDINATES = ("logit", "probit")
LN_2_PI = math.log(2 * math.pi)
EDGE = 2.0**-25  # half a step of a uniform draw in float32, so that no draw is infinite


class BoxMap(Protocol):
    """A map of a box onto all of space, one parameter at a time."""

    def __call__(self, z: Tensor) -> Tensor:
        """``z``, shape (..., 5), in the box -> y of the same shape."""

    def inv(self, y: Tensor) -> Tensor:
        """The inverse: always inside the box."""

    def log_abs_det_jacobian(self, z: Tensor, y: Tensor) -> Tensor:
        """Natural log of |dy / dz|, shape (...)."""


class ProbitBox:
    """y = Phi^-1((z - low) / (high - low)), Phi being the normal distribution function.

    Parameters
    ----------
    low, high : sequence of 5 floats
        Edges of the box.

    Notes
    -----
    The place in the box is found in float64. A float32 on an edge counts as `EDGE` of the box
    inside of it, where y is 5.3.
    """

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        # The box is that of float32, in which samples are compared with their prior.
        self._low, self._high = torch.tensor(low), torch.tensor(high)

    def __call__(self, z: Tensor) -> Tensor:
        """``z``, shape (..., 5), in the box -> y, shape (..., 5), float32, finite."""
        low, width = self._edges(z.device)
        place = ((z.double() - low) / width).clamp(EDGE, 1 - EDGE)
        y: Tensor = torch.special.ndtri(place)
        return y.float()

    def inv(self, y: Tensor) -> Tensor:
        """``y``, shape (..., 5) -> z, shape (..., 5), float32, in the open box."""
        low, width = self._edges(y.device)
        z = low + width * torch.special.ndtr(y.double())
        first = torch.nextafter(self._low, self._high).to(y.device)
        last = torch.nextafter(self._high, self._low).to(y.device)
        inside: Tensor = z.float().clamp(first, last)
        return inside

    def log_abs_det_jacobian(self, z: Tensor, y: Tensor) -> Tensor:
        """Natural log of |dy / dz|, shape (...), from ``y`` alone, which is exact in the tails."""
        width = self._edges(z.device)[1]
        log_slope: Tensor = 0.5 * (y.square() + LN_2_PI).sum(-1)
        return log_slope - float(width.log().sum())

    def _edges(self, device: torch.device) -> tuple[Tensor, Tensor]:
        low, high = self._low.to(device).double(), self._high.to(device).double()
        return low, high - low
