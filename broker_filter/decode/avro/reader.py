"""Read what is selected of an Avro record, and nothing else, into values and columns.

A reader is compiled once for a schema and a selection: into steps, which a compiled loop follows
over stretches of a record's fields and over the items of a history
(`broker_filter.decode.avro.items`). What there is no step over is passed over value by value;
cutouts are jumped over. What comes out is what `select` makes of the record that fastavro reads,
except that fields within a map cannot be selected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from broker_filter.decode.avro.lists import (
    Known,
    ValueReader,
    read_records,
    read_row,
    read_table,
)
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.skip import MANY_FIELDS, Skip, Skips, read_branch
from broker_filter.decode.avro.steps import Fields
from broker_filter.decode.avro.table import Oldest, Table
from broker_filter.decode.avro.values import Value, value_of
from broker_filter.decode.selection import Leaf, Many, Selection, absent, select
from broker_filter.errors import PoisonMessage, SchemaError

__all__ = ["RecordReader"]

Record: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[bytes, int, Record, Known | None], int]

_ALL: Oldest = {}


class RecordReader:
    """Reads the fields of one selection from records of one schema.

    Parameters
    ----------
    schema : WriterSchema
    selection : Selection

    Raises
    ------
    SchemaError
        The schema's types are nested too deep.
    """

    def __init__(self, schema: WriterSchema, selection: Selection) -> None:
        self._name = schema.name
        try:
            self._read = _Compiler(schema).record(schema.root["fields"], selection)
        except (RecursionError, OverflowError):
            raise SchemaError(f"schema {schema.name} is nested too deep or too large") from None

    def read(self, value: bytes, known: Known | None = None) -> dict[str, Any]:
        """Read one record that must fill its bytes exactly.

        Parameters
        ----------
        value : bytes
        known : Known, optional
            Which epochs need not be read.

        Raises
        ------
        PoisonMessage
            ``truncated``, ``trailing_bytes``, ``undecodable``, or ``too_many_items``.
        """
        record, end = self.read_from(value, 0, known)
        if end != len(value):
            raise PoisonMessage(
                "trailing_bytes", f"{self._name} record ends at byte {end} of {len(value)}"
            )
        return record

    def read_from(
        self, value: bytes, at: int, known: Known | None = None
    ) -> tuple[dict[str, Any], int]:
        """Read one record that begins at a byte, and find at which it ends.

        Raises
        ------
        PoisonMessage
            As `read`, except for ``trailing_bytes``.
        """
        try:
            return self._read(value, at, known)
        except IndexError:
            raise PoisonMessage(
                "truncated", f"{self._name} record ends before its last field ({len(value)} bytes)"
            ) from None
        except (ValueError, RecursionError) as error:
            raise PoisonMessage("undecodable", f"not a {self._name} record: {error}") from error


class _Compiler:
    """Makes the readers of one schema."""

    def __init__(self, schema: WriterSchema) -> None:
        self._schema = schema
        self._fields = Fields(schema)
        self._skips = Skips(schema, self._fields)

    def record(
        self, fields: Sequence[Mapping[str, Any]], selection: Selection
    ) -> Callable[[bytes, int, Known | None], tuple[Record, int]]:
        """Reader of a record with a selection of its own."""
        leaves = {name: want for name, want in selection.items() if isinstance(want, str)}
        others = set(selection) - set(leaves)
        steps: list[Step] = []
        found: set[str] = set()
        for plain, group in groupby(fields, lambda field: self._plain(field, others)):
            stretch = list(group)
            many = plain and len(stretch) >= MANY_FIELDS
            taken = self._fields.record(stretch, leaves) if many else None
            if taken is None:
                steps += [self._step(field, selection.get(field["name"])) for field in stretch]
                found.update(field["name"] for field in stretch)
            else:
                table = Table(taken, Many({}))
                steps.append(_leaves(table))
                found |= table.names
        missing = {name: want for name, want in selection.items() if name not in found}

        def read(value: bytes, at: int, known: Known | None) -> tuple[Record, int]:
            record = select({}, missing)
            for step in steps:
                at = step(value, at, record, known)
            return record, at

        return read

    def _plain(self, field: Mapping[str, Any], others: Collection[str]) -> bool:
        return field["name"] not in others and self._fields.of(field["type"]) is not None

    def _step(self, field: Mapping[str, Any], want: Leaf | Many | Selection | None) -> Step:
        """Step over a field of any type."""
        if want is None:
            return _over(self._skips.of(field["type"]))
        name, reader = field["name"], self._reader(field["type"], want)
        timed = isinstance(want, Many) and bool(want.time)

        def step(value: bytes, at: int, record: Record, known: Known | None) -> int:
            record[name], at = reader(value, at, known(record) if known and timed else _ALL)
            return at

        return step

    def _reader(self, avro_type: AvroType, want: Leaf | Many | Selection) -> ValueReader:
        """Reader of what is wanted, wherever a type allows for it."""
        kind, definition = self._schema.resolve(avro_type)
        if kind == "union" and isinstance(definition, list):
            return _by_branch([self._reader(branch, want) for branch in definition])
        if kind == "array" and isinstance(definition, Mapping) and isinstance(want, Many):
            return self._list(definition["items"], want)
        if kind == "record" and isinstance(definition, Mapping) and isinstance(want, Mapping):
            record = self.record(definition["fields"], want)
            return lambda value, at, _: record(value, at, None)
        skip = self._skips.of(avro_type)
        leaf = value_of(self._schema, avro_type, want) if isinstance(want, str) else None
        if leaf is not None:
            return _one(leaf, skip)
        return lambda value, at, _: (absent(want), skip(value, at))

    def _list(self, items: AvroType, many: Many) -> ValueReader:
        kind, definition = self._schema.resolve(items)
        if kind == "record" and isinstance(definition, Mapping):
            fields = self._fields.record(definition["fields"], many.fields)
            if fields is not None:
                return read_table(Table(fields, many))
        item = self._reader(items, many.fields)
        return read_records(item, many, takes_bytes=self._fields.size(items) != 0)


def _over(skip: Skip) -> Step:
    return lambda value, at, _record, _known: skip(value, at)


def _leaves(table: Table) -> Step:
    """Step over a stretch of fields, of which some are leaves."""
    read = read_row(table)

    def step(value: bytes, at: int, record: Record, _: Known | None) -> int:
        leaves, at = read(value, at, _ALL)
        record.update(leaves)
        return at

    return step


def _one(leaf: Value, skip: Skip) -> ValueReader:
    def read(value: bytes, at: int, _: Oldest) -> tuple[Any, int]:
        end = skip(value, at)
        return leaf.one(value[at:end]), end

    return read


def _by_branch(readers: Sequence[ValueReader]) -> ValueReader:
    def read(value: bytes, at: int, oldest: Oldest) -> tuple[Any, int]:
        index, at = read_branch(value, at, len(readers))
        return readers[index](value, at, oldest)

    return read
