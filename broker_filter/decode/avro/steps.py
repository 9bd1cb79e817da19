"""Steps over the fields of a record, for the compiled loop of `broker_filter.decode.avro.items`.

There is a step over a number, a text and whatever is of a fixed size, and over a union of one of
these and null. Whatever else there is (lists, other unions, records that vary in size) is passed
over by `broker_filter.decode.avro.skip`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from broker_filter.decode.avro.items import Kind
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.values import Value, value_of
from broker_filter.decode.selection import Leaf
from broker_filter.types import IntArray

__all__ = ["Field", "Fields", "passing"]

_TAKEN: Final[Mapping[tuple[str, Leaf], Kind]] = {
    ("float", "f8"): Kind.FLOAT,
    ("double", "f8"): Kind.DOUBLE,
    ("boolean", "bool"): Kind.BOOLEAN,
    ("int", "i8"): Kind.WHOLE,
    ("long", "i8"): Kind.WHOLE,
    ("int", "f8"): Kind.AS_FLOAT,
    ("long", "f8"): Kind.AS_FLOAT,
    ("enum", "str"): Kind.SYMBOL,
    ("string", "str"): Kind.TEXT,
}
_PASSED: Final[Mapping[str, Kind]] = {
    "int": Kind.NUMBER,
    "long": Kind.NUMBER,
    "enum": Kind.NUMBER,
    "string": Kind.SIZED,
    "bytes": Kind.SIZED,
}
_SIZES: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class Field:
    """What there is a step over.

    Parameters
    ----------
    name : str
    kind : Kind
    size : int
        Bytes of a value, 0 where they vary.
    present : int
        Branch of a union at which it is there, -1 where it cannot be null.
    value : Value, optional
        How its bytes are read, if it is wanted.
    """

    name: str
    kind: Kind
    size: int
    present: int
    value: Value | None

    @property
    def least(self) -> int:
        """Bytes that it takes at least."""
        return 1 if self.present >= 0 or self.kind >= Kind.NUMBER else self.size


def passing(fields: Sequence[Field]) -> IntArray:
    """Steps that pass over fields; see `broker_filter.decode.avro.items.take_items`."""
    steps = [(field.kind, field.size, field.present, -1, 0) for field in fields]
    return np.array(steps, np.int64).reshape(-1, 5)


class Fields:
    """Finds the fields of one schema that there are steps over.

    Parameters
    ----------
    schema : WriterSchema
    """

    def __init__(self, schema: WriterSchema) -> None:
        self._schema = schema
        self._sizes: dict[str, int | None] = {}

    def of(self, avro_type: AvroType, name: str = "", leaf: Leaf | None = None) -> Field | None:
        """A field of a type, wanted as a leaf if that can be; None where there is no step."""
        present = -1
        kind, definition = self._schema.resolve(avro_type)
        if kind == "union" and isinstance(definition, list):
            if len(definition) != 2 or "null" not in definition:
                return None
            present = 1 - definition.index("null")
            avro_type = definition[present]
            kind, definition = self._schema.resolve(avro_type)
        size = self.size(avro_type)
        value = None if leaf is None else value_of(self._schema, avro_type, leaf)
        if value is not None:
            return Field(name, _TAKEN[kind, value.leaf], size or 0, present, value)
        passed = _PASSED.get(kind) if size is None else Kind.FIXED
        return None if passed is None else Field(name, passed, size or 0, present, None)

    def record(
        self, fields: Sequence[Mapping[str, Any]], leaves: Mapping[str, Leaf]
    ) -> list[Field] | None:
        """All fields of a record; None where there is not a step over each."""
        found = []
        for given in fields:
            field = self.of(given["type"], given["name"], leaves.get(given["name"]))
            if field is None:
                return None
            found.append(field)
        return found

    def size(self, avro_type: AvroType) -> int | None:
        """Bytes that every value of a type takes; None where they differ."""
        kind, definition = self._schema.resolve(avro_type)
        if not isinstance(definition, Mapping):
            return _SIZES.get(kind)
        if kind == "fixed":
            return int(definition["size"])
        if kind != "record":
            return _SIZES.get(kind)
        name = definition["name"]
        if name not in self._sizes:
            self._sizes[name] = None  # what a type within itself finds
            sizes = [self.size(field["type"]) for field in definition["fields"]]
            known = [size for size in sizes if size is not None]
            self._sizes[name] = sum(known) if len(known) == len(sizes) else None
        return self._sizes[name]
