"""Observing patterns: when a star was observed and how well.

A Bayes factor is conditional on the pattern, which says nothing of the star. So patterns may be as
varied as the streams that the filter will meet without changing K for any one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model_zoo.simulate.draw import Draw

__all__ = ["Pattern", "PatternConfig", "draw_patterns"]

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
        Time from one exposure to the next; 15 (`GRID` epochs in 20 d) if left out. Roman's bulge
        survey has 12.1.
    season_share : float
        Share of streams' patterns with the edge of a season in the window, beyond which there is
        an image every 3-5 d.
    ground_share : float
        Share of streams' patterns as ground telescopes see a star: in some hours of clear nights.
    """

    days: float = 20.0
    stream_share: float = 0.0
    stream_sigma: tuple[float, float] = (0.0005, 0.1)
    minutes: float | None = None
    season_share: float = 0.0
    ground_share: float = 0.0

    @property
    def grid(self) -> int:
        """Epochs of a window in which nothing is missing."""
        return GRID if self.minutes is None else round(1440 * self.days / self.minutes)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Observing patterns of B curves; ``t`` is sorted, infinite beyond the ``n`` epochs.

    ``t`` and ``sigma`` have shape (B, N), float32; ``n`` has shape (B,), int64; ``level``, shape
    (B,), is the typical sigma of each curve.
    """

    t: Tensor
    sigma: Tensor
    n: Tensor
    level: Tensor

    @property
    def valid(self) -> Tensor:
        """Shape (B, N), bool: where there is an epoch."""
        return torch.arange(self.t.shape[1], device=self.t.device) < self.n[:, None]

    def __getitem__(self, rows: Tensor) -> Pattern:
        return Pattern(self.t[rows], self.sigma[rows], self.n[rows], self.level[rows])


def draw_patterns(n: int, config: PatternConfig, generator: torch.Generator) -> Pattern:
    """Draw ``n`` observing patterns on the generator's device."""
    draw = Draw(n, generator)
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
    # Never leave a curve empty: its first epoch stays.
    keep[:, 0] |= ~keep.any(1)
    return _pack(grid, sigma, keep)


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


def _pack(grid: Tensor, sigma: Tensor, keep: Tensor) -> Pattern:
    """Move the kept epochs of each row to its front."""
    n = keep.sum(1)
    width = int(n.max())
    # Everything that is not kept goes to a spare last column.
    place = torch.where(keep, keep.cumsum(1) - 1, width)
    t = torch.full((keep.shape[0], width + 1), float("inf"), device=grid.device)
    t.scatter_(1, place, grid.expand_as(keep))
    packed = torch.ones_like(t).scatter_(1, place, sigma.to(t.dtype))
    t[:, -1], packed[:, -1] = float("inf"), 1.0
    valid = torch.arange(width, device=grid.device) < n[:, None]
    level = torch.where(valid, packed[:, :-1], 0).sum(1) / n
    return Pattern(t[:, :width].contiguous(), packed[:, :width], n, level)
