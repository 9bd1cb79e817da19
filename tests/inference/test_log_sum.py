"""The log of a sum of exponentials is scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from broker_filter.inference.log_sum import log_sum


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_it_is_that_of_scipy(axis: int) -> None:
    log_x = np.random.default_rng(1).normal(0, 300, (4, 5))
    log_x[1, :] = -np.inf
    log_x[:, 2] = -np.inf
    log_x[2, 3], log_x[3, 4] = np.inf, 1e6
    np.testing.assert_allclose(log_sum(log_x, axis), logsumexp(log_x, axis=axis), rtol=1e-14)


def test_nothing_sums_to_nothing_and_nan_stays() -> None:
    assert log_sum(np.full(3, -np.inf)) == -np.inf
    assert np.isnan(log_sum(np.array([0.0, np.nan])))
