"""Observing patterns: when a star was observed and how well.

A Bayes factor is conditional on the pattern, which says nothing of the star. So patterns may be as
varied as the streams that the filter will meet without changing K for any one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_zoo.simulate.draw import Draw
from model_zoo.simulate.visits import Visits, draw_visits

__all__ = ["GRID", "Pattern", "PatternConfig", "draw_patterns", "pack"]

GRID = 1920


@dataclass(frozen=True, slots=True)
class PatternConfig:
    """How patterns are drawn.

    Parameters
    ----------
    days : float
        Length of the window.
    stream_share : float
        Share of patterns as a stream sees them: the window's end lies in the future (up to a
        quarter of the window), the star's history may have begun late, nights only, sparser, and
        sigma log-uniform in ``stream_sigma``, half of the time varying within the curve. The rest
        are the paper's: every 15 minutes, 0-3 gaps of 1-10 d, dropout of 0-60 %, one sigma a
        curve, uniform in 0.001-0.02.
    stream_sigma : (float, float)
    minutes : float, optional
        Time from one exposure to the next. If left out a window has `GRID` exposures, whatever its
        length: 15 minutes apart in 20 d, as in the paper. Roman's bulge survey has 12.1.
    season_share : float
        Share of streams' patterns with the edge of a season in the window, beyond which there is
        an image every 3-5 d.
    ground_share : float
        Share of streams' patterns as ground telescopes see a star: in some hours of clear nights.
    visits : Visits, optional
        All patterns are those of a survey that returns to its fields now and then, in several
        bands, with errors of ``stream_sigma``; of the above only ``days`` and that count then.
    """

    days: float = 20.0
    stream_share: float = 0.0
    stream_sigma: tuple[float, float] = (0.0005, 0.1)
    minutes: float | None = None
    season_share: float = 0.0
    ground_share: float = 0.0
    visits: Visits | None = None

    @property
    def grid(self) -> int:
        """Epochs of a window in which nothing is missing."""
        return GRID if self.minutes is None else round(1440 * self.days / self.minutes)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Observing patterns of B curves; ``t`` is sorted, infinite beyond the ``n`` epochs.

    ``t`` and ``sigma`` have shape (B, N), float32; ``n`` has shape (B,), int64; ``level``, shape
    (B,), is the typical sigma of each curve; ``band``, shape (B, N), int64, numbers the bands of a
    curve's epochs, each with a baseline of its own: zero where there is one band.
    """

    t: Tensor
    sigma: Tensor
    n: Tensor
    level: Tensor
    band: Tensor

    @property
    def valid(self) -> Tensor:
        """Shape (B, N), bool: where there is an epoch."""
        return torch.arange(self.t.shape[1], device=self.t.device) < self.n[:, None]

    def __getitem__(self, rows: Tensor) -> Pattern:
        return Pattern(*(getattr(self, f.name)[rows] for f in fields(Pattern)))

    @classmethod
    def of(cls, t: Tensor, sigma: Tensor, n: Tensor, level: Tensor) -> Pattern:
        """A pattern of one band."""
        return cls(t, sigma, n, level, torch.zeros_like(t, dtype=torch.int64))

    @classmethod
    def join(cls, parts: Sequence[Pattern]) -> Pattern:
        """All curves of several, padded to the longest."""
        width = max(part.t.shape[1] for part in parts)

        def padded(name: str, value: float) -> Tensor:
            columns = (getattr(part, name) for part in parts)
            return torch.cat([pad(c, (0, width - c.shape[1]), value=value) for c in columns])

        n, level = (torch.cat([getattr(part, name) for part in parts]) for name in ("n", "level"))
        t, sigma, band = padded("t", math.inf), padded("sigma", 1.0), padded("band", 0)
        return cls(t, sigma, n, level, band)


def draw_patterns(n: int, config: PatternConfig, generator: torch.Generator) -> Pattern:
    """Draw ``n`` observing patterns on the generator's device."""
    draw = Draw(n, generator)
    if config.visits is not None:
        t, sigma, keep, band = draw_visits(config.visits, config.days, config.stream_sigma, draw)
        keep &= _so_far(t, config.days, draw)
        return pack(t, sigma, _never_empty(keep), band)
    grid = torch.linspace(0, config.days, config.grid, device=generator.device)
    keep = draw.uniform(0, 1, len(grid)) >= draw.uniform(0, 0.6)
    keep &= ~_in_gaps(grid, config.days, draw)
    sigma = draw.uniform(0.001, 0.02).expand(n, len(grid))
    stream = torch.zeros(n, 1, dtype=torch.bool, device=generator.device)
    if config.stream_share > 0:
        stream = draw.uniform(0, 1) < config.stream_share
        keep &= ~stream | _stream_mask(grid, config.days, draw)
        sigma = torch.where(stream, _stream_sigma(config, draw), sigma)
    if config.season_share > 0:
        keep &= ~stream | ~draw.happens(config.season_share) | _season_mask(grid, draw)
    if config.ground_share > 0:
        ground = stream & draw.happens(config.ground_share)
        keep = torch.where(ground, _ground_mask(grid, config.days, draw), keep)
    return pack(grid, sigma, _never_empty(keep))


def _never_empty(keep: Tensor) -> Tensor:
    """The first epoch stays where no other is left."""
    keep[:, 0] |= ~keep.any(1)
    return keep


def _in_gaps(grid: Tensor, days: float, draw: Draw) -> Tensor:
    count = draw.uniform(0, 4).floor()
    inside = torch.zeros(draw.n, len(grid), dtype=torch.bool, device=grid.device)
    for i in range(3):
        length = draw.uniform(1, 10)
        start = draw.uniform(0, 1) * (days - length)
        inside |= (count > i) & (grid >= start) & (grid <= start + length)
    return inside


def _stream_mask(grid: Tensor, days: float, draw: Draw) -> Tensor:
    """The future is empty, the past may be, daylight may hide the star, the cadence may be slow."""
    so_far = _so_far(grid, days, draw)
    by_night = draw.uniform(0, 1) < 0.25
    night = (grid + draw.uniform(0, 1)) % 1.0 < draw.uniform(0.2, 0.5)
    sparse = draw.uniform(0, 1) < 0.3
    kept = draw.uniform(0, 1, len(grid)) < torch.where(sparse, draw.uniform(0.05, 1), 1.0)
    return so_far & (~by_night | night) & kept


def _so_far(grid: Tensor, days: float, draw: Draw) -> Tensor:
    """Until a time in the last quarter, and for some stars only from a late time on."""
    end = days - draw.uniform(0, days / 4)
    late = draw.uniform(0, 1) < 0.4
    # What a young star has been seen for: from 1 % of the window up, log-uniform.
    start = torch.where(late, end * (1 - 0.01 ** draw.uniform(0, 1)), 0.0)
    return (grid <= end) & (grid >= start)


def _season_mask(grid: Tensor, draw: Draw) -> Tensor:
    """Before or after one time an epoch every 3-5 d only."""
    days, step = float(grid[-1]), float(grid[1])
    edge, before = draw.uniform(0, days), draw.happens(0.5)
    outside = torch.where(before, grid < edge, grid > edge)
    rare = (grid + draw.uniform(0, 5)) % draw.uniform(3, 5) < 1.01 * step
    return ~outside | rare


def _ground_mask(grid: Tensor, days: float, draw: Draw) -> Tensor:
    """Nights of 4-11 hours, a part of them lost to weather, 0.5-40 epochs in a clear one."""
    nights = int(grid[-1]) + 2
    hour = (grid + draw.uniform(0, 1)) % 1.0
    length = draw.uniform(4 / 24, 11 / 24)
    clear = draw.uniform(0, 1, nights) >= draw.uniform(0, 0.6)
    clear = clear[:, grid.long()]
    epochs = draw.log_uniform(0.5, 40)
    kept = draw.uniform(0, 1, len(grid)) < epochs * float(grid[1]) / length
    return _so_far(grid, days, draw) & (hour < length) & clear & kept


def _stream_sigma(config: PatternConfig, draw: Draw) -> Tensor:
    low, high = (torch.tensor(edge).log().item() for edge in config.stream_sigma)
    level = draw.uniform(low, high).exp()
    spread = draw.uniform(0, 0.4) * (draw.uniform(0, 1) < 0.5)
    return level * (spread * draw.normal(config.grid)).exp()


def pack(t: Tensor, sigma: Tensor, keep: Tensor, band: Tensor | None = None) -> Pattern:
    """Move the kept epochs of each row to its front."""
    n = keep.sum(1)
    width = int(n.max())
    # Everything that is not kept goes to a spare last column.
    place = torch.where(keep, keep.cumsum(1) - 1, width)

    def packed(column: Tensor, padding: float) -> Tensor:
        whole = torch.full((len(n), width + 1), padding, device=t.device, dtype=column.dtype)
        whole.scatter_(1, place, column.expand_as(keep))
        whole[:, -1] = padding
        return whole[:, :width].contiguous()

    times, errors = packed(t, math.inf), packed(sigma.float(), 1.0)
    valid = torch.arange(width, device=t.device) < n[:, None]
    level = torch.where(valid, errors, 0).sum(1) / n
    if band is None:
        return Pattern.of(times, errors, n, level)
    return Pattern(times, errors, n, level, packed(band, 0))
