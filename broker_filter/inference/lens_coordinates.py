"""Coordinates of proposals: the prior is normal in them, and lenses that look alike lie straight.

Lenses are proposed in the probit of their place in the prior's box: z, in which the prior is the
normal distribution of unit variance. A posterior that is flat up to an edge has Gaussian tails
there, as the proposals have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from broker_filter.inference.flow_sampler import LN_2_PI
from broker_filter.inference.prior import BoxPrior

__all__ = ["LENS", "Bend", "LensBox", "log10_length", "prior_log_density"]

LENS = 4  # parameters of a lens: those of the prior without f_s
EDGE = 1e-6  # nearest that a start may come to the edge of the box, as a share of it
LN_10: Final = math.log(10)

SWELLING: Final = (0.0425, -0.019, 0.054)
"""By how much tE grows in fits of one event, in log10, with rho / u0 at a given u0: coefficients of
its even powers. A disc beside the lens has a sharper peak than a point."""

DISC: Final = 1.4
"""Square of the radius, in rho, of which a lens on the disc crosses a chord."""

CHORD: Final = math.log10(0.54)
"""The u0 of a point lens that lasts as long, over half of that chord."""


class LensBox:
    """The prior's box of t0, u0, log10 tE and log10 rho as all of space."""

    def __init__(self, prior: BoxPrior) -> None:
        self.low = torch.tensor(prior.low[:LENS], dtype=torch.float64)
        self.width = torch.tensor(prior.high[:LENS], dtype=torch.float64) - self.low

    def z(self, theta: Tensor) -> Tensor:
        """Coordinates of lenses, shape (..., 4); those outside the box are moved into it."""
        place = (theta.double() - self.low) / self.width
        z: Tensor = torch.special.ndtri(place.clamp(EDGE, 1 - EDGE))
        return z

    def theta(self, z: Tensor) -> Tensor:
        """The inverse of `z`, float64."""
        theta: Tensor = self.low + self.width * torch.special.ndtr(z)
        return theta

    def slope(self, z: Tensor) -> Tensor:
        """Derivative d theta / dz of each parameter, shape (..., 4)."""
        return self.width * (-0.5 * (z.square() + LN_2_PI)).exp()


@dataclass(frozen=True, slots=True)
class Bend:
    """Coordinates w in which lenses whose light lasts as long lie straight.

    A posterior follows what the epochs show, how long the light is lifted: tE times a length that
    u0 and rho decide. In z that is a bent ridge, and in w = z + (0, 0, slope `log10_length`, 0) one
    that Gaussians can follow. The map keeps volumes, so that densities are the same in both.

    Parameters
    ----------
    box : LensBox
    slope : float
        dz / d log10 tE.
    """

    box: LensBox
    slope: float

    def straight(self, z: Tensor) -> Tensor:
        """The coordinates w of z."""
        return self._moved(z, self.slope)

    def bent(self, w: Tensor) -> Tensor:
        """The coordinates z of w."""
        return self._moved(w, -self.slope)

    def straight_covariance(self, z: Tensor, covariance: Tensor) -> Tensor:
        """Covariances in w of small ones around z, shape (k, 4, 4)."""
        theta, by_z = self.box.theta(z), self.box.slope(z)
        by_u0, by_rho = _slopes(theta[:, 1], 10 ** theta[:, 3])
        turn = torch.eye(LENS, dtype=z.dtype).repeat(len(z), 1, 1)
        turn[:, 2, 1] = self.slope * by_u0 * by_z[:, 1]
        turn[:, 2, 3] = self.slope * by_rho * by_z[:, 3]
        return turn @ covariance @ turn.mT

    def _moved(self, z: Tensor, slope: float) -> Tensor:
        theta = self.box.theta(z)
        moved = z.clone()
        moved[..., 2] += slope * log10_length(theta[..., 1], 10 ** theta[..., 3])
        return moved


def log10_length(u0: Tensor, rho: Tensor) -> Tensor:
    """How long lenses lift the light, in log10 of their tE, but for a constant.

    That of a point lens is u0, less a little for a source beside which it passes; that of a lens on
    the source's disc its chord.
    """
    beside = u0.log10() - _swelling(rho / u0)[0]
    return torch.maximum(beside, 0.5 * _chord_squared(u0, rho).log10() + CHORD)


def _slopes(u0: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of `log10_length` by u0 and by log10 rho."""
    u0 = u0.clamp(min=1e-12)
    ratio, chord = rho / u0, _chord_squared(u0, rho)
    swelling, steeper = _swelling(ratio)
    on_disc = 0.5 * chord.log10() + CHORD > u0.log10() - swelling
    by_u0 = torch.where(on_disc, -u0 / (LN_10 * chord), (1 / LN_10 + steeper * ratio) / u0)
    by_rho = torch.where(on_disc, DISC * rho.square() / chord, -LN_10 * steeper * ratio)
    return by_u0, by_rho


def _chord_squared(u0: Tensor, rho: Tensor) -> Tensor:
    """A lens beside the disc has next to none."""
    return (DISC * rho.square() - u0.square()).clamp(min=1e-30)


def _swelling(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """As `SWELLING` has it, at rho / u0, and its derivative by that."""
    q = ratio.clamp(max=1.5)  # beyond it the lens is on the disc
    square, (a, b, c) = q.square(), SWELLING
    value = square * (a + square * (b + square * c))
    return value, q * (2 * a + square * (4 * b + square * 6 * c))


def prior_log_density(z: Tensor) -> Tensor:
    """Natural log of the prior's density in z, shape (...)."""
    return -0.5 * (z.square() + LN_2_PI).sum(-1)
