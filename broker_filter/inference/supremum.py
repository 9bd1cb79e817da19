"""The member of a family of noise under which the data of a constant star are most probable.

K against the family divides by this density. It has to be the global maximum: one that is too small
makes K too large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from broker_filter.inference.noise_family import (
    GROSS_EPOCH,
    GROSS_NIGHT,
    NoiseFamily,
    SourceLight,
)
from broker_filter.inference.red_noise import RedNoise, absorbed
from broker_filter.types import FloatArray, IntArray

__all__ = ["Supremum", "log_supremum"]

SHARES: Final = (0.15, 0.3, 0.5, 0.75, 1.0)
"""Amplitudes of the first search, as shares of the largest."""
TIMES: Final = 6
SCALES: Final = 12
EPOCHS, NIGHTS = 10, 6
"""So many epochs and nights are tried as the wrong ones, in all combinations."""
MODELS: Final = 64
"""So many models of the first search are looked at closer."""
STARTS, ROUNDS = 4, 5
SWEEPS: Final = 3
FREE: Final = 1e3
"""Variance at which the search for the best ones starts, in units of what the data tell."""
TINY: Final = 1e-300


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

    def take(self, rows: IntArray) -> _Points:
        return _Points(self.amplitude[rows], self.tau[rows], self.scale[rows])


@dataclass(frozen=True, slots=True)
class _Suspects:
    """Epochs and nights that may be the wrong ones, each a column of zeros and ones."""

    epochs: tuple[int, ...]
    nights: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.epochs) + len(self.nights)

    def least(self, unit: float) -> FloatArray:
        """Least variance of the offset of each that is wrong, shape (len(self),)."""
        sizes = [GROSS_EPOCH] * len(self.epochs) + [GROSS_NIGHT] * len(self.nights)
        return np.square(unit * np.array(sizes))

    def columns(self, n: int) -> FloatArray:
        """Shape (n, len(self)): epochs, then nights."""
        found = np.zeros((n, len(self)))
        found[list(self.epochs), np.arange(len(self.epochs))] = 1
        for i, (first, last) in enumerate(self.nights, len(self.epochs)):
            found[first : last + 1, i] = 1
        return found

    def take(self, which: Iterable[int]) -> _Suspects:
        """Some of them, by their columns."""
        n = len(self.epochs)
        chosen = sorted(set(which))
        return _Suspects(
            tuple(self.epochs[i] for i in chosen if i < n),
            tuple(self.nights[i - n] for i in chosen if n <= i < len(self)),
        )

    @classmethod
    def union(cls, parts: Iterable[_Suspects]) -> _Suspects:
        """All that are in any of them."""
        every = list(parts)
        epochs = dict.fromkeys(epoch for part in every for epoch in part.epochs)
        nights = dict.fromkeys(night for part in every for night in part.nights)
        return cls(tuple(epochs), tuple(nights))

    def set_of(self, part: _Suspects) -> IntArray:
        """Some of them as one set, as `sets` writes it."""
        epochs = [self.epochs.index(epoch) for epoch in part.epochs]
        nights = [len(self.epochs) + self.nights.index(night) for night in part.nights]
        chosen = [*epochs, *nights]
        return np.array([[*chosen, *[len(self)] * (3 - len(chosen))]])

    def sets(self, family: NoiseFamily) -> IntArray:
        """All sets that may be wrong together, shape (S, 3); `len(self)` stands for none."""
        none, n = len(self), len(self.epochs)
        single = [(i, none) for i in range(n)] if family.wrong_epochs else []
        pairs = list(combinations(range(n), 2)) if family.wrong_epochs > 1 else []
        nights = [none, *(range(n, none) if family.wrong_nights else ())]
        return np.array(
            [(*two, night) for two in [(none, none), *single, *pairs] for night in nights]
        )


def log_supremum(light: SourceLight, family: NoiseFamily) -> Supremum:
    """The largest density that any member of the family gives to the data of one source.

    A grid over the noise, with all sets of the most suspicious epochs and nights; then finer and
    finer grids around the best few. The scale costs little: a covariance times k^2 needs no other
    pass through the data.

    Parameters
    ----------
    light : SourceLight
        At least one epoch.
    family : NoiseFamily
    """
    search = _Search(light, family)
    return search.refined(search.starts())


class _Search:
    """The global maximum over noise, wrong epochs and wrong nights of one source."""

    def __init__(self, light: SourceLight, family: NoiseFamily) -> None:
        self._light, self._family = light, family
        self._scales = np.geomspace(*family.scale, SCALES)

    def starts(self) -> list[tuple[_Suspects, _Points]]:
        """The best few sets of wrong epochs and nights, each with the best noise of the grid."""
        amplitude, tau = self._grid()
        noise = self._light.noise(amplitude, tau)
        suspects = self._suspects(noise, amplitude)
        sets = suspects.sets(self._family)
        gram, log_p, points = self._judged(noise, amplitude, self._every_scale(noise), suspects)
        least = suspects.least(self._light.median_error)
        hope = _greedy(gram, log_p, least, len(suspects.epochs), self._family)
        rows = np.argsort(-hope, kind="stable")[:MODELS]
        value, _ = _freed(gram[rows], log_p[rows], sets, least)
        found = []
        for which in np.argsort(-value.max(axis=0), kind="stable")[:STARTS].tolist():
            # The same set may be best with noise of quite another kind.
            row = rows[[int(value[:, which].argmax())]]
            found.append((suspects.take(sets[which].tolist()), points.take(row)))
        return found

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

    def _suspects(self, noise: RedNoise, amplitude: FloatArray) -> _Suspects:
        """Epochs and nights whose offset would explain most, under the models that do best."""
        epochs = list(self._suspicious(self._light, noise, amplitude))
        if epochs:  # an outlier hides another one: look again without the worst
            worst = self._light.without(epochs[0])
            others = worst.noise(amplitude, noise.models.tau)
            epochs += [i for i in self._suspicious(worst, others, amplitude) if i not in epochs[:5]]
        epochs = list(dict.fromkeys([*epochs[:5], *epochs[EPOCHS:], *epochs]))[:EPOCHS]
        nights = self._light.nights if self._family.wrong_nights else []
        every = _Suspects((), tuple((int(night[0]), int(night[-1])) for night in nights))
        if len(nights) > NIGHTS:
            gram, log_p, _ = self._judged(noise, amplitude, self._every_scale(noise), every)
            least = every.least(self._light.median_error)
            score = (log_p - 0.5 * gram[:, 0, 0])[:, None] + _single_gains(gram, least)
            every = every.take(np.argsort(-score.max(axis=0), kind="stable")[:NIGHTS].tolist())
        return _Suspects(tuple(epochs), every.nights)

    def _suspicious(self, light: SourceLight, noise: RedNoise, amplitude: FloatArray) -> list[int]:
        """Epochs by how much an offset of their own would explain, the best first."""
        if not self._family.wrong_epochs:
            return []
        columns = np.stack([light.residual, np.ones(len(light))], axis=1)
        products = noise.products(columns)
        gram, log_p, _ = self._scaled(noise, products, amplitude, self._every_scale(noise))
        base = (log_p - 0.5 * gram[:, 0, 0]).reshape(len(amplitude), -1)
        best = base.argmax(axis=1)
        variance = np.square(self._scales[best])
        times, diagonal = noise.smoothed(columns)
        ones = products[:, 1]
        b2 = light.baseline_error**2 / variance
        shrink = b2 / (1 + b2 * ones[:, 1])
        square = np.square(times[..., 0] - times[..., 1] * shrink * ones[:, 0])
        own = diagonal - shrink * np.square(times[..., 1])
        square /= own * variance
        least = (GROSS_EPOCH * light.median_error) ** 2
        score = base.max(axis=1) + _offset(square, own / variance, least)[1]
        order = np.argsort(-score, axis=0, kind="stable")[:4].T
        ranked = sorted(
            {(float(score[i, m]), i) for m, row in enumerate(order) for i in row.tolist()},
            reverse=True,
        )
        return list(dict.fromkeys(i for _, i in ranked))[:EPOCHS]

    def _judged(
        self, noise: RedNoise, amplitude: FloatArray, scale: FloatArray, suspects: _Suspects
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

    def refined(self, starts: list[tuple[_Suspects, _Points]]) -> Supremum:
        """The best member near any of the starts: finer and finer grids around each of them."""
        low, high = self._family.tau_days
        steps = _Points(
            np.array(0.2 * self._family.red_noise / self._family.scale[0]),
            np.array(math.log(high / low) / TIMES),
            np.log(self._scales[1:2] / self._scales[0]),
        )
        best = Supremum(-math.inf, 1.0, 0.0, low, (), None)
        for _ in range(ROUNDS):
            near = [self._near(point, steps) for _, point in starts]
            amplitude, tau, scale = (np.concatenate(column) for column in zip(*near, strict=True))
            noise = self._light.noise(amplitude, tau)
            suspects = _Suspects.union(suspects for suspects, _ in starts)
            least = suspects.least(self._light.median_error)
            gram, log_p, points = self._judged(noise, amplitude, scale, suspects)
            ends = np.cumsum([column.size for _, _, column in near])
            for i, rows in enumerate(np.split(np.arange(len(log_p)), ends[:-1])):
                own, _ = starts[i]
                which = suspects.set_of(own)
                value, variance = _freed(gram[rows], log_p[rows], which, least)
                row = int(value[:, 0].argmax())
                point = points.take(rows[[row]])
                starts[i] = (own, point)
                if value[row, 0] > best.log_density:
                    wrong = suspects.take(which[0, variance[row, 0] > 0].tolist())
                    best = _supremum(float(value[row, 0]), point, wrong)
            steps = _Points(steps.amplitude / 2, steps.tau / 2, steps.scale / 2)
        return best

    def _near(self, point: _Points, steps: _Points) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Amplitudes and times, shape (P,), and scales, shape (P, K), around one member."""
        low, high = self._family.tau_days
        largest = self._family.red_noise / self._family.scale[0]
        around = np.array([-1, -0.5, 0, 0.5, 1])
        a = point.amplitude + around * steps.amplitude
        a = np.unique(np.clip([*a, self._family.red_noise / point.scale[0]], 0, largest))
        tau = np.unique(np.clip(point.tau * np.exp(around * steps.tau), low, high))
        amplitude, times = (column.ravel() for column in np.meshgrid(a, tau))
        scale = point.scale * np.exp(np.linspace(-1, 1, 9) * steps.scale)
        scale = np.clip(scale, *self._family.scale)
        return amplitude, times, np.broadcast_to(scale, (len(times), len(scale)))


def _supremum(log_density: float, point: _Points, wrong: _Suspects) -> Supremum:
    scale = float(point.scale[0])
    return Supremum(
        log_density,
        scale,
        float(point.amplitude[0]) * scale,
        float(point.tau[0]),
        wrong.epochs,
        wrong.nights[0] if wrong.nights else None,
    )


def _offset(
    square: FloatArray, own: FloatArray, least: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """The variance by which a column is best off, and what ln p gains; both 0 where none helps.

    Parameters
    ----------
    square, own : ndarray
        Its significance squared, and the inverse of the variance with which it is known.
    least : ndarray or float
        Least variance of an offset.
    """
    own = np.maximum(own, TINY)
    variance = np.maximum((square - 1) / own, least)
    grown = 1 + variance * own
    gain = 0.5 * (square * (1 - 1 / grown) - np.log(grown))
    return np.where(gain > 0, variance, 0.0), np.maximum(gain, 0.0)


def _single_gains(gram: FloatArray, least: FloatArray) -> FloatArray:
    """Gain of each column alone, shape (M, p)."""
    own = np.maximum(np.diagonal(gram, axis1=1, axis2=2)[:, 1:], TINY)
    return _offset(np.square(gram[:, 0, 1:]) / own, own, least)[1]


def _greedy(
    gram: FloatArray, log_p: FloatArray, least: FloatArray, n_epochs: int, family: NoiseFamily
) -> FloatArray:
    """Density of each model, shape (M,), where the columns that help most are freed one by one."""
    every, n_columns = np.arange(len(gram)), gram.shape[1] - 1
    left = np.ones((len(gram), n_columns), np.bool_)
    rooms = {"epoch": family.wrong_epochs, "night": family.wrong_nights}
    taken = {kind: np.zeros(len(gram), np.int64) for kind in rooms}
    for _ in range(sum(rooms.values()) if n_columns else 0):
        left[:, :n_epochs] &= (taken["epoch"] < rooms["epoch"])[:, None]
        left[:, n_epochs:] &= (taken["night"] < rooms["night"])[:, None]
        best = np.where(left, _single_gains(gram, least), -1.0).argmax(axis=1)
        own = np.maximum(gram[every, best + 1, best + 1], TINY)
        square = np.where(left[every, best], np.square(gram[every, 0, best + 1]) / own, 0.0)
        gram, gain = _absorbed_each(gram, best + 1, _offset(square, own, least[best])[0])
        log_p = log_p + gain
        taken["epoch"] += best < n_epochs
        taken["night"] += best >= n_epochs
        left[every, best] = False
    return np.asarray(log_p - 0.5 * gram[:, 0, 0])


def _absorbed_each(
    gram: FloatArray, column: IntArray, variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """As `absorbed`, with a column of its own for each of the matrices, shape (M,)."""
    own = np.take_along_axis(gram, column[:, None, None], axis=2)[..., 0]
    total = 1 + variance * own[np.arange(len(own)), column]
    factor = (variance / total)[:, None, None]
    return gram - factor * own[:, :, None] * own[:, None, :], -0.5 * np.log(total)


def _freed(
    gram: FloatArray, log_p: FloatArray, sets: IntArray, least: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Density where the columns of each set are off by Gaussians of the best variances.

    Parameters
    ----------
    gram : ndarray, shape (M, 1 + p, 1 + p)
        Products of the residual and p columns.
    log_p : ndarray, shape (M,)
    sets : ndarray, shape (S, 3)
        Columns from 0 on; p for none.
    least : ndarray, shape (p,)
        Least variance of each column's offset.

    Returns
    -------
    value : ndarray, shape (M, S)
    variance : ndarray, shape (M, S, 3)
    """
    padded = np.pad(gram, ((0, 0), (0, 1), (0, 1)))
    rows = np.concatenate([np.zeros((len(sets), 1), np.int64), sets + 1], axis=1)
    part = padded[:, rows[:, :, None], rows[:, None, :]]
    size = np.diagonal(part, axis1=2, axis2=3)[..., 1:]
    variance = np.where(size > 0, FREE / np.maximum(size, TINY), 0.0)
    bound = np.append(least, 0.0)[sets]
    for _ in range(SWEEPS):
        for j in range(3):
            rest = part
            for other in range(3):
                if other != j:
                    rest, _ = absorbed(rest, other + 1, variance[..., other])
            own = np.maximum(rest[..., j + 1, j + 1], TINY)
            square = np.square(rest[..., 0, j + 1]) / own
            variance[..., j] = _offset(square, own, bound[:, j])[0]
    value = np.broadcast_to(log_p[:, None], part.shape[:2])
    for j in range(3):
        part, taken = absorbed(part, j + 1, variance[..., j])
        value = value + taken
    return value - 0.5 * part[..., 0, 0], variance
