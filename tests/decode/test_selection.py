"""What a selection picks out of a record, and what stands for all that is not there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from broker_filter.decode.selection import MAX_ITEMS, MISSING, Leaf, Many, absent, select
from broker_filter.errors import PoisonMessage

NOTHING = MISSING["i8"]


def picked(value: Any, leaf: Leaf) -> Any:
    return select({"x": value}, {"x": leaf})["x"]


@pytest.mark.parametrize(
    ("leaf", "value", "expected"),
    [
        ("f8", 1.5, 1.5),
        ("f8", 3, 3.0),
        ("f8", np.float32(0.5), 0.5),
        ("i8", -7, -7),
        ("i8", np.int32(7), 7),
        ("i8", 2**63 - 1, 2**63 - 1),
        ("bool", True, True),
        ("str", "g", "g"),
    ],
)
def test_values_of_their_type(leaf: Leaf, value: Any, expected: Any) -> None:
    got = picked(value, leaf)
    assert (got, type(got)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        *[("f8", value) for value in (None, "1.0", True, b"1", [1.0], 10**400)],
        *[("i8", value) for value in (None, 1.0, True, "1", 2**63, -(2**63) - 1)],
        *[("bool", value) for value in (None, 1, "t", 0.0)],
        *[("str", value) for value in (None, 1, b"g", True)],
    ],
)
def test_null_and_other_types_are_missing(leaf: Leaf, value: Any) -> None:
    np.testing.assert_equal(picked(value, leaf), MISSING[leaf])


def test_a_list_of_records_becomes_columns_of_equal_length() -> None:
    many = Many({"t": "f8", "visit": "i8", "bad": "bool", "band": "str", "new": "i8"})
    rows = [{"t": 1.0, "visit": 5, "bad": True, "band": "g"}, {"t": None, "band": 3}, "no record"]
    got = select({"rows": rows}, {"rows": many})["rows"]
    np.testing.assert_array_equal(got["t"], [1.0, np.nan, np.nan])
    assert got["visit"].tolist() == [5, NOTHING, NOTHING]
    assert got["bad"].tolist() == [True, False, False]
    assert got["band"].tolist() == ["g", "", ""]
    assert got["new"].tolist() == [NOTHING] * 3
    assert [column.dtype for column in got.values()] == [float, np.int64, bool, object, np.int64]


@pytest.mark.parametrize("rows", [None, [], "text", b"bytes", 3.0, {"t": 1.0}])
def test_what_is_no_list_has_no_rows(rows: Any) -> None:
    got = select({"rows": rows}, {"rows": Many({"t": "f8", "band": "str"})})["rows"]
    assert {name: column.shape for name, column in got.items()} == {"t": (0,), "band": (0,)}


def test_a_record_within_a_record() -> None:
    selection = {"inner": {"x": "f8", "deep": {"y": "i8"}}, "gone": {"z": "f8"}}
    got = select({"inner": {"x": 2.0, "deep": None, "unread": object()}}, selection)
    assert got == {"inner": {"x": 2.0, "deep": None}, "gone": None}


def test_absent_is_what_an_empty_record_gives() -> None:
    assert absent({"x": "f8"}) is None
    assert absent("i8") == NOTHING
    assert absent(Many({})) == {}


def test_a_list_that_is_too_long_is_poison() -> None:
    rows = [{}] * (MAX_ITEMS + 1)
    with pytest.raises(PoisonMessage) as caught:
        select({"rows": rows}, {"rows": Many({"t": "f8"})})
    assert caught.value.reason == "too_many_items"
    assert len(select({"rows": rows[1:]}, {"rows": Many({"t": "f8"})})["rows"]["t"]) == MAX_ITEMS


def test_json_with_nan() -> None:
    record = json.loads('{"x": NaN, "y": 1e999}')
    got = select(record, {"x": "f8", "y": "f8"})
    np.testing.assert_equal(got, {"x": np.nan, "y": np.inf})
