"""Items of lists by the compiled loop: they are what the general way reads, whatever the bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from broker_filter.decode.avro.items import take_items
from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.avro.schema import WriterSchema, parse_document
from broker_filter.decode.avro.steps import Fields
from broker_filter.decode.avro.table import Table
from broker_filter.decode.framing import Framed, Unframer
from broker_filter.decode.selection import Many, Selection
from broker_filter.decode.surveys.registry import adapter_for
from broker_filter.errors import PoisonMessage
from tests import build
from tests.lsst_packets import schema as lsst_schema

KINDS: dict[str, Any] = {
    "double": "double",
    "float": "float",
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "string": "string",
    "bytes": "bytes",
    "enum": {"type": "enum", "name": "band", "symbols": ["g", "r", "i"]},
    "fixed": {"type": "fixed", "name": "five", "size": 5},
}
WANTED = {
    "double": "f8",
    "float": "f8",
    "boolean": "bool",
    "int": "f8",
    "long": "i8",
    "string": "str",
    "enum": "str",
}


def named(kind: str) -> Any:
    given = KINDS[kind]
    return given["name"] if isinstance(given, dict) else given


FIELDS = [
    *[{"name": kind, "type": given} for kind, given in KINDS.items()],
    *[{"name": f"{kind}_or_null", "type": [named(kind), "null"]} for kind in KINDS],
    *[{"name": f"null_or_{kind}", "type": ["null", named(kind)]} for kind in KINDS],
    {"name": "end", "type": "long"},
]
SCHEMA = parse_document(
    {
        "type": "record",
        "name": "packet",
        "fields": [
            {
                "name": "rows",
                "type": {
                    "type": "array",
                    "items": {"type": "record", "name": "row", "fields": FIELDS},
                },
            }
        ],
    }
)
LEAVES = {name.format(kind): leaf for kind, leaf in WANTED.items() for name in ("{}", "null_or_{}")}
SELECTION = {"rows": Many({**LEAVES, "int_or_null": "f8", "absent": "bool"})}  # type: ignore[dict-item]


def rows(n: int, seed: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    sizes = [1, 1 << 6, 1 << 7, 1 << 31, 1 << 33, (1 << 63) - 1]

    def value(kind: str) -> Any:
        whole = int(rng.choice(sizes)) * int(rng.choice([1, -1]))
        text = "gri"[rng.integers(3)] if rng.random() < 0.8 else str(whole) * 9
        return {
            "double": rng.normal(),
            "float": float(np.float32(rng.normal())),
            "boolean": bool(rng.integers(2)),
            "int": max(-(2**31), min(whole, 2**31 - 1)),
            "long": whole,
            "string": text,
            "bytes": text.encode(),
            "enum": "gri"[rng.integers(3)],
            "fixed": bytes(5),
        }[kind]

    def row() -> dict[str, Any]:
        made = {kind: value(kind) for kind in KINDS} | {"end": -(2**63)}
        for name in ("{}_or_null", "null_or_{}"):
            made |= {name.format(k): value(k) if rng.random() < 0.6 else None for k in KINDS}
        return made

    return [row() for _ in range(n)]


def written(items: list[dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA.root, {"rows": items})
    return stream.getvalue()


def both_ways(
    monkeypatch: pytest.MonkeyPatch, schema: WriterSchema, selection: Selection
) -> tuple[RecordReader, RecordReader]:
    """A reader, and one that reads value by value."""
    swift = RecordReader(schema, selection)
    with monkeypatch.context() as patch:
        patch.setattr(Fields, "record", lambda *_: None)
        return swift, RecordReader(schema, selection)


def outcome(read: RecordReader, value: bytes) -> dict[str, Any] | None:
    """What is read, or None where the bytes are poison, and nothing worse."""
    try:
        return read.read(value)
    except PoisonMessage:
        return None


def assert_same(swift: RecordReader, general: RecordReader, value: bytes) -> None:
    np.testing.assert_equal(outcome(swift, value), outcome(general, value))


def damaged(value: bytes, places: range, times: int) -> Iterator[bytes]:
    """The value with one byte of those places changed."""
    rng = np.random.default_rng(8)
    for at in rng.choice(places, times).tolist():
        yield value[:at] + bytes([int(rng.integers(256))]) + value[at + 1 :]


def test_all_types_are_read_as_the_general_way_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    swift, general = both_ways(monkeypatch, SCHEMA, SELECTION)
    got = swift.read(written(rows(90)))
    np.testing.assert_equal(got, general.read(written(rows(90))))
    columns, expected = got["rows"], rows(90)
    assert columns["long"].tolist() == [row["long"] for row in expected]
    assert columns["string"].tolist() == [row["string"] for row in expected]
    assert columns["null_or_enum"].tolist() == [row["null_or_enum"] or "" for row in expected]


def test_an_item_cut_anywhere_is_truncated_whatever_lies_behind_it() -> None:
    fields = Fields(SCHEMA).record(SCHEMA.named["row"]["fields"], SELECTION["rows"].fields)
    assert fields is not None
    table = Table(fields, SELECTION["rows"])
    whole = np.frombuffer(written(rows(3))[1:-1], np.uint8)
    cells = np.empty((table.height, 3), np.int64)

    def take(value: Any) -> int:
        return take_items(value, 0, (0, 3), table.steps, cells, table.no_texts())

    assert take(whole) == len(whole)
    for length in range(len(whole)):
        with pytest.raises(IndexError):
            take(whole[:length])


def test_a_changed_byte_gives_what_the_general_way_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    swift, general = both_ways(monkeypatch, SCHEMA, SELECTION)
    value = written(rows(3))
    for one in damaged(value, range(len(value)), 1500):
        assert_same(swift, general, one)


@pytest.mark.parametrize(
    "number", [b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 10 + b"\x01", b"\x80\x00"]
)
def test_long_integers_end_within_64_bits(monkeypatch: pytest.MonkeyPatch, number: bytes) -> None:
    swift, general = both_ways(monkeypatch, SCHEMA, SELECTION)
    last = written(rows(1))
    value = last[: -1 - len(write_long(-(2**63)))] + number + b"\0"
    assert_same(swift, general, value)
    assert (outcome(swift, value) is None) == (number[-1:] == b"\2" or len(number) > 10)


def test_lists_of_many_blocks_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    swift, general = both_ways(monkeypatch, SCHEMA, SELECTION)
    items = [written(rows(1, seed))[1:-1] for seed in range(40)]
    value = b"".join(b"\2" + item for item in items) + b"\0"
    np.testing.assert_equal(swift.read(value), general.read(value))
    np.testing.assert_equal(swift.read(value), swift.read(b"\x50" + b"".join(items) + b"\0"))


def test_unlike_texts_are_as_many_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    swift, general = both_ways(monkeypatch, SCHEMA, SELECTION)
    items = rows(1) * 500
    items = [row | {"string": f"{i % 150}", "null_or_string": None} for i, row in enumerate(items)]
    got = swift.read(written(items))
    np.testing.assert_equal(got, general.read(written(items)))
    assert got["rows"]["string"].tolist() == [f"{i % 150}" for i in range(500)]


def test_numbers_that_are_none_keep_their_bits() -> None:
    schema = parse_document(
        {
            "type": "record",
            "name": "p",
            "fields": [
                {
                    "name": "rows",
                    "type": {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "row",
                            "fields": [
                                {"name": "single", "type": "float"},
                                {"name": "double", "type": "double"},
                            ],
                        },
                    },
                }
            ],
        }
    )
    read = RecordReader(schema, {"rows": Many({"single": "f8", "double": "f8"})})
    single, double = np.uint32([0xFFC12345]), np.uint64([0x7FF8000000012345])
    got = read.read(b"\2" + single.tobytes() + double.tobytes() + b"\0")["rows"]
    assert got["single"].tobytes() == single.view(np.float32).astype(np.float64).tobytes()
    assert got["double"].tobytes() == double.tobytes()


@pytest.mark.shared_data
@pytest.mark.parametrize(
    "name",
    [
        "lsst/v10_0_wire_pittgoogle.avro",
        "ztf/v1_3_121540793515135000.avro",
        "ztf/v4_01_ZTF17aadcuwj_2475433850315015009.avro",
    ],
)
def test_a_changed_byte_of_a_real_packet(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    alerts = shared_data / "alerts"
    source = Unframer(lambda _: lsst_schema(alerts))
    framed = source.unframe(build.message((alerts / name).read_bytes()))
    assert isinstance(framed, Framed)
    ((_, value),) = framed.blocks
    survey = adapter_for(framed.schema.name, ())
    assert survey is not None
    swift, general = both_ways(monkeypatch, framed.schema, survey.selection)
    np.testing.assert_equal(swift.read(value), general.read(value))
    for one in damaged(value, range(min(len(value), 15_000)), 300):
        assert_same(swift, general, one)
