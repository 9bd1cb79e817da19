"""Climbs from several starts to the maxima of the likelihood of a lens.

In the coordinates of `LensBox` the prior is a normal distribution: it acts as four more residuals
of unit error. f_s and the baselines, in which the flux is linear, are projected out (variable
projection), so that a step needs only the derivatives of A - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from broker_filter.inference.likelihood import NO_ERROR, Likelihood, Sums, bounded_excess
from broker_filter.inference.population import LENS, LensBox

__all__ = ["Modes", "climb"]

STEPS = 20
FARTHEST = 4.5  # |z| of a lens at the edge of the prior
SMALL = 1e-3  # relative step of a finite difference
ENOUGH = 1e-2  # gain of ln L from which on a start climbs no further
HOPELESS = 1e4  # damping from which on no step goes up
FIXED = 1e30  # weight of an f_s that is held


@dataclass(frozen=True, slots=True)
class Modes:
    """Where the climbs ended.

    Parameters
    ----------
    z : Tensor, shape (k, 4)
    height : Tensor, shape (k,)
        Profile ln L there, with ln of the prior but for a constant where it has a part.
    covariance : Tensor, shape (k, 4, 4)
        Inverse of the curvature.
    """

    z: Tensor
    height: Tensor
    covariance: Tensor

    def joined(self, other: Modes) -> Modes:
        """Those of both."""
        return Modes(
            torch.cat([self.z, other.z]),
            torch.cat([self.height, other.height]),
            torch.cat([self.covariance, other.covariance]),
        )


def climb(
    likelihood: Likelihood,
    box: LensBox,
    z: Tensor,
    *,
    prior: float = 1.0,
    steps: int = STEPS,
    held: Tensor | None = None,
) -> Modes:
    """Levenberg and Marquardt's climb from each start.

    Parameters
    ----------
    likelihood : Likelihood
    box : LensBox
    z : Tensor, shape (k, 4)
        Starts.
    prior : float
        Weight of the prior: 1 climbs to the maximum of the posterior in z, and almost 0 to that of
        the likelihood.
    steps : int
        Most of them.
    held : Tensor, shape (k,), int64, optional
        The coordinate of each start that stays where it is; its covariance then is that of one
        that has nothing to do with the others, and 1.
    """
    free = torch.ones_like(z)
    if held is not None:
        free.scatter_(1, held[:, None], 0.0)
    z = z.clamp(-FARTHEST, FARTHEST)
    damping = torch.full((len(z), 1), 1e-2, dtype=z.dtype)
    height, gradient, curvature = _look(likelihood, box, z, free, prior)
    for _ in range(steps):
        scale = curvature.diagonal(dim1=1, dim2=2)
        damped = curvature + torch.diag_embed(damping * scale)
        step = torch.linalg.solve(damped, gradient)
        tried = (z + step).clamp(-FARTHEST, FARTHEST)
        found = _look(likelihood, box, tried, free, prior)
        gain = found[0] - height
        better = gain > 0
        damping = torch.where(better[:, None], 0.2 * damping, 8 * damping).clamp(1e-7, 1e7)
        z = torch.where(better[:, None], tried, z)
        height = torch.where(better, found[0], height)
        gradient = torch.where(better[:, None], found[1], gradient)
        curvature = torch.where(better[:, None, None], found[2], curvature)
        settled = (better & (gain < ENOUGH)) | (damping[:, 0] > HOPELESS)
        if bool(settled.all()):
            break
    return Modes(z, height, torch.linalg.inv(curvature))


def _look(
    likelihood: Likelihood, box: LensBox, z: Tensor, free: Tensor, prior: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Height of each start, its gradient and its curvature (that of Gauss and Newton)."""
    theta = box.theta(z)
    e, by_theta = _with_derivatives(likelihood, theta)
    sums = Sums(*likelihood.sums_of(e))
    f_s = likelihood.best_f_s(sums)
    height = likelihood.profile(sums) - 0.5 * prior * z.square().sum(1)
    g = likelihood.baseline(sums, f_s)
    own = likelihood.own_weights
    share, factor = f_s[:, likelihood.source], g[:, likelihood.source]
    model = 1 + share * e
    off = likelihood.residual - factor * model + 1
    by_z = by_theta * ((factor * share)[..., None] * box.slope(z)[:, None])
    linear = torch.stack([model, factor * e], -1)  # by g and by f_s
    weighted = by_z[:, :, None] * own[..., None]  # k, L, S, 4
    cross = torch.einsum("klsd,klx->ksdx", weighted, linear)
    block = torch.einsum("klx,ls,kly->ksxy", linear, own, linear)
    block = block + torch.diag_embed(_held(likelihood, f_s))
    projected = cross @ torch.linalg.solve(block, cross.mT)
    inner = torch.einsum("klsd,kle->kde", weighted, by_z) - projected.sum(1)
    gradient = torch.einsum("kld,kl->kd", by_z, likelihood.weight * off) - prior * z
    floor = prior + 1e-9 * inner.diagonal(dim1=1, dim2=2).amax(1)
    curvature = (inner + torch.diag_embed(floor[:, None].expand(-1, LENS))) * free[:, None]
    curvature = curvature * free[..., None] + torch.diag_embed(1 - free)
    return height, gradient * free, curvature


def _held(likelihood: Likelihood, f_s: Tensor) -> Tensor:
    """Weight that holds g and f_s of each source where they are, shape (k, S, 2)."""
    at_edge = (f_s <= likelihood.f_s_range[0]) | (f_s >= likelihood.f_s_range[1])
    by_baseline = (likelihood.variance.clamp(min=NO_ERROR**2) ** -1).expand_as(f_s)
    return torch.stack([by_baseline, torch.where(at_edge, FIXED, 1e-6)], -1)


def _with_derivatives(likelihood: Likelihood, theta: Tensor) -> tuple[Tensor, Tensor]:
    """A - 1 at each epoch, shape (k, L), and its derivatives by theta, shape (k, L, 4)."""
    t0, u0, log_tE, log_rho = (column[:, None] for column in theta.unbind(-1))
    tE, rho = 10**log_tE, 10 ** log_rho[:, 0]
    tau = (likelihood.days - t0) / tE
    u = (u0.square() + tau.square()).sqrt().clamp(min=1e-9)
    # One evaluation for all three, a small step aside in u and in rho.
    at = torch.cat([u, u * (1 + SMALL), u])
    e, farther, larger = bounded_excess(at, torch.cat([rho, rho, rho * (1 - SMALL)])).chunk(3)
    by_u, by_rho = (farther - e) / (SMALL * u), (e - larger) / (SMALL / math.log(10))
    derivatives = [
        by_u * -tau / (u * tE),
        by_u * u0 / u,
        by_u * -tau.square() / u * math.log(10),
        by_rho,
    ]
    return e, torch.stack(derivatives, -1)
