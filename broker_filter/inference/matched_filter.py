"""Matched filter for lenses: the significance of event shapes at every time and duration.

A network has to learn sums over hundreds of epochs, and learns them imperfectly; here they are
exact. The largest significance S is close to the signal-to-noise of an event, and ln K grows as
S^2 / 2, so the evidence head can follow it far beyond what it met in training. Which templates
are likely says where the event is and how long it lasts, for the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from broker_filter.inference.lens import excess

__all__ = ["CELLS", "LENS_KERNELS", "LEVELS", "TAPS", "LensScan", "outside"]

CELLS, LEVELS, TAPS = 1024, 8, 16
POINT = 1e-4  # a source so small that the table has it as a point
# Shapes (tE in cells, u0, rho): points seen sharp and blunt, discs that the lens crosses.
SHAPES = (
    (2.0, 0.05, POINT),
    (2.0, 0.5, POINT),
    (2.8, 0.5, POINT),
    (2.0, 1.2, POINT),
    (2.8, 1.2, POINT),
    (1.0, 0.1, 3.0),
    (1.2, 0.1, 3.0),
    (1.4, 0.1, 3.0),
    (1.7, 0.1, 3.0),
)
# From this level on templates may be centred outside the window: the peak is before or after it.
OUTSIDE_LEVEL = 2
HIGHEST, HIGHEST_SHOWN = 3e4, 300.0
ROWS_AT_ONCE = 32
TINY, UNIT = 1e-300, 2.0**-48  # of whole numbers, in the largest value: 2^14 of these fit


class LensScan(nn.Module):
    """Features of a window from templates of `SHAPES`, at `LEVELS` durations and all times.

    Notes
    -----
    Photometry is gathered into `CELLS` cells of time; each level halves their number, so that one
    set of kernels serves all durations, an octave apart. The significance of a template k is
    S = k' C^-1 y / sqrt(k' C^-1 k), y = F - 1, with the covariance C = diag(sigma^2) + b^2 of
    errors with a common baseline, inverted by Sherman and Morrison. The likelihood ratio of a
    template of the best amplitude is exp(S^2 / 2). Nothing here is learned.
    """

    kernels: Tensor
    octaves: Tensor
    WIDTH = LEVELS * len(SHAPES) + 3 * LEVELS + 5

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernels", LENS_KERNELS.clone(), persistent=False)
        widths = torch.tensor([t_e for t_e, _, _ in SHAPES]).log2()
        octaves = torch.arange(LEVELS)[:, None] + widths
        self.register_buffer("octaves", octaves.flatten(), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, valid: Tensor, baseline_error: Tensor | None = None) -> Tensor:
        """Features, shape (B, WIDTH), float32; zero for a window without epochs.

        Parameters
        ----------
        x : Tensor, shape (B, L, 3), float32
            Network input, zero where there is no epoch.
        valid : Tensor, shape (B, L), bool
        baseline_error : Tensor, shape (B,), float32, optional
            1-sigma relative error b of the baselines; exact ones if left out.

        Returns
        -------
        Tensor
            In this order, where means are over templates by their likelihood:

            - mean time of a template (network units), mean duration (octaves of cells) and its
              spread, asinh of 50 times the mean amplitude, asinh of the mean S;
            - by level and shape, the largest S over the largest of all;
            - by level, asinh of the largest S; then the largest S / 10; then asinh of the smallest.
        """
        b = x.new_zeros(len(x)) if baseline_error is None else baseline_error.float()
        # A few rows at a time stay in a processor's cache, which makes this twice as fast.
        n = ROWS_AT_ONCE if x.device.type == "cpu" else max(len(x), 1)
        rows = zip(*(torch.split(part, n) for part in (x, valid, b)), strict=True)
        return torch.cat([self._features(*part) for part in rows])

    def _features(self, x: Tensor, valid: Tensor, b: Tensor) -> Tensor:
        s, time, amplitude, low = self._templates(x, valid, b)
        likely = (0.5 * s.clamp(min=0).square()).softmax(-1)
        mean = (likely * torch.stack([time, self.octaves.expand_as(s), amplitude, s])).sum(-1)
        spread = (likely * (self.octaves - mean[1][:, None]).square()).sum(-1).sqrt()
        high = s.reshape(len(s), LEVELS, -1).amax(-1)
        features = [
            torch.stack([mean[0], mean[1], spread, (50 * mean[2]).asinh(), mean[3].asinh()], -1),
            s / s.amax(-1, keepdim=True).clamp(min=1),
            high.asinh(),
            high.clamp(-HIGHEST_SHOWN, HIGHEST_SHOWN) / 10,
            low.asinh(),
        ]
        return torch.cat(features, -1).masked_fill(~valid.any(-1, keepdim=True), 0.0)

    @torch.no_grad()
    def largest(self, x: Tensor, valid: Tensor, baseline_error: Tensor) -> Tensor:
        """The largest S by level, shape (B, LEVELS), float32; arguments as of `forward`."""
        levels = self._levels(x, valid, baseline_error)
        return torch.stack([_significance(*level).amax((-2, -1)) for level in levels], -1)

    def _templates(
        self, x: Tensor, valid: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Templates by level and shape: the largest S, its time and its amplitude.

        These have shape (B, LEVELS x K); the last is the smallest S by level, (B, LEVELS).
        """
        levels = enumerate(self._levels(x, valid, b))
        found = [_best(*sums, level) for level, sums in levels]
        s, time, amplitude = (torch.cat([best[i] for best in found], -1) for i in range(3))
        return s, time, amplitude, torch.stack([best[3] for best in found], -1)

    def _levels(self, x: Tensor, valid: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What `_filter` gives, level by level."""
        cells = _cells(x, valid, b)
        total = cells[:, 1].sum(-1)
        common = (b**2 / (1 + b**2 * total))[:, None, None]
        for level in range(LEVELS):
            yield _filter(cells, self.kernels, common, outside(level))
            cells = cells.reshape(*cells.shape[:2], -1, 2).sum(-1)

    @torch.no_grad()
    def lenses(self, days: Tensor, flux: Tensor, sigma: Tensor, b: float) -> Tensor:
        """The best lens of each level and shape, shape (LEVELS x K, 4).

        Parameters
        ----------
        days, flux, sigma : Tensor, shape (L,), float64
            Epochs, flux and errors in units of the baseline.
        b : float
            1-sigma relative error of the baseline.

        Returns
        -------
        Tensor
            t0 (as ``days``), u0, log10 tE (days) and log10 rho, float64.
        """
        first, span = float(days.min()), max(float(days.max() - days.min()), 1e-3)
        x = torch.stack([2 * (days - first) / span - 1, flux, sigma], -1)[None].float()
        valid = torch.ones(1, len(days), dtype=torch.bool)
        time = self._templates(x, valid, torch.tensor([b]))[1][0].double()
        shapes = torch.tensor(SHAPES, dtype=torch.float64).repeat(LEVELS, 1)
        log_tE = self.octaves.double() * math.log10(2) + math.log10(span / CELLS)
        t0 = first + (time.nan_to_num() + 1) / 2 * span
        return torch.stack([t0, shapes[:, 1], log_tE, shapes[:, 2].log10()], -1)


def _filter(cells: Tensor, kernels: Tensor, common: Tensor, outside: int) -> tuple[Tensor, Tensor]:
    """The sums k' C^-1 y and k' C^-1 k of the kernels at all places, shape (B, K, places) each."""
    padded, k = pad(cells, (outside, outside)), kernels[:, None]
    signal, mean = conv1d(padded[:, :1], k), conv1d(padded[:, 1:], k)
    alone = conv1d(padded[:, 1:], k.square())
    # The floor is for shapes so flat that a wrong baseline explains them as well.
    power = torch.maximum(alone - common * mean.square(), 1e-3 * alone).clamp(min=1e-12)
    return signal, power


def _significance(signal: Tensor, power: Tensor) -> Tensor:
    """S of the kernels at all places, shape (B, K, places)."""
    return (signal * power.rsqrt()).clamp(-HIGHEST, HIGHEST)


def _best(signal: Tensor, power: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By kernel the largest S, its time and its amplitude, shape (B, K); the smallest S, (B,)."""
    s = _significance(signal, power)
    high, place = s.max(-1)
    at = place[..., None]
    before, after = (s.gather(-1, (at + i).clamp(0, s.shape[-1] - 1))[..., 0] for i in (-1, 1))
    # The top of the parabola through the largest S and its neighbours.
    bend = (2 * high - before - after).clamp(min=1e-6)
    within = (0.5 * (after - before) / bend).clamp(-0.5, 0.5)
    time = 2 * (place + within - outside(level) + TAPS / 2) / (CELLS >> level) - 1
    amplitude = (signal.gather(-1, at) / power.gather(-1, at))[..., 0].clamp(0, 1e3)
    return high, time, amplitude, s.amin((-2, -1))


def _cells(x: Tensor, valid: Tensor, b: Tensor) -> Tensor:
    """Sums of (F - 1 - offset) / sigma^2 and of 1 / sigma^2 by cell, shape (B, 2, CELLS).

    The offset is the likely error of the baseline, were there no event.
    """
    t, flux, sigma = x.unbind(-1)
    weight = torch.where(valid, torch.where(valid, sigma, 1.0) ** -2, 0.0)
    y = flux - 1
    square = b[:, None] ** 2
    y = y - square * (weight * y).sum(-1, True) / (1 + square * weight.sum(-1, True))
    cell = ((t + 1) * (CELLS / 2)).long().clamp(0, CELLS - 1)
    add_up = _sums if x.device.type == "cpu" else _sums_in_any_order
    return torch.stack([add_up(weight * y, cell), add_up(weight, cell)], 1)


def _sums(values: Tensor, cell: Tensor) -> Tensor:
    """Sums by cell, shape (B, CELLS), of values of shape (B, L)."""
    return values.new_zeros(len(values), CELLS).scatter_add_(-1, cell, values)


def _sums_in_any_order(values: Tensor, cell: Tensor) -> Tensor:
    """The same in whole numbers, for a GPU, which adds up in another order each time."""
    values = values.nan_to_num().double()
    unit = values.abs().amax(-1, keepdim=True).clamp(min=TINY) * UNIT
    return (_sums((values / unit).round().long(), cell) * unit).float()


def _kernels() -> Tensor:
    """Shapes averaged over cells, largest value 1; shape (K, TAPS)."""
    within = (torch.arange(8) + 0.5) / 8 - 0.5
    t = torch.arange(TAPS)[:, None] - (TAPS - 1) / 2 + within
    shapes = []
    for t_e, u0, rho in SHAPES:
        u = (u0**2 + (t / t_e) ** 2).sqrt()
        a = excess(u, torch.full_like(u, rho)).mean(-1)
        shapes.append(a / a.amax())
    return torch.stack(shapes)


def outside(level: int) -> int:
    """Cells beyond either end of the window that a template may reach."""
    return TAPS - 1 if level >= OUTSIDE_LEVEL else TAPS // 2


LENS_KERNELS = _kernels()
"""The templates, shape (K, TAPS)."""
