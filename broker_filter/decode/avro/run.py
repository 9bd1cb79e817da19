"""Runs: neighbouring fields of a record that are taken in one step.

Taking a run gives the bytes of each field that is wanted, without the number of the branch where
the field may be null (`NULL` stands for null). That happens in one match of a regular expression
if it can, and field by field if not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from broker_filter.decode.avro.pattern import Patterns, branch_tag, joined
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.skip import ItemSizes, Skip, Skips, read_branch
from broker_filter.decode.avro.values import NULL, Value, any_branch, value_of
from broker_filter.decode.selection import Leaf

__all__ = ["Fields", "Run", "Single", "Take"]

Take: TypeAlias = Callable[[bytes, int], tuple[Sequence[bytes], int]]
"""From where a run begins to the bytes of what is wanted, and where the run ends."""


@dataclass(frozen=True, slots=True)
class Single:
    """A field that is taken; ``present`` is the branch of a nullable field that is not null."""

    name: str
    value: Value
    present: int | None


@dataclass(frozen=True, slots=True)
class Run:
    """How to take neighbouring fields.

    Parameters
    ----------
    parts : tuple of Single
        What is taken, in order.
    pattern : bytes or None
        Expression with a group for each of these; None where there is none.
    slowly : Take
        Takes the fields one by one.
    """

    parts: tuple[Single, ...]
    pattern: bytes | None
    slowly: Take

    @property
    def names(self) -> frozenset[str]:
        """The fields that are taken."""
        return frozenset(part.name for part in self.parts)

    def compiled(self) -> Take:
        """The fastest way to take them."""
        fits, slowly = self._matcher(), self.slowly

        def take(value: bytes, at: int) -> tuple[Sequence[bytes], int]:
            match = fits(value, at)
            return (match.groups(NULL), match.end()) if match else slowly(value, at)

        return take

    def _matcher(self) -> Callable[[bytes, int], re.Match[bytes] | None]:
        if self.pattern is None:
            return lambda *_: None
        return re.compile(self.pattern, re.DOTALL).match


class Fields:
    """Makes the runs of the records of one schema.

    Parameters
    ----------
    schema : WriterSchema
    """

    def __init__(self, schema: WriterSchema) -> None:
        self._schema = schema
        self.sizes = ItemSizes(schema)
        self._patterns = Patterns(schema, self.sizes)
        self.skips = Skips(schema, self.sizes, self._to_compile)

    def _to_compile(self, avro_type: AvroType) -> bytes | None:
        return self._patterns.to_compile(self._patterns.of(avro_type))

    def has_pattern(self, avro_type: AvroType) -> bool:
        """Whether a field of this type can be part of an expression."""
        return self._patterns.of(avro_type) is not None

    def runs(self, fields: Sequence[Mapping[str, Any]], leaves: Mapping[str, Leaf]) -> list[Run]:
        """As many runs as it takes, where the expression of all fields in one would be too long."""
        whole = self.run(fields, leaves)
        half = len(fields) // 2
        if whole.pattern is not None or not half or not self.has_pattern(fields[0]["type"]):
            return [whole]
        return self.runs(fields[:half], leaves) + self.runs(fields[half:], leaves)

    def run(self, fields: Sequence[Mapping[str, Any]], leaves: Mapping[str, Leaf]) -> Run:
        """Make the run of these fields of a record, of which some are wanted as leaves."""
        types = [field["type"] for field in fields]
        parts = [self._single(field, leaves.get(field["name"])) for field in fields]
        return Run(
            tuple(part for part in parts if part is not None),
            self._patterns.to_compile(self._pattern(types, parts)),
            _one_by_one(list(zip(parts, map(self.skips.of, types), strict=True))),
        )

    def _single(self, field: Mapping[str, Any], leaf: Leaf | None) -> Single | None:
        if leaf is None:
            return None
        name, (kind, definition) = field["name"], self._schema.resolve(field["type"])
        if kind != "union" or not isinstance(definition, list):
            value = value_of(self._schema, field["type"], leaf)
            return None if value is None else Single(name, value, None)
        values = [value_of(self._schema, branch, leaf) for branch in definition]
        if not any(values):
            return None
        if len(definition) == 2 and "null" in definition:
            present = 1 - definition.index("null")
            value = values[present]
            return None if value is None else Single(name, value, present)
        return Single(name, any_branch(leaf, values), None)

    def _pattern(self, types: Sequence[AvroType], parts: Sequence[Single | None]) -> bytes | None:
        made: list[bytes | None] = []
        for part, group in groupby(zip(parts, types, strict=True), lambda step: step[0]):
            of = [avro_type for _, avro_type in group]
            made.append(self._group(of[0], part) if part else self._patterns.sequence(of))
        return joined(made)

    def _group(self, avro_type: AvroType, want: Single) -> bytes | None:
        """Expression of one field with a group around what is wanted of it."""
        _, definition = self._schema.resolve(avro_type)
        if want.present is None or not isinstance(definition, list):
            whole = self._patterns.of(avro_type)
            return None if whole is None else b"(" + whole + b")"
        inner = self._patterns.of(definition[want.present])
        return None if inner is None else _or_null(b"(" + inner + b")", want.present)


def _or_null(pattern: bytes, present: int) -> bytes:
    """Expression of a union of null and of what a pattern describes, at branch ``present``."""
    null, there = branch_tag(1 - present), branch_tag(present) + pattern
    return b"(?:" + there + b"|" + null + b")"


def _one_by_one(steps: Sequence[tuple[Single | None, Skip]]) -> Take:
    def take(value: bytes, at: int) -> tuple[Sequence[bytes], int]:
        raws = []
        for part, skip in steps:
            start, at = at, skip(value, at)
            if part is not None:
                raws.append(_inner(value[start:at], part.present))
        return raws, at

    return take


def _inner(raw: bytes, present: int | None) -> bytes:
    """The bytes of a value without its branch's number; `NULL` where it is null."""
    if present is None:
        return raw
    index, at = read_branch(raw, 0, 2)
    return raw[at:] if index == present else NULL
