"""Clocks: UTC and TAI, there and back."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.photometry.times import TIME_SYSTEMS, to_mjd_tai, to_mjd_utc


@pytest.mark.parametrize("seconds", [-40.0, -36.5, -1.0, 0.0, 36.9, 38.0])
def test_utc_is_tai_back_again_around_a_leap_second(seconds: float) -> None:
    utc = np.array([57_754.0, 41_499.0]) + seconds / 86_400
    there = to_mjd_tai(utc, TIME_SYSTEMS["MJD"])
    np.testing.assert_allclose(to_mjd_utc(there), utc, rtol=0, atol=1e-10)
