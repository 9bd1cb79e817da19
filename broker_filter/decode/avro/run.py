"""Runs: neighbouring fields of a record that are taken in one step.

Taking a run gives the bytes of each field that is wanted, without the number of the branch where
the field may be null (`NULL` stands for null). That happens in one match of a regular expression
if it can, and field by field if not. In the items of a list, stretches of fields of one fixed size
are taken as a `Block`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

from broker_filter.decode.avro.block import Block
from broker_filter.decode.avro.pattern import Patterns, branch_tag, joined
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.skip import ItemSizes, Skip, Skips, read_branch
from broker_filter.decode.avro.values import NULL, Value, any_branch, value_of
from broker_filter.decode.selection import Leaf

__all__ = ["Fields", "Rows", "Run", "Single", "Take", "TakeMany"]

Take: TypeAlias = Callable[[bytes, int], tuple[Sequence[bytes], int]]
"""From where a run begins to the bytes of what is wanted, and where the run ends."""

Rows: TypeAlias = list[Sequence[bytes]]

TakeMany: TypeAlias = Callable[[bytes, int, int, Rows], int]
"""Adds what is wanted of so many runs, one behind the other, and finds where they end."""


@dataclass(frozen=True, slots=True)
class Single:
    """A field that is taken; ``present`` is the branch of a nullable field that is not null."""

    name: str
    value: Value
    present: int | None

    @property
    def names(self) -> tuple[str | None, ...]:
        """Its name."""
        return (self.name,)

    def whole(self, inner: Sequence[bytes]) -> bytes:
        """The bytes of the one value, without the branch's number."""
        return inner[0]


Part: TypeAlias = Single | Block


@dataclass(frozen=True, slots=True)
class _Step:
    """Fields of these types that are taken as one part, or passed over."""

    part: Part | None
    types: Sequence[AvroType]


@dataclass(frozen=True, slots=True)
class Run:
    """How to take neighbouring fields.

    Parameters
    ----------
    parts : tuple of Single or Block
        What is taken, in order.
    pattern : bytes or None
        Expression with a group for each of these; None where there is none.
    slowly : Take
        Takes the fields one by one.
    """

    parts: tuple[Part, ...]
    pattern: bytes | None
    slowly: Take

    @property
    def names(self) -> frozenset[str]:
        """The fields that are taken."""
        return frozenset(name for part in self.parts for name in part.names if name is not None)

    @property
    def singles(self) -> list[tuple[int, Single]]:
        """The parts that are one field, each with its index in what is taken."""
        return [(i, part) for i, part in enumerate(self.parts) if isinstance(part, Single)]

    @property
    def blocks(self) -> list[tuple[int, Block]]:
        """The other parts."""
        return [(i, part) for i, part in enumerate(self.parts) if isinstance(part, Block)]

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

    def item(
        self, items: AvroType, leaves: Mapping[str, Leaf], alone: Collection[str] = ()
    ) -> Run | None:
        """Make the run that is a whole item of a list; None where an item is not as simple.

        Fields that are wanted ``alone`` are not made part of a block.
        """
        kind, definition = self._schema.resolve(items)
        if not self.has_pattern(items) or isinstance(definition, str):
            return None
        if kind == "record" and isinstance(definition, Mapping):
            return self._run(list(self._stretches(definition["fields"], leaves, alone)))
        if not isinstance(definition, list) or len(definition) != 2 or "null" not in definition:
            return None
        present = 1 - definition.index("null")
        inner = self.item(definition[present], leaves, alone)
        return None if inner is None else _nullable(inner, present)

    def run(self, fields: Sequence[Mapping[str, Any]], leaves: Mapping[str, Leaf]) -> Run:
        """Make the run of these fields of a record, of which some are wanted as leaves."""
        return self._run([self._step(field, leaves) for field in fields])

    def _run(self, steps: Sequence[_Step]) -> Run:
        return Run(
            tuple(step.part for step in steps if step.part is not None),
            self._patterns.to_compile(self._pattern(steps)),
            _one_by_one([(step.part, list(map(self.skips.of, step.types))) for step in steps]),
        )

    def _step(self, field: Mapping[str, Any], leaves: Mapping[str, Leaf]) -> _Step:
        return _Step(self._single(field, leaves.get(field["name"])), [field["type"]])

    def _stretches(
        self,
        fields: Sequence[Mapping[str, Any]],
        leaves: Mapping[str, Leaf],
        alone: Collection[str],
    ) -> Iterator[_Step]:
        """Fields one by one, but for stretches of one fixed size, which are made blocks."""

        def kind(field: Mapping[str, Any]) -> tuple[Value, int | None] | None:
            return None if field["name"] in alone else self._fixed(field)

        for fixed, group in groupby(fields, kind):
            steps = [self._step(field, leaves) for field in group]
            yield from steps if fixed is None else _blocked(steps, *fixed)

    def _fixed(self, field: Mapping[str, Any]) -> tuple[Value, int | None] | None:
        """How a field of a fixed size is read, and its branch, whether it is wanted or not."""
        # Whatever is of a fixed size can be read as one of these, or not at all.
        single = self._single(field, "f8") or self._single(field, "bool")
        return (single.value, single.present) if single and single.value.dtype else None

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

    def _pattern(self, steps: Sequence[_Step]) -> bytes | None:
        parts: list[bytes | None] = []
        for part, group in groupby(steps, lambda step: step.part):
            types = [avro_type for step in group for avro_type in step.types]
            if isinstance(part, Single):
                parts.append(self._group(types[0], part))
            else:
                whole = self._patterns.sequence(types)
                parts.append(whole if part is None or whole is None else b"(" + whole + b")")
        return joined(parts)

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


def _nullable(run: Run, present: int) -> Run:
    def slowly(value: bytes, at: int) -> tuple[Sequence[bytes], int]:
        index, at = read_branch(value, at, 2)
        return run.slowly(value, at) if index == present else ([NULL] * len(run.parts), at)

    pattern = None if run.pattern is None else _or_null(run.pattern, present)
    return replace(run, pattern=pattern, slowly=slowly)


def _blocked(steps: list[_Step], value: Value, present: int | None) -> list[_Step]:
    """Put all from the first to the last field that is wanted into one block."""
    names = [step.part.names[0] if step.part else None for step in steps]
    taken = [i for i, name in enumerate(names) if name is not None]
    if len(taken) < 2:
        return steps
    first, end = taken[0], taken[-1] + 1
    block = Block(tuple(names[first:end]), value, present)
    types = [avro_type for step in steps[first:end] for avro_type in step.types]
    return [*steps[:first], _Step(block, types), *steps[end:]] if block.fits else steps


def _one_by_one(steps: Sequence[tuple[Part | None, Sequence[Skip]]]) -> Take:
    def take(value: bytes, at: int) -> tuple[Sequence[bytes], int]:
        raws = []
        for part, skips in steps:
            inner = []
            for skip in skips:
                start, at = at, skip(value, at)
                if part is not None:
                    inner.append(_inner(value[start:at], part.present))
            if part is not None:
                raws.append(part.whole(inner))
        return raws, at

    return take


def _inner(raw: bytes, present: int | None) -> bytes:
    """The bytes of a value without its branch's number; `NULL` where it is null."""
    if present is None:
        return raw
    index, at = read_branch(raw, 0, 2)
    return raw[at:] if index == present else NULL
