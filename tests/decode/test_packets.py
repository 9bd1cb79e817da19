"""Survey packets through the whole decoder: what the adapters make of what fastavro reads.

Damaged packets give photometry or poison, and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.config import Input
from broker_filter.decode.decoder import Decoder
from broker_filter.decode.selection import Packet
from broker_filter.errors import PoisonMessage
from broker_filter.photometry.usable import Limits, accept
from broker_filter.service.decoding import make_decoder
from broker_filter.state.columns import arrays_of
from broker_filter.types import Message, Photometry
from broker_filter.windows.store import WindowStore
from tests import build
from tests.lsst_packets import rows, wire
from tests.packets import packet, records

pytestmark = pytest.mark.shared_data

FILES = (
    "elasticc/v0_9_alert_mjd60674.0512_obj747_src1494043.avro.gz",
    "fink/fink_client_avro_multi_alerts_11.avro",
    "fink/fink_client_sample_part-00002_56alerts.avro",
    "lsst/v10_0_wire_pittgoogle.avro",
    "lsst/v11_0_fakeAlert.avro",
    "lsst/v11_1_fakeAlert.avro",
    "lsst/v11_1_wire_pittgoogle.avro",
    "lsst/v7_1_container_10alerts.avro",
    "lsst/v7_1_wire_pittgoogle.avro",
    "lsst/v7_4_fakeAlert.avro",
    "lsst/v9_0_fakeAlert.avro",
    "lsst/v9_0_wire_7912941781254298.avro",
    "roman/rapid_v01_00_alert.json",
    "roman/rapid_v01_00_wire100_pittgoogle.avro",
    "ztf/v1_3_121540793515135000.avro",
    "ztf/v3_2_739260766315010006.avro",
    "ztf/v3_3_ZTF20aadyyvk_1127561443215015014.avro",
    "ztf/v3_3_ZTF20abyfpze.avro",
    "ztf/v4_01_2475433850015015001_no_ref_star.avro",
    "ztf/v4_01_ZTF17aadcuwj_2475433850315015009.avro",
    "ztf/v4_02_ZTF17aaarzyp_2982177112815010003.avro",
    "ztf/v4_02_ZTF18abudxnw_2695378462115010012.avro",
)


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "alerts"


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return make_decoder(Input(schema_folder=folder / "avsc"))


def message(value: bytes, topic: str = "alerts") -> Message:
    return build.message(value, topic=topic)


def assert_same(got: Photometry, expected: Photometry) -> None:
    for name in Photometry.__slots__:
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), name)


@pytest.mark.parametrize("name", FILES)
def test_packets_say_what_fastavro_reads(folder: Path, decoder: Decoder, name: str) -> None:
    expected = [packet(schema, record) for schema, record in records(folder / name)]
    got = decoder.decode(message((folder / name).read_bytes()))
    photometry = [part for one in expected for part in one.photometry]
    assert len(got.photometry) == len(photometry)
    for one, other in zip(got.photometry, photometry, strict=True):
        assert_same(one, other)
    assert got.rejected == sum((one.rejected for one in expected), start=Packet(()).rejected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ztf/v1_3_121540793515135009.avro", "truncated"),
        ("other/winter_alert.avro", "unknown_survey"),
    ],
)
def test_packets_that_cannot_be_read(
    folder: Path, decoder: Decoder, name: str, expected: str
) -> None:
    with pytest.raises(PoisonMessage) as caught:
        decoder.decode(message((folder / name).read_bytes()))
    assert caught.value.reason == expected


@pytest.mark.parametrize("name", FILES)
def test_packets_cut_at_random_lengths_are_poison(
    folder: Path, decoder: Decoder, name: str
) -> None:
    whole = (folder / name).read_bytes()
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for length in rng.integers(1, len(whole), 50).tolist():
        with pytest.raises(PoisonMessage) as caught:
            decoder.decode(message(whole[:length]))
        assert caught.value.reason in {"truncated", "undecodable", "unknown_format"}, length


def flips(whole: bytes, name: str, most: int) -> Iterator[bytes]:
    """The packet with one byte changed, at every place or at as many as are allowed."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    places = np.arange(len(whole))
    for place in places if len(places) <= most else rng.choice(places, most, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        yield bytes(damaged)


@pytest.mark.parametrize("name", FILES)
def test_packets_with_a_changed_byte_give_photometry_or_poison(
    folder: Path, decoder: Decoder, name: str
) -> None:
    whole = (folder / name).read_bytes()
    schema_inside = whole.startswith(b"Obj")  # where a changed byte makes a schema of its own
    outcomes: dict[str, int] = {}
    for damaged in flips(whole, name, 300 if schema_inside else 1000):
        try:
            got = decoder.decode(message(damaged))
        except PoisonMessage as error:
            outcomes[error.reason] = outcomes.get(error.reason, 0) + 1
        else:
            outcomes["read"] = outcomes.get("read", 0) + 1
            assert all(len(part.mjd_tai) == len(part.star) for part in got.photometry)
    assert outcomes


def test_records_without_framing_in_a_topic_of_their_own(folder: Path) -> None:
    settings = Input(topic_schemas={"rapid": folder / "avsc/rapid/01/00"})
    wire = (folder / "roman/rapid_v01_00_wire100_pittgoogle.avro").read_bytes()
    got = make_decoder(settings).decode(message(wire[5:], "rapid"))
    assert got.rejected == {"no_zero_point": 1}


def test_zero_points_of_the_settings_reach_the_adapter(folder: Path) -> None:
    settings = Input(
        schema_folder=folder / "avsc",
        packets={"roman_zero_points": {"F184": 25.9}},  # type: ignore[arg-type]
    )
    wire = (folder / "roman/rapid_v01_00_wire100_pittgoogle.avro").read_bytes()
    assert "no_zero_point" not in make_decoder(settings).decode(message(wire)).rejected


def earlier(record: dict[str, Any], mjd: float) -> dict[str, Any]:
    """The packet that the same star may have had before: histories up to a time."""
    lists = ("prvDiaSources", "prvDiaForcedSources")
    cut = {name: [e for e in record[name] if e["midpointMjdTai"] < mjd] for name in lists}
    last = max(cut["prvDiaSources"], key=lambda epoch: epoch["midpointMjdTai"])
    return {**record, **cut, "diaSource": {**record["diaSource"], **last}}


@pytest.mark.parametrize("days", [0.5, 3.0, 40.0])
def test_windows_of_a_tracked_star_are_those_of_packets_read_whole(
    folder: Path, decoder: Decoder, days: float
) -> None:
    (record,) = rows(folder)
    newest = record["diaSource"]["midpointMjdTai"]
    packets = [wire(earlier(record, newest - days), folder), wire(record, folder)]
    whole, tracked, epochs = WindowStore(20.0), WindowStore(20.0), []
    for value in packets:
        for store, known in ((whole, None), (tracked, tracked.wanted_from)):
            got = decoder.decode(message(value), known)
            epochs.append(sum(map(len, got.photometry)))
            for part in got.photometry:
                store.insert(accept(part, Limits()).photometry)
    assert epochs[0] == epochs[1]
    assert epochs[3] < epochs[2]
    one, other = (arrays_of(store.state()) for store in (whole, tracked))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def test_looking_back_less_reads_less(folder: Path) -> None:
    (record,) = rows(folder)
    value, counts = message(wire(record, folder)), []
    for look_back_days in (None, 5.0, 0.1):
        settings = Input(schema_folder=folder / "avsc", look_back_days=look_back_days)
        decoder, store = make_decoder(settings), WindowStore(20.0)
        for part in decoder.decode(value).photometry:
            store.insert(part)
        again = decoder.decode(value, store.wanted_from)
        counts.append(sum(map(len, again.photometry)))
    assert counts[0] > counts[1] > counts[2] > 0
