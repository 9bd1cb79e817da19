"""A schema comes with a message: it is checked, and bounded, before anything is made of it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from broker_filter.decode.avro.check import MAX_BRANCHES, MAX_DEPTH, MAX_FIELDS, MAX_NAME
from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.avro.schema import parse_document
from broker_filter.decode.decoder import Decoder
from broker_filter.decode.selection import MISSING
from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.types import Message
from tests import build


def packet(*fields: Any, name: Any = "lsst.v7_1.alert") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [*fields, {"name": "diaSource", "type": "long"}],
    }


def field(avro_type: Any, name: Any = "x") -> dict[str, Any]:
    return {"name": name, "type": avro_type}


def container(schema: Any, record: bytes) -> Message:
    value = build.container(json.dumps(schema).encode(), (1, record))
    return build.message(value, topic="alerts")


def reason(schema: Any, record: bytes = bytes(8)) -> str:
    with pytest.raises(PoisonMessage) as caught:
        Decoder().decode(container(schema, record))
    assert len(caught.value.detail) < 1000
    return caught.value.reason


def test_a_packet_of_these_fields_is_read() -> None:
    assert Decoder().decode(container(packet(field("int")), bytes(2))).rejected == {"no_object": 1}


def test_items_that_take_no_byte_cannot_be_claimed_by_the_million() -> None:
    schema = packet(field({"type": "array", "items": []}))
    assert reason(schema, write_long(2**62) + b"\0\0") == "bad_schema"


@pytest.mark.parametrize("size", [-5, "abc", None, [1], {}, 1.5, True, 1 << 62])
def test_a_fixed_type_of_no_size(size: Any) -> None:
    assert reason(packet(field({"type": "fixed", "name": "f", "size": size}))) == "bad_schema"


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "enum", "name": "e", "symbols": "AB"},
        {"type": "enum", "name": "e", "symbols": [["A"], "B"]},
        {"type": "enum", "name": "e", "symbols": {"A": 1}},
        {"type": "enum", "name": "e", "symbols": ["A", "A"]},
        {"type": "record", "name": ["r"], "fields": []},
        {"type": "record", "name": "r", "fields": {"x": "int"}},
        {"type": "record", "name": "r", "fields": ["int"]},
        {"type": "record", "name": "r", "namespace": 5, "fields": []},
        {"type": "record", "name": "r" * (MAX_NAME + 1), "fields": []},
        {"type": "record", "name": "a\nb", "fields": []},
        {"type": "error", "name": "r", "fields": []},
        {"type": "array", "items": None},
        {"type": "map"},
        {"type": 7},
        {},
        ["null", ["int", "long"]],
        ["null", 5],
        "unheard_of",
        None,
        7,
    ],
    ids=str,
)
def test_types_that_are_none(odd: Any) -> None:
    assert reason(packet(field(odd))) == "bad_schema"


@pytest.mark.parametrize("name", [["null"], {}, None, 5, "", "n" * (MAX_NAME + 1)], ids=str)
def test_names_that_are_none(name: Any) -> None:
    assert reason(packet(field("int", name=name))) == "bad_schema"
    assert reason(packet(name=name)) == "bad_schema"


def nested(depth: int) -> Any:
    avro_type: Any = "int"
    for _ in range(depth):
        avro_type = {"type": "array", "items": avro_type}
    return avro_type


@pytest.mark.parametrize(
    "large",
    [
        packet(*(field("int", f"f{i}") for i in range(MAX_FIELDS))),
        packet(*(field(["null", "string"], f"f{i}") for i in range(30_000))),
        packet(
            field([{"type": "fixed", "name": f"n{i}", "size": i} for i in range(MAX_BRANCHES + 1)])
        ),
        packet(field(nested(MAX_DEPTH))),
        packet(field(nested(400))),
    ],
    ids=["fields", "many_fields", "branches", "depth", "great_depth"],
)
def test_schemas_beyond_the_bounds(large: Any) -> None:
    assert reason(large) == "bad_schema"


def test_schemas_just_within_the_bounds_are_read() -> None:
    fields = [field(["null", "string"], f"f{i}") for i in range(MAX_FIELDS - 2)]
    schema = packet(*fields, field(nested(MAX_DEPTH - 2), "deep"))
    got = RecordReader(parse_document(schema), {"diaSource": "i8"}).read(
        bytes(MAX_FIELDS - 1) + b"\6"
    )
    assert got == {"diaSource": 3}


def test_a_type_that_many_lists_hold_is_compiled_once() -> None:
    """Steps of each list would take 160 MB together."""
    wide = packet(*[field(["null", "string"], f"f{i}") for i in range(1000)], name="wide")
    arrays = ({"type": "array", "items": "wide" if i else wide} for i in range(3900))
    document = packet(*[field(array, f"list{i}") for i, array in enumerate(arrays)])
    schema = parse_document(document)
    tracemalloc.start()
    read = RecordReader(schema, {"diaSource": "i8"})
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert read.read(bytes(3900) + b"\4") == {"diaSource": 2}


@pytest.mark.parametrize("kinds", [("int", "int"), ("int", "string"), ("string", "int")])
def test_of_two_fields_of_one_name_the_last_is_read(kinds: tuple[str, str]) -> None:
    schema = {"type": "record", "name": "p", "fields": [field(kind) for kind in kinds]}
    got = RecordReader(parse_document(schema), {"x": "i8"}).read(
        b"\0\4" if kinds[1] == "int" else b"\4\0"
    )
    assert got == {"x": 2 if kinds[1] == "int" else MISSING["i8"]}


def test_documentation_and_defaults_of_any_kind_change_nothing() -> None:
    schema = packet({**field("int"), "doc": [{}], "default": {"x": []}, "aliases": 7})
    schema |= {"doc": 5, "aliases": {"a": 1}, "__fastavro_parsed__": []}
    assert parse_document(schema).root == parse_document(packet(field("int"))).root


def test_a_schema_that_only_a_list_could_be_is_refused() -> None:
    with pytest.raises(SchemaError):
        parse_document([packet()])
