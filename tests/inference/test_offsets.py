"""Which columns are off: every set is tried that could be the best, and each is priced right."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from broker_filter.inference.offsets import Trials, best_sets
from broker_filter.types import FloatArray, IntArray
from tests.inference.gaussian import absorbed

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


def best_of_a_set(gram: FloatArray, log_p: float, chosen: IntArray) -> float:
    """Density of one set, each offset by a Gaussian of the best variance, which may be none."""
    columns = [which for which in chosen.tolist() if which < COLUMNS]

    def loss(log_variance: FloatArray) -> float:
        rest, gain = gram, log_p
        for which, size in zip(columns, np.exp(log_variance), strict=True):
            rest, more = absorbed(rest, which + 1, size)
            gain += more
        return float(0.5 * rest[0, 0] - gain)

    bounds = [(np.log(9.0), np.log(1e6))] * len(columns)
    start = np.full(len(columns), np.log(400.0))
    return -float(minimize(loss, start, bounds=bounds).fun) if columns else log_p - 0.5 * gram[0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_set_of_all_is_found(seed: int) -> None:
    gram, log_p, sets, least = problem(seed)
    every = np.array(
        [[best_of_a_set(g, p, s) for s in sets] for g, p in zip(gram, log_p, strict=True)]
    )
    best = best_sets(gram, log_p, sets, least, most=3)
    assert best.log_p == pytest.approx(every.max(), abs=1e-2)
    model, which = np.unravel_index(every.argmax(), every.shape)
    assert best.models[0] == model
    assert set(best.wrong[0]) == {one for one in sets[which].tolist() if one < COLUMNS}
    assert len(best.wrong) <= 3


def test_a_column_that_explains_nothing_is_left_out() -> None:
    gram, log_p, sets, least = problem(0)
    gram[:, 0, 1:] = gram[:, 1:, 0] = 0.0
    assert best_sets(gram, log_p, sets, least, most=1).wrong == [()]


def test_every_model_is_tried_at_its_scales_with_the_error_of_the_baseline() -> None:
    rng = np.random.default_rng(7)
    columns = np.column_stack([rng.normal(size=N) + 2, np.ones(N), np.arange(N) == 4])
    columns[4, 0] = 60.0
    trials = Trials(
        (columns.T @ columns)[None], np.zeros(1), np.zeros(1), np.array([[1.0, 2.0]]), (N, 4.0, 1.0)
    )
    least = np.array([9.0])
    by_hand = []
    for scale in (1.0, 2.0):
        gram, taken = absorbed(trials.gram[0] / scale**2, 1, np.array(4.0))
        square, own = gram[0, 2] ** 2 / gram[2, 2], gram[2, 2]
        gram, freed = absorbed(gram, 2, np.array((square - 1) / own))
        by_hand.append(float(taken + freed - 0.5 * gram[0, 0] - N * np.log(scale)))
    np.testing.assert_allclose(trials.greedy(least, 1, (1, 0))[0], by_hand)
    found = trials.best(np.array([[0, 1, 1], [1, 1, 1]]), least)
    assert found.log_p == pytest.approx(max(by_hand))
    assert found.at == int(np.argmax(by_hand))
    assert found.wrong == (0,)


def test_red_noise_beyond_the_bound_is_outside_of_the_family() -> None:
    gram = np.eye(2)[None]
    trials = Trials(gram, np.zeros(1), np.ones(1), np.array([[0.9, 1.1]]), (N, 1.0, 1.0))
    assert np.isfinite(trials.greedy(np.empty(0))).tolist() == [[True, False]]
