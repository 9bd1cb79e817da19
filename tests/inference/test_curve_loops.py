"""Compiled curves: those of the table in numpy, their sums, and the slopes that a climb follows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from broker_filter.inference.curve_loops import (
    BASIS,
    BY_DURATION,
    BY_RHO,
    BY_TIME,
    BY_U0,
    EXCESS,
    EXCESS_MAX,
    curves,
    gram,
    lens_table,
    slopes,
    sums,
)
from broker_filter.inference.magnification import excess

Floats = NDArray[np.float64]


def lenses(n: int, seed: int = 1) -> Floats:
    rng = np.random.default_rng(seed)
    low, high = [0.0, 0.0, -1.3, -3.2], [20.0, 1.5, 1.5, 1.0]
    return rng.uniform(low, high, (n, 4))


def expected_curves(theta: Floats, days: Floats) -> Floats:
    t0, u0, log_tE, log_rho = theta.T[..., None]
    return excess(np.hypot(u0, (days - t0) / 10**log_tE), 10**log_rho)


def test_curves_are_those_of_the_table() -> None:
    theta, days = lenses(300), np.linspace(-5, 25, 200)
    found = curves(theta, days, lens_table())
    np.testing.assert_allclose(found, expected_curves(theta, days), rtol=1e-8)


def test_a_point_source_that_the_lens_all_but_hits_is_bounded() -> None:
    theta = np.array([[3.0, 1e-7, 0.0, -3.5]])
    assert curves(theta, np.array([3.0]), lens_table())[0, 0] == EXCESS_MAX


def test_what_is_not_a_number_reads_nothing_beside_the_table() -> None:
    theta = np.full((1, 4), math.nan)
    assert curves(theta, np.array([3.0]), lens_table()).shape == (1, 1)


def test_sums_are_by_source() -> None:
    theta, rng = lenses(20), np.random.default_rng(2)
    days, weight, weighted = rng.uniform(0, 20, 90), rng.uniform(1, 2, 90), rng.normal(size=90)
    firsts = np.array([0, 30, 30, 90])  # the second has no epochs
    found = sums(theta, days, weight, weighted, firsts, lens_table())
    e = expected_curves(theta, days)
    terms = weighted * e, weight * e, weight * e**2
    expected = [[t[:, a:b].sum(1) for a, b in ((0, 30), (30, 30), (30, 90))] for t in terms]
    np.testing.assert_allclose(found, np.swapaxes(expected, 1, 2), rtol=1e-9, atol=1e-12)


def slopes_of(theta: Floats, days: Floats, root: Floats) -> tuple[Floats, Floats]:
    columns = np.zeros((BASIS, len(days)))
    slopes(columns, np.empty((5, len(days))), root, days, theta, lens_table())
    factors = [-(10 ** -theta[2]), theta[1], -math.log(10), 1.0]
    rows = [BY_TIME, BY_U0, BY_DURATION, BY_RHO]
    return columns[EXCESS], np.array([f * columns[r] for f, r in zip(factors, rows, strict=True)])


@pytest.mark.parametrize("log_rho", [-3.5, -2.0, -0.7, 0.5])
def test_slopes_are_those_of_the_curve(log_rho: float) -> None:
    days, root = np.linspace(0, 20, 101), np.linspace(1, 3, 101)
    theta = np.array([9.03, 0.31, 0.4, log_rho])
    e, by_theta = slopes_of(theta, days, root)
    np.testing.assert_allclose(e, root * expected_curves(theta[None], days)[0], rtol=1e-8)
    size = np.abs(by_theta).max()
    for found, step in zip(by_theta, 1e-3 * np.eye(4), strict=True):
        high, low = expected_curves(np.stack([theta + step, theta - step]), days)
        # At the limb the slope differs from cell to cell of the table.
        assert np.abs(found - root * (high - low) / 2e-3).max() < 0.03 * size


def test_products_are_of_one_source() -> None:
    columns, found = np.random.default_rng(3).normal(size=(BASIS, 50)), np.empty((BASIS, BASIS))
    gram(found, columns, 10, 35)
    np.testing.assert_allclose(found, columns[:, 10:35] @ columns[:, 10:35].T, atol=1e-12)
