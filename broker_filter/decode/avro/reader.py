"""Read what is selected of an Avro record, and nothing else, into values and columns.

A reader is compiled once for a schema and a selection. It walks over a record's bytes in *runs* of
neighbouring fields, each of which is one match of a regular expression
(`broker_filter.decode.avro.run`); cutouts are jumped over. The items of a history become columns in
one compiled loop (`broker_filter.decode.avro.items`). What comes out is what `select` makes of the
record that fastavro reads, except that fields within a map cannot be selected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from broker_filter.decode.avro.lists import Known, ValueReader, read_records, read_table
from broker_filter.decode.avro.run import Fields, Run
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.skip import read_branch
from broker_filter.decode.avro.table import Oldest, table_of
from broker_filter.decode.avro.values import NULL
from broker_filter.decode.selection import MISSING, Leaf, Many, Selection, absent, select
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
        except (RecursionError, OverflowError, re.error):
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
            with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
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

    def record(
        self, fields: Sequence[Mapping[str, Any]], selection: Selection
    ) -> Callable[[bytes, int, Known | None], tuple[Record, int]]:
        """Reader of a record with a selection of its own."""
        leaves = {name: want for name, want in selection.items() if isinstance(want, str)}
        nested = {field["name"] for field in fields} & (set(selection) - set(leaves))
        steps: list[Step] = []
        found = set(nested)
        for kind, group in groupby(fields, lambda field: self._kind(field, nested)):
            if kind == "nested":
                steps += [self._nested(field, selection[field["name"]]) for field in group]
            else:
                runs = self._fields.runs(list(group), leaves)
                steps += map(_leaves, runs)
                found.update(*(run.names for run in runs))
        missing = {name: want for name, want in selection.items() if name not in found}

        def read(value: bytes, at: int, known: Known | None) -> tuple[Record, int]:
            record = select({}, missing)
            for step in steps:
                at = step(value, at, record, known)
            return record, at

        return read

    def _kind(self, field: Mapping[str, Any], nested: set[str]) -> str:
        if field["name"] in nested:
            return "nested"
        return "run" if self._fields.has_pattern(field["type"]) else "rest"

    def _nested(self, field: Mapping[str, Any], want: Leaf | Many | Selection) -> Step:
        """Step over a field that is a list or a record, or should be."""
        name, reader = field["name"], self._reader(field["type"], want)
        timed = isinstance(want, Many) and bool(want.time)

        def step(value: bytes, at: int, record: Record, known: Known | None) -> int:
            record[name], at = reader(value, at, known(record) if known and timed else _ALL)
            return at

        return step

    def _reader(self, avro_type: AvroType, want: Leaf | Many | Selection) -> ValueReader:
        """Reader of a list or a record, wherever a type allows for one."""
        kind, definition = self._schema.resolve(avro_type)
        if kind == "union" and isinstance(definition, list):
            return _by_branch([self._reader(branch, want) for branch in definition])
        if kind == "array" and isinstance(definition, Mapping) and isinstance(want, Many):
            return self._list(definition["items"], want)
        if kind == "record" and isinstance(definition, Mapping) and isinstance(want, Mapping):
            record = self.record(definition["fields"], want)
            return lambda value, at, _: record(value, at, None)
        skip = self._fields.skips.of(avro_type)
        return lambda value, at, _: (absent(want), skip(value, at))

    def _list(self, items: AvroType, many: Many) -> ValueReader:
        sizes = self._fields.sizes
        table = table_of(self._schema, sizes, items, many)
        if table is not None:
            return read_table(table)
        item = self._reader(items, many.fields)
        return read_records(item, many, takes_bytes=sizes.of(items) != 0)


def _leaves(run: Run) -> Step:
    """Step over a run of fields, of which some are leaves."""
    take = run.compiled()
    wanted = [(part.name, part.value.one, MISSING[part.value.leaf]) for part in run.parts]

    def step(value: bytes, at: int, record: Record, _: Known | None) -> int:
        raws, at = take(value, at)
        for (name, one, missing), raw in zip(wanted, raws, strict=True):
            record[name] = missing if raw == NULL else one(raw)
        return at

    return step


def _by_branch(readers: Sequence[ValueReader]) -> ValueReader:
    def read(value: bytes, at: int, oldest: Oldest) -> tuple[Any, int]:
        index, at = read_branch(value, at, len(readers))
        return readers[index](value, at, oldest)

    return read
