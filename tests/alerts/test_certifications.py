"""Looks with certified K: when they are due, and what they may claim together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker_filter.alerts.certifications import (
    Certification,
    certifications_from_columns,
    certifications_to_columns,
    is_due,
)
from broker_filter.errors import StateError

LOOK = Certification(60_000.0, 1, 2.5, 3.0, 0.1, 50.0, 60_010.0, 60_010.0)


def test_the_first_look_at_a_window_is_due() -> None:
    assert is_due(None, 1.0, 60_000.0, 60_010.0)
    assert is_due(LOOK, 1.0, 60_005.0, 60_010.0)


def test_another_look_waits_until_k_has_grown_tenfold() -> None:
    assert not is_due(LOOK, 3.4, 60_000.0, 60_010.0)
    assert is_due(LOOK, 3.5, 60_000.0, 60_010.0)


def test_looks_at_an_event_whose_k_never_stops_growing_stay_few() -> None:
    look, looks = LOOK, 0
    for log10_k in np.arange(2.5, 1000.0, 0.5).tolist():
        if is_due(look, log10_k, 60_000.0, 60_010.0):
            look, looks = replace(look, network_log10_k=log10_k), looks + 1
    assert looks < 30


def test_time_alone_calls_for_another_look_after_a_day_and_then_ever_more_rarely() -> None:
    """A family's K may grow where the network's does not."""
    look, ages = LOOK, []
    for mjd in np.arange(60_010.0, 60_015.01, 0.25).tolist():
        if is_due(look, -1.0, 60_000.0, mjd):
            look = replace(look, last_mjd=mjd)
            ages.append(mjd - LOOK.first_mjd)
    assert ages == [1.0, 2.0, 4.0]


def test_all_looks_together_claim_no_more_than_one() -> None:
    """Each look at noise passes log10 k with probability at most 10^-(k + charge)."""
    charges = [
        look.log10_k - look.charged for look in (replace(LOOK, count=j) for j in range(1, 500))
    ]
    assert sum(10**-charge for charge in charges) == pytest.approx(1, abs=0.01)
    assert sum(10**-charge for charge in charges) < 1


def test_certifications_survive_a_snapshot() -> None:
    looks = {
        ("roman", 4_611_686_018_427_387_905, "F146"): LOOK,
        ("ztf", "ZTF18abc", "g"): replace(LOOK, count=3, log10_k=-0.2),
    }
    assert certifications_from_columns(certifications_to_columns(looks)) == looks
    assert certifications_from_columns(certifications_to_columns({})) == {}


def test_columns_that_do_not_fit_are_refused() -> None:
    columns = certifications_to_columns({("roman", 1, "F146"): LOOK})
    for name in ("first_mjd", "last_mjd"):
        del columns[name]
    (old,) = certifications_from_columns(columns).values()
    assert not is_due(old, 2.5, 60_000.0, 60_015.0)
    del columns["count"]
    with pytest.raises(StateError, match="certifications"):
        certifications_from_columns(columns)
    columns = certifications_to_columns({("roman", 1, "F146"): LOOK})
    columns["log10_k"] = np.zeros(2)
    with pytest.raises(StateError, match="certifications"):
        certifications_from_columns(columns)
