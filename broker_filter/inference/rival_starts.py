"""Where the climbs of a curved shape start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.rival_shapes import SHORTEST_PERIOD, CurvedShape, Span
from broker_filter.types import FloatArray

__all__ = ["starts_of"]

TIMES: Final = 24
DURATIONS: Final = 12
PERIODS: Final = 10
FINENESS: Final = 5.0  # frequencies of a periodogram in one over the length of the data
MOST_BINS: Final = 1 << 18


def starts_of(shape: CurvedShape, lights: Sequence[SourceLight], span: Span) -> FloatArray:
    """Candidates, shape (c, d), in z."""
    if shape.centre is None:
        periods = likely_periods(lights)
        return shape.z(np.concatenate([periods, 2 * periods])[:, None], span)
    times = _striking_times(lights, downwards=shape.name == "dip")
    inner = shape.dimensions - 1
    if inner == 1:
        z = np.linspace(-2, 2, DURATIONS)[:, None]
    else:
        z = np.random.default_rng(0).normal(size=(2 * DURATIONS, inner))
    place = np.repeat(np.arange(len(times)), len(z))
    candidates = np.concatenate([np.zeros((len(place), 1)), np.tile(z, (len(times), 1))], axis=1)
    theta = shape.theta(candidates, span)
    theta[:, 0] = times[place] - shape.centre(theta[:, 1:])
    return shape.z(theta, span)


def _striking_times(lights: Sequence[SourceLight], *, downwards: bool) -> FloatArray:
    """Times of the epochs that stand out most, and others evenly over all epochs."""
    t = np.concatenate([light.t for light in lights])
    height = np.concatenate([light.residual / light.sigma for light in lights])
    highest = np.argsort(height if downwards else -height)[: TIMES // 2]
    even = np.quantile(t, np.linspace(0, 1, TIMES // 2))
    return np.unique(np.concatenate([t[highest], even]))


def likely_periods(lights: Sequence[SourceLight]) -> FloatArray:
    """Periods at the highest peaks of the periodogram of all sources, days.

    Lomb & Scargle's periodogram by a fast Fourier transform of epochs in bins (Press & Rybicki
    1989, ApJ 338, 277): near enough for a start.
    """
    first = min(float(light.t[0]) for light in lights)
    length = max(max(float(light.t[-1]) for light in lights) - first, 1.0)
    step = max(SHORTEST_PERIOD / 16, FINENESS * length / MOST_BINS)
    bins = int(FINENESS * length / step)
    power = sum(_power(light, first, step, bins) for light in lights)
    frequency = np.arange(bins // 2 + 1) / (bins * step)
    seen = (frequency >= 0.5 / length) & (frequency <= 1 / (8 * step))
    power = np.where(seen, power, -1.0)
    peak = np.flatnonzero((power[1:-1] >= power[:-2]) & (power[1:-1] >= power[2:])) + 1
    highest = peak[np.argsort(-power[peak])][:PERIODS]
    return np.asarray(1 / frequency[highest[frequency[highest] > 0]])


def _power(light: SourceLight, first: float, step: float, bins: int) -> FloatArray:
    weight = light.sigma**-2
    off = light.residual - np.average(light.residual, weights=weight)
    place = np.minimum(((light.t - first) / step).astype(np.int64), bins - 1)
    wave = np.fft.rfft(np.bincount(place, weight * off, minlength=bins))
    return np.asarray(np.abs(wave) ** 2 / weight.sum())
