"""Runs: neighbouring fields of a record that are taken in one step.

Taking a run gives the bytes of each field that is wanted, without the number of the branch where
the field may be null (`NULL` stands for null). That happens in one match of a regular expression
if it can, and field by field if not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

from broker_filter.avro.pattern import Patterns, branch_tag, joined
from broker_filter.avro.schema import AvroType, WriterSchema
from broker_filter.avro.skip import Sizes, Skip, Skips, read_branch
from broker_filter.avro.values import NULL, Value, any_branch, value_of
from broker_filter.packet import Leaf

__all__ = ["Fields", "Rows", "Run", "Take", "TakeMany"]

Take: TypeAlias = Callable[[bytes, int], tuple[Sequence[bytes], int]]
"""From where a run begins to the bytes of what is wanted, and where the run ends."""

Rows: TypeAlias = list[Sequence[bytes]]

TakeMany: TypeAlias = Callable[[bytes, int, int, Rows], int]
"""Adds what is wanted of so many runs, one behind the other, and tells where they end."""


@dataclass(frozen=True, slots=True)
class Run:
    """How to take neighbouring fields.

    Parameters
    ----------
    names, values : tuple
        Of the fields that are wanted, in order.
    pattern : bytes or None
        Expression with a group for each of these; None where there is none.
    slowly : Take
        Takes the fields one by one.
    """

    names: tuple[str, ...]
    values: tuple[Value, ...]
    pattern: bytes | None
    slowly: Take

    def compiled(self) -> Take:
        """The fastest way to take them."""
        fits, slowly = self._matcher(), self.slowly

        def take(value: bytes, at: int) -> tuple[Sequence[bytes], int]:
            match = fits(value, at)
            return (match.groups(NULL), match.end()) if match else slowly(value, at)

        return take

    def repeated(self) -> TakeMany:
        """The fastest way to take many of them, as the items of a list are."""
        fits, slowly = self._matcher(), self.slowly

        def take_many(value: bytes, at: int, count: int, rows: Rows) -> int:
            for _ in range(count):
                match = fits(value, at)
                if match is None:
                    raws, at = slowly(value, at)
                else:
                    raws, at = match.groups(NULL), match.end()
                rows.append(raws)
            return at

        return take_many

    def _matcher(self) -> Callable[[bytes, int], re.Match[bytes] | None]:
        if self.pattern is None:
            return lambda *_: None
        return re.compile(self.pattern, re.DOTALL).match


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A field that is wanted; ``present`` is the branch of a nullable field that is not null."""

    name: str
    value: Value
    present: int | None

    def inner(self, raw: bytes) -> bytes:
        """The bytes without the branch's number."""
        if self.present is None:
            return raw
        index, at = read_branch(raw, 0, 2)
        return raw[at:] if index == self.present else NULL


class Fields:
    """Makes the runs of the records of one schema.

    Parameters
    ----------
    schema : WriterSchema
    """

    def __init__(self, schema: WriterSchema) -> None:
        self._schema = schema
        self.sizes = Sizes(schema)
        self._patterns = Patterns(schema, self.sizes)
        self.skips = Skips(schema, self.sizes, self._patterns.of)

    def has_pattern(self, avro_type: AvroType) -> bool:
        """Whether a field of this type can be part of an expression."""
        return self._patterns.of(avro_type) is not None

    def runs(self, fields: Sequence[Mapping[str, Any]], wants: Mapping[str, Leaf]) -> list[Run]:
        """As many runs as it takes, where the expression of all fields in one would be too long."""
        whole = self.run(fields, wants)
        half = len(fields) // 2
        if whole.pattern is not None or not half or not self.has_pattern(fields[0]["type"]):
            return [whole]
        return self.runs(fields[:half], wants) + self.runs(fields[half:], wants)

    def item(self, items: AvroType, wants: Mapping[str, Leaf]) -> Run | None:
        """Make the run that is a whole item of a list; None where an item is not as simple."""
        kind, definition = self._schema.resolve(items)
        if not self.has_pattern(items) or isinstance(definition, str):
            return None
        if kind == "record" and isinstance(definition, Mapping):
            return self.run(definition["fields"], wants)
        if not isinstance(definition, list) or len(definition) != 2 or "null" not in definition:
            return None
        present = 1 - definition.index("null")
        inner = self.item(definition[present], wants)
        return None if inner is None else _nullable(inner, present)

    def run(self, fields: Sequence[Mapping[str, Any]], wants: Mapping[str, Leaf]) -> Run:
        """Make the run of these fields of a record, of which some are wanted as leaves."""
        wanted = [self._wanted(field, wants.get(field["name"])) for field in fields]
        known = [want for want in wanted if want is not None]
        return Run(
            tuple(want.name for want in known),
            tuple(want.value for want in known),
            self._pattern([field["type"] for field in fields], wanted),
            _one_by_one([self.skips.of(field["type"]) for field in fields], wanted),
        )

    def _wanted(self, field: Mapping[str, Any], leaf: Leaf | None) -> _Wanted | None:
        if leaf is None:
            return None
        name, (kind, definition) = field["name"], self._schema.resolve(field["type"])
        if kind != "union" or not isinstance(definition, list):
            value = value_of(self._schema, field["type"], leaf)
            return None if value is None else _Wanted(name, value, None)
        values = [value_of(self._schema, branch, leaf) for branch in definition]
        if not any(values):
            return None
        if len(definition) == 2 and "null" in definition:
            present = 1 - definition.index("null")
            value = values[present]
            return None if value is None else _Wanted(name, value, present)
        return _Wanted(name, any_branch(leaf, values), None)

    def _pattern(self, types: Sequence[AvroType], wanted: Sequence[_Wanted | None]) -> bytes | None:
        parts: list[bytes | None] = []
        pairs = zip(types, wanted, strict=True)
        for want, group in groupby(pairs, lambda pair: pair[1]):
            run = [avro_type for avro_type, _ in group]
            parts.append(
                self._patterns.sequence(run) if want is None else self._group(run[0], want)
            )
        return joined(parts)

    def _group(self, avro_type: AvroType, want: _Wanted) -> bytes | None:
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


def _nullable(run: Run, present: int) -> Run:
    def slowly(value: bytes, at: int) -> tuple[Sequence[bytes], int]:
        index, at = read_branch(value, at, 2)
        return run.slowly(value, at) if index == present else ([NULL] * len(run.names), at)

    pattern = None if run.pattern is None else _or_null(run.pattern, present)
    return replace(run, pattern=pattern, slowly=slowly)


def _one_by_one(skips: Sequence[Skip], wanted: Sequence[_Wanted | None]) -> Take:
    fields = list(zip(skips, wanted, strict=True))

    def take(value: bytes, at: int) -> tuple[Sequence[bytes], int]:
        raws = []
        for skip, want in fields:
            start, at = at, skip(value, at)
            if want is not None:
                raws.append(want.inner(value[start:at]))
        return raws, at

    return take
