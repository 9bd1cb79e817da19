"""How to pass over an Avro value without making anything of it.

Every type can be passed over in this way, recursive ones included, and every claim of a length is
held against the bytes that are there: a packet costs time in proportion to its own length, whatever
it and its schema say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from broker_filter.decode.avro.primitives import forward, read_long
from broker_filter.decode.avro.schema import AvroType, WriterSchema

__all__ = ["ItemSizes", "Skip", "Skips", "block_head", "read_branch"]

Skip: TypeAlias = Callable[[bytes, int], int]
"""From where a value begins to where it ends.

Raises IndexError where the bytes end before, ValueError where they cannot be such a value.
"""

_SIZES: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class ItemSizes:
    """Finds the types of one schema whose values all take the same number of bytes.

    Parameters
    ----------
    schema : WriterSchema
    """

    def __init__(self, schema: WriterSchema) -> None:
        self._schema = schema
        self._named: dict[str, int | None] = {}

    def of(self, avro_type: AvroType) -> int | None:
        """Bytes that every value of a type takes; None where they differ."""
        kind, definition = self._schema.resolve(avro_type)
        if not isinstance(definition, Mapping):
            return _SIZES.get(kind)
        if kind == "fixed":
            return int(definition["size"])
        if kind != "record":
            return _SIZES.get(kind)
        name = definition["name"]
        if name not in self._named:
            self._named[name] = None  # what a type within itself finds
            sizes = [self.of(field["type"]) for field in definition["fields"]]
            known = [size for size in sizes if size is not None]
            self._named[name] = sum(known) if len(known) == len(sizes) else None
        return self._named[name]


class Skips:
    """Makes the `Skip` of each type of one schema, once.

    Parameters
    ----------
    schema : WriterSchema
    sizes : ItemSizes
        Of the same schema.
    pattern_of : callable
        Regular expression of a type, where it has one: items of arrays are matched against it.
    """

    def __init__(
        self,
        schema: WriterSchema,
        sizes: ItemSizes,
        pattern_of: Callable[[AvroType], bytes | None] = lambda _: None,
    ) -> None:
        self._schema, self._sizes, self._pattern_of = schema, sizes, pattern_of
        self._named: dict[str, Skip] = {}

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
        size = self._sizes.of(definition)
        if size is not None:
            return lambda value, at: forward(value, at, size)
        if kind == "record":
            return _over_each([self.of(field["type"]) for field in definition["fields"]])
        if kind == "union":
            return _over_branch([self.of(branch) for branch in definition])
        if kind == "array":
            items = definition["items"]
            return _over_blocks(self._swift(items), self._sizes.of(items))
        if kind == "map":
            return _over_blocks(_over_each([_over_bytes, self.of(definition["values"])]), None)
        return _over_bytes if kind in ("string", "bytes") else _over_long

    def _swift(self, avro_type: AvroType) -> Skip:
        """The way over a type by one match, where there is one."""
        over, pattern = self.of(avro_type), self._pattern_of(avro_type)
        return over if pattern is None else _over_match(pattern, over)


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


def _over_match(pattern: bytes, over: Skip) -> Skip:
    fits = re.compile(pattern, re.DOTALL).match

    def skip(value: bytes, at: int) -> int:
        match = fits(value, at)
        return match.end() if match else over(value, at)

    return skip


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


def _over_blocks(item: Skip, size: int | None) -> Skip:
    def skip(value: bytes, at: int) -> int:
        while True:
            count, at, end = block_head(value, at)
            if not count:
                return at
            if end is not None:
                at = end
            elif size is not None:
                at = forward(value, at, count * size)
            else:  # each item takes a byte at least, so that their end is the end of the bytes
                for _ in range(count):
                    at = item(value, at)

    return skip
