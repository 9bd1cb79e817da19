"""Noise of real stars: error bars that are off, red noise, bad nights, wild epochs.

The numbers are those of quiet OGLE, KMTNet and MOA stars, in units of the errors that the filter
works with. White noise with correct errors stays a part of the mixture: space telescopes have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model_zoo.simulate.draw import Draw
from model_zoo.simulate.pattern import Pattern

__all__ = ["NOISES", "SKY_NOISE", "Noise", "NoiseModel", "draw_noise", "red_noise", "unknown_noise"]

# exp(days / tau) has to stay a float64.
MOST_TIMES = 600.0
LONGEST_TRAIL = 8
TRAIL_DECAY = 0.3
WILDEST = 100.0


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """A population of stars with their noise, as a named and versioned object.

    Parameters
    ----------
    name : str
        Name and version, for the card.
    share : float
        Share of stars that it holds for; the others have white noise with correct errors.
    known : float
        Share of stars whose noise the filter knows from their history.
    scale : (float, float)
        Factor on the errors: median, and scatter in nats.
    red : (float, float, float)
        Ornstein-Uhlenbeck noise: share of stars, median amplitude in typical errors, scatter of
        it in nats.
    tau : (float, float)
        Its correlation time in days, log-uniform.
    nights : (float, float)
        Offsets of whole nights: share of stars, typical scatter in errors.
    tails : (float, float)
        Epochs with errors 3-15 times too small: share of stars, and the largest part of epochs.
    wild : float
        Share of stars with one to three wild epochs, up to 100 errors off, most of them bright; the
        light that is left may take some epochs to fade, as persistence does.
    wrong_night : float
        Share of stars with one night that is 2-20 errors off.
    seeing : float
        Share of stars that are 1-3 errors low, and scatter twice as much, in a fifth of the nights.
    drift : float
        Share of stars that drift through the window by 0.2-2.5 errors.
    floor : (float, float)
        Share of stars with noise that the stated errors leave out, and its largest value in
        relative flux; never above 1.5 errors.
    baseline : (float, float)
        Factor on the baseline's error: median, and scatter in nats.
    """

    name: str
    share: float
    known: float
    scale: tuple[float, float]
    red: tuple[float, float, float]
    tau: tuple[float, float]
    nights: tuple[float, float]
    tails: tuple[float, float]
    wild: float
    wrong_night: float
    seeing: float
    drift: float
    floor: tuple[float, float]
    baseline: tuple[float, float]


SKY_NOISE = NoiseModel(
    name="sky-1",
    share=0.6,
    known=0.5,
    scale=(1.0, 0.16),
    red=(0.6, 0.25, 0.6),
    tau=(0.05, 40.0),
    nights=(0.5, 0.35),
    tails=(0.4, 0.03),
    wild=0.12,
    wrong_night=0.05,
    seeing=0.15,
    drift=0.15,
    floor=(0.2, 0.003),
    baseline=(1.3, 0.45),
)
NOISES = {model.name: model for model in (SKY_NOISE,)}


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of B curves.

    Parameters
    ----------
    flux : Tensor, shape (B, N), float32
        To be added to the relative flux.
    baseline : Tensor, shape (B,), float32
        Factor on the error of the baseline.
    star : Tensor, shape (B, 3), float32
        What the filter knows of the star: see `broker_filter.inference.encoder.STAR_NOISE`. NaN
        where it knows nothing.
    """

    flux: Tensor
    baseline: Tensor
    star: Tensor


def draw_noise(model: NoiseModel, pattern: Pattern, generator: torch.Generator) -> Noise:
    """Noise for observing patterns, on the generator's device."""
    draw = Draw(len(pattern.n), generator)
    real = draw.happens(model.share)
    t = torch.where(pattern.valid, pattern.t, 0.0)
    days = float(t.max())
    night = (t + draw.uniform(0, 1)).long()
    count = int(days) + 2
    sigma, level = pattern.sigma, pattern.level[:, None]

    scale = torch.where(real, draw.log_normal(*model.scale), 1.0)
    red = draw.log_normal(*model.red[1:]) * (real & draw.happens(model.red[0]))
    offset = draw.normal() * model.nights[1] * (real & draw.happens(model.nights[0]))
    low, boost = _seeing(real & draw.happens(model.seeing), night, count, draw)
    spread = sigma * scale * boost * _tails(model, real, t, draw)
    spread = torch.hypot(spread, _floor(model, real, sigma, draw))
    nightly = offset * draw.normal(count)
    nightly += _wrong_night(real & draw.happens(model.wrong_night), count, draw)
    flux = nightly.gather(1, night)
    flux += red * red_noise(t, draw.log_uniform(*model.tau), draw)
    flux += _wild(real & draw.happens(model.wild), pattern, draw)
    flux += _drift(real & draw.happens(model.drift), t, days, draw)
    flux = level * flux + sigma * low + spread * draw.normal(t.shape[1])
    baseline = torch.where(real, draw.log_normal(*model.baseline), 1.0)
    star = _known(model, scale, (red.square() + offset.square()).sqrt(), draw)
    return Noise(torch.where(pattern.valid, flux, 0.0), baseline[:, 0], star)


def unknown_noise(n: int, device: torch.device) -> Tensor:
    """`Noise.star` of stars without a history, shape (n, 3)."""
    return torch.full((n, 3), float("nan"), device=device)


def red_noise(t: Tensor, tau: Tensor, draw: Draw) -> Tensor:
    """Ornstein-Uhlenbeck noise of variance 1, shape (B, N), in O(N).

    Parameters
    ----------
    t : Tensor, shape (B, N), days
        Sorted; what follows the last epoch of a row does not matter.
    tau : Tensor, shape (B, 1), days
        At least 1/600 of the span; shorter ones count as that.
    """
    t = (t - t[:, :1]).clamp(min=0).double()
    times = t / torch.maximum(tau.double(), t.amax(1, keepdim=True) / MOST_TIMES).clamp(min=1e-9)
    step = torch.diff(times, prepend=times[:, :1]).clamp(min=0)
    fresh = (-torch.expm1(-2 * step)).sqrt()
    fresh[:, 0] = 1.0
    kicks = fresh * draw.normal(t.shape[1])
    # x_i = exp(-times_i) sum_j<=i exp(times_j) kicks_j: one cumulative sum in place of a loop.
    return ((kicks * times.exp()).cumsum(1) * (-times).exp()).float()


def _tails(model: NoiseModel, real: Tensor, t: Tensor, draw: Draw) -> Tensor:
    """Factor on the errors of single epochs."""
    share, most = model.tails
    part = draw.log_uniform(most / 30, most) * (real & draw.happens(share))
    return torch.where(draw.uniform(0, 1, t.shape[1]) < part, draw.uniform(3, 15), 1.0)


def _floor(model: NoiseModel, real: Tensor, sigma: Tensor, draw: Draw) -> Tensor:
    share, most = model.floor
    floor = draw.uniform(0.2 * most, most) * (real & draw.happens(share))
    return torch.minimum(floor, 1.5 * sigma)


def _wild(chosen: Tensor, pattern: Pattern, draw: Draw) -> Tensor:
    """In typical errors: single epochs, and some that a trail follows."""
    index = torch.arange(pattern.t.shape[1], device=pattern.t.device)
    total = torch.zeros_like(pattern.t)
    for least in (0.0, 0.5, 0.8):
        first = (draw.uniform(0, 1) * pattern.n[:, None]).long()
        after = index - first
        trail = torch.where(draw.happens(0.3), TRAIL_DECAY, 0.0) ** after.clamp(min=0)
        up = 1 - 2 * draw.happens(0.3).float()
        height = draw.log_uniform(4, WILDEST) * up * (chosen & (draw.uniform(0, 1) >= least))
        total += height * trail * ((after >= 0) & (after < LONGEST_TRAIL))
    return total


def _wrong_night(chosen: Tensor, count: int, draw: Draw) -> Tensor:
    """In typical errors by night, shape (B, count)."""
    nights = torch.arange(count, device=chosen.device)
    which = draw.uniform(0, count).long()
    return (nights == which) * draw.log_uniform(2, 20) * draw.sign() * chosen


def _seeing(chosen: Tensor, night: Tensor, count: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """Offset in errors and factor on them: low and scattered in a fifth of the nights.

    The star's mean, which is its baseline, has those nights in it, so all others are high.
    """
    bad = draw.happens(0.2, count).gather(1, night) & chosen
    depth = draw.uniform(0.5, 3) * chosen
    return 0.2 * depth - depth * bad, torch.where(bad, draw.uniform(1.3, 2.6), 1.0)


def _drift(chosen: Tensor, t: Tensor, days: float, draw: Draw) -> Tensor:
    """In typical errors: a line through the window."""
    height = draw.log_uniform(0.2, 2.5) * draw.sign() * chosen
    return height * (t / max(days, 1e-9) + draw.uniform(-1, 0))


def _known(model: NoiseModel, scale: Tensor, red: Tensor, draw: Draw) -> Tensor:
    """What a history of some nights says of scale and red noise, shape (B, 3)."""
    nights = draw.log_uniform(4, 400)
    epochs = draw.log_uniform(1, 60)
    error = (2 / nights).sqrt() * (red.square() + 1 / epochs)
    # From an estimate to an upper limit: services state either.
    square = red.square() + error * (draw.normal() + draw.uniform(0, 2))
    found = scale * (draw.normal() / (2 * nights * epochs).sqrt()).exp()
    star = torch.cat([found, square.clamp(min=0).sqrt(), nights], 1)
    return star.masked_fill(~draw.happens(model.known), float("nan"))
