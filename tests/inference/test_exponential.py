"""What compiled loops share."""

from __future__ import annotations

import numpy as np

from broker_filter.inference.exponential import exponential


def test_the_exponential_is_that_of_numpy() -> None:
    x = np.concatenate([np.linspace(-700, 700, 20_001), [0.0, -1e-300, 1e-9]])
    found = np.array([exponential(value) for value in x])
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-13)


def test_far_below_it_is_next_to_nothing() -> None:
    for x in (-701.0, -1e6, -np.inf):
        assert 0 <= exponential(x) < 1e-300
