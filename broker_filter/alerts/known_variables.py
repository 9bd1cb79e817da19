"""A catalogue of variable stars: labels by the star's id, or by its place in the sky."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from broker_filter.errors import ConfigError
from broker_filter.extras import named_extras
from broker_filter.types import StarId

__all__ = ["KnownVariables", "read_known_variables"]

RADIUS: Final = math.radians(1 / 3600)
"""One arcsecond."""
CELL: Final = 2 * RADIUS
LONGEST_LABEL: Final = 60
MOST_ROWS: Final = 5_000_000

Vector = tuple[float, float, float]
Cell = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KnownVariables:
    """Labels of stars.

    Parameters
    ----------
    by_id : mapping of str to str
    by_cell : mapping of cell to tuple of (direction, label)
        Stars by the cell of space that holds their direction, a vector of length 1.
    """

    by_id: Mapping[str, str] = field(default_factory=dict)
    by_cell: Mapping[Cell, tuple[tuple[Vector, str], ...]] = field(default_factory=dict)

    def label(self, star: StarId, coordinates: tuple[float, float] | None) -> str | None:
        """The label of a star; None for one that is not known.

        Parameters
        ----------
        star : str or int
        coordinates : (float, float) or None, degrees
            Right ascension and declination.
        """
        if (found := self.by_id.get(str(star))) is not None or coordinates is None:
            return found
        here = _direction(*coordinates)
        near = [
            (math.dist(here, there), label)
            for cell in _cells_around(here)
            for there, label in self.by_cell.get(cell, ())
        ]
        distance, label = min(near, default=(math.inf, ""))
        return label if distance <= RADIUS else None


def read_known_variables(path: Path) -> KnownVariables:
    """Read a table of variable stars, CSV or (with pyarrow) Parquet.

    Its columns are ``label``, and ``id`` or ``ra`` and ``dec`` (degrees, ICRS) or all three; others
    are passed over. Rows without a label are, too.

    Raises
    ------
    ConfigError
        It cannot be read, or lacks these columns, or holds numbers that are none.
    """
    try:
        return _gathered(_rows(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"alert.known_variables: {path} cannot be read: {error}") from None
    except ValueError as error:
        raise ConfigError(f"alert.known_variables: {path}: {error}") from None


def _gathered(rows: Iterable[Mapping[str, Any]]) -> KnownVariables:
    by_id: dict[str, str] = {}
    by_cell: dict[Cell, tuple[tuple[Vector, str], ...]] = {}
    number = 0
    for number, row in enumerate(rows, start=1):
        if number > MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS} rows")
        label = " ".join(_text(row.get("label")).split())[:LONGEST_LABEL]
        if not label:
            continue
        if star := _text(row.get("id")):
            by_id[star] = label
        ra, dec = _text(row.get("ra")), _text(row.get("dec"))
        if ra and dec:
            direction = _place(ra, dec, number)
            cell = _cell(direction)
            by_cell[cell] = (*by_cell.get(cell, ()), (direction, label))
    if number and not by_id and not by_cell:
        raise ValueError("no row has a label and an id or a place")
    return KnownVariables(by_id, by_cell)


def _text(value: object) -> str:
    """What a cell says; empty for nothing, which in a column of numbers may be NaN."""
    if isinstance(value, float):
        # A column of whole numbers with gaps is one of floats to pandas.
        value = "" if math.isnan(value) else int(value) if value.is_integer() else value
    if isinstance(value, bytes):
        value = value.decode()
    return "" if value is None else str(value).strip()


def _place(ra: str, dec: str, number: int) -> Vector:
    try:
        place = float(ra), float(dec)
    except ValueError as error:
        raise ValueError(f"row {number}: {error}") from None
    if not (math.isfinite(place[0]) and abs(place[1]) <= 90):
        raise ValueError(f"row {number}: no such place: ra {ra}, dec {dec}")
    return _direction(*place)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix.lower() == ".parquet":
        with named_extras("Parquet files"):
            import pyarrow.parquet as pq
        table = pq.read_table(path)
        _check(set(table.column_names))
        yield from table.to_pylist()
        return
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        _check(set(reader.fieldnames or ()))
        yield from reader


def _check(names: set[str]) -> None:
    if "label" not in names or not ("id" in names or {"ra", "dec"} <= names):
        raise ValueError("needs a column label, and id or ra and dec")


def _direction(ra: float, dec: float) -> Vector:
    """A vector of length 1, of degrees."""
    ra, dec = math.radians(ra), math.radians(dec)
    return math.cos(dec) * math.cos(ra), math.cos(dec) * math.sin(ra), math.sin(dec)


def _cell(direction: Vector) -> Cell:
    x, y, z = (math.floor(part / CELL) for part in direction)
    return x, y, z


def _cells_around(direction: Vector) -> Iterator[Cell]:
    x, y, z = _cell(direction)
    for dx, dy, dz in product((-1, 0, 1), repeat=3):
        yield x + dx, y + dy, z + dz
