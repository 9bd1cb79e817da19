"""Wrong epochs and nights of lensed stars: their prior, and finding those that a lens leaves."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from broker_filter.inference.lens_outliers import SIZES, WrongSet, far_off, left_over
from broker_filter.inference.noise_family import GROSS_EPOCH, GROSS_NIGHT, NoiseFamily, SourceLight

SIGMA = 0.01


def light(residual: np.ndarray) -> SourceLight:
    """Epochs of nights of five."""
    n = len(residual)
    t = np.arange(n) // 5 + 0.02 * (np.arange(n) % 5)
    return SourceLight(t, residual, np.full(n, SIGMA), 0.001)


def test_the_prior_of_all_sets_sums_to_one() -> None:
    star = light(np.zeros(10))
    sizes = range(SIZES)
    every = [()] + [
        tuple(zip(which, of, strict=True))
        for many in (1, 2)
        for which in combinations(range(len(star)), many)
        for of in product(sizes, repeat=many)
    ]
    nights = [None, *((int(n[0]), int(n[-1]), float(s)) for n in star.nights for s in sizes)]
    sets = [WrongSet(epochs, night) for epochs in every for night in nights]
    assert len(set(sets)) == len(sets)
    assert sum(math.exp(one.log_prior(star)) for one in sets) == pytest.approx(1.0)


def test_what_a_lens_leaves_over_is_found_and_its_light_is_not() -> None:
    n = 60
    signal = np.exp(-0.5 * ((np.arange(n) - 32.0) / 4) ** 2)
    residual = 0.5 * signal + SIGMA * np.random.default_rng(1).standard_normal(n)
    residual[[4, 31]] += (2.0, -0.4)
    residual[50:55] -= 8 * SIGMA
    star = light(residual)
    family = NoiseFamily()
    first = left_over(star, family, signal, WrongSet())
    found = left_over(star, family, signal, first)
    assert [epoch for epoch, _ in found.epochs] == [4, 31]
    assert found.epochs[0][1] == pytest.approx(GROSS_EPOCH * 10 * SIGMA)
    assert found.night == (50, 54, pytest.approx(GROSS_NIGHT * SIGMA))


def test_only_what_may_be_wrong_is_left_out() -> None:
    residual = np.zeros(20)
    residual[3], residual[10:15] = 1.0, 0.5
    star = light(residual)
    strict = NoiseFamily(wrong_epochs=0, wrong_nights=0)
    assert left_over(star, strict, np.zeros(20), WrongSet()) == WrongSet()
    assert far_off(star, residual, (2, 3)).epochs == ((3, pytest.approx(10 * GROSS_EPOCH * SIGMA)),)
