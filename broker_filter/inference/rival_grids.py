"""Rivals that are not curves: a quiet star, wrong epochs, and light that varies smoothly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from broker_filter.inference.log_sum import log_sum
from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.rival_amplitude import (
    AnySign,
    SourceBest,
    log_by_noise,
    log_marginal,
    source_best,
    spared,
)
from broker_filter.inference.rival_noise import NoisePrior, SourceNoise
from broker_filter.types import FloatArray, IntArray

__all__ = ["Found", "artefact", "constant", "constants", "joined", "smooth", "wrong_epoch"]

AMPLITUDES: Final = tuple(np.geomspace(0.003, 3.0, 7).tolist())
TIMES: Final = tuple(np.geomspace(0.1, 100.0, 7).tolist())
"""Of light that varies smoothly: red noise from 0.3 % to 3 times the baseline, hours to months."""

WRONG: Final = AnySign((0.03, 0.3, 3.0, 30.0))
"""How far off a wrong epoch or night is, in units of the baseline."""

SUSPECTS, PAIRED = 30, 8
KINDS: Final = 3  # one epoch, two epochs, a night: a third of the prior each

_QUIET: Final = AnySign((1.0,))


@dataclass(frozen=True, slots=True)
class Found:
    """A rival's marginal likelihood, its standard error, and its best parameters and curve.

    Parameters
    ----------
    log_p, error : float
        Natural log; without the factor (2 pi)^(-n/2).
    parameters : mapping of str to float
        Days and units of the baseline.
    curve : ndarray, shape (n,), float64
        Flux less 1, epochs source by source.
    scale : float
        Factor on the errors that it needs, in the source that needs the largest.
    wrong : tuple of int
        Places in ``curve`` of the epochs that an artefact calls wrong.
    """

    log_p: float
    error: float
    parameters: Mapping[str, float]
    curve: FloatArray
    scale: float
    wrong: tuple[int, ...] = ()


def constants(noises: Sequence[SourceNoise]) -> FloatArray:
    """Natural log of the density of each source's fluxes for a constant star, shape (S,)."""
    return np.array([log_marginal(noise, _none(noise), _QUIET)[0] for noise in noises])


def _none(noise: SourceNoise) -> FloatArray:
    return np.zeros((len(noise), 1, 0))


def constant(noises: Sequence[SourceNoise]) -> Found:
    """A star that only its noise moves."""
    best = [source_best(noise, _none(noise)[:, 0], _QUIET) for noise in noises]
    return Found(float(constants(noises).sum()), 0.0, {}, *joined(best))


def joined(sources: Sequence[SourceBest]) -> tuple[FloatArray, float]:
    """The curve of all sources, and the largest factor on their errors."""
    return np.concatenate([one.curve for one in sources]), max(one.scale for one in sources)


def smooth(lights: Sequence[SourceLight], prior: NoisePrior) -> Found:
    """Light that varies smoothly in any way: red noise without a bound, the same in all sources."""
    processes = [(a, tau) for a in AMPLITUDES for tau in TIMES]
    noises = [SourceNoise(light, prior, processes) for light in lights]
    log_p = sum(log_by_noise(noise, _none(noise), _QUIET)[:, 0] for noise in noises)
    best = int(np.argmax(log_p))
    found = [_smoothed(light, prior, processes[best]) for light in lights]
    total = float(log_sum(log_p)) - math.log(len(processes))
    amplitude, tau = processes[best]
    return Found(total, 0.0, {"amplitude": amplitude, "tau": tau}, *joined(found))


def _smoothed(light: SourceLight, prior: NoisePrior, process: tuple[float, float]) -> SourceBest:
    """What remains of the residuals without their white part."""
    noise = SourceNoise(light, prior, [process])
    flat = source_best(noise, _none(noise)[:, 0], _QUIET)
    off = light.residual - flat.curve
    white = light.sigma**2 * noise.whitened(off)
    scale = flat.scale / spared(light, off) * spared(light, white)
    return replace(flat, scale=scale, curve=light.residual - white)


def artefact(noises: Sequence[SourceNoise], quiet: FloatArray) -> Found:
    """A constant star of which one epoch, two epochs or a night of one source are wrong.

    Parameters
    ----------
    noises : sequence of SourceNoise
    quiet : ndarray, shape (S,), float64
        As `constants` gives it.
    """
    epochs = sum(len(noise) for noise in noises)
    nights = sum(len(noise.light.nights) for noise in noises)
    tries = [
        one for i, noise in enumerate(noises) for one in _tries(i, noise, epochs, max(nights, 1))
    ]
    log_p = _log_p(noises, quiet, tries)
    one, best = max(zip(tries, log_p, strict=True), key=lambda pair: float(pair[1].max()))
    columns = one.columns[:, int(best.argmax())]
    each = [
        source_best(noise, columns if i == one.source else _none(noise)[:, 0], WRONG)
        for i, noise in enumerate(noises)
    ]
    where = np.flatnonzero(columns.any(axis=1))
    first, last = noises[one.source].light.t[where[[0, -1]]].tolist()
    parameters = {"first": first, "last": last, "epochs": float(len(where))}
    before = sum(len(noise) for noise in noises[: one.source])
    wrong = tuple((before + where).tolist())
    return Found(float(log_sum(np.concatenate(log_p))), 0.0, parameters, *joined(each), wrong)


def wrong_epoch(noises: Sequence[SourceNoise], quiet: FloatArray) -> float:
    """Natural log of the density of the fluxes for a constant star with one wrong epoch.

    Parameters
    ----------
    noises : sequence of SourceNoise
    quiet : ndarray, shape (S,), float64
        As `constants` gives it.
    """
    log_prior = -math.log(sum(len(noise) for noise in noises))
    tries = [
        _Tries(i, _single(noise.light, _worst(noise.light)), log_prior)
        for i, noise in enumerate(noises)
    ]
    return float(log_sum(np.concatenate(_log_p(noises, quiet, tries))))


@dataclass(frozen=True, slots=True, eq=False)
class _Tries:
    """Epochs of one source that may be wrong: columns of ones there, and ln of their prior."""

    source: int
    columns: FloatArray
    log_prior: float


def _log_p(
    noises: Sequence[SourceNoise], quiet: FloatArray, tries: Sequence[_Tries]
) -> list[FloatArray]:
    rest = quiet.sum() - quiet
    return [
        log_marginal(noises[one.source], one.columns, WRONG) + rest[one.source] + one.log_prior
        for one in tries
    ]


def _worst(light: SourceLight) -> IntArray:
    """The epochs that are off most."""
    off = np.abs(light.residual - np.median(light.residual)) / light.sigma
    return np.argsort(-off)[:SUSPECTS]


def _single(light: SourceLight, epochs: IntArray) -> FloatArray:
    """A column for each of these epochs."""
    columns = np.zeros((len(light), len(epochs), 1))
    columns[epochs, np.arange(len(epochs)), 0] = 1
    return columns


def _tries(i: int, noise: SourceNoise, epochs: int, nights: int) -> list[_Tries]:
    light = noise.light
    worst = _worst(light)
    found = [_Tries(i, _single(light, worst), -math.log(KINDS * epochs))]
    pairs = list(combinations(worst[:PAIRED].tolist(), 2))
    if pairs:
        double = np.zeros((len(light), len(pairs), 2))
        for row, pair in enumerate(pairs):
            double[pair, row, (0, 1)] = 1
        found.append(_Tries(i, double, -math.log(KINDS * epochs * (epochs - 1) / 2)))
    if light.nights:
        whole = np.zeros((len(light), len(light.nights), 1))
        for row, night in enumerate(light.nights):
            whole[night, row, 0] = 1
        found.append(_Tries(i, whole, -math.log(KINDS * nights)))
    return found
