"""From the bytes of Avro values to leaves: one value at a time, or a column at once.

What stands for null is `NULL`, the bytes of a float that is not a number: so a column of floats
needs no second look at them. No other value of these types has these bytes: a number of variable
length that begins with a zero byte ends there, and so does a string.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.avro.primitives import read_bytes, read_long, write_long
from broker_filter.decode.avro.schema import AvroType, WriterSchema, is_converted
from broker_filter.decode.avro.skip import read_branch
from broker_filter.decode.selection import DTYPES, MISSING, Leaf, column, missing_column

__all__ = ["NULL", "Remembered", "Value", "any_branch", "longs", "value_of"]

One = Callable[[bytes], Any]
Packed = Callable[[bytes], NDArray[Any]]

NULL: Final = struct.pack("<f", np.nan)
"""In place of the bytes of a value where there is none."""

_MAX_KNOWN, _MAX_KNOWN_BYTES = 4096, 64

_FLOAT: Final = struct.Struct("<f").unpack
_DOUBLE: Final = struct.Struct("<d").unpack


@dataclass(frozen=True, slots=True)
class Value:
    """How the bytes of one type become values of one leaf.

    Parameters
    ----------
    leaf : Leaf
    one : callable
        From the bytes of one value, which is not null, to that value.
    packed : callable, optional
        From the bytes of many values behind each other to an array of them.
    packed_from : int
        Number of values from which on that is faster than to look each up among those known.
    null : bytes
        What `packed` makes `MISSING` of, if there is such a thing.
    dtype : str
        Type of numpy that values of a fixed size have.
    """

    leaf: Leaf
    one: One
    packed: Packed | None = None
    packed_from: int = 0
    null: bytes = b""
    dtype: str = ""
    _known: Remembered = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Begin to remember values."""
        object.__setattr__(self, "_known", Remembered(self.read))

    def read(self, raw: bytes) -> Any:  # noqa: ANN401  as the leaf has it
        """One value, `MISSING` for `NULL`."""
        return MISSING[self.leaf] if raw == NULL else self.one(raw)

    def column(self, raws: Sequence[bytes]) -> NDArray[Any]:
        """One column, shape (len(raws),), of the leaf's type."""
        if self.packed is None or len(raws) < self.packed_from:
            return column(self.leaf, map(self._known.__getitem__, raws), len(raws))
        if self.null == NULL or NULL not in raws:
            return self.packed(b"".join(raws))
        if self.null:
            return self.packed(b"".join([self.null if raw == NULL else raw for raw in raws]))
        found = missing_column(self.leaf, len(raws))
        there = [raw != NULL for raw in raws]
        found[there] = self.packed(b"".join(compress(raws, there)))
        return found


class Remembered(dict[bytes, Any]):
    """Values by their bytes, as they are met: most lists have few unlike ones, again and again.

    Parameters
    ----------
    read : callable
        Makes the value of bytes that are new.
    """

    def __init__(self, read: One) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, raw: bytes) -> Any:  # noqa: ANN401  as the leaf has it
        value = self._read(raw)
        if len(raw) <= _MAX_KNOWN_BYTES:
            if len(self) >= _MAX_KNOWN:
                self.clear()
            self[raw] = value
        return value


def value_of(schema: WriterSchema, avro_type: AvroType, leaf: Leaf) -> Value | None:
    """How a type that is not a union becomes a leaf; None where it is never one."""
    kind, definition = schema.resolve(avro_type)
    if is_converted(definition):
        return None
    if (kind, leaf) == ("enum", "str") and not isinstance(definition, str | list):
        return Value(leaf, _symbol(definition["symbols"]))
    return _VALUES.get((kind, leaf))


def any_branch(leaf: Leaf, branches: Sequence[Value | None]) -> Value:
    """How a union of several types becomes a leaf; its bytes begin with the number of the type."""

    def one(raw: bytes) -> Any:  # noqa: ANN401  as the leaf has it
        index, at = read_branch(raw, 0, len(branches))
        branch = branches[index]
        return MISSING[leaf] if branch is None else branch.one(raw[at:])

    return Value(leaf, one)


def longs(packed: bytes) -> NDArray[np.int64]:
    """Integers of variable length behind each other, each of 64 bits at most; shape (n,), int64."""
    raw = np.frombuffer(packed, np.uint8)
    end = np.flatnonzero(raw < 0x80) + 1
    if not len(end):
        return np.empty(0, np.int64)
    start = np.r_[0, end[:-1]]
    byte = np.arange(len(raw)) - np.repeat(start, end - start)
    parts = (raw & 0x7F).astype(np.uint64) << (7 * byte).astype(np.uint64)
    zigzag = np.bitwise_or.reduceat(parts, start)
    return (zigzag >> 1).astype(np.int64) ^ -(zigzag & 1).astype(np.int64)


def _symbol(symbols: Sequence[str]) -> One:
    def one(raw: bytes) -> str:
        index = read_long(raw, 0)[0]
        if not 0 <= index < len(symbols):
            raise ValueError(f"symbol {index} of an enum of {len(symbols)}")
        return symbols[index]

    return one


def _fixed(leaf: Leaf, dtype: str, one: One, null: bytes) -> Value:
    """How values of a fixed size are read."""

    def packed(raw: bytes) -> NDArray[Any]:
        return np.frombuffer(raw, dtype).astype(DTYPES[leaf])

    return Value(leaf, one, packed, null=null, dtype=dtype)


_MANY_LONGS: Final = 600
_WHOLE: Final = Value(
    "i8", lambda raw: read_long(raw, 0)[0], longs, _MANY_LONGS, write_long(MISSING["i8"])
)
_AS_FLOAT: Final = Value(
    "f8",
    lambda raw: float(read_long(raw, 0)[0]),
    lambda packed: longs(packed).astype(np.float64),
    _MANY_LONGS,
)

_VALUES: Final[dict[tuple[str, Leaf], Value]] = {
    ("float", "f8"): _fixed("f8", "<f4", lambda raw: _FLOAT(raw)[0], null=NULL),
    ("double", "f8"): _fixed(
        "f8", "<f8", lambda raw: _DOUBLE(raw)[0], null=struct.pack("<d", np.nan)
    ),
    ("int", "f8"): _AS_FLOAT,
    ("long", "f8"): _AS_FLOAT,
    ("int", "i8"): _WHOLE,
    ("long", "i8"): _WHOLE,
    ("boolean", "bool"): _fixed("bool", "u1", lambda raw: raw != b"\0", null=b"\0"),
    ("string", "str"): Value("str", lambda raw: read_bytes(raw, 0)[0].decode()),
}
