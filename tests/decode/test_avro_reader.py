"""Reading a selection out of Avro bytes: passing over what is known, and what hostile bytes do."""

from __future__ import annotations

import io
import time
import tracemalloc
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from broker_filter.decode.avro.primitives import read_bytes, read_long, write_long
from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.avro.schema import load_folder, parse_document
from broker_filter.decode.selection import MAX_ITEMS, Many, select
from broker_filter.errors import PoisonMessage

pytestmark = pytest.mark.usefixtures("compiled_reader")

EPOCH = {
    "type": "record",
    "name": "epoch",
    "fields": [
        {"name": "mjd", "type": "double"},
        {"name": "flux", "type": ["null", "float"]},
        {"name": "band", "type": ["null", "string"]},
    ],
}
PACKET = {
    "type": "record",
    "name": "packet",
    "fields": [
        {"name": "star", "type": "long"},
        {"name": "before", "type": ["null", {"type": "array", "items": EPOCH}]},
        {"name": "image", "type": "bytes"},
    ],
}
HISTORY = Many({"mjd": "f8", "flux": "f8", "band": "str"}, time="mjd", band="band")
SELECTION = {"star": "i8", "before": HISTORY}


def written(schema: Any, record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, named_schemas={}), record)
    return stream.getvalue()


def reader(schema: Any = PACKET, selection: Any = SELECTION) -> RecordReader:
    return RecordReader(parse_document(schema), selection)


def packet(epochs: list[tuple[float, str | None]], star: int = 7) -> bytes:
    before = [{"mjd": mjd, "flux": mjd / 2, "band": band} for mjd, band in epochs]
    return written(PACKET, {"star": star, "before": before, "image": b"x" * 3000})


def reason(read: RecordReader, value: bytes) -> str:
    with pytest.raises(PoisonMessage) as caught:
        read.read(value)
    assert caught.value.detail
    return caught.value.reason


# Integers


@pytest.mark.parametrize("number", [0, -1, 63, 64, -64, -65, 2**31, -(2**63), 2**63 - 1])
def test_integers_come_back(number: int) -> None:
    value = written("long", number)
    assert write_long(number) == value
    assert read_long(value, 0) == (number, len(value))


def test_integers_of_more_than_64_bits_are_refused() -> None:
    for value in (b"\xff" * 9 + b"\x02", b"\xff" * 10 + b"\x01"):
        with pytest.raises(ValueError, match="64 bits"):
            read_long(value, 0)


@pytest.mark.parametrize("value", [b"\x05abc", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_negative_lengths_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="length"):
        read_bytes(value, 0)


# Stars that are tracked


def read_since(value: bytes, oldest: dict[str, float]) -> list[tuple[float, str]]:
    before = reader().read(value, lambda _: oldest)["before"]
    return list(zip(before["mjd"].tolist(), before["band"].tolist(), strict=True))


def test_epochs_that_are_older_than_wanted_are_passed_over() -> None:
    value = packet([(1.0, "g"), (2.0, "r"), (3.0, "g"), (4.0, "r"), (5.0, "g")])
    assert read_since(value, {"g": 3.0, "r": 4.5}) == [(3.0, "g"), (5.0, "g")]
    assert read_since(value, {"g": 9.0, "r": 9.0}) == []


def test_bands_that_are_not_known_are_read_whole() -> None:
    value = packet([(1.0, "g"), (2.0, "r"), (3.0, None), (4.0, "g")])
    assert read_since(value, {"g": 4.0}) == [(2.0, "r"), (3.0, ""), (4.0, "g")]
    assert len(read_since(value, {})) == 4


def test_the_order_of_a_history_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    epochs = [(float(mjd), "gr"[mjd % 2]) for mjd in rng.permutation(60)]
    oldest = {"g": 20.0, "r": 31.0}
    expected = [(mjd, band) for mjd, band in epochs if mjd >= oldest[band]]
    assert read_since(packet(epochs), oldest) == expected


def test_an_epoch_without_a_time_is_never_passed_over() -> None:
    value = packet([(float("nan"), "g"), (1.0, "g")])
    assert len(read_since(value, {"g": 5.0})) == 1


def test_what_is_known_is_asked_with_what_came_before() -> None:
    records = []
    reader().read(packet([(1.0, "g")], star=41), lambda record: records.append(dict(record)) or {})
    assert records == [{"star": 41}]


# Schemas that no regular expression describes


def test_maps_are_passed_over() -> None:
    inner = {"type": "record", "name": "stat", "fields": [{"name": "mean", "type": "double"}]}
    fields = [
        {"name": "features", "type": ["null", {"type": "map", "values": inner}]},
        {"name": "star", "type": "long"},
    ]
    schema = {"type": "record", "name": "p", "fields": fields}
    value = written(schema, {"features": {"g": {"mean": 1.0}, "r": {"mean": 2.0}}, "star": 3})
    assert reader(schema, {"star": "i8"}).read(value) == {"star": 3}


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"value": 0, "next": None}
    for i in range(1, depth):
        node = {"value": i, "next": node}
    return node


LINKED = {
    "type": "record",
    "name": "node",
    "fields": [{"name": "value", "type": "long"}, {"name": "next", "type": ["null", "node"]}],
}


def test_a_type_within_itself_is_passed_over_and_its_depth_is_bounded() -> None:
    read = reader(LINKED, {"value": "i8"})
    assert read.read(written(LINKED, nested(50))) == {"value": 49}
    assert reason(read, b"\x02\x02" * 1_000_000 + b"\x02\x00") == "undecodable"


def test_a_selection_within_a_recursive_type() -> None:
    selection = {"value": "i8", "next": {"value": "i8", "next": {"value": "i8"}}}
    got = reader(LINKED, selection).read(written(LINKED, nested(9)))
    assert got == {"value": 8, "next": {"value": 7, "next": {"value": 6}}}


def test_blocks_that_tell_their_size() -> None:
    whole = packet([(1.0, "g"), (2.0, "r")])
    items = whole[3:-3003]  # after the star, the branch and the count; before end and image
    sized = whole[:2] + write_long(-2) + write_long(len(items)) + items + whole[-3003:]
    assert reader().read(sized)["before"]["mjd"].tolist() == [1.0, 2.0]
    assert reader(selection={"star": "i8"}).read(sized) == {"star": 7}
    beyond = whole[:2] + write_long(-2) + write_long(10**12) + items + whole[-3003:]
    for selection in (SELECTION, {"star": "i8"}):
        assert reason(reader(selection=selection), beyond) == "truncated"


def test_texts_longer_than_an_expression_says() -> None:
    value = packet([(1.0, "x" * 5000), (2.0, "g")])
    assert reader().read(value)["before"]["band"].tolist() == ["x" * 5000, "g"]
    assert read_since(value, {"g": 9.0}) == [(1.0, "x" * 5000)]


def test_logical_types_are_not_numbers() -> None:
    stamp = {"type": "long", "logicalType": "timestamp-micros"}
    schema = {"type": "record", "name": "p", "fields": [{"name": "t", "type": ["null", stamp]}]}
    value = written(schema, {"t": 1_700_000_000_000_000})
    got = reader(schema, {"t": "f8"}).read(value)
    np.testing.assert_equal(
        got, select(fastavro.schemaless_reader(io.BytesIO(value), schema), {"t": "f8"})
    )
    assert np.isnan(got["t"])


def test_text_that_is_not_utf_8_counts_only_where_it_is_read() -> None:
    value = packet([(1.0, "gg")]).replace(b"\x04gg", b"\x04\xff\xff")
    assert reason(reader(), value) == "undecodable"
    assert reader(selection={"before": Many({"mjd": "f8"})}).read(value)["before"]["mjd"] == [1.0]


# Hostile bytes

EMPTY = {"type": "record", "name": "empty", "fields": []}


@pytest.mark.parametrize(
    "items", ["null", "boolean", "long", EMPTY, EPOCH, {"type": "array", "items": "null"}]
)
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("count", [10**6, 2**40, 2**62])
def test_a_small_message_cannot_ask_for_time_or_memory(
    items: Any, wanted: bool, count: int
) -> None:
    fields = [
        {"name": "list", "type": {"type": "array", "items": items}},
        {"name": "x", "type": "long"},
    ]
    read = reader(
        {"type": "record", "name": "p", "fields": fields},
        {"list": Many({"mjd": "f8"}), "x": "i8"} if wanted else {"x": "i8"},
    )
    tracemalloc.start()
    began = time.process_time()
    try:
        for tail in (b"", b"\0\0", b"\0\2\0\2\0"):
            try:
                read.read(write_long(count) + tail)
            except PoisonMessage as error:
                found = error.reason
            else:
                found = "read"
            empty = items in ("null", EMPTY)
            assert found in (
                {"read", "too_many_items", "truncated", "trailing_bytes"}
                if empty
                else {"truncated"}
            )
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 5


@pytest.mark.parametrize("items", ["null", EMPTY, {"type": "fixed", "name": "f", "size": 0}])
def test_items_of_no_byte_are_few(items: Any) -> None:
    fields = [{"name": "list", "type": {"type": "array", "items": items}}]
    read = reader({"type": "record", "name": "p", "fields": fields}, {"list": Many({"x": "f8"})})
    assert len(read.read(write_long(100) + b"\0")["list"]["x"]) == 100
    assert reason(read, write_long(101) + b"\0") == "too_many_items"
    assert reason(read, (write_long(60) * 2) + b"\0") == "too_many_items"


def test_a_million_epochs_are_too_many() -> None:
    value = packet([])[:2] + write_long(MAX_ITEMS + 1)
    value += (bytes(8) + b"\0\0") * (MAX_ITEMS + 1) + b"\0\0"
    assert reason(reader(), value) == "too_many_items"
    assert reader(selection={"star": "i8"}).read(value) == {"star": 7}


def test_types_that_are_nested_by_the_thousand_million_are_passed_over_at_once() -> None:
    schema: Any = "null"
    for i in range(30):
        fields = [
            {"name": "a", "type": schema},
            {"name": "b", "type": f"r{i - 1}" if i else "null"},
        ]
        schema = {"type": "record", "name": f"r{i}", "fields": fields}
    wrapped = {
        "type": "record",
        "name": "p",
        "fields": [{"name": "deep", "type": schema}, {"name": "x", "type": "long"}],
    }
    assert reader(wrapped, {"x": "i8"}).read(b"\x06") == {"x": 3}
    assert reader(wrapped, {"x": "i8", "deep": {"a": {"b": "f8"}}}).read(b"\x06")["x"] == 3


def test_expressions_too_long_for_one_are_several() -> None:
    fields = [{"name": f"f{i}", "type": ["null", "string", "long"]} for i in range(300)]
    schema = {"type": "record", "name": "wide", "fields": fields}
    record = {f"f{i}": [None, "text", i][i % 3] for i in range(300)}
    got = reader(schema, {"f299": "i8", "f298": "str", "f0": "f8"}).read(written(schema, record))
    np.testing.assert_equal(got, {"f299": 299, "f298": "text", "f0": np.nan})


# What is remembered


def test_texts_that_never_come_again_take_no_room() -> None:
    names = (f"{i:0>{length}}" for length in (60, 6000) for i in range(20_000))
    read = reader()
    read.read(packet([(1.0, "warm")]))
    tracemalloc.start()
    for name in names:
        got = read.read(packet([(1.0, name), (2.0, None), (3.0, name)]))["before"]
        assert got["band"].tolist() == [name, "", name]
    assert tracemalloc.get_traced_memory()[0] < 4e6
    tracemalloc.stop()


@pytest.mark.parametrize("n", [2, 700])
def test_a_null_is_no_number_whatever_its_neighbours(n: int) -> None:
    kinds = {"a": "long", "b": "int", "c": "double", "d": "float", "e": "boolean", "f": "string"}
    fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
    item = {"type": "record", "name": "item", "fields": fields}
    lists = {"name": "rows", "type": {"type": "array", "items": item}}
    schema = {"type": "record", "name": "mixed", "fields": [lists]}
    selection = {
        "rows": Many({"a": "i8", "b": "f8", "c": "f8", "d": "f8", "e": "bool", "f": "str"})
    }
    there = {"a": -3, "b": 5, "c": 0.5, "d": 0.25, "e": True, "f": "r"}
    rows = [there if i % 2 else dict.fromkeys(kinds) for i in range(n)]
    got = reader(schema, selection).read(written(schema, {"rows": rows}))
    np.testing.assert_equal(got, select({"rows": rows}, selection))


# Real schemas


@pytest.mark.shared_data
def test_versions_of_one_schema_do_not_disturb_each_other(shared_data: Path) -> None:
    folder = shared_data / "alerts/avsc/lsst"
    selection = {"diaSource": {"diaObjectId": "i8", "midpointMjdTai": "f8", "band": "str"}}
    files = {
        "11/1": "v11_1_wire_pittgoogle.avro",
        "10/0": "v10_0_wire_pittgoogle.avro",
        "7/1": "v7_1_wire_pittgoogle.avro",
    }
    schemas = {version: load_folder(folder / version) for version in files}
    readers = {version: RecordReader(schema, selection) for version, schema in schemas.items()}
    for version in [*files] * 2:
        value = (shared_data / "alerts/lsst" / files[version]).read_bytes()[5:]
        expected = fastavro.schemaless_reader(io.BytesIO(value), schemas[version].root)
        np.testing.assert_equal(readers[version].read(value), select(expected, selection))
