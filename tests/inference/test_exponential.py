"""What compiled loops share."""

from __future__ import annotations

import numpy as np

from broker_filter.inference.exponential import exponential, exponential_less_one


def test_the_exponential_is_that_of_numpy() -> None:
    x = np.concatenate([np.linspace(-700, 700, 20_001), [0.0, -1e-300, 1e-9]])
    found = np.array([exponential(value) for value in x])
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-13)


def test_far_below_it_is_next_to_nothing() -> None:
    for x in (-701.0, -1e6, -np.inf):
        assert 0 <= exponential(x) < 1e-300


def test_one_is_taken_away_exactly() -> None:
    x = np.concatenate([np.linspace(-700, 700, 2_001), [0.0, -1e-300, 1e-9, -3e-6]])
    found = np.array([exponential_less_one(value) for value in x])
    np.testing.assert_allclose(found, np.expm1(x), rtol=1e-13)
