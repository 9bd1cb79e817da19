"""Which of the epochs and nights of a constant star are wrong, under which noise."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from broker_filter.inference.offset_loops import best_set, every_set, greedy, scaled
from broker_filter.types import FloatArray, IntArray

__all__ = ["BestSet", "BestSets", "Trials", "best_sets"]

WORTH_IT: Final = 3.0
"""How far below the best of a first search, in ln, another one may become the best."""


class BestSets(NamedTuple):
    """What is best in a first search, the best first.

    Parameters
    ----------
    log_p : float
        ln of the density.
    models : list of int
    wrong : list of tuple of int
        Suspects that are off.
    """

    log_p: float
    models: list[int]
    wrong: list[tuple[int, ...]]


class BestSet(NamedTuple):
    """ln of a density, its model, which of the model's scales, and the suspects that are off."""

    log_p: float
    model: int
    at: int
    wrong: tuple[int, ...]


class Trials(NamedTuple):
    """Models of the noise, each to be tried at several scales, with the products of suspects.

    The fields are what `broker_filter.inference.offset_loops` says.
    """

    gram: FloatArray
    log_determinant: FloatArray
    amplitude: FloatArray
    scale: FloatArray
    limits: tuple[int, float, float]

    def greedy(
        self, least: FloatArray, n_epochs: int = 0, rooms: tuple[int, int] = (0, 0)
    ) -> FloatArray:
        """Density at each scale, shape (P, K), as the loop of this name."""
        found: FloatArray = greedy(*self, least, n_epochs, rooms)
        return found

    def scaled(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """As the loop of this name, of rows of the flat array of (P, K)."""
        places = np.stack(np.divmod(rows, self.scale.shape[1]), axis=1)
        found: tuple[FloatArray, FloatArray] = scaled(*self, places)
        return found

    def best(self, sets: IntArray, least: FloatArray, above: float = -math.inf) -> BestSet:
        """The best density of any model, scale and set, which has to be ``above`` this."""
        log_p, model, at, which, off = best_set(*self, least, sets, above)
        return BestSet(log_p, model, at, _wrong(sets[which], off))


def best_sets(
    gram: FloatArray,
    log_p: FloatArray,
    sets: IntArray,
    least: FloatArray,
    *,
    most: int,
    enough: float = -math.inf,
) -> BestSets:
    """The sets that are best under any model, and the models that are.

    Parameters
    ----------
    gram, log_p, sets, least : ndarray
        As of `broker_filter.inference.offset_loops.every_set`.
    most : int
        So many sets are wanted.
    enough : float
        Some set is about as good as this, which saves trying the worse ones.
    """
    value, off = every_set(gram, log_p, sets, least, enough, WORTH_IT)
    top = float(value.max())
    near = np.flatnonzero(value >= top - WORTH_IT)
    model, which = np.divmod(near[np.argsort(-value.ravel()[near], kind="stable")], len(sets))
    wrong: dict[tuple[int, ...], None] = {}
    for one, bits in dict.fromkeys(zip(which.tolist(), off[model, which].tolist(), strict=True)):
        wrong[_wrong(sets[one], bits)] = None
        if len(wrong) == most:
            break
    return BestSets(top, list(dict.fromkeys(model.tolist())), list(wrong))


def _wrong(chosen: IntArray, off: int) -> tuple[int, ...]:
    return tuple(which for i, which in enumerate(chosen.tolist()) if off >> i & 1)
