"""Where the climbs of a curved shape start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.fft import next_fast_len, rfft

from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.rival_shapes import SHORTEST_PERIOD, CurvedShape, Span
from broker_filter.types import FloatArray

__all__ = ["starts_of"]

TIMES: Final = 16
DURATIONS: Final = 12
LENGTHS, SHORTEST, LONGEST = 9, 0.1, 100.0
PARTS: Final = np.array(
    [[0.45, 0.1, 0.45], [0.2, 0.05, 0.75], [0.05, 0.05, 0.9], [0.2, 0.6, 0.2], [0.65, 0.1, 0.25]]
)
"""Lengths, days, and parts of them: rise, plateau and decline."""
PERIODS: Final = 10
FINENESS: Final = 5.0  # frequencies of a periodogram in one over the length of the data
MOST_BINS: Final = 1 << 18


def starts_of(shape: CurvedShape, lights: Sequence[SourceLight], span: Span) -> FloatArray:
    """Candidates, shape (c, d), in z."""
    if shape.centre is None:
        periods = likely_periods(lights)
        return shape.z(np.concatenate([periods, 2 * periods])[:, None], span)
    times = _striking_times(lights, downwards=shape.name == "dip")
    durations = _durations(shape, span)
    theta = np.empty((len(times) * len(durations), shape.dimensions))
    theta[:, 1:] = np.tile(durations, (len(times), 1))
    theta[:, 0] = np.repeat(times, len(durations)) - shape.centre(theta[:, 1:])
    return shape.z(theta, span)


def _durations(shape: CurvedShape, span: Span) -> FloatArray:
    """All durations together, shape (c, d - 1): those of the prior, or of any length in parts."""
    if shape.dimensions == PARTS.shape[1] + 1:
        whole = np.geomspace(SHORTEST, LONGEST, LENGTHS)
        return np.asarray((whole[:, None, None] * PARTS).reshape(-1, PARTS.shape[1]))
    z = np.linspace(-2, 2, DURATIONS)[:, None]
    return shape.theta(np.concatenate([np.zeros_like(z), z], axis=1), span)[:, 1:]


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
    bins = next_fast_len(int(FINENESS * length / step), real=True)
    power = sum(_power(light, first, step, bins) for light in lights)
    frequency = np.arange(bins // 2 + 1) / (bins * step)
    seen = (frequency >= 0.5 / length) & (frequency <= 1 / (8 * step))
    power = np.where(seen, power, -1.0)
    peak = np.flatnonzero((power[1:-1] >= power[:-2]) & (power[1:-1] >= power[2:])) + 1
    if len(peak) > PERIODS:
        peak = peak[np.argpartition(-power[peak], PERIODS)[:PERIODS]]
    highest = peak[np.argsort(-power[peak])]
    return np.asarray(1 / frequency[highest[frequency[highest] > 0]])


def _power(light: SourceLight, first: float, step: float, bins: int) -> FloatArray:
    weight = light.sigma**-2
    off = light.residual - np.average(light.residual, weights=weight)
    place = np.minimum(((light.t - first) / step).astype(np.int64), bins - 1)
    # Single precision is twice as fast, and peaks need no more.
    wave = rfft(np.bincount(place, weight * off / weight.sum(), minlength=bins).astype(np.float32))
    return np.asarray((wave.real**2 + wave.imag**2) * np.float32(weight.sum()))
