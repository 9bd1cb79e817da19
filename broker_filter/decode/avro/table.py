"""The table of a list: the steps over its items, and the columns that come of them.

A list has a table if each field of its items is a number, a text, or of a fixed size, or null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.avro.items import ROWS_OF_TEXT, Kind, no_texts
from broker_filter.decode.avro.schema import AvroType, WriterSchema
from broker_filter.decode.avro.skip import ItemSizes
from broker_filter.decode.avro.values import Value, value_of
from broker_filter.decode.selection import MISSING, Leaf, Many, missing_column
from broker_filter.types import IntArray

__all__ = ["Oldest", "Table", "table_of"]

Oldest: TypeAlias = Mapping[Any, float]
"""By band, as the packet writes it, the time from which on epochs are wanted; others all are."""

_ANY_TIME: Final = float("-inf")

_NULLS: Final[Mapping[Leaf, int]] = {
    "f8": int(np.float64(MISSING["f8"]).view(np.int64)),
    "i8": MISSING["i8"],
    "bool": 0,
    "str": -1,  # the last of the texts
}
"""Cells of `MISSING`, by leaves in the order of their columns."""

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


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of an item: ``size`` is 0 if it varies, ``present`` -1 if there is no null."""

    name: str
    kind: Kind
    size: int
    present: int
    value: Value | None

    @property
    def least(self) -> int:
        """Bytes that it takes at least."""
        return 1 if self.present >= 0 or self.kind >= Kind.NUMBER else self.size


class Table:
    """How the items of a list become columns.

    Parameters
    ----------
    fields : sequence of _Field
        Of an item, in order.
    many : Many

    Attributes
    ----------
    steps : ndarray, shape (fields, 5), int64
        For `broker_filter.decode.avro.items.take_items`.
    height : int
        Rows of cells.
    least : int
        Bytes that an item takes at least.
    """

    def __init__(self, fields: Sequence[_Field], many: Many) -> None:
        values = {field.name: field.value for field in fields if field.value is not None}
        self._many, self._values = many, values
        self._names: dict[Leaf, list[str]] = {}
        self._rows: dict[Leaf, slice] = {}
        self._row: dict[str, int] = {}
        self.height = 0
        for leaf in _NULLS:
            names = [name for name, value in values.items() if value.leaf == leaf]
            each = ROWS_OF_TEXT if leaf == "str" else 1
            rows = range(self.height, self.height + each * len(names), each)
            self._names[leaf], self._rows[leaf] = names, slice(rows.start, rows.stop, each)
            self._row.update(zip(names, rows, strict=True))
            self.height = rows.stop
        self.steps = np.array([self._step(field) for field in fields], np.int64).reshape(-1, 5)
        self.least = sum(field.least for field in fields)
        self._no_texts = no_texts(len(self._names["str"]))

    def _step(self, field: _Field) -> tuple[int, int, int, int, int]:
        if field.value is None:
            return field.kind, field.size, field.present, -1, 0
        leaf = field.value.leaf
        size = self._names["str"].index(field.name) if leaf == "str" else field.size
        return field.kind, size, field.present, self._row[field.name], _NULLS[leaf]

    def no_texts(self) -> IntArray:
        """The texts that were met in no item yet."""
        return self._no_texts.copy()

    def columns(
        self, value: bytes, cells: IntArray, met: IntArray, oldest: Oldest
    ) -> dict[str, NDArray[Any]]:
        """The columns of all items that are wanted.

        Parameters
        ----------
        value : bytes
            Of the packet.
        cells : ndarray, shape (height, items), int64
        met : ndarray
            The texts that were met.
        oldest : Oldest
            Empty if all items are wanted.
        """
        rows, names = self._rows, self._names
        texts = {
            name: self._texts(name, value, cells, count)
            for name, count in zip(names["str"], met[:, -1].tolist(), strict=True)
        }
        if oldest and self._many.time in names["f8"] and self._many.band in texts:
            cells = cells[:, self._wanted(cells, texts[self._many.band], oldest)]
        columns = {
            name: missing_column(leaf, cells.shape[1])
            for name, leaf in self._many.fields.items()
            if name not in self._values
        }
        columns.update(zip(names["f8"], cells[rows["f8"]].view(np.float64), strict=True))
        columns.update(zip(names["i8"], cells[rows["i8"]], strict=True))
        columns.update(zip(names["bool"], cells[rows["bool"]] != 0, strict=True))
        columns.update((name, known[cells[self._row[name]]]) for name, known in texts.items())
        return columns

    def _texts(self, name: str, value: bytes, cells: IntArray, count: int) -> NDArray[Any]:
        """The unlike texts of a column, by number; the last stands for null."""
        row, one = self._row[name], self._values[name].one
        starts, ends = cells[row + 1 : row + ROWS_OF_TEXT, :count].tolist()
        texts = [one(value[start:end]) for start, end in zip(starts, ends, strict=True)]
        return np.array([*texts, MISSING["str"]], np.object_)

    def _wanted(self, cells: IntArray, bands: NDArray[Any], oldest: Oldest) -> NDArray[np.bool_]:
        """Which items are not older than what is wanted of their band."""
        time = cells[self._row[self._many.time]].view(np.float64)
        limits = np.array([oldest.get(band, _ANY_TIME) for band in bands])
        # A time that is NaN is not older.
        return np.asarray(~(time < limits[cells[self._row[self._many.band]]]))


def table_of(schema: WriterSchema, sizes: ItemSizes, items: AvroType, many: Many) -> Table | None:
    """The table of a list whose items are of a type; None where they are not as simple."""
    kind, definition = schema.resolve(items)
    if kind != "record" or not isinstance(definition, Mapping):
        return None
    fields = []
    for given in definition["fields"]:
        leaf = many.fields.get(given["name"])
        field = _field(schema, sizes, given["name"], given["type"], leaf)
        if field is None:
            return None
        fields.append(field)
    return Table(fields, many)


def _field(
    schema: WriterSchema, sizes: ItemSizes, name: str, avro_type: AvroType, leaf: Leaf | None
) -> _Field | None:
    present = -1
    kind, definition = schema.resolve(avro_type)
    if kind == "union" and isinstance(definition, list):
        if len(definition) != 2 or "null" not in definition:
            return None
        present = 1 - definition.index("null")
        avro_type = definition[present]
        kind, definition = schema.resolve(avro_type)
    size, value = sizes.of(avro_type), leaf and value_of(schema, avro_type, leaf)
    if leaf and value:
        return _Field(name, _TAKEN[kind, leaf], size or 0, present, value)
    passed = _PASSED.get(kind) if size is None else Kind.FIXED
    return None if passed is None else _Field(name, passed, size or 0, present, None)
