"""Laws of the Avro reader: for any schema, record and selection it says what the general way says.

The general way is to read the whole record with fastavro and to pick out what is selected.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.avro.schema import WriterSchema, parse_document
from broker_filter.decode.selection import Many, Selection, select
from broker_filter.errors import PoisonMessage

Draw = Callable[[Any], Any]
Case = tuple[WriterSchema, bytes, Selection]

LEAVES = ("f8", "i8", "bool", "str")
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = (
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "int", "logicalType": "date"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "long", "logicalType": "of-our-own"},
)
TEXTS = st.text(max_size=9) | st.integers(60, 200).map("x".__mul__)
VALUES: dict[str, Any] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=99),
    "string": TEXTS,
    "timestamp-millis": st.integers(0, 2**41),
    "date": st.integers(0, 2**16),
    "uuid": st.uuids(),
    "of-our-own": st.integers(-(2**63), 2**63 - 1),
}


def draw_type(draw: Draw, names: Iterator[str], depth: int) -> Any:
    deep = ("record", "array", "map", "union", "nullable") if depth else ()
    kind = draw(st.sampled_from((*PRIMITIVES, *LOGICAL, "enum", "fixed", *deep, *deep)))
    if kind == "record":
        return draw_record(draw, names, depth - 1)
    if kind == "enum":
        return {"type": kind, "name": next(names), "symbols": ["A", "B", "C"]}
    if kind == "fixed":
        return {"type": kind, "name": next(names), "size": draw(st.integers(0, 9))}
    if kind == "array":
        return {"type": kind, "items": draw_type(draw, names, depth - 1)}
    if kind == "map":
        return {"type": kind, "values": draw_type(draw, names, depth - 1)}
    if kind == "nullable":
        other = draw_type(draw, names, depth - 1)
        return other if is_union(other) or other == "null" else draw(orders(["null", other]))
    if kind == "union":
        drawn = [draw_type(draw, names, 0) for _ in range(3)]
        # Between a date and a number or a text fastavro chooses by its own rules, not always right.
        plain = [one for one in drawn if not isinstance(one, dict) or "logicalType" not in one]
        unlike = {one["type"] if isinstance(one, dict) else one: one for one in plain or drawn[:1]}
        return list(unlike.values())
    return kind


def draw_record(draw: Draw, names: Iterator[str], depth: int) -> dict[str, Any]:
    count = draw(st.integers(0, 6))
    fields = [{"name": f"f{i}", "type": draw_type(draw, names, depth)} for i in range(count)]
    return {"type": "record", "name": next(names), "fields": fields}


def orders(branches: list[Any]) -> Any:
    return st.sampled_from([branches, branches[::-1]])


def is_union(avro_type: Any) -> bool:
    return isinstance(avro_type, list)


def draw_value(draw: Draw, avro_type: Any) -> Any:
    if is_union(avro_type):
        branch = draw(st.sampled_from(avro_type))
        value = draw_value(draw, branch)
        return (branch["name"], value) if isinstance(branch, dict) and "name" in branch else value
    if isinstance(avro_type, str):
        return draw(VALUES[avro_type])
    kind = avro_type["type"]
    if kind == "record":
        return {field["name"]: draw_value(draw, field["type"]) for field in avro_type["fields"]}
    if kind == "enum":
        return draw(st.sampled_from(avro_type["symbols"]))
    if kind == "fixed":
        return draw(st.binary(min_size=avro_type["size"], max_size=avro_type["size"]))
    count = draw(st.integers(0, 4))
    if kind == "array":
        return [draw_value(draw, avro_type["items"]) for _ in range(count)]
    if kind == "map":
        return {str(i): draw_value(draw, avro_type["values"]) for i in range(count)}
    return draw(VALUES[avro_type["logicalType"]])


def branches(avro_type: Any) -> list[Any]:
    return avro_type if is_union(avro_type) else [avro_type]


def of_kind(avro_type: Any, kind: str) -> list[Any]:
    return [one for one in branches(avro_type) if isinstance(one, dict) and one["type"] == kind]


def draw_want(draw: Draw, avro_type: Any) -> Any:
    """A leaf, a list or a selection, which fits the type more often than not."""
    if of_kind(avro_type, "map"):  # fields of a map cannot be selected
        return draw(st.sampled_from(LEAVES))
    natural: list[Any] = []
    for array in of_kind(avro_type, "array"):
        if not of_kind(array["items"], "map"):
            fields = [f for record in of_kind(array["items"], "record") for f in record["fields"]]
            natural.append(Many({f["name"]: draw(st.sampled_from(LEAVES)) for f in fields}))
    natural += [draw_selection(draw, record) for record in of_kind(avro_type, "record")]
    if natural and draw(st.integers(0, 9)):
        return draw(st.sampled_from(natural))
    odd = [] if of_kind(avro_type, "array") else [Many({"f0": "f8"}), {"f0": "str"}]
    return draw(st.sampled_from([*LEAVES, *LEAVES, *odd]))


def draw_selection(draw: Draw, record: Any) -> dict[str, Any]:
    chosen = {
        field["name"]: draw_want(draw, field["type"])
        for field in record["fields"]
        if draw(st.integers(0, 3))
    }
    return chosen | {"absent": draw(st.sampled_from([*LEAVES, Many({"f0": "i8"}), {"f0": "f8"}]))}


@st.composite
def cases(draw: Any) -> Case:
    root = draw_record(draw, (f"n{i}" for i in itertools.count()), 3)
    schema = parse_document(root)
    stream = io.BytesIO()
    try:
        fastavro.schemaless_writer(stream, schema.root, draw_value(draw, root))
    except ValueError:  # it does not find the branch of a named type in a list within a union
        reject()
    return schema, stream.getvalue(), draw_selection(draw, root)


def same(got: Any, expected: Any) -> None:
    """Equal in value and type, NaN for NaN."""
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for name in expected:
            same(got[name], expected[name])
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_array_equal(got, expected)


bounded = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


def reads_as_fastavro(case: Case) -> None:
    schema, value, selection = case
    expected = select(fastavro.schemaless_reader(io.BytesIO(value), schema.root), selection)
    same(RecordReader(schema, selection).read(value), expected)


@bounded
@given(cases())
def test_it_reads_what_fastavro_and_select_read(case: Case) -> None:
    reads_as_fastavro(case)


FIXED = {
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
}
LAYOUTS = (lambda kind: kind, lambda kind: ["null", kind], lambda kind: [kind, "null"])


@st.composite
def histories(draw: Any) -> Case:
    """A list of records with stretches of one fixed size, of which some fields are wanted."""
    fields: list[dict[str, Any]] = []
    values: dict[str, Any] = {}
    for _ in range(draw(st.integers(1, 4))):
        kind, layout = draw(st.sampled_from(sorted(FIXED))), draw(st.sampled_from(LAYOUTS))
        for _ in range(draw(st.integers(1, 6))):
            name = f"f{len(fields)}"
            fields.append({"name": name, "type": layout(kind)})
            values[name] = FIXED[kind] if layout(kind) == kind else st.none() | FIXED[kind]
    # A long text makes an item that no expression fits.
    fields.append({"name": "text", "type": "string"})
    values["text"] = st.sampled_from(["", "a", 200 * "b"])
    item: Any = {"type": "record", "name": "item", "fields": fields}
    items: Any = st.fixed_dictionaries(values)
    if draw(st.booleans()):
        item, items = ["null", item], st.none() | items
    root = {
        "type": "record",
        "name": "packet",
        "fields": [{"name": "history", "type": {"type": "array", "items": item}}],
    }
    schema, stream = parse_document(root), io.BytesIO()
    rows = draw(st.lists(items, max_size=6))
    fastavro.schemaless_writer(stream, schema.root, {"history": rows})
    wanted = draw(st.sets(st.sampled_from(sorted(values))))
    leaves = {n: draw(st.sampled_from(("f8", "f8", "bool", "str"))) for n in sorted(wanted)}
    return schema, stream.getvalue(), {"history": Many(leaves)}


@bounded
@given(histories())
def test_stretches_of_one_size_are_read_as_fastavro_reads_them(case: Case) -> None:
    reads_as_fastavro(case)


@bounded
@given(cases(), st.data())
def test_a_cut_record_is_truncated_and_a_longer_one_has_trailing_bytes(
    case: Case, data: st.DataObject
) -> None:
    schema, value, selection = case
    reader = RecordReader(schema, selection)
    with pytest.raises(PoisonMessage) as longer:
        reader.read(value + b"\0")
    assert longer.value.reason == "trailing_bytes"
    if value:
        with pytest.raises(PoisonMessage) as shorter:
            reader.read(value[: data.draw(st.integers(0, len(value) - 1))])
        assert shorter.value.reason == "truncated"


@bounded
@given(cases(), st.data())
def test_a_damaged_record_gives_what_is_selected_or_poison(case: Case, data: st.DataObject) -> None:
    schema, value, selection = case
    if not value:
        return
    damaged = bytearray(value)
    damaged[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    assert outcome(RecordReader(schema, selection), bytes(damaged)) in {
        *("read", "truncated", "trailing_bytes", "undecodable", "too_many_items")
    }


def outcome(reader: RecordReader, value: bytes) -> str:
    try:
        reader.read(value)
    except PoisonMessage as error:
        return error.reason
    return "read"
