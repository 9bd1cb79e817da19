"""The rows of a text table as numbers, and why a row cannot be used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import SchemaError
from broker_filter.replay.lightcurves.cells import flag_values, limit_values
from broker_filter.replay.lightcurves.layout import FORMATS, UNMEASURED, Layout
from broker_filter.replay.lightcurves.names import Quantity
from broker_filter.replay.lightcurves.table import MISSING, Reason, TextTable
from broker_filter.types import FloatArray, IntArray

__all__ = ["Epochs", "no_row", "read_epochs"]

MAGNITUDES: Final = (-10.0, 40.0)
ABSURD: Final = 1e18  # no time, flux or flag is as large
ALL_FLAGGED_ROWS: Final = 20  # from so many on, a flag in every row is thought to mean "good"

_NUMBERS: Final = ("time", "value", "err", "zero_point")
_SIGNS: Final = {"t": 1.0, "1": 1.0, "1.0": 1.0, "true": 1.0, "+": 1.0} | {
    "f": -1.0, "0": -1.0, "0.0": -1.0, "-1": -1.0, "-1.0": -1.0, "false": -1.0, "-": -1.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Epochs:
    """The rows that can be used, as columns.

    Parameters
    ----------
    line : ndarray, shape (n,), int64
    cells : list of list of str, length n
    time, value, err, zero_point : ndarray, shape (n,), float64
        As they stand in the file; NaN where there is no such column.
    sign : ndarray, shape (n,), float64
        -1 where a difference is below the reference, else 1.
    flags : ndarray, shape (n,), uint32
    notes : tuple of str
        Which columns flags and limits came from, and how many rows they mark.
    """

    line: IntArray
    cells: list[list[str]]
    time: FloatArray
    value: FloatArray
    err: FloatArray
    zero_point: FloatArray
    sign: FloatArray
    flags: NDArray[np.uint32]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.line)


def read_epochs(table: TextTable, layout: Layout) -> Epochs:
    """Read the numbers; rows that cannot be used become rejections of the table.

    Raises
    ------
    SchemaError
        No row can be used; most magnitudes are out of range; flags or limits cannot be understood.
    """
    roles = [role for role in _NUMBERS if role in layout.columns]
    wanted = [layout.columns[role] for role in roles]
    limits, limit_notes = _limits(table, layout)
    kept: list[int] = []
    values: list[list[float]] = []
    wild = 0
    for row, (number, cells) in enumerate(table.rows):
        found = _row(cells, wanted, roles, layout)
        if limits[row] and found != "too_few_columns":
            found = "limit"
        if isinstance(found, str):
            table.reject(number, found, " ".join(cells))
            wild += found == "out_of_range" and _is_wild(cells, layout)
            continue
        kept.append(row)
        values.append(found)
    if 2 * wild > len(table.rows) > 1 and layout.names:
        raise SchemaError(
            f"{table.path}: {wild} of {len(table.rows)} values of {layout.name('value')} are no "
            "magnitudes: give --quantity flux if they are fluxes"
        )
    if not kept:
        raise no_row(table)
    by_role = dict(zip(roles, np.array(values, dtype=np.float64).T, strict=True))
    cells_of = [table.rows[row][1] for row in kept]
    flags, flag_notes = _flags(table, layout, cells_of)
    unknown = np.full(len(kept), np.nan)
    return Epochs(
        np.array([table.rows[row][0] for row in kept], dtype=np.int64),
        cells_of,
        by_role["time"],
        by_role["value"],
        by_role.get("err", unknown),
        by_role.get("zero_point", unknown),
        _signs(cells_of, layout),
        flags,
        (*flag_notes, *limit_notes),
    )


def no_row(table: TextTable) -> SchemaError:
    """Make the error of a file without a row that can be used."""
    first = f"; first: {table.rejected[0]}" if table.rejected else ""
    return SchemaError(f"{table.path}: no readable row: expected {FORMATS}{first}")


def _row(
    cells: list[str], wanted: list[int], roles: Sequence[str], layout: Layout
) -> list[float] | Reason:
    if len(cells) <= max(wanted):
        return "too_few_columns"
    texts = [cells[index] for index in wanted]
    if any(text.lower() in MISSING for text in texts):
        return "missing"
    if texts[1].startswith((">", "<")):
        return "limit"
    if any("_" in text for text in texts):  # float() reads 1_0 as 10
        return "not_a_number"
    try:
        found = [float(text) for text in texts]
    except ValueError:
        return "not_a_number"
    if (index := layout.columns.get("sign")) is not None:
        if index >= len(cells):
            return "too_few_columns"
        if cells[index].lower() not in _SIGNS:
            return "missing"
    return _fault(found, roles, layout.quantity) or found


def _fault(numbers: list[float], roles: Sequence[str], quantity: Quantity) -> Reason | None:
    magnitude = quantity in ("mag", "diff_mag")
    largest = UNMEASURED if magnitude else math.inf
    if magnitude and not MAGNITUDES[0] < numbers[1] < MAGNITUDES[1]:
        return "out_of_range"
    if "err" in roles and not 0 < numbers[roles.index("err")] < largest:
        return "bad_error"
    if any(not abs(number) < ABSURD for number in numbers):
        return "out_of_range"
    return None


def _is_wild(cells: Sequence[str], layout: Layout) -> bool:
    """Whether a value out of range is none of those that mean "not measured"."""
    size = abs(float(cells[layout.columns["value"]]))
    sentinel = UNMEASURED < size <= 100 or 990 < size <= 1000 or 9990 < size <= 10_000
    return layout.quantity == "mag" and not sentinel


def _column(rows: Iterable[Sequence[str]], index: int) -> list[str]:
    return [cells[index].strip() if index < len(cells) else "" for cells in rows]


def _limits(table: TextTable, layout: Layout) -> tuple[NDArray[np.bool_], list[str]]:
    """Rows that are limits by a column of their own, and a phrase on each such column."""
    limits = np.zeros(len(table.rows), bool)
    notes = []
    for index in layout.asides.get("limit", ()):
        name = layout.names[index]
        try:
            found = limit_values(name, _column((cells for _, cells in table.rows), index))
        except ValueError as error:
            raise _not_understood(table, name, error, "1 where a row is a limit") from None
        if found is not None:
            limits |= found
            notes.append(f"limits from {name} ({found.sum()} rows)")
    return limits, notes


def _flags(
    table: TextTable, layout: Layout, rows: Sequence[Sequence[str]]
) -> tuple[NDArray[np.uint32], list[str]]:
    """Flags of all columns together, and a phrase on each column."""
    flags = np.zeros(len(rows), np.uint32)
    notes = []
    for index in layout.asides.get("flags", ()):
        name, cells = layout.names[index], _column(rows, index)
        try:
            found = flag_values(name, cells)
        except ValueError as error:
            if len(set(cells)) == 1:  # it parts no rows
                notes.append(f"{name} ({cells[0][:20]!r} in every row) not read")
                continue
            raise _not_understood(table, name, error, "0 where a row is good") from None
        if len(rows) >= ALL_FLAGGED_ROWS and found.all():
            raise SchemaError(
                f"{table.path}: column {name} flags every row: write 0 where a row is good, or "
                f"leave the column out with --ignore-column {name}"
            )
        flags |= found
        notes.append(f"flags from {name} ({np.count_nonzero(found)} rows)")
    return flags, notes


def _not_understood(table: TextTable, name: str, error: ValueError, way: str) -> SchemaError:
    return SchemaError(
        f"{table.path}: column {name} {error}, which is not understood: write {way}, or leave the "
        f"column out with --ignore-column {name}"
    )


def _signs(rows: Sequence[Sequence[str]], layout: Layout) -> FloatArray:
    index = layout.columns.get("sign")
    if index is None:
        return np.ones(len(rows))
    return np.array([_SIGNS[cells[index].lower()] for cells in rows])
