"""Means over priors that are constant by steps, against quadrature and known limits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from broker_filter.inference.normal_steps import log_mean

EDGES = np.geomspace(0.01, 1.0, 4)


def by_quadrature(a: float, b: float) -> float:
    """With the largest value taken out."""
    top = min(max(b / a, EDGES[0]), EDGES[-1])
    lifted = b * top - 0.5 * a * top**2

    def value(f: float) -> float:
        return float(np.exp(b * f - 0.5 * a * f * f - lifted))

    steps = list(pairwise(EDGES.tolist()))
    means = [quad(value, *step, epsabs=0, limit=200)[0] / (step[1] - step[0]) for step in steps]
    return float(np.log(np.mean(means)) + lifted)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1.0, 0.3),
        (400.0, 120.0),
        (400.0, -3.0),
        (50.0, 400.0),
        (2e3, 4e3),
        (1e-3, 1e-3),
        (9.0, 0.5),
    ],
)
def test_the_mean_is_that_of_quadrature(a: float, b: float) -> None:
    found = log_mean(a, b, EDGES)
    assert found == pytest.approx(by_quadrature(a, b), rel=1e-8, abs=1e-9)


def test_where_nothing_is_seen_the_mean_is_one() -> None:
    assert log_mean(0.0, 0.0, EDGES) == pytest.approx(0, abs=1e-6)


def test_far_outside_of_the_prior_the_nearest_edge_decides() -> None:
    """A thousand errors below: ln of the integral is near its value at the edge."""
    a, b = 1e6, -1e6
    found = log_mean(a, b, EDGES)
    edge = b * EDGES[0] - 0.5 * a * EDGES[0] ** 2
    slope = a * EDGES[0] - b
    width = EDGES[1] - EDGES[0]
    assert found == pytest.approx(edge - np.log(slope * width * 3), abs=1e-3)
