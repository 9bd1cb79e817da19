"""Medians and errors of a posterior, and when another one is far from them."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.alerts.estimate import Estimate


def test_medians_and_sigmas_are_those_of_the_samples_in_physical_units() -> None:
    rng = np.random.default_rng(1)
    samples = rng.normal([12.0, 0.5, 1.0, -2.0, 0.8], [0.5, 0.1, 0.01, 0.01, 0.1], (20_000, 5))
    estimate = Estimate.of(samples.astype(np.float32), 60_000.0)
    assert estimate.medians == pytest.approx((60_012, 0.5, 10, 0.01, 0.8), rel=0.01)
    assert estimate.sigmas == pytest.approx((0.5, 0.1, 0.23, 0.00023, 0.1), rel=0.05)
    assert estimate.medians[0] == pytest.approx(60_012, abs=0.02)


@pytest.mark.parametrize("i", range(5))
def test_any_median_counts(i: int) -> None:
    last = Estimate((100.0, 0.3, 5.0, 0.01, 0.8), (0.5, 0.1, 1.0, 0.01, 0.1))
    for sigmas, left in ((0.9, False), (-0.9, False), (1.1, True), (-1.1, True)):
        medians = list(last.medians)
        medians[i] += sigmas * last.sigmas[i]
        assert Estimate(tuple(medians), (9.0,) * 5).is_far_from(last) == left
