"""Epochs and nights of a constant star that may be the wrong ones."""

from __future__ import annotations

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
from broker_filter.inference.offsets import offset
from broker_filter.inference.red_noise import RedNoise
from broker_filter.types import FloatArray, IntArray

__all__ = ["Suspects", "Unexplained"]

NOTHING: Final = 1e-9
"""Share of what an epoch tells of its offset, below which the offsets that are free tell it all."""


@dataclass(frozen=True, slots=True)
class Suspects:
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

    def take(self, which: Iterable[int]) -> Suspects:
        """Some of them, by their columns."""
        n = len(self.epochs)
        chosen = sorted(set(which))
        return Suspects(
            tuple(self.epochs[i] for i in chosen if i < n),
            tuple(self.nights[i - n] for i in chosen if n <= i < len(self)),
        )

    def set_of(self, part: Suspects) -> IntArray:
        """Some of them as one set, as `sets` writes it, shape (3,)."""
        epochs = [self.epochs.index(epoch) for epoch in part.epochs]
        nights = [len(self.epochs) + self.nights.index(night) for night in part.nights]
        chosen = [*epochs, *nights]
        return np.array([*chosen, *[len(self)] * (3 - len(chosen))])

    def sets(self, family: NoiseFamily) -> IntArray:
        """All sets that may be wrong together, shape (S, 3); `len(self)` stands for none."""
        none, n = len(self), len(self.epochs)
        single = [(i, none) for i in range(n)] if family.wrong_epochs else []
        pairs = list(combinations(range(n), 2)) if family.wrong_epochs > 1 else []
        nights = [none, *(range(n, none) if family.wrong_nights else ())]
        return np.array(
            [(*two, night) for two in [(none, none), *single, *pairs] for night in nights]
        )


class Unexplained:
    """What the data of a source leave to explain, once some epochs and nights may be anywhere.

    Parameters
    ----------
    light : SourceLight
    noise : RedNoise
        P models of scale 1.
    nights : sequence of (int, int)
        Those that may be wrong, each by its first and last epoch.
    """

    def __init__(
        self, light: SourceLight, noise: RedNoise, nights: tuple[tuple[int, int], ...]
    ) -> None:
        self._light, self._noise = light, noise
        self._every = Suspects((), nights)
        self._nights = self._every.columns(len(light))
        self._fixed = np.stack([light.residual, np.ones(len(light))], axis=1)
        self._times = noise.times(self._fixed)
        night_squares, _ = noise.products_with(self._fixed, self._nights)
        self._own = np.concatenate([noise.diagonal, night_squares], axis=1)
        self._nothing = NOTHING * self._own
        unit = light.median_error
        sizes = [GROSS_EPOCH] * len(light) + [GROSS_NIGHT] * len(nights)
        self._least = np.square(unit * np.array(sizes))
        self._free: list[tuple[FloatArray, FloatArray]] = []

    @property
    def products(self) -> FloatArray:
        """Products of residuals and ones under each model, shape (P, 2, 2)."""
        return np.asarray(self._fixed.T @ self._times)

    def gains(self, scale: FloatArray) -> FloatArray:
        """What an offset of each epoch, and then of each night, adds to ln p; shape (P, n + N).

        Parameters
        ----------
        scale : ndarray, shape (P,)
            Factor k on the errors of each model.
        """
        variance = np.square(scale)[:, None]
        ones = self.products[:, 1, :, None]
        shrink = self._light.baseline_error**2 / variance
        shrink = shrink / (1 + shrink * ones[:, 1])
        times = np.concatenate([self._times, self._nights.T @ self._times], axis=1)
        own = self._own - shrink * np.square(times[..., 1])
        own = np.where(self._own > self._nothing, np.maximum(own, self._nothing), np.inf)
        square = np.square(times[..., 0] - times[..., 1] * shrink * ones[:, 0])
        return offset(square / (own * variance), own / variance, self._least)[1]

    def free(self, which: int) -> None:
        """Let an epoch, or from n on a night, be off by any amount."""
        n = len(self._light)
        column = np.zeros((n, 1))
        if which < n:
            column[which] = 1
        else:
            column[:, 0] = self._nights[:, which - n]
        times = self._noise.times(column)[..., 0]
        for other, known in self._free:
            times -= other * ((other @ column) / known)
        known = times @ column
        self._times -= times[..., None] * (column.T @ self._times) / known[..., None]
        every = np.concatenate([times, times @ self._nights], axis=1)
        self._own -= np.square(every) / known
        self._own[:, which] = 0
        self._free.append((times, known))
