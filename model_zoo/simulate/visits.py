"""When a survey that returns to a field every few nights sees a star, and in which bands.

ZTF and the wide survey of LSST take one to three exposures in a night, every night to every sixth,
in one to five bands. All bands of a star share its window, each in units of its own baseline, since
a band alone has a handful of epochs in a month.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model_zoo.simulate.draw import Draw

__all__ = ["LSST_VISITS", "VISITS", "WIDE_VISITS", "ZTF_VISITS", "Visits", "draw_visits"]

MONTH = 29.53
SLOTS = 3
"""Most visits of a night that are drawn: later ones add little."""


@dataclass(frozen=True, slots=True)
class Visits:
    """How a population of fields is visited, as a named and versioned object.

    Parameters
    ----------
    name : str
        Name and version, for the card.
    nights : (float, float)
        From one visited night to the next where the weather is good, days, log-uniform.
    clear : (float, float)
        Share of nights that are clear, uniform.
    moon : float
        Share of stars that are not observed for 3-9 nights of each lunar month.
    season : float
        Share of stars with the edge of a season in the window, beyond which there is nothing.
    bands : tuple of float
        Shares of stars that are seen in 1, 2, 3, ... bands.
    band_scatter : float
        Of the typical errors of a star's bands, nats.
    """

    name: str
    nights: tuple[float, float]
    clear: tuple[float, float]
    moon: float
    season: float
    bands: tuple[float, ...]
    band_scatter: float


WIDE_VISITS = Visits(
    name="wide-1",
    nights=(0.7, 6.0),
    clear=(0.5, 1.0),
    moon=0.3,
    season=0.25,
    bands=(0.3, 0.35, 0.15, 0.12, 0.08),
    band_scatter=0.5,
)
# The public survey of ZTF: light curves of its white dwarfs and supernovae have 1.4-2.1 epochs in a
# visited night, and a visited night every 2.4-4 d of a season.
ZTF_VISITS = Visits("ztf-1", (1.0, 3.0), (0.5, 0.9), 0.2, 0.0, (0.1, 0.75, 0.15), 0.3)
# The wide survey of LSST in the bulge: 1,200 visits in ten years, 10-15 epochs a month in season.
LSST_VISITS = Visits("lsst-1", (2.0, 4.0), (0.7, 0.95), 0.0, 0.0, (0.0, 0.0, 0.1, 0.4, 0.5), 0.5)
VISITS = {visits.name: visits for visits in (WIDE_VISITS, ZTF_VISITS, LSST_VISITS)}


def draw_visits(
    visits: Visits, days: float, sigma: tuple[float, float], draw: Draw
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw possible visits of ``draw.n`` stars; those that are not kept did not take place.

    Parameters
    ----------
    visits : Visits
    days : float
        Length of the window.
    sigma : (float, float)
        Range of the typical relative error of a star, log-uniform.
    draw : Draw

    Returns
    -------
    t, sigma : Tensor, shape (n, N), float32, days and relative errors
    keep : Tensor, shape (n, N), bool
    band : Tensor, shape (n, N), int64
    """
    count = int(days)
    night = torch.arange(count, device=draw.generator.device, dtype=torch.float32)
    observed = _observed(visits, night, draw)
    first = draw.uniform(0, 1) + draw.uniform(-0.12, 0.12, count)
    gap = draw.log_uniform(0.003, 0.1)
    t = (night + first)[:, :, None] + gap[:, :, None] * torch.arange(SLOTS, device=night.device)
    again = draw.happens(0.8) * draw.uniform(0, 1)
    more = (draw.uniform(0, 1, count * SLOTS) < again).reshape(draw.n, count, SLOTS)
    more[:, :, 0] = True
    keep = (observed[:, :, None] & more.cumprod(2).bool()).flatten(1)
    t, order = t.flatten(1).sort(1)
    keep = keep.gather(1, order) & (t >= 0) & (t <= days)
    t = t.clamp(0, days)
    band = _bands(visits, t.shape[1], draw)
    return t, _errors(visits, sigma, band, draw), keep, band


def _observed(visits: Visits, night: Tensor, draw: Draw) -> Tensor:
    """Which nights have visits, shape (n, nights)."""
    every = draw.log_uniform(*visits.nights)
    # Some surveys return as planned, others when they can; the weather delays both.
    phase = night / every + draw.uniform(0, 1)
    due = (phase + 1 / every).floor() > phase.floor()
    chance = draw.uniform(0, 1, len(night)) < 1 / every.clamp(min=1)
    planned = torch.where(draw.happens(0.5), due, chance)
    clear = draw.uniform(0, 1, len(night)) < draw.uniform(*visits.clear)
    dark = (night + draw.uniform(0, MONTH)) % MONTH >= draw.uniform(3, 9)
    return planned & clear & (dark | ~draw.happens(visits.moon)) & _in_season(visits, night, draw)


def _in_season(visits: Visits, night: Tensor, draw: Draw) -> Tensor:
    edge = draw.uniform(0, len(night))
    inside = torch.where(draw.happens(0.5), night < edge, night > edge)
    return inside | ~draw.happens(visits.season)


def _bands(visits: Visits, width: int, draw: Draw) -> Tensor:
    """Band of each visit: a star's bands are not equally common."""
    shares = torch.tensor(visits.bands, device=draw.generator.device).cumsum(0)
    count = (draw.uniform(0, float(shares[-1])) > shares).sum(1, keepdim=True) + 1
    weight = draw.uniform(0.3, 1, len(shares))
    weight = torch.where(torch.arange(len(shares), device=weight.device) < count, weight, 0.0)
    return torch.multinomial(weight, width, replacement=True, generator=draw.generator)


def _errors(visits: Visits, sigma: tuple[float, float], band: Tensor, draw: Draw) -> Tensor:
    """Of a band its own, and in bad seeing or moonlight larger ones."""
    level = draw.log_uniform(*sigma) * draw.log_normal(1.0, visits.band_scatter, len(visits.bands))
    spread = draw.uniform(0, 0.4) * draw.normal(band.shape[1])
    return level.gather(1, band) * spread.exp()
