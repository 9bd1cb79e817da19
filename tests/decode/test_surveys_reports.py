"""Inputs that were reported as faults of other brokers and clients, and what we make of each."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import fastavro
import numpy as np
import pytest

from broker_filter.config import Packets
from broker_filter.photometry.usable import Limits, accept
from broker_filter.types import Photometry
from broker_filter.windows.store import WindowStore
from tests.decode.test_surveys_lsst import NAME, source
from tests.decode.test_surveys_lsst import alert as lsst_alert
from tests.decode.test_surveys_ztf import JD, NO_STAR, alert, detection, forced
from tests.packets import packet, points

Light = dict[str, list[tuple[float, float, float]]]


def light(parts: Sequence[Photometry]) -> Light:
    """Points of each band and kind."""
    return {
        f"{p.band} {p.kind}": list(
            zip(p.mjd_tai.tolist(), p.flux.tolist(), p.flux_err.tolist(), strict=True)
        )
        for p in parts
    }


def windows(*packets: Sequence[Photometry]) -> Light:
    """What the network sees after these packets, in units of the baseline."""
    store = WindowStore()
    for parts in packets:
        for part in parts:
            store.insert(accept(part, Limits()).photometry)
    batch = store.read(np.arange(len(store)))
    columns = (batch.mjd_tai, batch.flux, batch.sigma)
    return {
        band: list(zip(*(column[row, :n].tolist() for column in columns), strict=True))
        for row, (band, n) in enumerate(zip(batch.band, batch.n.tolist(), strict=True))
    }


HISTORY = [detection(jd=JD - i, magpsf=19.4 - 0.01 * i) for i in range(1, 10)]


def test_boom_632_history_out_of_order_doubled_and_not_finite() -> None:
    broken = [*HISTORY[::-1], *HISTORY[:4], detection(jd=math.nan), detection(jd=math.inf)]
    clean = packet("ztf.alert", alert(prv_candidates=HISTORY))
    made = packet("ztf.alert", alert(prv_candidates=broken))
    assert light(made.photometry) == light(clean.photometry)
    assert windows(made.photometry) == windows(clean.photometry)
    assert made.rejected == {"duplicate": 4, "nan_time": 1, "time_out_of_range": 1}


def test_boom_88_one_time_twice_with_other_last_digits() -> None:
    twice = [detection(jd=JD - 1), detection(jd=JD - 1 + 1e-7, magpsf=19.400001)]
    [part] = packet("ztf.alert", alert(prv_candidates=twice)).photometry
    assert len(part) == 2


def test_kowalski_14_history_sent_again_with_other_digits() -> None:
    again = [h | {"magpsf": h["magpsf"] + 1e-5} for h in HISTORY]
    first = packet("ztf.alert", alert(prv_candidates=HISTORY)).photometry
    second = packet("ztf.alert", alert(prv_candidates=again)).photometry
    one, two = windows(first)["r"], windows(first, second)["r"]
    assert [t for t, _, _ in one] == [t for t, _, _ in two]
    np.testing.assert_allclose([f for _, f, _ in one], [f for _, f, _ in two], rtol=1e-4)
    assert windows(first, second) == windows(second, first)


def test_boom_362_zero_points_that_change_from_epoch_to_epoch() -> None:
    true = 5000.0  # nJy
    zero_points = [25.9, 26.1, 26.3, 26.5]
    epochs = [
        forced(jd=JD - i, magzpsci=zp, forcediffimflux=true * 10 ** (0.4 * (zp - 31.4)), **NO_STAR)
        for i, zp in enumerate(zero_points, start=1)
    ]
    [part] = packet("ztf.alert", alert(detection(**NO_STAR), fp_hists=epochs)).photometry
    np.testing.assert_allclose(part.flux[:4], true)
    constant = [epoch | {"magzpsci": 26.3} for epoch in epochs]
    [part] = packet("ztf.alert", alert(detection(**NO_STAR), fp_hists=constant)).photometry
    assert np.ptp(part.flux[:4]) > 0.5 * true


@pytest.mark.parametrize("zero_point", [None, math.nan, -99999.0])
def test_fink_science_121_no_zero_point(zero_point: float | None) -> None:
    epochs = [forced(magzpsci=zero_point), forced(jd=JD - 5)]
    made = packet("ztf.alert", alert(fp_hists=epochs))
    assert made.rejected == {"no_zero_point": 1}
    assert points(made) == {("r", "total"): 2}
    del epochs[0]["magzpsci"]
    assert packet("ztf.alert", alert(fp_hists=epochs)).rejected == {"no_zero_point": 1}


def test_fink_client_229_a_map_in_the_schema() -> None:
    schema = fastavro.parse_schema(
        {
            "type": "record",
            "name": "topLevelRecord",
            "fields": [
                {"name": "clf", "type": {"type": "map", "values": ["null", "double"]}},
                {"name": "diaSource", "type": {"type": "map", "values": ["null", "double"]}},
                {"name": "prvDiaSources", "type": "null"},
            ],
        }
    )
    buffer = io.BytesIO()
    fastavro.schemaless_writer(
        buffer, schema, {"clf": {"cats": 12.0}, "diaSource": {}, "prvDiaSources": None}
    )
    buffer.seek(0)
    record = fastavro.schemaless_reader(buffer, schema, None)
    assert packet("topLevelRecord", record).rejected == {"no_object": 1}
    with_map = lsst_alert() | {"clf": {"cats": 12.0}}
    assert light(packet(NAME, with_map).photometry) == light(packet(NAME, lsst_alert()).photometry)


def test_fink_client_182_fields_that_came_went_or_became_null() -> None:
    old = lsst_alert(source(), prvDiaSources=[source(midpointMjdTai=61100.0, visit=1)])
    new = lsst_alert(
        source(exposureTime=30.0, trail_flag=None, reliabilityVersion="v1", psfFlux_flag=None),
        prvDiaSources=[source(midpointMjdTai=61100.0, visit=1)],
        ssObject={"numObs": 3},
        mpc_orbits=None,
    )
    del new["prvDiaForcedSources"]
    made = [packet(f"lsst.v{version}.alert", r) for version, r in (("10_0", old), ("11_1", new))]
    assert light(made[0].photometry) == light(made[1].photometry)


def test_boom_306_solar_system_alert_beside_a_stars() -> None:
    rock = lsst_alert(source(diaObjectId=None, ssObjectId=42)) | {"diaObject": None}
    assert packet(NAME, rock).rejected == {"solar_system": 1}
    star = lsst_alert(source(ssObjectId=0))
    assert packet(NAME, star).rejected == {}


def test_fink_broker_443_every_alert_twice() -> None:
    parts = packet("ztf.alert", alert(prv_candidates=HISTORY)).photometry
    assert windows(parts, parts) == windows(parts)


def test_ztf_fink_portal_65_a_fading_star_is_fitted_by_its_total_flux() -> None:
    faint = alert(detection(isdiffpos="f"), prv_candidates=HISTORY)
    [part] = packet("ztf.alert", faint).photometry
    assert part.kind == "total"
    assert (part.flux > 0).all()
    assert part.flux[-1] < part.ref_flux[-1] < part.flux[0]


def test_ztf_fink_portal_67_one_band_is_enough() -> None:
    seen = windows(packet("ztf.alert", alert(prv_candidates=HISTORY)).photometry)
    assert list(seen) == ["r"]


@pytest.mark.parametrize("where", ["alert", "history"])
def test_lsst_7_fake_alerts_with_unix_seconds_for_a_date(where: str) -> None:
    fake = source(midpointMjdTai=1480360995.0, visit=2)
    record = lsst_alert(fake) if where == "alert" else lsst_alert(prvDiaSources=[fake])
    made = packet(NAME, record)
    assert made.rejected == {"time_out_of_range": 1}
    assert len(made.photometry) == (where == "history")


def test_rapid_writes_counts_and_other_names_than_its_schema() -> None:
    written = {
        "midpointMjdTai": 61500.0, "band": "F184", "psfFlux": 100.0, "psfFluxErr": 5.0,
        "isdiffpos": True, "n_pixels_fit": 25, "npixfit": None, "sca": 1, "field": 2,
        "diaObjectId": 3, "flags": 0,
    }  # fmt: skip
    record = {"diaSource": written, "prvDiaSources": None}
    options = Packets(roman_zero_points={"F184": 26.4})
    [part] = packet("rapid.v01_00.alert", record, options).photometry
    assert part.flux.tolist() == pytest.approx([10_000])


def test_fink_45_nullable_in_the_simulation_and_not_in_the_stream() -> None:
    absent = detection(exptime=None, rb=None, nbad=None, ssdistnr=None)
    live = detection()
    made = [packet("ztf.alert", alert(trigger)) for trigger in (absent, live)]
    assert light(made[0].photometry) == light(made[1].photometry)
