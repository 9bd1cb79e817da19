"""Named arrays in a file: what comes back, who else can read it, and what damage is found."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load

from broker_filter.errors import StateError
from broker_filter.state.columns import (
    Streamed,
    arrays_of,
    packed,
    packed_stars,
    read_columns,
    unpacked,
    unpacked_stars,
    write_columns,
)

COLUMNS: dict[str, NDArray[Any]] = {
    "bytes": np.arange(7, dtype=np.uint8),
    "flags": np.array([True, False, True]),
    "codes": np.arange(5, dtype=np.uint16),
    "table": np.arange(6, dtype=np.int32).reshape(2, 3),
    "single": np.array([np.nan, np.inf, -0.0, 1e-45], np.float32),
    "double": np.array([60_000.123456, -np.inf]),
    "nothing": np.empty((0, 2)),
}


def written(**columns: Any) -> bytes:
    file = io.BytesIO()
    write_columns(file, columns or COLUMNS, {"topic": "epochs"})
    return file.getvalue()


def read(data: bytes) -> dict[str, NDArray[Any]]:
    return read_columns(io.BytesIO(data), len(data))[0]


def with_header(change: dict[str, Any], data: bytes = b"\0" * 16) -> bytes:
    header = {"__metadata__": {}, "a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}
    header["a"] |= change
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_columns_come_back_bit_for_bit_with_their_metadata() -> None:
    data = written()
    columns, metadata = read_columns(io.BytesIO(data), len(data))
    assert metadata == {"topic": "epochs"}
    assert set(columns) == set(COLUMNS)
    for name, column in COLUMNS.items():
        assert columns[name].dtype == column.dtype
        assert columns[name].shape == column.shape
        assert columns[name].tobytes() == column.tobytes()


def test_any_reader_of_safetensors_reads_them() -> None:
    columns = load(written())
    for name, column in COLUMNS.items():
        np.testing.assert_array_equal(columns[name], column)


def test_a_streamed_column_is_written_as_the_whole() -> None:
    whole = np.arange(10.0)

    def parts() -> Iterator[NDArray[Any]]:
        yield from np.split(whole, [3, 3, 7])

    streamed = Streamed(whole.dtype, whole.shape, parts)
    assert written(time=streamed) == written(time=whole)
    assert arrays_of({"time": streamed})["time"].tobytes() == whole.tobytes()


def test_a_file_cut_anywhere_is_an_error() -> None:
    data = written()
    for size in range(len(data)):
        with pytest.raises(StateError):
            read(data[:size])
        with pytest.raises(StateError):
            read_columns(io.BytesIO(data[:size]), len(data))


def test_a_file_that_goes_on_is_an_error() -> None:
    with pytest.raises(StateError, match="goes on"):
        read_columns(io.BytesIO(written() + b"x"), len(written()))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1 << 60]},
        {"shape": [-2]},
        {"shape": [1]},
        {"shape": None},
        {"dtype": "F16"},
        {"data_offsets": [8, 24]},
        {"data_offsets": [0]},
    ],
    ids=str,
)
def test_a_header_that_does_not_describe_the_data_is_an_error(change: dict[str, Any]) -> None:
    assert read(with_header({}))["a"].tolist() == [0.0, 0.0]
    with pytest.raises(StateError):
        read(with_header(change))


def test_a_header_of_any_length_takes_no_memory_before_it_is_believed() -> None:
    with pytest.raises(StateError, match="header"):
        read((1 << 62).to_bytes(8, "little") + b"{}")


stars = st.lists(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8"), max_size=9))
)


@given(stars)
def test_star_ids_come_back_as_they_were(ids: list[str | int]) -> None:
    assert unpacked_stars("star", packed_stars("star", ids)) == ids


def test_texts_that_lost_bytes_are_an_error() -> None:
    columns = packed("name", ["a", "bc"])
    with pytest.raises(ValueError, match="name"):
        unpacked("name", columns | {"name": columns["name"][:2]})
