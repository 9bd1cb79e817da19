"""Observing patterns: when a star was observed and how well.

A Bayes factor is conditional on the pattern, which says nothing of the star. So patterns may be as
varied as the streams that the filter will meet without changing K for any one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
    """

    days: float = 20.0
    stream_share: float = 0.0
    stream_sigma: tuple[float, float] = (0.0005, 0.1)


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
    draw = _Draw(n, generator)
    grid = torch.linspace(0, config.days, GRID, device=generator.device)
    keep = draw.uniform(0, 1, GRID) >= draw.uniform(0, 0.6)
    keep &= ~_in_gaps(grid, config.days, draw)
    sigma = draw.uniform(0.001, 0.02).expand(n, GRID)
    if config.stream_share > 0:
        stream = draw.uniform(0, 1) < config.stream_share
        keep &= ~stream | _stream_mask(grid, config.days, draw)
        sigma = torch.where(stream, _stream_sigma(config, draw), sigma)
    # Never leave a curve empty: its first epoch stays.
    keep[:, 0] |= ~keep.any(1)
    return _pack(grid, sigma, keep)


class _Draw:
    """Uniform draws, one row a curve."""

    def __init__(self, n: int, generator: torch.Generator) -> None:
        self.n, self.generator = n, generator

    def uniform(self, low: float, high: float, width: int = 1) -> Tensor:
        unit = torch.rand(self.n, width, generator=self.generator, device=self.generator.device)
        return low + (high - low) * unit

    def normal(self, width: int) -> Tensor:
        return torch.randn(self.n, width, generator=self.generator, device=self.generator.device)


def _in_gaps(grid: Tensor, days: float, draw: _Draw) -> Tensor:
    count = draw.uniform(0, 4).floor()
    inside = torch.zeros(draw.n, GRID, dtype=torch.bool, device=grid.device)
    for i in range(3):
        length = draw.uniform(1, 10)
        start = draw.uniform(0, 1) * (days - length)
        inside |= (count > i) & (grid >= start) & (grid <= start + length)
    return inside


def _stream_mask(grid: Tensor, days: float, draw: _Draw) -> Tensor:
    """The future is empty, the past may be, daylight may hide the star, the cadence may be slow."""
    end = days - draw.uniform(0, days / 4)
    late = draw.uniform(0, 1) < 0.4
    # What a young star has been seen for: from 1 % of the window up, log-uniform.
    start = torch.where(late, end * (1 - 0.01 ** draw.uniform(0, 1)), 0.0)
    by_night = draw.uniform(0, 1) < 0.25
    night = (grid + draw.uniform(0, 1)) % 1.0 < draw.uniform(0.2, 0.5)
    sparse = draw.uniform(0, 1) < 0.3
    kept = draw.uniform(0, 1, GRID) < torch.where(sparse, draw.uniform(0.05, 1), 1.0)
    return (grid <= end) & (grid >= start) & (~by_night | night) & kept


def _stream_sigma(config: PatternConfig, draw: _Draw) -> Tensor:
    low, high = (torch.tensor(edge).log().item() for edge in config.stream_sigma)
    level = draw.uniform(low, high).exp()
    spread = draw.uniform(0, 0.4) * (draw.uniform(0, 1) < 0.5)
    return level * (spread * draw.normal(GRID)).exp()


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
