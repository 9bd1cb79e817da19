"""Which epochs are usable, and which difference flux becomes total."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from broker_filter.photometry.usable import REASONS, Limits, accept, by_reference
from broker_filter.types import Photometry
from tests import build


def photometry(n: int = 3, **columns: Any) -> Photometry:
    plain = {"flux": 100.0, "flux_err": 1.0}
    mjd = columns.pop("mjd_tai", 60_000.0 + np.arange(n))
    return build.photometry(mjd, [f"star {i}" for i in range(n)], **plain | columns)


def test_good_photometry_passes_as_it_is() -> None:
    whole = photometry()
    accepted = accept(whole, Limits())
    assert accepted.photometry is whole
    assert accepted.rejected == {}


@pytest.mark.parametrize(
    ("reason", "columns"),
    [
        ("nan_time", {"mjd_tai": np.array([6e4, math.nan, 6e4])}),
        ("time_out_of_range", {"mjd_tai": np.array([6e4, 2_460_000.5, 6e4])}),
        ("time_out_of_range", {"mjd_tai": np.array([6e4, math.inf, 6e4])}),
        ("nan_flux", {"flux": np.array([1.0, math.nan, 1.0])}),
        ("infinite_flux", {"flux": np.array([1.0, -math.inf, 1.0])}),
        ("infinite_flux", {"flux": np.array([1.0, 1e39, 1.0])}),
        ("bad_error", {"flux_err": np.array([1.0, math.nan, 1.0])}),
        ("bad_error", {"flux_err": np.array([1.0, math.inf, 1.0])}),
        ("bad_error", {"flux_err": np.array([1.0, 0.0, 1.0])}),
        ("bad_error", {"flux_err": np.array([1.0, -1.0, 1.0])}),
        ("bad_error", {"flux_err": np.array([1.0, 1e-50, 1.0])}),
        ("implausible", {"flux": np.array([1.0, 1e20, 1.0])}),
        ("implausible", {"flux": np.array([1.0, -1e20, 1.0])}),
        ("implausible", {"flux_err": np.array([1.0, 1e-12, 1.0])}),
        ("flagged", {"flags": np.array([0, 4, 0], np.uint32)}),
    ],
)
def test_an_unusable_epoch_is_dropped_and_counted(reason: str, columns: dict[str, Any]) -> None:
    accepted = accept(photometry(**columns), Limits())
    assert accepted.rejected == {reason: 1}
    assert accepted.photometry.star == ["star 0", "star 2"]
    assert len(accepted.photometry.mjd_tai) == 2


def test_an_epoch_with_several_faults_counts_once() -> None:
    nothing = np.full(3, np.nan)
    accepted = accept(photometry(mjd_tai=nothing, flux=nothing, flux_err=nothing), Limits())
    assert accepted.rejected == {"nan_time": 3}
    assert len(accepted.photometry) == 0


def test_only_flags_in_the_mask_reject() -> None:
    flags = np.array([1, 2, 3], np.uint32)
    assert accept(photometry(flags=flags), Limits(flag_mask=2)).rejected == {"flagged": 2}


def test_negative_flux_is_a_measurement() -> None:
    assert accept(photometry(flux=np.full(3, -5.0)), Limits()).rejected == {}


def test_difference_flux_becomes_total_by_the_reference() -> None:
    reference = np.array([1000.0, math.nan, 2000.0])
    difference = photometry(kind="difference", ref_flux=reference)
    total, rest = by_reference(difference)
    assert (total.kind, rest.kind) == ("total", "difference")
    assert total.flux.tolist() == [1100.0, 2100.0]
    assert (rest.star, rest.flux.tolist()) == (["star 1"], [100.0])


def test_total_flux_is_total_with_or_without_a_reference() -> None:
    whole = photometry(ref_flux=np.array([1000.0, math.nan, 2000.0]))
    assert by_reference(whole) == (whole,)


def test_difference_flux_that_is_all_of_one_sort_is_one_part() -> None:
    difference = photometry(kind="difference")
    assert [part.kind for part in by_reference(difference)] == ["difference"]
    difference = photometry(kind="difference", ref_flux=np.full(3, 10.0))
    assert [part.kind for part in by_reference(difference)] == ["total"]


def test_reasons_are_a_closed_set_of_words() -> None:
    assert len(set(REASONS)) == len(REASONS)
    assert all(reason.replace("_", "").isalpha() for reason in REASONS)
