"""What comes out of every real packet at hand, file by file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from broker_filter.config import Packets
from broker_filter.decode.selection import Packet
from broker_filter.decode.surveys.roman import NOMINAL_ZERO_POINTS
from broker_filter.photometry.usable import Limits, accept
from broker_filter.windows.store import WindowStore
from tests.packets import packet, points, records

pytestmark = pytest.mark.shared_data

OPTIONS = Packets(roman_zero_points=NOMINAL_ZERO_POINTS)

# File to packets, epochs of total and of difference flux, and those left out by reason.
COUNTS: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "ztf/v1_3_121540793515135000.avro": (1, 1, 15, {"duplicate": 73, "upper_limit": 48}),
    "ztf/v3_2_739260766315010006.avro": (1, 13, 10, {"upper_limit": 6}),
    "ztf/v3_3_ZTF20aadyyvk_1127561443215015014.avro": (1, 62, 0, {"upper_limit": 5}),
    "ztf/v3_3_ZTF20abyfpze.avro": (1, 0, 41, {"upper_limit": 83}),
    "ztf/v4_01_2475433850015015001_no_ref_star.avro": (
        1,
        0,
        7,
        {"not_measured": 14, "solar_system": 1, "upper_limit": 20},
    ),
    "ztf/v4_01_ZTF17aadcuwj_2475433850315015009.avro": (
        1,
        16,
        28,
        {"duplicate": 9, "not_measured": 6, "upper_limit": 28},
    ),
    "ztf/v4_02_ZTF17aaarzyp_2982177112815010003.avro": (
        1,
        0,
        15,
        {"duplicate": 4, "upper_limit": 10},
    ),
    "ztf/v4_02_ZTF18abudxnw_2695378462115010012.avro": (
        1,
        6,
        5,
        {"duplicate": 7, "upper_limit": 3},
    ),
    "lsst/v10_0_real_fink_part-1-0-192771779.parquet": (
        4,
        1234,
        0,
        {
            "duplicate": 981,
            "pixelFlags_bad": 2,
            "pixelFlags_cr": 2,
            "pixelFlags_streak": 6,
            "psfFlux_flag": 5,
            "solar_system": 1,
        },
    ),
    "lsst/v10_0_real_fink_part-1-0-292249176.parquet": (
        2,
        2080,
        0,
        {
            "duplicate": 1152,
            "pixelFlags_bad": 4,
            "pixelFlags_cr": 4,
            "pixelFlags_streak": 4,
            "psfFlux_flag": 68,
        },
    ),
    "lsst/v10_0_real_fink_part-1-0-354849523.parquet": (
        1,
        1194,
        0,
        {
            "duplicate": 985,
            "pixelFlags_bad": 14,
            "pixelFlags_cr": 5,
            "pixelFlags_saturated": 2,
            "pixelFlags_streak": 2,
            "psfFlux_flag": 3,
        },
    ),
    "lsst/v10_0_real_fink_part-1-0-398764591.parquet": (
        3,
        2143,
        0,
        {
            "duplicate": 209,
            "pixelFlags_bad": 4,
            "pixelFlags_saturated": 4,
            "pixelFlags_streak": 2,
            "psfFlux_flag": 62,
        },
    ),
    "lsst/v10_0_wire_pittgoogle.avro": (1, 0, 2, {"duplicate": 1}),
    "lsst/v11_0_fakeAlert.avro": (1, 0, 2, {"duplicate": 1}),
    "lsst/v11_1_fakeAlert.avro": (1, 0, 2, {"duplicate": 1}),
    "lsst/v11_1_wire_pittgoogle.avro": (1, 0, 2, {"duplicate": 1}),
    "lsst/v7_1_container_10alerts.avro": (10, 0, 4, {"duplicate": 2, "psfFlux_flag": 7}),
    "lsst/v7_1_wire_pittgoogle.avro": (1, 0, 0, {"time_out_of_range": 3}),
    "lsst/v7_4_fakeAlert.avro": (1, 0, 0, {"time_out_of_range": 3}),
    "lsst/v9_0_fakeAlert.avro": (1, 0, 2, {"duplicate": 1}),
    "lsst/v9_0_wire_7912941781254298.avro": (1, 1, 0, {}),
    "elasticc/fink_elasticc_sample_seed0.parquet": (89, 0, 4568, {"duplicate": 1825}),
    "elasticc/v0_9_alert_mjd60674.0512_obj747_src1494043.avro.gz": (1, 0, 19, {}),
    "roman/rapid_v01_00_alert.json": (1, 0, 2, {}),
    "roman/rapid_v01_00_wire100_pittgoogle.avro": (1, 0, 1, {}),
    "fink/fink_client_avro_multi_alerts_11.avro": (
        11,
        51,
        40,
        {"duplicate": 5, "solar_system": 3, "upper_limit": 115},
    ),
    "fink/fink_client_sample_part-00002_56alerts.avro": (
        56,
        311,
        264,
        {"duplicate": 21, "nbad": 2, "upper_limit": 509},
    ),
}


def packets(folder: Path, file: str, options: Packets = OPTIONS) -> list[Packet]:
    return [packet(name, record, options) for name, record in records(folder / "alerts" / file)]


@pytest.mark.parametrize("file", COUNTS)
def test_counts(shared_data: Path, file: str) -> None:
    made = packets(shared_data, file)
    kinds: Counter[str] = Counter()
    rejected: Counter[str] = Counter()
    for one in made:
        rejected += one.rejected
        for (_, kind), n in points(one).items():
            kinds[kind] += n
    assert (len(made), kinds["total"], kinds["difference"], dict(rejected)) == COUNTS[file]


@pytest.mark.parametrize("file", COUNTS)
def test_all_of_it_is_usable_sorted_and_once(shared_data: Path, file: str) -> None:
    for made in packets(shared_data, file):
        for part in made.photometry:
            assert accept(part, Limits()).rejected == {}
            assert (np.diff(part.mjd_tai) * 86400 > 0.99).all()
            assert len(set(part.star)) == 1
        newest = [part.mjd_tai[-1] for part in made.photometry]
        assert newest == sorted(newest)


@pytest.mark.parametrize("file", COUNTS)
def test_windows_hold_finite_numbers_or_say_why_not(shared_data: Path, file: str) -> None:
    store = WindowStore()
    for made in packets(shared_data, file):
        for part in made.photometry:
            store.insert(part)
    batch = store.read(np.arange(len(store)))
    for column in (batch.flux, batch.sigma):
        assert np.isfinite(column[batch.valid]).all()
    counts = store.take_counts()
    left_out = len(store) - len(batch)
    assert left_out <= counts.get("difference_without_reference", 0) + counts.get("no_baseline", 0)


def test_the_choice_of_shape_criteria_decides_over_half_of_finks_sample(shared_data: Path) -> None:
    file = "fink/fink_client_sample_part-00002_56alerts.avro"
    options = Packets(star_behind="either")
    kinds: Counter[str] = Counter()
    for made in packets(shared_data, file, options):
        for (_, kind), n in points(made).items():
            kinds[kind] += n
    assert kinds == {"total": 548, "difference": 27}


def test_forced_photometry_agrees_with_the_detections_of_the_same_exposures(
    shared_data: Path,
) -> None:
    file = "ztf/v4_02_ZTF18abudxnw_2695378462115010012.avro"
    [(name, record)] = records(shared_data / "alerts" / file)
    without = packet(name, record | {"fp_hists": None}, OPTIONS).photometry
    forced = packet(name, record, OPTIONS).photometry
    [one], [other] = (
        [dict(zip(p.mjd_tai, p.flux, strict=True)) for p in parts if p.band == "g"]
        for parts in (without, forced)
    )
    assert len(one.keys() & other.keys()) == 4
    for time in one.keys() & other.keys():
        assert other[time] == pytest.approx(one[time], rel=0.05)
