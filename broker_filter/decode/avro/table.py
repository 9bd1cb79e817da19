"""The table of fields that there are steps over: cells, and the columns that come of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.avro.items import ROWS_OF_TEXT, no_texts
from broker_filter.decode.avro.steps import Field
from broker_filter.decode.selection import MISSING, Leaf, Many, missing_column
from broker_filter.types import IntArray

__all__ = ["Oldest", "Table"]

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


class Table:
    """How fields of a record, or of the items of a list, become columns.

    Parameters
    ----------
    fields : sequence of Field
        In order.
    many : Many
        What is wanted of a list.

    Attributes
    ----------
    steps : ndarray, shape (fields, 5), int64
        For `broker_filter.decode.avro.items.take_items`.
    height : int
        Rows of cells.
    least : int
        Bytes that an item takes at least.
    names : frozenset of str
        The fields that are wanted.
    """

    def __init__(self, fields: Sequence[Field], many: Many) -> None:
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
        self.names = frozenset(values)
        self._no_texts = no_texts(len(self._names["str"]))

    def _step(self, field: Field) -> tuple[int, int, int, int, int]:
        if field.value is None:
            return field.kind, field.size, field.present, -1, 0
        leaf = field.value.leaf
        size = self._names["str"].index(field.name) if leaf == "str" else field.size
        return field.kind, size, field.present, self._row[field.name], _NULLS[leaf]

    def no_texts(self) -> IntArray:
        """The texts that were met in no item yet."""
        return self._no_texts.copy()

    def values(self, value: bytes, cells: IntArray) -> dict[str, Any]:
        """What is wanted of the one item in ``cells``; see `columns`."""
        rows, names, numbers = self._rows, self._names, cells[:, 0].tolist()
        values: dict[str, Any] = dict(
            zip(names["f8"], cells[rows["f8"], 0].view(np.float64).tolist(), strict=True)
        )
        values.update(zip(names["i8"], numbers[rows["i8"]], strict=True))
        values.update(zip(names["bool"], map(bool, numbers[rows["bool"]]), strict=True))
        for name in names["str"]:
            number, start, end = numbers[self._row[name] : self._row[name] + ROWS_OF_TEXT]
            known = number != _NULLS["str"]
            values[name] = self._values[name].one(value[start:end]) if known else MISSING["str"]
        return values

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
