"""RAPID's packets of Roman: difference flux in DN whatever they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.config import Packets
from broker_filter.decode.selection import Packet
from broker_filter.decode.surveys.roman import NOMINAL_ZERO_POINTS
from tests.packets import packet, records

NAME = "rapid.v01_00.alert"
OPTIONS = Packets(roman_zero_points={"F146": 26.4})


def source(**fields: Any) -> dict[str, Any]:
    return {
        "midpointMjdTai": 61500.12345, "band": "F146", "psfFlux": 125.0, "psfFluxErr": 2.5,
        "isdiffpos": True, "flags": 0, "npixfit": 25, "field": 101, "sca": 7,
        "ra": 269.0, "dec": -29.0, "diaObjectId": 5000001, "ssObjectId": None, **fields,
    }  # fmt: skip


def read(trigger: dict[str, Any], options: Packets = OPTIONS, **fields: Any) -> Packet:
    return packet(NAME, {"diaSource": trigger, "prvDiaSources": None, **fields}, options)


def test_counts_are_scaled_by_the_zero_point_of_the_configuration() -> None:
    [part] = read(source()).photometry
    assert part.flux.tolist() == pytest.approx([12500])  # 10^(-0.4 (26.4 - 31.4)) nJy each
    assert part.flux_err.tolist() == pytest.approx([250])
    assert (part.kind, part.source) == ("difference", "101-7")
    assert np.isnan(part.ref_flux).all()


def test_without_a_zero_point_an_epoch_is_rejected() -> None:
    made = read(source(), Packets())
    assert (made.photometry, made.rejected) == ((), {"no_zero_point": 1})
    assert read(source(band="F184")).rejected == {"no_zero_point": 1}


def test_the_sign_is_said_elsewhere() -> None:
    [part] = read(source(isdiffpos=False)).photometry
    assert part.flux.tolist() == pytest.approx([-12500])
    assert read(source(psfFlux=-3.0)).rejected == {"bad_sign": 1}


# astropy 8.0: Time(61500.12345, format="mjd", scale="utc").tai.mjd, and 70 s later
@pytest.mark.parametrize(
    ("options", "mjd_tai"),
    [
        ({}, 61500.12387824074),
        ({"roman_exposure_s": 140.0}, 61500.12468842592),
        ({"roman_time": "mid_tai"}, 61500.12345),
    ],
)
def test_the_time_is_the_start_in_utc_unless_the_user_knows_better(
    options: dict[str, Any], mjd_tai: float
) -> None:
    chosen = Packets(roman_zero_points={"F146": 26.4}, **options)
    [part] = read(source(), chosen).photometry
    assert part.mjd_tai[0] == pytest.approx(mjd_tai, abs=1e-9)


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("flags", {"flags": 4}),
        ("npixfit", {"npixfit": 0}),
        ("npixfit", {"npixfit": None, "n_pixels_fit": 0}),  # the name that the writer uses
        ("withdrawn", {"timeWithdrawnMjdTai": 61500.5}),
        ("nan_flux", {"psfFlux": None}),
    ],
)
def test_an_epoch_is_rejected(reason: str, fields: dict[str, Any]) -> None:
    earlier = source(midpointMjdTai=61499.0) | fields
    made = read(source(), prvDiaSources=[earlier])
    assert made.rejected == {reason: 1}
    assert sum(map(len, made.photometry)) == 1


@pytest.mark.parametrize("pixels", [{"npixfit": None}, {"npixfit": None, "n_pixels_fit": 25}])
def test_the_number_of_pixels_may_be_unknown(pixels: dict[str, Any]) -> None:
    assert read(source(**pixels)).rejected == {}


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("no_object", {"diaObjectId": None}),
        ("solar_system", {"ssObjectId": 9}),
        ("withdrawn", {"timeWithdrawnMjdTai": 61500.5}),
    ],
)
def test_a_packet_of_no_use_is_counted(reason: str, fields: dict[str, Any]) -> None:
    made = read(source(**fields))
    assert (made.photometry, made.rejected) == ((), {reason: 1})


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("file", "dn"),
    [
        ("rapid_v01_00_alert.json", [11800.0, 12500.0]),
        ("rapid_v01_00_wire100_pittgoogle.avro", None),
    ],
)
def test_real_packets(shared_data: Path, file: str, dn: list[float] | None) -> None:
    [(name, record)] = records(shared_data / "alerts/roman" / file)
    made = packet(name, record, Packets(roman_zero_points=NOMINAL_ZERO_POINTS))
    [part] = made.photometry
    assert part.survey == "roman"
    counts = part.flux / 10 ** (-0.4 * (NOMINAL_ZERO_POINTS[part.band] - 31.4))
    expected = dn or [record["diaSource"]["psfFlux"]]
    np.testing.assert_allclose(np.abs(counts), expected)
