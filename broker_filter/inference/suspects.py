"""Epochs and nights of a constant star that may be the wrong ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled
from broker_filter.inference.noise_family import (
    GROSS_EPOCH,
    GROSS_NIGHT,
    NoiseFamily,
    SourceLight,
)
from broker_filter.inference.offset_loops import offset
from broker_filter.inference.red_noise import RedNoise
from broker_filter.types import FloatArray, IntArray

__all__ = ["Suspects", "Unexplained"]

NOTHING: Final = 1e-9
"""Share of an epoch's weight that the free offsets leave, below which they explain all of it."""

SURE: Final = 3.0
"""Nats that an offset costs at least where it widens an epoch's variance by more than `BY_MUCH`."""
BY_MUCH: Final = math.exp(2 * SURE) - 1
"""In units of that variance."""


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
        n = len(light)
        epochs = np.repeat(np.arange(n)[:, None], 2, axis=1)
        self._spans = np.concatenate([epochs, np.array(nights, np.int64).reshape(-1, 2)])
        self._fixed = np.stack([light.residual, np.ones(n)], axis=1)
        self._times = noise.times(self._fixed)
        night_squares, _ = noise.products_with(self._fixed, Suspects((), nights).columns(n))
        self._own = np.concatenate([noise.diagonal, night_squares], axis=1)
        self._nothing = NOTHING * self._own
        sizes = [GROSS_EPOCH] * n + [GROSS_NIGHT] * len(nights)
        self._least = np.square(light.median_error * np.array(sizes))
        self._free: list[tuple[FloatArray, FloatArray]] = []

    @property
    def products(self) -> FloatArray:
        """Products of residuals and ones under each model, shape (P, 2, 2)."""
        return np.asarray(self._fixed.T @ self._times)

    def freed(self, scale: FloatArray, base: FloatArray) -> FloatArray:
        """The best ln p with an offset of each epoch, and then of each night; shape (n + N,).

        Of all models under which the offset helps; minus infinity where there is none.

        Parameters
        ----------
        scale : ndarray, shape (P,)
            Factor k on the errors of each model.
        base : ndarray, shape (P,)
            ln p of each model without an offset.
        """
        found: FloatArray = _freed(
            *(self._times, self._own, self._nothing, self._spans, self._least),
            *(self.products, np.square(scale), base, self._light.baseline_error**2),
        )
        return found

    def free(self, which: int) -> None:
        """Let an epoch, or from n on a night, be off by any amount."""
        first, last = self._spans[which].tolist()
        column = np.zeros((len(self._light), 1))
        column[first : last + 1] = 1
        times = self._noise.times(column)[..., 0]
        for other, known in self._free:
            share = other[:, first : last + 1].sum(axis=1, keepdims=True) / known
            times -= share * other
        known = times[:, first : last + 1].sum(axis=1, keepdims=True)
        _take_away(self._times, self._own, times, known[:, 0], self._spans, first, last)
        self._own[:, which] = 0
        self._free.append((times, known))


@compiled
def _freed(
    times: FloatArray,
    own: FloatArray,
    nothing: FloatArray,
    spans: IntArray,
    least: FloatArray,
    products: FloatArray,
    variance: FloatArray,
    base: FloatArray,
    baseline: float,
) -> Any:  # noqa: ANN401
    """As `Unexplained.freed`; ``baseline`` is the variance of the baseline."""
    found = np.full(len(spans), -np.inf)
    for j in np.argsort(-base):
        by, (both, ones) = 1 / variance[j], products[j, 1]
        share = baseline * by / (1 + baseline * by * ones)
        for c in range(len(spans)):
            if own[j, c] <= nothing[j, c]:
                continue
            first, last = spans[c]
            with_residual, with_ones = 0.0, 0.0
            for i in range(first, last + 1):
                with_residual += times[j, i, 0]
                with_ones += times[j, i, 1]
            known = max(own[j, c] - share * with_ones * with_ones, nothing[j, c])
            left = with_residual - with_ones * share * both
            square = left * left / known * by
            # An offset of the least variance costs SURE at least where it changes the errors much.
            if square < 2 * SURE and least[c] * known * by > BY_MUCH:
                continue
            if base[j] + 0.5 * square > found[c]:
                gain = offset(square, known * by, least[c])[1]
                if gain > 0:
                    found[c] = max(found[c], base[j] + gain)
    return found


@compiled
def _take_away(
    times: FloatArray,
    own: FloatArray,
    free: FloatArray,
    known: FloatArray,
    spans: IntArray,
    first: int,
    last: int,
) -> None:
    """Take what a free column explains from the others, in place.

    ``free``, shape (P, n), is the inverse covariance times that column, which has ones from
    ``first`` to ``last``, and ``known``, shape (P,), its product with itself.
    """
    for j in range(len(times)):
        with_residual, with_ones = 0.0, 0.0
        for i in range(first, last + 1):
            with_residual += times[j, i, 0]
            with_ones += times[j, i, 1]
        with_residual, with_ones = with_residual / known[j], with_ones / known[j]
        for i in range(times.shape[1]):
            times[j, i, 0] -= free[j, i] * with_residual
            times[j, i, 1] -= free[j, i] * with_ones
        for c in range(len(spans)):
            shared = 0.0
            for i in range(spans[c, 0], spans[c, 1] + 1):
                shared += free[j, i]
            own[j, c] -= shared * shared / known[j]
