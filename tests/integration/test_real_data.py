"""Real light curves through Kafka and the whole filter, with the model that is shipped.

The figures that have no target yet (false alerts on event-free stretches) are printed, not judged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.kafka.sink import Sink
from broker_filter.observe.metrics import Metrics
from broker_filter.replay.lightcurves.file import LightCurve, read_lightcurve
from broker_filter.replay.publish import replay
from broker_filter.service.assembly import open_entry
from broker_filter.service.rehearsal import rehearse
from tests.integration.harness import light_curve_settings

pytestmark = [pytest.mark.shared_data, pytest.mark.slow]

MJD_OF_HJD_PRIME = 49_999.5  # HJD' = HJD - 2450000, so MJD = HJD' + 49999.5
T0_KMT = 8708.6 + MJD_OF_HJD_PRIME


def alerts_of(curves: list[LightCurve], start: float, stop: float) -> list[Alert]:
    """Replay light curves through Kafka and the filter."""
    parts = [part for curve in curves for part in curve.parts]

    def publish(sink: Sink) -> None:
        replay(parts, sink, "photometry", start=start, stop=stop)

    entry = open_entry(light_curve_settings("127.0.0.1:0"))
    return rehearse(light_curve_settings, entry, publish, Metrics(), partitions=1)


@pytest.fixture(scope="module")
def kmt(shared_data: Path) -> list[LightCurve]:
    """Six files of one star: six sources, each with its own baseline and error scale."""
    files = sorted((shared_data / "photometry" / "kmt_2019_blg_2073").glob("*.pysis"))
    assert len(files) == 6
    return [read_lightcurve(file, star="KMT-2019-BLG-2073") for file in files]


def test_a_free_floating_planet_candidate_gives_an_alert(kmt: list[LightCurve]) -> None:
    alerts = alerts_of(kmt, T0_KMT - 100, T0_KMT + 20)
    assert len({part.source for curve in kmt for part in curve.parts}) == 6
    of_event = [a for a in alerts if a.last_epoch_mjd_tai > T0_KMT - 1]
    assert of_event, [(a.state, a.log10_k, a.last_epoch_mjd_tai) for a in alerts]
    loudest = max(of_event, key=lambda alert: alert.log10_k)
    updates = [a for a in of_event if a.event_id == loudest.event_id and a.state == "update"]
    whole = updates[-1]  # all of it seen
    assert whole.star_id == "KMT-2019-BLG-2073"
    assert whole.t0_mjd_tai == pytest.approx(T0_KMT, abs=0.1)


def test_quiet_months_of_the_same_star_are_reported(
    kmt: list[LightCurve], capsys: pytest.CaptureFixture[str]
) -> None:
    alerts = alerts_of(kmt, T0_KMT - 160, T0_KMT - 10)
    with capsys.disabled():
        print(f"\nKMT, 150 d without an event: {len(alerts)} alerts")
    assert all(np.isfinite(alert.log10_k) for alert in alerts)


def test_a_planetary_event_of_the_roman_simulation_gives_an_alert(shared_data: Path) -> None:
    folder = shared_data / "photometry" / "roman_sim"
    curves = [read_lightcurve(folder / "ulwdc1_012_W149.txt", star="ulwdc1_012")]
    t0 = 2_458_234 + 364.6035 - 2_400_000.5
    alerts = alerts_of(curves, t0 - 75, t0 + 15)
    assert {alert.star_id for alert in alerts} == {"ulwdc1_012"}
    assert any(alert.state == "new" for alert in alerts)


def test_event_free_roman_stars_are_reported(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_data / "photometry" / "roman_sim"
    counts = {}
    for star in ("ulwdc1_010", "ulwdc1_011"):
        curve = read_lightcurve(folder / f"{star}_W149.txt", star=star)
        first = float(curve.parts[0].mjd_tai.min())
        counts[star] = len(alerts_of([curve], first, first + 80))
    with capsys.disabled():
        print(f"\nRoman simulation, one season each: alerts {counts}")
    assert set(counts) == {"ulwdc1_010", "ulwdc1_011"}
