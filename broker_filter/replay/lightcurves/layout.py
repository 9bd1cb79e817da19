"""Which column of a text table holds what, by the names in its header or by its bare shape."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from broker_filter.errors import SchemaError
from broker_filter.replay.lightcurves.cells import number
from broker_filter.replay.lightcurves.names import (
    Quantity,
    Role,
    band_in,
    is_error,
    quantity_of,
    role_of,
    snake,
)
from broker_filter.replay.lightcurves.table import TextTable
from broker_filter.replay.lightcurves.timesystem import names_frame, names_time

__all__ = ["FORMATS", "STAR_MAGNITUDES", "UNMEASURED", "Layout", "find_layout"]

FORMATS: Final = "HJD mag err, KMTNet pySIS, an IPAC table, or a header with time and mag or flux"
UNMEASURED: Final = 90.0
"""Magnitudes and their errors from here on mean "not measured", as 99.99 and 100 do."""

STAR_MAGNITUDES: Final = (5.0, 35.0)
LARGEST_MEDIAN_ERROR: Final = 1.0  # of magnitudes
IN_RANGE: Final = 0.75  # share of the rows of a table without header
SAMPLE_ROWS: Final = 2000  # of such a table, evenly
_EXTENDED: Final = frozenset({"sigmapsf_corr_ext", "e_mag_corr_ext"})
"""ALeRCE's errors where the star in the reference image is the variable itself."""

_LETTERS: Final = frozenset("UBVRIJHKLugrizy")


@dataclass(frozen=True, slots=True)
class Layout:
    """What was made of a header.

    Parameters
    ----------
    format : str
        One of the formats that `broker_filter.replay.lightcurves.file` names.
    quantity : Quantity
        What the column "value" holds; "diff_mag" is the magnitude of a difference flux whose sign
        stands in the column "sign".
    columns : dict of str to int
        Role to index: "time", "value", and perhaps "err", "sign", "zero_point", "ra", "dec"; for
        pySIS files "mag" and "mag_err" besides.
    asides : dict of str to tuple of int
        Places of the columns "band", "star", "id", "source", "flags" and "limit", of which there
        may be several.
    names : tuple of str
        Of all columns, as `snake` writes them; empty without a header, and for an ignored column.
    band : str or None
        As the name of the value says it (``Vmag``).
    archive : str
        The archive whose names these are, where it has a meaning of its own for some of them.
    """

    format: str
    quantity: Quantity
    columns: dict[str, int]
    asides: dict[Role, tuple[int, ...]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    band: str | None = None
    archive: str = ""

    def name(self, role: str) -> str:
        """Name of the column of a role; empty where there is none."""
        index = self.columns.get(role)
        return self.names[index] if self.names and index is not None else ""

    @property
    def read(self) -> frozenset[int]:
        """Places of all columns that are read."""
        several = (index for indices in self.asides.values() for index in indices)
        return frozenset([*self.columns.values(), *several])


@dataclass(frozen=True, slots=True)
class _Archive:
    """An archive that gives some columns a meaning of its own."""

    name: str
    has: frozenset[str]
    asides: dict[str, Role]
    unused: frozenset[str] = frozenset()
    prefers: str = ""


_ARCHIVES: Final = (
    _Archive("ATLAS", frozenset({"ujy", "dujy"}), {"f": "band", "err": "flags"}, prefers="ujy"),
    _Archive(
        "Gaia",
        frozenset({"source_id", "transit_id", "flux"}),
        {},
        frozenset({"other_flags"}),  # most are set for good transits, too
        prefers="flux",
    ),
)


def find_layout(
    table: TextTable,
    *,
    quantity: Quantity | None = None,
    ignore: Iterable[str] = (),
) -> Layout:
    """Find which column holds what.

    A header counts once it names a time and something measured. Without one, 3 to 5 columns are
    time, magnitude, error, and perhaps seeing and sky, as OGLE has them, if the second column can
    be the magnitude of a star.

    Parameters
    ----------
    table : TextTable
    quantity : "mag", "flux" or "delta_flux", optional
        What the measured column holds, where the caller knows it.
    ignore : iterable of str
        Names of columns that are not to be read.

    Raises
    ------
    SchemaError
        The table is no light curve, or it is not clear what it holds.
    """
    unread = frozenset(map(snake, ignore))
    width = _width(table)
    for header in table.headers:
        if not table.delimited and len(header) > width:
            continue  # a remark, or names with blanks in them
        if layout := _named_layout(table, header, quantity, unread):
            return layout
    if table.named:
        raise SchemaError(
            f"{table.path}: not a light curve: columns {', '.join(table.headers[0])[:200]!r} name "
            f"no time (JD, HJD, BJD, MJD, BTJD, BKJD, time) with a {_wanted(quantity)}"
            + (f", or are more than the {width} of a row" if len(table.headers[0]) > width else "")
        )
    if not 3 <= width <= 5:
        raise SchemaError(
            f"{table.path}: not a light curve: {width} columns and no header that names them. "
            f"Expected {FORMATS}"
        )
    return _bare_layout(table, quantity)


def _width(table: TextTable) -> int:
    widths = Counter(len(cells) for _, cells in table.rows) or Counter([3])
    return widths.most_common(1)[0][0]


def _wanted(quantity: Quantity | None) -> str:
    return {"mag": "mag", "flux": "flux", "delta_flux": "flux"}.get(quantity or "", "mag or flux")


def _bare_layout(table: TextTable, quantity: Quantity | None) -> Layout:
    columns = {"time": 0, "value": 1, "err": 2}
    if table.path.name.startswith("ulwdc1_"):
        return Layout("roman-data-challenge", quantity or "mag", columns)
    if quantity is None:
        _require_magnitudes(table)
    return Layout("ogle" if quantity in (None, "mag") else "no-header", quantity or "mag", columns)


def _require_magnitudes(table: TextTable) -> None:
    """Check that the second column can be magnitudes of a star, and the third their errors."""
    step = max(1, len(table.rows) // SAMPLE_ROWS)
    rows = [cells for _, cells in table.rows[::step] if len(cells) > 2]
    value = np.array([number(cells[1]) for cells in rows])
    err = np.array([number(cells[2]) for cells in rows])
    good = np.isfinite(value) & (np.abs(value) < 1e18) & (err > 0) & (err < UNMEASURED)
    value, err = value[good & ~_unmeasured(value)], err[good & ~_unmeasured(value)]
    if not len(value):
        return  # no row can be read, which is said when they are
    low, high = STAR_MAGNITUDES
    inside = float(np.mean((value > low) & (value < high)))
    if inside >= IN_RANGE and np.median(err) < LARGEST_MEDIAN_ERROR:
        return
    ends = np.quantile(value, (0.05, 0.95))
    raise SchemaError(
        f"{table.path}: no header says what the second column is, and it is hardly the magnitude "
        f"of a star: {ends[0]:g} to {ends[1]:g} with a median error of {np.median(err):.2g}. Add a "
        "header such as '# HJD flux flux_err', or give --quantity mag, flux or delta-flux"
    )


def _unmeasured(value: np.ndarray) -> np.ndarray:
    size = np.abs(value)
    return np.asarray((size > UNMEASURED) & ((size <= 100) | (size > 999) & (size < 1000)))


def _named_layout(
    table: TextTable, header: Sequence[str], quantity: Quantity | None, unread: frozenset[str]
) -> Layout | None:
    names = [name if name not in unread else "" for name in map(snake, header)]
    time = _time_index(table, names)
    archive = next((one for one in _ARCHIVES if one.has.issubset(names)), _Archive("", unread, {}))
    measured = _measured(header, names, archive)
    measured = [one for one in measured if quantity is None or _fits(one[1], quantity)]
    if time is None or not measured:
        return None
    value, found = measured[0]
    _refuse_bands_side_by_side(table, header, measured)
    columns = {"time": time, "value": value}
    if (err := _error_index(names, value)) is not None:
        columns["err"] = err
    layout = Layout(
        "ipac" if table.ipac else "named-columns",
        quantity or found,
        columns,
        _asides(names, archive, frozenset(columns.values())),
        tuple(names),
        band_in(header[value]) or (header[value] if header[value] in _LETTERS else None),
        archive.name,
    )
    layout = _with_indices(layout)
    return _signed(table, layout) if layout.quantity == "mag" else _paired(layout, measured)


def _time_index(table: TextTable, names: Sequence[str]) -> int | None:
    """The column of the time: one that names its frame before others, numbers before texts."""
    found = [index for index, name in enumerate(names) if names_time(name)]
    sample = [cells for _, cells in table.rows[:20]]

    def rank(index: int) -> tuple[bool, bool]:
        cells = [cells[index] for cells in sample if index < len(cells)]
        return not any(math.isfinite(number(cell)) for cell in cells), not names_frame(names[index])

    return min(found, key=rank, default=None)


def _measured(
    header: Sequence[str], names: Sequence[str], archive: _Archive
) -> list[tuple[int, Quantity]]:
    """Places of what may be the measured value, the first choice first."""
    dia = any(name.startswith("dia_") for name in names)
    found: list[tuple[int, Quantity]] = []
    for index, name in enumerate(names):
        kind = quantity_of(name) if role_of(name) is None and not names_time(name) else None
        if kind is None or any(is_error(name, names[other]) > 1 for other, _ in found):
            continue
        if name in ("m", "f") and not any(is_error(other, name) > 1 for other in names):
            continue
        found.append((index, "delta_flux" if dia and name.startswith("psf_flux") else kind))
    if not found:
        letters = [index for index, name in enumerate(header) if name in _LETTERS and names[index]]
        found = [(index, "mag") for index in letters if _error_index(names, index) is not None]
    return sorted(found, key=lambda one: _rank(names[one[0]], archive))


def _rank(name: str, archive: _Archive) -> tuple[bool, bool]:
    return bool(archive.prefers) and name != archive.prefers, name == "m"


def _fits(found: Quantity, wanted: Quantity) -> bool:
    return (found == "mag") == (wanted == "mag")


def _refuse_bands_side_by_side(
    table: TextTable, header: Sequence[str], measured: Sequence[tuple[int, Quantity]]
) -> None:
    bands = {header[index]: band_in(header[index]) for index, _ in measured}
    if bands[header[measured[0][0]]] and len({band for band in bands.values() if band}) > 1:
        raise SchemaError(
            f"{table.path}: columns {', '.join(bands)} hold several bands side by side: write one "
            "row for each band, with a column band, or leave one band with --ignore-column"
        )


def _error_index(names: Sequence[str], value: int) -> int | None:
    sure = {
        index: is_error(name, names[value])
        for index, name in enumerate(names)
        if name and index != value and role_of(name) is None
    }
    best = max(sure, key=sure.__getitem__, default=None)
    return best if best is not None and sure[best] else None


def _asides(
    names: Sequence[str], archive: _Archive, taken: frozenset[int]
) -> dict[Role, tuple[int, ...]]:
    found: dict[Role, tuple[int, ...]] = {}
    for index, name in enumerate(names):
        role = archive.asides.get(name) or role_of(name)
        if role and name and index not in taken and name not in archive.unused:
            found[role] = (*found.get(role, ()), index)
    return found


def _with_indices(layout: Layout) -> Layout:
    """Move what one column has from ``asides`` to ``columns``; read the marks of VizieR."""
    asides, columns = dict(layout.asides), dict(layout.columns)
    for role in ("ra", "dec", "sign", "zero_point"):
        if indices := asides.pop(role, None):
            columns[role] = indices[0]
    value = layout.name("value")
    for index, name in enumerate(layout.names):
        if index not in layout.read and name == f"l_{value}":
            asides["limit"] = (*asides.get("limit", ()), index)
        if index not in layout.read and name in {f"{letter}_{value}" for letter in "qfu"}:
            asides["flags"] = (*asides.get("flags", ()), index)
    if layout.quantity not in ("flux", "delta_flux"):
        columns.pop("zero_point", None)
    return replace(layout, columns=columns, asides=asides)


def _signed(table: TextTable, layout: Layout) -> Layout:
    """Read the corrected magnitudes of a table of differences, or the differences as such.

    ZTF's magnitudes are those of the difference image. ALeRCE adds the total magnitude where it
    could correct for the star in the reference image.
    """
    if "sign" not in layout.columns:
        return layout
    corrected = f"{layout.name('value')}_corr"
    if corrected not in layout.names:
        return replace(layout, quantity="diff_mag")
    index = layout.names.index(corrected)
    measured = _usable(table, layout.columns["value"])
    if 2 * len(measured & _usable(table, index)) <= len(measured):
        return replace(layout, quantity="diff_mag")
    errors = [_error_index(layout.names, index)]
    errors += [at for at, name in enumerate(layout.names) if name in _EXTENDED]
    known = [at for at in errors if at is not None]
    columns = {key: at for key, at in layout.columns.items() if key not in ("sign", "err")}
    if known:
        columns["err"] = max(known, key=lambda at: len(_usable(table, at)))
    return replace(layout, columns=columns | {"value": index})


def _usable(table: TextTable, index: int) -> set[int]:
    """Rows whose cell is a number that does not mean "not measured"."""
    return {
        row
        for row, (_, cells) in enumerate(table.rows)
        if index < len(cells) and number(cells[index]) < UNMEASURED
    }


def _paired(layout: Layout, measured: Sequence[tuple[int, Quantity]]) -> Layout:
    """Recognise pySIS, which has difference flux and magnitude side by side.

    The line between the two holds for one star, band and source. Of a table with a column that may
    hold several, the magnitudes are read.
    """
    mag = next((index for index, kind in measured if kind == "mag"), None)
    if layout.quantity != "delta_flux" or mag is None:
        return layout
    err = _error_index(layout.names, mag)
    if err is None or err == layout.columns.get("err"):
        return layout
    if not {"star", "id", "band", "source"}.isdisjoint(layout.asides):
        return replace(layout, quantity="mag", columns=layout.columns | {"value": mag, "err": err})
    form = "ipac" if layout.format == "ipac" else "kmtnet-pysis"
    return replace(layout, format=form, columns=layout.columns | {"mag": mag, "mag_err": err})
