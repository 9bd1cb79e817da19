"""The line of an alert: what is known is in it, what is not is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_filter.alerts.codec import from_avro
from broker_filter.alerts.parts import CertifiedK, Verdict
from broker_filter.client.text import format_alert
from broker_filter.schemas import schema_folder, schema_id

SAMPLE = from_avro((schema_folder() / schema_id("alert") / "sample.avro").read_bytes())


def test_a_line_says_time_star_k_and_intervals() -> None:
    one = replace(SAMPLE, log10_k=6.25, star_id="KB-2073", last_epoch_mjd_tai=61000.5)
    line = format_alert(one)
    assert line.startswith("2025-11-21T12:00:00 TAI  new         KB-2073 F146  log10 K 6.25  ")
    for name in ("t0", "tE", "rho", "f_s"):
        median, up, down = one.interval(name).rounded()
        assert f"{name} {median} +{up} -{down}" in line


def test_a_line_says_what_is_known_of_the_star() -> None:
    one = replace(
        SAMPLE,
        log10_k=6.25,
        certified=CertifiedK(5.5, 0.043, 900.0, 1),
        p_event=0.314,
        verdict=Verdict("anomalous-lens", {"anomalous-lens": 0.9}, "A planet."),
        magnitude_now=18.256,
        magnitude_peak=17.5,
        ra=270.5,
        dec=-29.25,
        days_to_peak=1.25,
    )
    assert (
        "log10 K 6.25  certified 5.50 +-0.04  P(event) 0.31  anomalous-lens"
        "  mag 18.26 peak 17.50  at 270.50000 -29.25000  peak in 1.25 d  t0 "
    ) in format_alert(one)
    unknown = replace(
        one,
        certified=None,
        verdict=None,
        magnitude_now=None,
        ra=None,
        days_to_peak=None,
        p_event=0.99999,
    )
    assert "log10 K 6.25  P(event) >0.99  t0 " in format_alert(unknown)


@pytest.mark.parametrize(
    ("days", "said"), [(3.5, "peak in 3.50 d"), (-2.0, "peak 2.00 d ago"), (0.0, "peak 0.00 d ago")]
)
def test_a_peak_is_to_come_or_has_passed(days: float, said: str) -> None:
    assert f"  {said}  " in format_alert(replace(SAMPLE, days_to_peak=days))
