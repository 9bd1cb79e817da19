"""Named arrays in one file, written and read in one pass.

The layout is that of safetensors (eight bytes of header length, a JSON header, raw little-endian
data): any reader of safetensors opens such a file. Its own library needs the whole file in
memory beside the arrays; here a column may be made while it is written, and is read to its place.

Texts are packed: the bytes of all of them one after the other, and the length of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import StateError
from broker_filter.types import StarId

__all__ = [
    "Column",
    "Columns",
    "Readable",
    "Streamed",
    "Writable",
    "arrays_of",
    "packed",
    "packed_keys",
    "packed_stars",
    "read_columns",
    "reading",
    "unpacked",
    "unpacked_keys",
    "unpacked_stars",
    "write_columns",
]

MAX_HEADER_BYTES: Final = 1 << 20
CHUNK_BYTES: Final = 8 << 20

_DTYPES: Final = {
    "BOOL": np.dtype(np.bool_),
    **{f"U{8 * n}": np.dtype(f"<u{n}") for n in (1, 2, 4, 8)},
    **{f"I{8 * n}": np.dtype(f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": np.dtype(f"<f{n}") for n in (4, 8)},
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Streamed:
    """A column that is made piece by piece when it is written.

    Parameters
    ----------
    dtype : dtype
    shape : tuple of int
        Of all pieces together.
    parts : callable
        Makes the pieces, in order along the first axis.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Callable[[], Iterator[NDArray[Any]]]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces together."""
        return self.dtype.itemsize * math.prod(self.shape)


Column = NDArray[Any] | Streamed
Columns = Mapping[str, Column]


class Writable(Protocol):
    """What `write_columns` needs of a file."""

    def write(self, data: Any, /) -> object:  # noqa: ANN401  anything with a buffer
        """Take bytes."""


class Readable(Protocol):
    """What `read_columns` needs of a file."""

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401  anything with a buffer
        """Fill a buffer as far as the data goes."""


def arrays_of(columns: Columns) -> dict[str, NDArray[Any]]:
    """All columns as arrays; the streamed ones are made now."""
    return {
        name: np.concatenate([np.empty(0, column.dtype), *column.parts()])
        if isinstance(column, Streamed)
        else column
        for name, column in columns.items()
    }


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Say of columns that are missing or contradict each other whose they are: a StateError."""
    try:
        yield
    except (LookupError, ValueError, TypeError) as error:
        raise StateError(f"the {what} of the snapshot cannot be used: {error!r}") from error


def write_columns(file: Writable, columns: Columns, metadata: Mapping[str, str]) -> None:
    """Write columns and a few texts that describe them.

    Parameters
    ----------
    file
        Only ``write`` is called.
    columns : mapping of str to array or Streamed
        Of boolean, integer and floating types.
    metadata : mapping of str to str
    """
    # Widest first, so that each column lies on a multiple of its item size.
    order = sorted(columns, key=lambda name: (-columns[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        column, start, end = columns[name], end, end + columns[name].nbytes
        header[name] = {
            "dtype": _NAMES[column.dtype.newbyteorder("<")],
            "shape": list(column.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        column = columns[name]
        for part in column.parts() if isinstance(column, Streamed) else [column]:
            _write(file, np.ascontiguousarray(part, part.dtype.newbyteorder("<")))


def read_columns(file: Readable, size: int) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read what `write_columns` wrote.

    Parameters
    ----------
    file
        Only ``readinto`` is called; it is read to its end.
    size : int, bytes
        Length of the file; no more memory than this is taken for its arrays.

    Returns
    -------
    columns : dict of str to ndarray
    metadata : dict of str to str

    Raises
    ------
    StateError
        The file is shorter or longer than ``size``, or its header does not describe it.
    """
    length = int.from_bytes(_read(file, np.empty(8, np.uint8)).tobytes(), "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise StateError(f"its header would be {length} bytes long")
    text = _read(file, np.empty(length, np.uint8)).tobytes()
    layout, metadata = _layout(text, size - 8 - length)
    columns = {}
    for name, (dtype, shape) in layout.items():
        columns[name] = np.empty(shape, dtype)
        _read(file, columns[name].reshape(-1).view(np.uint8))
    if file.readinto(memoryview(bytearray(1))):
        raise StateError(f"it goes on after its {size} bytes")
    return columns, metadata


Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


def _layout(text: bytes, size: int) -> tuple[Layout, dict[str, str]]:
    """Type and shape of each column in the order of their data, which they must fill."""
    try:
        header = json.loads(text)
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__").items()}
        entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])
        layout, end = {}, 0
        for name, entry in entries:
            dtype, shape = _DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
            start, end = end, end + dtype.itemsize * math.prod(shape)
            if min(shape, default=0) < 0 or entry["data_offsets"] != [start, end] or end > size:
                raise StateError(f"its column {name!r} does not fit its place")
            layout[name] = (dtype, shape)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"its header cannot be read ({error!r})") from error
    if end != size:
        raise StateError(f"its columns take {end} of {size} bytes")
    return layout, metadata


def _write(file: Writable, array: NDArray[Any]) -> None:
    data = array.reshape(-1).view(np.uint8)
    for first in range(0, len(data), CHUNK_BYTES):
        file.write(data[first : first + CHUNK_BYTES].data)


def _read(file: Readable, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill an array of bytes."""
    view, at = data.data, 0
    while at < len(data):
        got = file.readinto(view[at : at + CHUNK_BYTES])
        if not got:
            raise StateError(f"it ends {len(data) - at} bytes early")
        at += got
    return data


def packed(name: str, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Texts as two columns: their UTF-8 bytes, and how many each has."""
    coded = [text.encode() for text in texts]
    return {
        name: np.frombuffer(b"".join(coded), np.uint8),
        f"{name}.length": np.fromiter(map(len, coded), np.uint32, len(coded)),
    }


def unpacked(name: str, columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """The texts that `packed` packed; KeyError or ValueError where they are not there."""
    data = columns[name].tobytes()
    ends = list(accumulate(columns[f"{name}.length"].tolist(), initial=0))
    if ends[-1] != len(data):
        raise ValueError(f"texts of {name} take {ends[-1]} of {len(data)} bytes")
    return [data[first:last].decode() for first, last in pairwise(ends)]


def packed_stars(name: str, stars: Sequence[StarId]) -> dict[str, NDArray[Any]]:
    """Star ids as columns; whether an id is a number is one of them."""
    is_int = np.fromiter((isinstance(star, int) for star in stars), np.bool_, len(stars))
    return packed(name, list(map(str, stars))) | {f"{name}.is_int": is_int}


def unpacked_stars(name: str, columns: Mapping[str, NDArray[Any]]) -> list[StarId]:
    """The star ids that `packed_stars` packed."""
    kinds = columns[f"{name}.is_int"].tolist()
    texts = unpacked(name, columns)
    return [int(text) if is_int else text for text, is_int in zip(texts, kinds, strict=True)]


def packed_keys(keys: Collection[tuple[str, StarId, str]]) -> dict[str, NDArray[Any]]:
    """Keys of (survey, star, band) as columns."""
    return {
        **packed("survey", [survey for survey, _, _ in keys]),
        **packed_stars("star", [star for _, star, _ in keys]),
        **packed("band", [band for _, _, band in keys]),
    }


def unpacked_keys(columns: Mapping[str, NDArray[Any]]) -> list[tuple[str, StarId, str]]:
    """The keys that `packed_keys` packed; ValueError where their columns differ in length."""
    surveys, stars = unpacked("survey", columns), unpacked_stars("star", columns)
    return list(zip(surveys, stars, unpacked("band", columns), strict=True))
