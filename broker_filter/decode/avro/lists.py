"""Read a list of Avro records, such as a star's history, into columns.

Where a list holds the time and the band of its items, those that are known already are left out: of
a star that is tracked, most of each packet is its own past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.avro.items import take_items
from broker_filter.decode.avro.skip import block_head
from broker_filter.decode.avro.table import Oldest, Table
from broker_filter.decode.selection import MAX_ITEMS, MISSING, Many, column, too_many_items
from broker_filter.types import IntArray

__all__ = ["Known", "ValueReader", "read_records", "read_row", "read_table"]

Known: TypeAlias = Callable[[Mapping[str, Any]], Oldest]
"""From what was read of a packet before a list to what of that list is wanted."""

ValueReader: TypeAlias = Callable[[bytes, int, Oldest], tuple[Any, int]]
"""From where a value begins to what is selected of it, and where it ends."""

MAX_EMPTY_ITEMS: Final = 100
"""Most items that take no byte: nothing else bounds how many a short message may claim."""


def read_row(table: Table) -> ValueReader:
    """Reader of a record, or a part of one, that has a table: into values."""

    def read(value: bytes, at: int, _: Oldest) -> tuple[dict[str, Any], int]:
        met, cells = table.no_texts(), np.empty((table.height, 1), np.int64)
        end = take_items(np.frombuffer(value, np.uint8), at, (0, 1), table.steps, cells, met)
        return table.values(value, cells), end

    return read


def read_table(table: Table) -> ValueReader:
    """Reader of a list that has a table."""

    def read(value: bytes, at: int, oldest: Oldest) -> tuple[dict[str, NDArray[Any]], int]:
        raw, met, items = np.frombuffer(value, np.uint8), table.no_texts(), 0
        cells = np.empty((table.height, 0), np.int64)
        while True:
            count, at, _ = block_head(value, at)
            if not count:
                return table.columns(value, cells[:, :items], met, oldest), at
            _check(items, count, len(value) - at, table.least)
            cells = _roomy(cells, items, items + count)
            at = take_items(raw, at, (items, items + count), table.steps, cells, met)
            items += count

    return read


def _roomy(cells: IntArray, items: int, needed: int) -> IntArray:
    """Cells with room for so many items, at twice the size: blocks of a list may be small."""
    if needed <= cells.shape[1]:
        return cells
    more = np.empty((len(cells), max(needed, 2 * items)), np.int64)
    more[:, :items] = cells[:, :items]
    return more


def read_records(item: ValueReader, many: Many, *, takes_bytes: bool) -> ValueReader:
    """Reader of a list of whose items ``item`` reads each into a dict, or None."""

    def read(value: bytes, at: int, oldest: Oldest) -> tuple[dict[str, NDArray[Any]], int]:
        rows: list[dict[str, Any]] = []
        while True:
            count, at, _ = block_head(value, at)
            if not count:
                break
            _check(len(rows), count, len(value) - at, int(takes_bytes))
            for _ in range(count):
                row, at = item(value, at, oldest)
                rows.append(row or {})
        columns = {
            name: column(leaf, (row.get(name, MISSING[leaf]) for row in rows), len(rows))
            for name, leaf in many.fields.items()
        }
        return columns, at

    return read


def _check(items: int, count: int, room: int, least: int) -> None:
    """Refuse items of which there cannot or should not be so many more."""
    if count * least > room:
        raise IndexError
    most = MAX_ITEMS if least else MAX_EMPTY_ITEMS
    if items + count > most:
        raise too_many_items(items + count, most)
