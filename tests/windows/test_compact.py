"""Errors in two bytes."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.windows.compact import packed_error, rounded_error, unpacked_error


@pytest.mark.parametrize("scale", 10.0 ** np.arange(-30, 31, 5))
def test_a_rounded_error_is_off_by_a_part_in_500_at_most_at_every_scale(scale: float) -> None:
    error = (scale * np.random.default_rng(1).uniform(1, 1000, 10_000)).astype(np.float32)
    assert np.abs(rounded_error(error) / error - 1).max() < 1 / 500


def test_what_was_rounded_stays_as_it_is_and_keeps_its_order() -> None:
    error = np.sort(np.random.default_rng(2).lognormal(0, 20, 10_000)).astype(np.float32)
    rounded = rounded_error(error)
    np.testing.assert_array_equal(rounded_error(rounded), rounded)
    assert (np.diff(rounded) >= 0).all()


def test_all_codes_come_back_as_they_went() -> None:
    code = np.arange(1, 0xFF00, dtype=np.uint16)
    np.testing.assert_array_equal(packed_error(unpacked_error(code)), code)


def test_the_extremes_stay_positive_and_finite() -> None:
    extremes = np.array([np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max])
    rounded = rounded_error(extremes.astype(np.float32))
    assert (rounded > 0).all()
    assert np.isfinite(rounded).all()
