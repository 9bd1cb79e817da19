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
from broker_filter.inference.offsets import best_sets, bounds, freed, greedy, parts
from broker_filter.inference.red_noise import RedNoise, absorbed
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
LEVELS, FINER = 3, 5
"""Grids around a maximum, and how much finer each is than the one before."""
ROUNDS: Final = 12
"""At most, as a grid moves on while its best point is at its edge."""
TINY: Final = 1e-300
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
class _Points:
    """Points of a search: a / (k median error), tau in days and k, each of shape (M,)."""

    amplitude: FloatArray
    tau: FloatArray
    scale: FloatArray

    def is_left(self, other: _Points, steps: _Points) -> bool:
        """Whether another point is a whole step away from this one."""
        a = float(other.amplitude[0] - self.amplitude[0]) / max(float(steps.amplitude), TINY)
        tau = math.log(other.tau[0] / self.tau[0]) / float(steps.tau)
        k = math.log(other.scale[0] / self.scale[0]) / max(float(steps.scale), TINY)
        return max(abs(a), abs(tau), abs(k)) > NEARLY

    def finer(self) -> _Points:
        """Steps of the next level."""
        return _Points(self.amplitude / FINER, self.tau / FINER, self.scale / FINER)

    def take(self, rows: IntArray) -> _Points:
        return _Points(self.amplitude[rows], self.tau[rows], self.scale[rows])


@dataclass(frozen=True, slots=True)
class _Starts:
    """Points around which to look closer, and the sets of suspects that may be wrong there."""

    points: list[_Points]
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
        sets = suspects.sets(self._family)
        gram, log_p, points = self._judged(noise, amplitude, self._every_scale(noise), suspects)
        least = suspects.least(self._light.median_error)
        hope = greedy(gram, log_p, least, len(suspects.epochs), self._family)
        rows = np.argsort(-hope, kind="stable")[:MODELS]
        best = best_sets(gram[rows], log_p[rows], sets, least)
        chosen = list(dict.fromkeys(one.wrong for one in best))[:SETS]
        few = suspects.take(column for wrong in chosen for column in wrong)
        models = dict.fromkeys(int(rows[one.model]) for one in best)
        return _Starts(
            [points.take(np.array([row])) for row in _maxima(models)],
            few,
            np.stack([few.set_of(suspects.take(wrong)) for wrong in chosen]),
        )

    def _grid(self) -> tuple[FloatArray, FloatArray]:
        largest = self._family.red_noise / self._family.scale[0]
        times = np.geomspace(*self._family.tau_days, TIMES)
        pairs = [(0.0, times[0])]
        if largest > 0:
            pairs += [(share * largest, tau) for share in SHARES for tau in times]
        amplitude, tau = np.array(pairs).T
        return amplitude, tau

    def _every_scale(self, noise: RedNoise) -> FloatArray:
        return np.broadcast_to(self._scales, (len(noise.models), len(self._scales)))

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
        for _ in range(sum(rooms) + 1):
            gram, log_p, _ = self._scaled(noise, left.products, amplitude, self._every_scale(noise))
            base = (log_p - 0.5 * gram[:, 0, 0]).reshape(len(amplitude), -1)
            gains = left.gains(self._scales[base.argmax(axis=1)])
            score = base.max(axis=1)[:, None] + gains
            kinds = [_ranked(score[:, :n]), _ranked(score[:, n:]) + n]
            for kind, into, many in zip(
                kinds, (epochs, wrong_nights), (EPOCHS, NIGHTS), strict=True
            ):
                new = [which for which in kind.tolist() if which not in into]
                into += new[:many]
            best = [int(kind[0]) for kind, room in zip(kinds, rooms, strict=True) if room]
            best = [which for which in best if gains[:, which].max() > 0]
            if not best:
                break
            first = max(best, key=lambda which: float(score[:, which].max()))
            left.free(first)
            rooms[first >= n] -= 1
        if not family.wrong_epochs:
            epochs = []
        return Suspects(tuple(epochs), tuple(nights[which - n] for which in wrong_nights))

    def _judged(
        self, noise: RedNoise, amplitude: FloatArray, scale: FloatArray, suspects: Suspects
    ) -> tuple[FloatArray, FloatArray, _Points]:
        """Gram matrices of residual and suspects at all models and scales, as `_scaled`."""
        n = len(self._light)
        first = np.stack([self._light.residual, np.ones(n)], axis=1)
        columns = np.concatenate([first, suspects.columns(n)], axis=1)
        return self._scaled(noise, noise.products(columns), amplitude, scale)

    def _scaled(
        self, noise: RedNoise, gram: FloatArray, amplitude: FloatArray, scale: FloatArray
    ) -> tuple[FloatArray, FloatArray, _Points]:
        """Products at every scale, with the error of the baseline taken up.

        Parameters
        ----------
        noise : RedNoise
            P models of scale 1.
        gram : ndarray, shape (P, 2 + p, 2 + p)
            Of residual, ones and p columns.
        amplitude : ndarray, shape (P,)
        scale : ndarray, shape (P, K)

        Returns
        -------
        gram : ndarray, shape (P K, 1 + p, 1 + p)
        log_p : ndarray, shape (P K,)
            ln of the density but for the squares; minus infinity outside the family.
        points : _Points
        """
        per = scale.shape[1]
        points = _Points(
            np.repeat(amplitude, per), np.repeat(noise.models.tau, per), scale.reshape(-1)
        )
        scaled = (gram[:, None] / np.square(scale)[..., None, None]).reshape(-1, *gram.shape[1:])
        log_p = -0.5 * noise.log_determinant[:, None] - len(self._light) * np.log(scale)
        scaled, taken = absorbed(scaled, 1, np.array(self._light.baseline_error**2))
        inside = points.amplitude * points.scale <= self._family.red_noise * (1 + 1e-9)
        log_p = np.where(inside, log_p.reshape(-1) + taken, -np.inf)
        kept = [0, *range(2, scaled.shape[1])]
        return scaled[:, kept][:, :, kept], log_p, points

    def refined(self, point: _Points, starts: _Starts) -> Supremum:
        """The best member near a point: finer and finer grids around the best one so far."""
        low, high = self._family.tau_days
        steps = _Points(
            np.array(0.2 * self._family.red_noise / self._family.scale[0]),
            np.array(0.5 * math.log(high / low) / TIMES),
            np.array(math.log(self._scales[1] / self._scales[0])),
        )
        sets = starts.sets
        least = bounds(starts.suspects.least(self._light.median_error), sets)
        best = Supremum(-math.inf, 1.0, 0.0, low, (), None)
        levels = 0
        for _ in range(ROUNDS):
            amplitude, tau, scale = self._near(point, steps)
            noise = self._light.noise(amplitude, tau)
            gram, log_p, points = self._judged(noise, amplitude, scale, starts.suspects)
            value, variance = freed(parts(gram, sets), log_p[:, None], least)
            row, which = np.unravel_index(value.argmax(), value.shape)
            before, point = point, points.take(np.array([row]))
            if value[row, which] > best.log_density:
                wrong = starts.suspects.take(sets[which, variance[row, which] > 0].tolist())
                best = _supremum(float(value[row, which]), point, wrong)
            if not before.is_left(point, steps):
                levels += 1
                if levels == LEVELS:
                    break
                steps = steps.finer()
        return best

    def _near(self, point: _Points, steps: _Points) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Amplitudes and times, shape (P,), and scales, shape (P, K), around one member."""
        low, high = self._family.tau_days
        largest = self._family.red_noise / self._family.scale[0]
        around = np.array([-1, 0, 1])
        a = point.amplitude + around * steps.amplitude
        # Where the bound of the red noise holds, another scale needs another amplitude.
        bound = self._family.red_noise / (point.scale * np.exp(around * steps.scale))
        near = bound[np.abs(bound - point.amplitude) <= steps.amplitude]
        a = np.unique(np.clip([*a, *near], 0, largest))
        tau = np.unique(np.clip(point.tau * np.exp(around * steps.tau), low, high))
        amplitude, times = (column.ravel() for column in np.meshgrid(a, tau))
        scale = point.scale * np.exp(np.linspace(-1, 1, 9) * steps.scale)
        scale = np.clip(scale, *self._family.scale)
        return amplitude, times, np.broadcast_to(scale, (len(times), len(scale)))


def _supremum(log_density: float, point: _Points, wrong: Suspects) -> Supremum:
    scale = float(point.scale[0])
    return Supremum(
        log_density,
        scale,
        float(point.amplitude[0]) * scale,
        float(point.tau[0]),
        wrong.epochs,
        wrong.nights[0] if wrong.nights else None,
    )


def _ranked(score: FloatArray) -> IntArray:
    """Columns by the best score that any model gives them."""
    return np.argsort(-score.max(axis=0), kind="stable")


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
