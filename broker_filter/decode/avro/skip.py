"""How to pass over an Avro value without making anything of it.

Every type can be passed over in this way, recursive ones included, and every claim of a length is
held against the bytes that are there: a packet costs time in proportion to its own length, whatever
it and its schema say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from broker_filter.decode.avro.items import no_texts, take_items
from broker_filter.decode.avro.primitives import forward, read_long
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.steps import Fields, passing
from broker_filter.types import IntArray

__all__ = ["MANY_FIELDS", "Skip", "Skips", "block_head", "pass_items", "read_branch"]

Skip: TypeAlias = Callable[[bytes, int], int]
"""From where a value begins to where it ends.

Raises IndexError where the bytes end before, ValueError where they cannot be such a value.
"""

MANY_FIELDS: Final = 8
"""From so many fields on, the compiled loop is faster than one call for each."""

_NO_CELLS: Final = np.empty((0, 0), np.int64)
_NO_TEXTS: Final = no_texts(0)


class Skips:
    """Makes the `Skip` of each type of one schema, once.

    Parameters
    ----------
    schema : WriterSchema
    fields : Fields
        Of the same schema.
    """

    def __init__(self, schema: WriterSchema, fields: Fields) -> None:
        self._schema, self._fields = schema, fields
        self._named: dict[str, Skip] = {}
        self._steps: dict[str, IntArray | None] = {}

    def of(self, avro_type: AvroType) -> Skip:
        """The way over a type."""
        kind, definition = self._schema.resolve(avro_type)
        if not isinstance(definition, Mapping) or "name" not in definition:
            return self._made(kind, definition)
        name: str = definition["name"]
        if name not in self._named:
            # A type within itself is looked up only when bytes come to it.
            self._named[name] = lambda value, at: self._named[name](value, at)
            self._named[name] = self._made(kind, definition)
        return self._named[name]

    def _made(self, kind: str, definition: Any) -> Skip:  # noqa: ANN401  as the kind has it
        # First, since nothing else bounds how often types of no bytes may be nested.
        size = self._fields.size(definition)
        if size is not None:
            return lambda value, at: forward(value, at, size)
        if kind == "record":
            return self.over(definition["fields"])
        if kind == "union":
            return _over_branch([self.of(branch) for branch in definition])
        if kind == "array":
            items = definition["items"]
            return _over_blocks(self.of(items), self._fields.size(items), self._item_steps(items))
        if kind == "map":
            return _over_blocks(_over_each([_over_bytes, self.of(definition["values"])]))
        return _over_bytes if kind in ("string", "bytes") else _over_long

    def over(self, fields: Sequence[Mapping[str, Any]]) -> Skip:
        """The way over neighbouring fields of a record."""
        found = self._fields.record(fields, {}) if len(fields) >= MANY_FIELDS else None
        if found is None:
            return _over_each([self.of(field["type"]) for field in fields])
        steps = passing(found)
        return lambda value, at: pass_items(value, at, 1, steps)

    def _item_steps(self, items: AvroType) -> IntArray | None:
        """Steps over an item of a list, where there are any."""
        kind, definition = self._schema.resolve(items)
        if kind == "record" and isinstance(definition, Mapping):
            return self._record_steps(definition)
        field = self._fields.of(items)
        return None if field is None else passing([field])

    def _record_steps(self, definition: Mapping[str, Any]) -> IntArray | None:
        name = definition["name"]
        if name not in self._steps:
            fields = self._fields.record(definition["fields"], {})
            self._steps[name] = None if fields is None else passing(fields)
        return self._steps[name]


def read_branch(value: bytes, at: int, branches: int) -> tuple[int, int]:
    """Which of its types a union holds, and where the value begins."""
    index, at = read_long(value, at)
    if not 0 <= index < branches:
        raise ValueError(f"branch {index} of a union of {branches} before byte {at}")
    return index, at


def block_head(value: bytes, at: int) -> tuple[int, int, int | None]:
    """Read how many items a block of an array or a map has.

    Returns
    -------
    int, int, int or None
        Number of items (0 ends the array), where they begin, and where they end, if it says so.
    """
    count, at = read_long(value, at)
    if count >= 0:
        return count, at, None
    size, at = read_long(value, at)
    return -count, at, forward(value, at, size)


def _over_long(value: bytes, at: int) -> int:
    return at + 1 if value[at] < 0x80 else read_long(value, at)[1]


def _over_bytes(value: bytes, at: int) -> int:
    length, at = read_long(value, at)
    return forward(value, at, length)


def pass_items(value: bytes, at: int, count: int, steps: IntArray) -> int:
    """Pass over items, one behind the other, whose fields there are steps over."""
    raw = np.frombuffer(value, np.uint8)
    return take_items(raw, at, (0, count), steps, _NO_CELLS, _NO_TEXTS)


def _over_each(skips: Sequence[Skip]) -> Skip:
    def skip(value: bytes, at: int) -> int:
        for over in skips:
            at = over(value, at)
        return at

    return skip


def _over_branch(branches: Sequence[Skip]) -> Skip:
    def skip(value: bytes, at: int) -> int:
        index, at = read_branch(value, at, len(branches))
        return branches[index](value, at)

    return skip


def _over_blocks(item: Skip, size: int | None = None, steps: IntArray | None = None) -> Skip:
    def skip(value: bytes, at: int) -> int:
        while True:
            count, at, end = block_head(value, at)
            if not count:
                return at
            if end is not None:
                at = end
            elif size is not None:
                at = forward(value, at, count * size)
            elif steps is not None:
                at = pass_items(value, at, count, steps)
            else:  # each item takes a byte at least, so that their end is the end of the bytes
                for _ in range(count):
                    at = item(value, at)

    return skip
