"""Stars that change without a lens: flares, outbursts, pulsation, bumps, steps, dips.

Every shape is the relative flux F - 1 of B curves at their epochs, in units of the mean or quiet
flux, before blending. Magnitudes become fluxes by 10^(0.4 m).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model_zoo.simulate.draw import Draw
from model_zoo.simulate.noise import red_noise
from model_zoo.simulate.pattern import Pattern

__all__ = ["LOOKALIKES", "SHAPES", "SKY_LOOKALIKES", "Lookalikes", "draw_lookalikes"]

LN_MAG = 0.4 * math.log(10)
MINUTE = 1 / 1440
MOST_FLARES = 6
HARMONICS = 4
BRIGHTEST = 50.0
"""Of F - 1: a dwarf nova of 4 mag."""


@dataclass(frozen=True, slots=True)
class Lookalikes:
    """How common each shape is, as a named and versioned object.

    Parameters
    ----------
    name : str
        Name and version, for the card.
    shares : mapping
        Weight of each of `SHAPES`.
    """

    name: str
    shares: dict[str, float]


SKY_LOOKALIKES = Lookalikes(
    "sky-1",
    {
        "flare": 0.2,
        "outburst": 0.2,
        "periodic": 0.2,
        "bump": 0.12,
        "trend": 0.08,
        "step": 0.05,
        "dip": 0.07,
        "smooth": 0.08,
    },
)
LOOKALIKES = {kinds.name: kinds for kinds in (SKY_LOOKALIKES,)}


def draw_lookalikes(
    kinds: Lookalikes, pattern: Pattern, days: float, generator: torch.Generator
) -> Tensor:
    """F - 1 of ``len(pattern.n)`` variable stars, shape (B, N), float32; zero in the padding.

    Parameters
    ----------
    kinds : Lookalikes
    pattern : Pattern
    days : float
        Length of the window.
    generator : torch.Generator
    """
    n, device = len(pattern.n), generator.device
    weights = torch.tensor([kinds.shares[name] for name in SHAPES], device=device)
    which = torch.multinomial(weights, n, replacement=True, generator=generator)
    t = torch.where(pattern.valid, pattern.t, 0.0)
    signal = torch.zeros_like(t)
    for i, shape in enumerate(SHAPES.values()):
        rows = (which == i).nonzero()[:, 0]
        if len(rows):
            signal[rows] = shape(t[rows], days, Draw(len(rows), generator))
    blend = Draw(n, generator).log_uniform(0.1, 1)
    return torch.where(pattern.valid, blend * signal.clamp(max=BRIGHTEST), 0.0).clamp(min=-0.95)


def _flare(t: Tensor, days: float, draw: Draw) -> Tensor:
    """One to six flares of Davenport et al. 2014 with the sizes of Guenther et al. 2020.

    Widths and amplitudes correlate; in the near infrared a flare is a third of what TESS sees. The
    typical flare is some times larger and longer than theirs: smaller ones leave no trace.
    """
    count, signal = draw.log_uniform(0.2, 20), torch.zeros_like(t)
    for i in range(MOST_FLARES):
        width = 1.1 * draw.normal()
        height = 1.4 * (0.42 * width / 1.1 + math.sqrt(1 - 0.42**2) * draw.normal())
        fwhm = 15 * MINUTE * width.exp()
        flux = draw.uniform(0.2, 0.42) * 0.25 * height.exp() * _flare_shape(t, fwhm, days, draw)
        signal += flux * (count > i)
    return signal


def _flare_shape(t: Tensor, fwhm: Tensor, days: float, draw: Draw) -> Tensor:
    x = (t - draw.uniform(0, days)) / fwhm
    rise = 1 + 1.941 * x - 0.175 * x**2 - 2.246 * x**3 - 1.125 * x**4
    late = x.clamp(min=0)
    fall = 0.6890 * (-1.600 * late).exp() + 0.3030 * (-0.2783 * late).exp()
    return torch.where(x > 0, fall, torch.where(x > -1, rise.clamp(min=0), 0.0))


def _outburst(t: Tensor, days: float, draw: Draw) -> Tensor:
    """Dwarf nova: up in magnitudes within a day or two, a plateau, down along a line.

    Amplitude 1.8 +- 1 mag, 9 d long within a factor of 1.7 (OGLE-IV); up to two in a window.
    """
    height = (1.8 + draw.normal()).clamp(0.2, 4.2)
    length = draw.log_normal(9, 0.55)
    first = draw.uniform(-0.7, 1) * days
    mag = _outburst_shape(t - first, height, length, draw)
    again = draw.happens(0.2)
    second = first + length * draw.uniform(1.2, 3)
    mag = mag + again * _outburst_shape(t - second, height, length, draw)
    return (LN_MAG * mag).exp() - 1


def _outburst_shape(since: Tensor, height: Tensor, length: Tensor, draw: Draw) -> Tensor:
    """Magnitudes above quiescence."""
    rise, top = draw.uniform(0.03, 0.25) * length, draw.uniform(0, 0.6) * length
    fall = (length - rise - top).clamp(min=0.15 * length)
    down = torch.where(draw.happens(0.4), 3.0, 1.0) * (since - rise - top) / fall
    # A decline in flux that is exponential is a line in magnitudes; some are steep at first.
    faded = torch.where(down > 0, (1 - down.clamp(0, 1)), 1.0)
    return height * (since / rise).clamp(0, 1) * faded


def _periodic(t: Tensor, _days: float, draw: Draw) -> Tensor:
    """Pulsation, rotation, eclipses: up to four harmonics, 1.2 h to 100 d, 0.5 % to 0.8 mag."""
    period = draw.log_uniform(0.05, 100)
    phase = 2 * math.pi * (t / period + draw.uniform(0, 1))
    fading = draw.uniform(0, 0.8)
    mag = phase.sin()
    for order in range(2, HARMONICS + 1):
        shift = draw.uniform(0, 2 * math.pi)
        mag = mag + fading ** (order - 1) * (order * phase + shift).sin()
    return (LN_MAG * draw.log_uniform(0.005, 0.8) * mag / 2).exp() - 1


def _bump(t: Tensor, days: float, draw: Draw) -> Tensor:
    """Be stars, supernovae: up as a Gaussian, down as an exponential or a slower Gaussian."""
    rise = draw.log_uniform(0.5, 15)
    fall = rise * draw.log_uniform(1.5, 8)
    since = t - draw.uniform(-0.5, 1.2) * days
    up = (-0.5 * (since / rise).square()).exp()
    slow = (-0.5 * (since / fall).square()).exp()
    late = torch.where(draw.happens(0.6), (-since.clamp(min=0) / fall).exp(), slow)
    return draw.log_uniform(0.01, 5) * torch.where(since < 0, up, late)


def _trend(t: Tensor, days: float, draw: Draw) -> Tensor:
    """A line with some curvature."""
    x = t / days + draw.uniform(-1, 0)
    return draw.log_uniform(0.005, 0.5) * draw.sign() * (x + 0.5 * draw.normal() * x.square())


def _step(t: Tensor, days: float, draw: Draw) -> Tensor:
    """From one level to another, within minutes to days."""
    since = t - draw.uniform(0, days)
    height = draw.log_uniform(0.005, 0.5) * draw.sign()
    return height * (since / draw.log_uniform(0.01, 5)).sigmoid()


def _dip(t: Tensor, days: float, draw: Draw) -> Tensor:
    """Eclipses and dips of dust, once or again and again."""
    period = torch.where(draw.happens(0.5), draw.log_uniform(0.3, 20), 10 * days)
    since = (t - draw.uniform(0, days) + period / 2) % period - period / 2
    width = torch.minimum(draw.log_uniform(0.02, 5), 0.15 * period)
    return -draw.log_uniform(0.01, 0.8) * (-((since / width).abs() ** draw.uniform(2, 6))).exp()


def _smooth(t: Tensor, _days: float, draw: Draw) -> Tensor:
    """Irregular variables and quasars: red noise far above the errors."""
    mag = draw.log_uniform(0.005, 0.3) * red_noise(t, draw.log_uniform(0.3, 50), draw)
    return (LN_MAG * mag).exp() - 1


SHAPES: dict[str, Callable[[Tensor, float, Draw], Tensor]] = {
    "flare": _flare,
    "outburst": _outburst,
    "periodic": _periodic,
    "bump": _bump,
    "trend": _trend,
    "step": _step,
    "dip": _dip,
    "smooth": _smooth,
}
