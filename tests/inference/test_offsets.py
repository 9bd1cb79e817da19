"""Which columns are off: every set is tried that could be the best, and each is priced right."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from broker_filter.inference.offsets import best_sets, bounds, freed, parts
from broker_filter.types import FloatArray, IntArray

N, COLUMNS = 30, 5


def problem(seed: int) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
    """Products of residuals and columns under three white noises, and all sets of up to three."""
    rng = np.random.default_rng(seed)
    columns = np.zeros((N, COLUMNS))
    columns[rng.choice(N, COLUMNS, replace=False), np.arange(COLUMNS)] = 1
    columns[:6, -1] = 1  # one more is a night
    residual = rng.normal(size=N) + columns @ (rng.normal(size=COLUMNS) * 20)
    every = np.column_stack([residual, columns])
    scale = np.array([0.8, 1.0, 1.5])
    gram = np.stack([every.T @ every / k**2 for k in scale])
    rows = [(*chosen, *[COLUMNS] * (3 - size)) for size in range(4) for chosen in _chosen(size)]
    return gram, -N * np.log(scale), np.array(rows), np.full(COLUMNS, 9.0)


def _chosen(size: int) -> list[tuple[int, ...]]:
    return list(combinations(range(COLUMNS), size))


@pytest.mark.parametrize("seed", range(5))
def test_the_best_set_of_all_is_found(seed: int) -> None:
    gram, log_p, sets, least = problem(seed)
    value, _ = freed(parts(gram, sets), log_p[:, None], bounds(least, sets))
    best = best_sets(gram, log_p, sets, least)
    assert best[0].log_p == pytest.approx(value.max())
    assert value[best[0].model].max() == pytest.approx(value.max())


def test_a_column_that_explains_nothing_is_left_out() -> None:
    gram, log_p, sets, least = problem(0)
    gram[:, 0, 1:] = gram[:, 1:, 0] = 0.0
    assert best_sets(gram, log_p, sets, least)[0].wrong == ()
