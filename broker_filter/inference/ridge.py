"""Where the likelihood of a lens stays high far from its maximum.

What the epochs show hardly decides some of the parameters: a source smaller than u0 has any size,
and a blended source is as well a fainter one that comes closer. There the posterior is a long bent
ridge, of which a Gaussian at the maximum is a small part. So u0 and rho are held in turn, farther
and farther from the maximum, while the others climb to theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from broker_filter.inference.ascent import Modes, climb
from broker_filter.inference.lens_coordinates import LENS, LensBox
from broker_filter.inference.likelihood import Likelihood

__all__ = ["ridges"]

HELD, DIRECTION = (3, 3, 1, 1), (-1.0, 1.0, -1.0, 1.0)  # log10 rho and u0, downwards and upwards
FIRST_STEP, LONGEST_STEP = 0.9, 0.7  # in standard deviations, in z
PLACES, DEEP, FARTHEST = 14, 10.0, 2.8
FALL = 5.0
CLIMBS = 3
STRETCH = (
    0.6  # variance of a Gaussian along the ridge, in squares of the distance to its neighbours
)


def ridges(likelihood: Likelihood, box: LensBox, modes: Modes) -> tuple[Modes, Tensor]:
    """Gaussians along the ridges through the highest mode, and ln of the mass of each.

    Parameters
    ----------
    likelihood : Likelihood
    box : LensBox
    modes : Modes

    Returns
    -------
    Modes
        Centres, heights and covariances, the latter along the ridge as wide as to the next centre.
    Tensor, shape (k,)
    """
    top = int(modes.height.argmax())
    mode = Modes(modes.z[top], modes.height[top], modes.covariance[top])
    walked, reached = _walk(likelihood, box, mode)
    held = torch.tensor(HELD)
    both = [_along(mode, walked, reached & (held == c), c) for c in sorted(set(HELD))]
    return both[0][0].joined(both[1][0]), torch.cat([mass for _, mass in both])


def _walk(likelihood: Likelihood, box: LensBox, mode: Modes) -> tuple[Modes, Tensor]:
    """Climbs at places ever farther away, shape (PLACES, 4, ...), and which of them count."""
    held, chains = torch.tensor(HELD), torch.arange(len(HELD))
    error = mode.covariance[held, held].sqrt()
    tangent = mode.covariance[held] / error[:, None] ** 2
    step = torch.tensor(DIRECTION) * (FIRST_STEP * error).clamp(max=LONGEST_STEP)
    least = 0.05 * step.abs()
    z, height = mode.z.repeat(len(held), 1), mode.height.repeat(len(held))
    walking = torch.ones(len(held), dtype=torch.bool)
    found, counts = [], []
    for _ in range(PLACES):
        start = z + step[:, None] * tangent
        start[chains, held] = start[chains, held].clamp(-FARTHEST, FARTHEST)
        moved = start[chains, held] - z[chains, held]
        here = climb(likelihood, box, start, steps=CLIMBS, held=held)
        drop = height - here.height
        # A fall is a climb that has not ended, or a place too far away.
        good = walking & (drop < FALL) & (moved.abs() > 0)
        found.append(here)
        counts.append(good)
        tangent = torch.where(good[:, None], (here.z - z) / moved[:, None], tangent)
        factor = torch.where(drop < 0.5, 1.8, torch.where(drop < 1.5, 1.3, 0.8))
        step = torch.where(good, moved * factor, 0.3 * step).clamp(-LONGEST_STEP, LONGEST_STEP)
        z = torch.where(good[:, None], here.z, z)
        height = torch.where(good, here.height, height)
        inside = (z[chains, held].abs() < FARTHEST) & (height > mode.height - DEEP)
        walking = walking & inside & (step.abs() > least)
        if not bool(walking.any()):
            break
    columns = (torch.stack([getattr(m, n) for m in found]) for n in ("z", "height", "covariance"))
    return Modes(*columns), torch.stack(counts)


def _along(mode: Modes, walked: Modes, rows: Tensor, c: int) -> tuple[Modes, Tensor]:
    """Gaussians at the places of one coordinate, each half-way to either neighbour."""
    covariance = mode.covariance.clone()
    # That of the others where the coordinate is held.
    covariance = covariance - torch.outer(covariance[c], covariance[c]) / covariance[c, c]
    z = torch.cat([mode.z[None], walked.z[rows]])
    height = torch.cat([mode.height[None], walked.height[rows]])
    across = torch.cat([covariance[None], walked.covariance[rows]])
    order = z[:, c].argsort()
    z, height, across = z[order], height[order], across[order].clone()
    if len(z) == 1:
        alone = Modes(mode.z[None], mode.height[None], mode.covariance[None])
        return alone, mode.height[None] + 0.5 * torch.logdet(alone.covariance)
    gaps = z[:, c].diff()
    width = (torch.cat([gaps[:1], gaps]) + torch.cat([gaps, gaps[-1:]])) / 2
    slope = z.diff(dim=0) / gaps[:, None]
    tangent = (torch.cat([slope[:1], slope]) + torch.cat([slope, slope[-1:]])) / 2
    across[:, c], across[:, :, c] = 0.0, 0.0
    one = torch.diag(torch.nn.functional.one_hot(torch.tensor(c), LENS).double())
    mass = height + 0.5 * torch.logdet(across + one) + width.log()
    stretched = STRETCH * width.square()[:, None, None] * tangent[:, :, None] * tangent[:, None]
    return Modes(z, height, across + stretched), mass
