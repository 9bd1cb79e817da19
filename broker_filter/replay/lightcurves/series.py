"""Which star, band and source each row is of, where the star stands, and what was left unread.

Rows of two stars, bands or instruments in one series look like variation. So a column that may part
them is either read, or constant within each series, or the file is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from broker_filter.errors import SchemaError
from broker_filter.observe.text import printable
from broker_filter.replay.lightcurves.cells import degrees
from broker_filter.replay.lightcurves.layout import Layout
from broker_filter.replay.lightcurves.names import (
    FILTER_NUMBERS,
    is_error,
    is_row_id,
    looks_like_error,
    may_part,
    quantity_of,
    role_of,
)
from broker_filter.types import FloatArray, IntArray, StarId

__all__ = ["Labels", "Series", "part_series"]

SAME_PLACE_ARCSEC: Final = 5.0
ZTF_OBJECT_DIGITS: Final = 8  # the last ones of an oid
FEW: Final = 0.25  # values a row of what parts rows, where only a word of its name says so
SHOWN: Final = 20

Labels = tuple[str, str, str]  # star, band, source
Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Series:
    """The rows of a file by star, band and source.

    Parameters
    ----------
    group : ndarray, shape (n,), int64
        Index into ``groups`` of each row.
    groups : tuple of (star, band, source)
    coordinates : dict
        Star to (ra, dec) in degrees.
    notes : tuple of str
        Where the names came from, and which columns were not read.
    """

    group: IntArray
    groups: tuple[Labels, ...]
    coordinates: dict[StarId, tuple[float, float]]
    notes: tuple[str, ...]


def part_series(
    path: Path,
    layout: Layout,
    rows: Rows,
    default: Labels,
    *,
    star: str | None = None,
    band: str | None = None,
) -> Series:
    """Part rows by star, band and source.

    Parameters
    ----------
    path : Path
        For messages.
    layout : Layout
    rows : sequence of list of str, length n
        The cells of each row that can be used.
    default : (star, band, source)
        For rows whose columns do not say it.
    star, band : str, optional
        From the caller, for all rows.

    Raises
    ------
    SchemaError
        One star is given to rows of several, one band to rows of several, the rows of one star lie
        apart on the sky, or a column that was not read may part them.
    """
    table = _Table(path, layout, rows)
    ra, dec = table.positions()
    stars, star_indices = table.stars(_apart(ra, dec) if np.isfinite(ra).all() else None)
    bands, band_indices = table.bands()
    sources, source_indices = table.sources(star_indices)
    for option, given, found in (("--star", star, stars), ("--band", band, bands)):
        if given and len(several := sorted({name for name in found if name})) > 1:
            raise SchemaError(
                f"{path}: {option} {given} for rows of several: {_some(several)}. Leave the option "
                "out, or split the file"
            )
    columns = (
        [star] * len(rows) if star else stars,
        [band] * len(rows) if band else bands,
        sources,
    )
    labels = [
        tuple(cell or other for cell, other in zip(cells, default, strict=True))
        for cells in zip(*columns, strict=True)
    ]
    groups: dict[Labels, int] = {}
    group = np.array([groups.setdefault(one, len(groups)) for one in labels], dtype=np.int64)  # type: ignore[arg-type]
    coordinates = _coordinates(path, [one[0] for one in labels], ra, dec)
    indices = {"star": star_indices, "band": band_indices, "source": source_indices}
    table.require_read({index for several in indices.values() for index in several}, group)
    return Series(group, tuple(groups), coordinates, tuple(table.notes(indices)))


@dataclass(frozen=True, slots=True)
class _Table:
    path: Path
    layout: Layout
    rows: Rows

    def column(self, index: int) -> list[str]:
        return [row[index].strip() if index < len(row) else "" for row in self.rows]

    def positions(self) -> tuple[FloatArray, FloatArray]:
        """Right ascension and declination in degrees, NaN where unknown; shape (n,) each."""
        unknown = np.full(len(self.rows), np.nan)
        columns = self.layout.columns
        if not {"ra", "dec"} <= columns.keys():
            return unknown, unknown
        ra = np.array([degrees(text, hours=True) for text in self.column(columns["ra"])])
        dec = np.array([degrees(text, hours=False) for text in self.column(columns["dec"])])
        if "hour" in self.layout.name("ra"):
            ra = 15 * ra
        known = (ra >= 0) & (ra <= 360) & (np.abs(dec) <= 90)
        return np.where(known, ra, np.nan), np.where(known, dec, np.nan)

    def stars(self, apart: float | None) -> tuple[list[str], tuple[int, ...]]:
        """Name of each row's star, empty where unknown, and the column that says it."""
        asides = self.layout.asides
        candidates = (*asides.get("star", ()), *asides.get("id", ()))
        for index in candidates:
            names = self.column(index)
            weak = index in asides.get("id", ())
            if any(names) and not (weak and self._numbers_rows(index, names, apart)):
                return names, (index,)
        return [""] * len(self.rows), ()

    def _numbers_rows(self, index: int, names: Sequence[str], apart: float | None) -> bool:
        """Whether a column ``id`` numbers rows, or series of one star, rather than stars."""
        if apart is not None and apart > SAME_PLACE_ARCSEC:
            return False
        if self.layout.names[index] == "oid":
            return self._is_ztf_series(names, apart)
        return len(set(names)) == len(names) > 2

    @staticmethod
    def _is_ztf_series(names: Sequence[str], apart: float | None) -> bool:
        """Whether a column ``oid`` numbers the light curves of one star in several fields.

        Such a number begins with field, filter, CCD and quadrant, in which a star occurs once.
        """
        numbers = set(names)
        if not all(name.isdigit() for name in numbers):
            return False
        one_index = apart is not None and apart <= SAME_PLACE_ARCSEC
        heads = {name[:-ZTF_OBJECT_DIGITS] for name in numbers}
        return one_index or (len(heads) == len(numbers) and "" not in heads)

    def bands(self) -> tuple[list[str], tuple[int, ...]]:
        for index in self.layout.asides.get("band", ()):
            names = self.column(index)
            if any(names):
                if self.layout.names[index] == "fid":
                    plain = [name.removesuffix(".0") for name in names]
                    names = [FILTER_NUMBERS.get(name, name) for name in plain]
                return names, (index,)
        return [self.layout.band or ""] * len(self.rows), ()

    def sources(self, star_indices: tuple[int, ...]) -> tuple[list[str], tuple[int, ...]]:
        """Site, camera and field of each row, joined by ``/``."""
        ids = self.layout.asides.get("id", ())
        series = [
            index
            for index in ids
            if index not in star_indices and self.layout.names[index] == "oid"
        ]
        indices = (*self.layout.asides.get("source", ()), *series)
        columns = [self.column(index) for index in indices]
        joined = ["/".join(filter(None, dict.fromkeys(cells))) for cells in zip(*columns)]  # noqa: B905
        return joined or [""] * len(self.rows), indices

    def require_read(self, used: set[int], group: IntArray) -> None:
        """Check that no column that was left unread may part rows of one series."""
        for index, name in enumerate(self.layout.names):
            role = self._suspicion(index, name, used)
            if not role:
                continue
            cells = self.column(index)
            few = FEW * len(cells) if role_of(name) is None and role != "the error" else len(cells)
            if role == "the star":
                few = len(cells) / 2
            if len(set(cells)) > max(few, 2):
                continue  # a number for each row, or one that varies with time
            for one in range(int(group.max(initial=-1)) + 1):
                inside = {cells[row] for row in np.flatnonzero(group == one)}
                if len(inside) > 1:
                    raise SchemaError(
                        f"{self.path}: column {name} may hold {role}, is not read, and differs "
                        f"within one series: {_some(sorted(inside))}. Give it a name that says "
                        f"what it holds, or leave it out with --ignore-column {name}"
                    )

    def _suspicion(self, index: int, name: str, used: set[int]) -> str:
        layout = self.layout
        if not name or index in used or index in layout.columns.values():
            return ""
        role = role_of(name)
        if role == "band":
            return "the band"
        if role in ("star", "id") or (name.endswith("_id") and not is_row_id(name)):
            return "the star"
        unknown_error = "err" not in layout.columns and looks_like_error(name) and role is None
        of_another = any(
            is_error(name, other) > 1 for other in layout.names if other and quantity_of(other)
        )
        if unknown_error and not of_another:
            return "the error"
        return may_part(name) if role is None and not quantity_of(name) else ""

    def notes(self, indices: dict[str, tuple[int, ...]]) -> list[str]:
        """Which columns name star, band and source, and which were not read."""
        names, asides = self.layout.names, self.layout.asides
        where = [
            f"{role} from {', '.join(names[index] for index in several)}"
            for role, several in indices.items()
            if several
        ]
        read = {index for several in indices.values() for index in several}
        read |= {*self.layout.columns.values(), *asides.get("flags", ()), *asides.get("limit", ())}
        unread = [name for index, name in enumerate(names) if name and index not in read]
        return [*where, *([f"columns not read: {_some(unread)}"] if unread else [])]


def _apart(ra: FloatArray, dec: FloatArray) -> float:
    """Largest distance from the middle of some positions, arcsec; 0 where none is known."""
    known = np.isfinite(ra)
    if not known.any():
        return 0.0
    ra, dec = ra[known], dec[known]
    east = (ra - np.median(ra) + 180) % 360 - 180
    middle = np.median(dec)
    return float(np.hypot(east * np.cos(np.radians(middle)), dec - middle).max() * 3600)


def _coordinates(
    path: Path, stars: Sequence[str], ra: FloatArray, dec: FloatArray
) -> dict[StarId, tuple[float, float]]:
    found: dict[StarId, tuple[float, float]] = {}
    if not np.isfinite(ra).any():
        return found
    rows: dict[str, list[int]] = {}
    for row, star in enumerate(stars):
        rows.setdefault(star, []).append(row)
    for star, own in rows.items():
        at = np.array(own)[np.isfinite(ra[own])]
        if not len(at):
            continue
        if (apart := _apart(ra[at], dec[at])) > SAME_PLACE_ARCSEC:
            raise SchemaError(
                f"{path}: rows of star {printable(star)} lie {apart:.3g} arcsec from "
                "their middle: several stars, and no column star or id names them (or leave the "
                "positions out with --ignore-column)"
            )
        found[star] = (float(np.median(ra[at])), float(np.median(dec[at])))
    return found


def _some(names: Iterable[str]) -> str:
    names = [printable(name, 40) or "''" for name in names]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
