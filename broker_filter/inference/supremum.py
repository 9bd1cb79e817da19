"""The member of a family of noise under which the data of a constant star are most probable.

K against the family divides by this density. It has to be the global maximum: one that is too small
makes K too large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from broker_filter.inference.noise_family import NoiseFamily, SourceLight
from broker_filter.inference.offsets import Trials, best_sets
from broker_filter.inference.red_noise import RedNoise
from broker_filter.inference.suspects import Suspects, Unexplained
from broker_filter.types import FloatArray, IntArray

__all__ = ["Supremum", "log_supremum"]

SHARES: Final = (0.15, 0.3, 0.5, 0.75, 1.0)
"""Amplitudes of the first search, as shares of the largest."""
TIMES: Final = 6
SCALES: Final = 12
EPOCHS, NIGHTS = 3, 2
"""So many more epochs and nights are suspected each time that the best of them is set aside."""
MODELS: Final = 64
"""So many models of the first search are looked at closer."""
STARTS, SETS = 4, 8
"""Maxima of the first search to look at closer, and sets of wrong epochs and nights there."""
ABOUT: Final = 0.5
"""How far a search one by one may be above that of sets, which end in as good a place."""
LEVELS, FINER = 3, 5
"""Grids around a maximum, and how much finer each is than the one before."""
ROUNDS: Final = 12
"""At most, as a grid moves on while its best point is at its edge."""
TINY: Final = 1e-300
SAME: Final = 1e-9
"""Share by which a density that is found again may differ."""
AROUND: Final = (-1, 0, 1)
SCALES_AROUND: Final = np.linspace(-1, 1, 9)
"""Steps of a grid: of amplitude and time, and of the scale."""
NEARLY: Final = 0.99
"""Of a step, from which on it is a whole one."""


@dataclass(frozen=True, slots=True)
class Supremum:
    """The member of the family under which the data are most probable.

    Parameters
    ----------
    log_density : float
        Natural log of the density of the fluxes, without the factor (2 pi)^(-n/2).
    scale, amplitude, tau : float
        Amplitude in units of the source's median error; tau in days.
    wrong_epochs : tuple of int
    wrong_night : (int, int) or None
        Its first and last epoch.
    """

    log_density: float
    scale: float
    amplitude: float
    tau: float
    wrong_epochs: tuple[int, ...]
    wrong_night: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Point:
    """A point of a search, or its steps: a / (k median error), tau in days, and k."""

    amplitude: float
    tau: float
    scale: float

    def is_left(self, other: _Point, steps: _Point) -> bool:
        """Whether another point is a whole step away from this one."""
        a = (other.amplitude - self.amplitude) / max(steps.amplitude, TINY)
        tau = math.log(other.tau / self.tau) / steps.tau
        k = math.log(other.scale / self.scale) / max(steps.scale, TINY)
        return max(abs(a), abs(tau), abs(k)) > NEARLY

    def finer(self) -> _Point:
        """Steps of the next level."""
        return _Point(self.amplitude / FINER, self.tau / FINER, self.scale / FINER)


@dataclass(frozen=True, slots=True)
class _Starts:
    """Points around which to look closer, and the sets of suspects that may be wrong there."""

    points: list[_Point]
    suspects: Suspects
    sets: IntArray


def log_supremum(light: SourceLight, family: NoiseFamily) -> Supremum:
    """The largest density that any member of the family gives to the data of one source.

    A grid over the noise, with all sets of the most suspicious epochs and nights; then finer and
    finer grids around each maximum of the first, with the best few sets. The scale costs little: a
    covariance times k^2 needs no other pass through the data.

    Parameters
    ----------
    light : SourceLight
        At least one epoch.
    family : NoiseFamily
    """
    search = _Search(light, family)
    starts = search.starts()
    found = [search.refined(point, starts) for point in starts.points]
    return max(found, key=lambda one: one.log_density)


class _Search:
    """The global maximum over noise, wrong epochs and wrong nights of one source."""

    def __init__(self, light: SourceLight, family: NoiseFamily) -> None:
        self._light, self._family = light, family
        self._scales = np.geomspace(*family.scale, SCALES)

    def starts(self) -> _Starts:
        """The best sets of wrong epochs and nights, and the maxima of the grid over the noise."""
        amplitude, tau = self._grid()
        noise = self._light.noise(amplitude, tau)
        suspects = self._suspects(noise, amplitude)
        trials = self._trials(noise, amplitude, self._every_scale(noise), suspects)
        least = suspects.least(self._light.median_error)
        rooms = self._family.wrong_epochs, self._family.wrong_nights
        hope = trials.greedy(least, len(suspects.epochs), rooms).ravel()
        rows = np.argsort(-hope, kind="stable")[:MODELS]
        best = best_sets(
            *(*trials.scaled(rows), suspects.sets(self._family), least),
            most=SETS,
            enough=float(hope.max()) - ABOUT,
        )
        few = suspects.take(column for wrong in best.wrong for column in wrong)
        maxima = [divmod(row, SCALES) for row in _maxima(rows[best.models].tolist())]
        return _Starts(
            [_Point(float(amplitude[j]), float(tau[j]), float(self._scales[k])) for j, k in maxima],
            few,
            np.stack([few.set_of(suspects.take(wrong)) for wrong in best.wrong]),
        )

    def _grid(self) -> tuple[FloatArray, FloatArray]:
        largest = self._family.red_noise / self._family.scale[0]
        times = np.geomspace(*self._family.tau_days, TIMES)
        pairs = [(0.0, times[0])]
        if largest > 0:
            pairs += [(share * largest, tau) for share in SHARES for tau in times]
        amplitude, tau = np.array(pairs).T.copy()
        return amplitude, tau

    def _every_scale(self, noise: RedNoise) -> FloatArray:
        return np.repeat(self._scales[None], len(noise.models), axis=0)

    def _suspects(self, noise: RedNoise, amplitude: FloatArray) -> Suspects:
        """Epochs and nights whose offset would explain most, under the models that do best.

        One hides another: once the best are found, the others are looked at again without them.
        """
        n, family = len(self._light), self._family
        nights = [(int(night[0]), int(night[-1])) for night in self._light.nights]
        nights = nights if family.wrong_nights else []
        left = Unexplained(self._light, noise, tuple(nights))
        rooms = [family.wrong_epochs, family.wrong_nights if nights else 0]
        epochs: list[int] = []
        wrong_nights: list[int] = []
        scale = self._every_scale(noise)
        for _ in range(sum(rooms) + 1):
            base = self._of(left.products, noise, amplitude, scale).greedy(np.empty(0))
            score = left.freed(self._scales[base.argmax(axis=1)], base.max(axis=1))
            kinds = [_ranked(score[:n]), _ranked(score[n:]) + n]
            for kind, into, many in zip(
                kinds, (epochs, wrong_nights), (EPOCHS, NIGHTS), strict=True
            ):
                best = kind[: many + len(into)].tolist()
                new = [which for which in best if score[which] > -math.inf and which not in into]
                into += new[:many]
            firsts = [int(kind[0]) for kind, room in zip(kinds, rooms, strict=True) if room]
            firsts = [which for which in firsts if score[which] > -math.inf]
            if not firsts:
                break
            first = max(firsts, key=lambda which: float(score[which]))
            left.free(first)
            rooms[first >= n] -= 1
        if not family.wrong_epochs:
            epochs = []
        return Suspects(tuple(epochs), tuple(nights[which - n] for which in wrong_nights))

    def _trials(
        self, noise: RedNoise, amplitude: FloatArray, scale: FloatArray, suspects: Suspects
    ) -> Trials:
        """Residual, ones and suspects under some models, each at some scales, shape (P, K)."""
        n = len(self._light)
        first = np.stack([self._light.residual, np.ones(n)], axis=1)
        columns = np.concatenate([first, suspects.columns(n)], axis=1)
        return self._of(noise.products(columns), noise, amplitude, scale)

    def _of(
        self, gram: FloatArray, noise: RedNoise, amplitude: FloatArray, scale: FloatArray
    ) -> Trials:
        limits = len(self._light), self._light.baseline_error**2, self._family.red_noise
        return Trials(gram, noise.log_determinant, amplitude, scale, limits)

    def refined(self, point: _Point, starts: _Starts) -> Supremum:
        """The best member near a point: finer and finer grids around the best one so far."""
        low, high = self._family.tau_days
        steps = _Point(
            0.2 * self._family.red_noise / self._family.scale[0],
            0.5 * math.log(high / low) / TIMES,
            math.log(self._scales[1] / self._scales[0]),
        )
        suspects, sets = starts.suspects, starts.sets
        least = suspects.least(self._light.median_error)
        best = Supremum(-math.inf, 1.0, 0.0, low, (), None)
        levels = 0
        for _ in range(ROUNDS):
            amplitude, tau, scale = self._near(point, steps)
            noise = self._light.noise(amplitude, tau)
            trials = self._trials(noise, amplitude, scale, suspects)
            # The best point so far is in the middle of the grid.
            known = best.log_density - SAME * (1 + abs(best.log_density))
            found = trials.best(sets, least, known)
            j = found.model
            before, point = point, _Point(amplitude[j], tau[j], scale[j, found.at])
            if found.log_p > best.log_density:
                best = _supremum(found.log_p, point, suspects.take(found.wrong))
            if not before.is_left(point, steps):
                levels += 1
                if levels == LEVELS:
                    break
                steps = steps.finer()
        return best

    def _near(self, point: _Point, steps: _Point) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Amplitudes and times, shape (P,), and scales, shape (P, K), around one member."""
        low, high = self._family.tau_days
        largest = self._family.red_noise / self._family.scale[0]
        # Where the bound of the red noise holds, another scale needs another amplitude.
        bounds = [
            self._family.red_noise / (point.scale * math.exp(i * steps.scale)) for i in AROUND
        ]
        a = [point.amplitude + i * steps.amplitude for i in AROUND]
        a += [bound for bound in bounds if abs(bound - point.amplitude) <= steps.amplitude]
        a = sorted({min(max(one, 0.0), largest) for one in a})
        times = {min(max(point.tau * math.exp(i * steps.tau), low), high) for i in AROUND}
        amplitude, tau = np.array([(one, time) for time in sorted(times) for one in a]).T.copy()
        scale = point.scale * np.exp(SCALES_AROUND * steps.scale)
        scale = np.minimum(np.maximum(scale, self._family.scale[0]), self._family.scale[1])
        return amplitude, tau, np.repeat(scale[None], len(tau), axis=0)


def _supremum(log_density: float, point: _Point, wrong: Suspects) -> Supremum:
    return Supremum(
        log_density,
        point.scale,
        point.amplitude * point.scale,
        point.tau,
        wrong.epochs,
        wrong.nights[0] if wrong.nights else None,
    )


def _ranked(score: FloatArray) -> IntArray:
    return np.argsort(-score, kind="stable")


def _maxima(models: Iterable[int]) -> list[int]:
    """Those of which no neighbour in the grid over amplitude and time is better.

    ``models`` are rows of the first search with all scales of each noise together, the best first.
    """
    places: list[tuple[int, int | None]] = []
    found = []
    for row in models:
        noise = row // SCALES
        share, time = divmod(noise - 1, TIMES) if noise else (-1, None)
        near = any(
            abs(share - a) <= 1 and (time is None or b is None or abs(time - b) <= 1)
            for a, b in places
        )
        places.append((share, time))
        if not near:
            found.append(row)
    return found[:STARTS]
