"""From the bytes of Avro values to leaves, one value at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker_filter.decode.avro.primitives import read_bytes, read_long
from broker_filter.decode.avro.schema import AvroType, WriterSchema, is_converted
from broker_filter.decode.selection import Leaf

__all__ = ["Value", "value_of"]

One = Callable[[bytes], Any]

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
    """

    leaf: Leaf
    one: One


def value_of(schema: WriterSchema, avro_type: AvroType, leaf: Leaf) -> Value | None:
    """How a type that is not a union becomes a leaf; None where it is never one."""
    kind, definition = schema.resolve(avro_type)
    if is_converted(definition):
        return None
    if (kind, leaf) == ("enum", "str") and not isinstance(definition, str | list):
        return Value(leaf, _symbol(definition["symbols"]))
    return _VALUES.get((kind, leaf))


def _symbol(symbols: Sequence[str]) -> One:
    def one(raw: bytes) -> str:
        index = read_long(raw, 0)[0]
        if not 0 <= index < len(symbols):
            raise ValueError(f"symbol {index} of an enum of {len(symbols)}")
        return symbols[index]

    return one


_VALUES: Final[dict[tuple[str, Leaf], Value]] = {
    ("float", "f8"): Value("f8", lambda raw: _FLOAT(raw)[0]),
    ("double", "f8"): Value("f8", lambda raw: _DOUBLE(raw)[0]),
    ("int", "f8"): Value("f8", lambda raw: float(read_long(raw, 0)[0])),
    ("long", "f8"): Value("f8", lambda raw: float(read_long(raw, 0)[0])),
    ("int", "i8"): Value("i8", lambda raw: read_long(raw, 0)[0]),
    ("long", "i8"): Value("i8", lambda raw: read_long(raw, 0)[0]),
    ("boolean", "bool"): Value("bool", lambda raw: raw != b"\0"),
    ("string", "str"): Value("str", lambda raw: read_bytes(raw, 0)[0].decode()),
}
