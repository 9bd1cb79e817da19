r"""Light-curve files of the microlensing surveys, and generic tables, to `Photometry` in nJy.

Read are (the word in quotes is `LightCurve.format`)

* "ogle": no header; HJD or HJD - 2450000, magnitude, error, and perhaps seeing and sky;
* "roman-data-challenge": the same layout in BJD, known by file names ``ulwdc1_*``;
* "kmtnet-pysis": difference flux and magnitude side by side (see `total_flux`);
* "ipac": tables of the NASA Exoplanet Archive, with ``\`` and ``|`` lines;
* "named-columns": anything whose header names a time and a magnitude or flux.

A magnitude m becomes 10^(-0.4 (m - zero point)) nJy and its error flux x error x ln 10 / 2.5.
A column of fluxes keeps its unit (counts, e-/s): only the ratio to the star's baseline matters to
the filter. Where a header names both, the one that comes first is read. What was recognised or
assumed is stated in `LightCurve.notes`; rows that cannot be used are `LightCurve.rejected`, by file
and line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.native import MAX_NAME_CHARACTERS, MAX_STAR_ID_BYTES
from broker_filter.errors import SchemaError
from broker_filter.photometry.magnitudes import AB_ZERO_POINT, flux_error, flux_of
from broker_filter.photometry.times import TimeSystem, to_mjd_tai
from broker_filter.replay.lightcurves.layout import FORMATS, Layout, Quantity, find_layout
from broker_filter.replay.lightcurves.table import MISSING, Reason, Rejection, TextTable, read_table
from broker_filter.replay.lightcurves.timesystem import recognise
from broker_filter.types import FloatArray, IntArray, Photometry, StarId

__all__ = ["AB_ZERO_POINT", "LightCurve", "point_to_point_scatter", "read_lightcurve", "total_flux"]

MAGNITUDES: Final = (-10.0, 40.0)  # 99.99 and its like mean "not measured"
ABSURD: Final = 1e18  # no time, flux or flag is as large
MJD_RANGE: Final = (40_000.0, 100_000.0)  # 1968 to 2132

_Labels = tuple[str, str, str]  # star, band, source
_BAND: Final = re.compile(r"[UBVRIJHKugrizyL]|Ks|[FWZ]\d{3}")


@dataclass(frozen=True, slots=True)
class LightCurve:
    """What one file holds.

    Parameters
    ----------
    path : Path
    format : str
        One of the formats that the module names.
    time_system : TimeSystem
        As recognised or given; the epochs are MJD TAI.
    parts : tuple of Photometry
        One for each star, band and source, sorted by time: nearly always one.
    notes : tuple of str
        What was recognised, assumed or estimated, one phrase each.
    rejected : tuple of Rejection
    """

    path: Path
    format: str
    time_system: TimeSystem
    parts: tuple[Photometry, ...]
    notes: tuple[str, ...]
    rejected: tuple[Rejection, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


@dataclass(frozen=True, slots=True)
class _Epochs:
    """The readable rows as columns; ``group`` points into ``groups`` of (star, band, source)."""

    line: IntArray
    time: FloatArray
    value: FloatArray
    err: FloatArray  # NaN where the file has no errors
    flags: NDArray[np.uint32]
    group: IntArray
    groups: tuple[_Labels, ...]


def read_lightcurve(
    path: Path | str,
    *,
    star: str | None = None,
    band: str | None = None,
    survey: str = "archive",
    zero_point: float = AB_ZERO_POINT,
    time_system: TimeSystem | None = None,
) -> LightCurve:
    """Read one light-curve file.

    Parameters
    ----------
    path : Path or str
    star, band : str, optional
        Else a column or the header of the file says them, else its name: the stem is the star,
        the last part that names a band (``_I``, ``_W149``) the band. The stem is the source too.
    survey : str
        Goes into the photometry as it is.
    zero_point : float
        Magnitude of a source of 1 nJy. Magnitudes of an instrument's own system give fluxes that
        are off by one factor, which the ratio to the baseline does not feel.
    time_system : TimeSystem, optional
        Else recognised from the column's name and the size of the numbers.

    Raises
    ------
    SchemaError
        The file is no light curve, or none of its rows is readable.
    """
    path = Path(path)
    table = read_table(path)
    layout, line = _resolve(table, find_layout(table), zero_point)
    given = {role for role, name in (("star", star), ("band", band)) if name}
    kept = {role: place for role, place in layout.columns.items() if role not in given}
    layout = replace(layout, columns=kept)
    epochs = _epochs(table, layout, _default_labels(table, star, band))
    system = time_system or _time_system(table, layout, epochs.time)
    mjd = to_mjd_tai(epochs.time, system)
    inside = (mjd > MJD_RANGE[0]) & (mjd < MJD_RANGE[1])
    for number, time in zip(epochs.line[~inside], epochs.time[~inside], strict=True):
        table.reject(int(number), "out_of_range", f"{system.name} = {time:g}")
    if not inside.any():
        raise _no_row(table)
    flux, flux_err, flux_note = _flux(epochs, layout, line, zero_point)
    kind = _kind(flux[inside], layout, line)
    parts = []
    for labels, rows in _split(epochs, mjd, inside):
        columns = mjd[rows], flux[rows], flux_err[rows], epochs.flags[rows]
        parts.append(_part(table, survey, labels, columns, kind))
    notes = (system.statement, flux_note, *_remarks(layout, kind))
    rejected = tuple(sorted(table.rejected, key=lambda rejection: rejection.line))
    return LightCurve(path, layout.format, system, tuple(parts), notes, rejected)


def total_flux(delta: FloatArray, mag: FloatArray, zero_point: float) -> tuple[float, float] | None:
    """Fit flux(mag) = F_ref + s delta, the line that turns difference into total flux.

    A pySIS file gives each epoch twice: as instrumental difference flux with a Gaussian error, and
    as a magnitude. Magnitudes skew the errors of faint or wild points and cannot express a flux
    below zero, so only this line is taken from them; what is read is ``delta`` and its error,
    scaled by it. The sign of s comes out of the data (pySIS counts brighter as negative).

    Parameters
    ----------
    delta : ndarray, shape (n,), float64, instrumental units
    mag : ndarray, shape (n,), float64, magnitudes
        NaN where there is none; so for ``delta``.
    zero_point : float
        Magnitude of 1 nJy.

    Returns
    -------
    (F_ref in nJy, s in nJy per instrumental unit), or None
        None where fewer than 10 epochs have both, or the median residual exceeds 0.1 % of the flux:
        the two columns are not related by a line.

    Notes
    -----
    s is the median slope between epochs half the sorted list apart, F_ref the median intercept
    (Theil-Sen with n/2 pairs): a quarter of the points may be wild.
    """
    good = np.isfinite(delta) & (mag > MAGNITUDES[0]) & (mag < MAGNITUDES[1])
    order = np.flatnonzero(good)[np.argsort(delta[good], kind="stable")]
    half = len(order) // 2
    x, flux = delta[order], flux_of(mag[order], zero_point)
    run = x[-half:] - x[:half]
    if half < 5 or not run.all():
        return None
    scale = float(np.median((flux[-half:] - flux[:half]) / run))
    reference = float(np.median(flux - scale * x))
    residual = np.abs(flux - reference - scale * x) / flux
    return (reference, scale) if scale and np.median(residual) < 1e-3 else None


def point_to_point_scatter(flux: FloatArray) -> float:
    """Estimate a 1-sigma error from differences of neighbours: 1.4826 median |dF| / sqrt 2.

    Parameters
    ----------
    flux : ndarray, shape (n,), float64
        In order of time. Slow variation and single outliers do not enter.

    Returns
    -------
    float, same unit
        NaN for fewer than three points.
    """
    if len(flux) < 3:
        return float("nan")
    return float(1.4826 * np.median(np.abs(np.diff(flux))) / np.sqrt(2))


def _resolve(
    table: TextTable, layout: Layout, zero_point: float
) -> tuple[Layout, tuple[float, float] | None]:
    """Decide for a pySIS file whether its difference fluxes can be read as total ones.

    Returns the layout, and F_ref and s of `total_flux` where they apply; a file whose columns are
    not related by a line is read by its magnitudes.
    """
    if "mag" not in layout.columns:
        return layout, None
    columns = dict(layout.columns)
    delta, mag = (_lenient(table, columns[role]) for role in ("value", "mag"))
    if line := total_flux(delta, mag, zero_point):
        return layout, line
    columns |= {"value": columns["mag"], "err": columns["mag_err"]}
    return replace(layout, quantity="mag", columns=columns), None


def _lenient(table: TextTable, place: int) -> FloatArray:
    numbers = (_numbers(cells, [place]) for _, cells in table.rows)
    return np.array([math.nan if isinstance(n, str) else n[0] for n in numbers], dtype=np.float64)


def _default_labels(table: TextTable, star: str | None, band: str | None) -> _Labels:
    stem = table.path.stem
    filters = table.keywords.get("TIME_SERIES_DATA_FILTER")
    words = re.split(r"\W+" if filters else r"[._]", filters or stem)
    bands = [word for word in words if _BAND.fullmatch(word)]
    name = star or table.keywords.get("STAR_ID") or stem
    return name, band or (bands[-1] if bands else filters or "unknown"), stem


def _time_system(table: TextTable, layout: Layout, times: FloatArray) -> TimeSystem:
    column = layout.time_name
    frame = table.keywords.get("TIME_REFERENCE_FRAME", "").lower()
    if column == "jd" and frame.startswith(("helio", "hjd", "bary", "bjd")):
        column = f"{frame[0]}jd"
    try:
        system = recognise(column, float(np.median(times)), table.path.name)
    except SchemaError as error:
        raise SchemaError(f"{table.path}: {error}") from error
    if system.assumed and "sap" in layout.value_name and system.zero:
        raise SchemaError(
            f"{table.path}: times around {np.median(times):g} beside {layout.value_name} may be "
            "BTJD or BKJD: name the column so, or give --time-system"
        )
    return system


# --- rows to columns -----------------------------------------------------------------------------


def _epochs(table: TextTable, layout: Layout, default: _Labels) -> _Epochs:
    """Read the rows; those that cannot be used become rejections of the table."""
    roles = [role for role in ("time", "value", "err", "flags") if role in layout.columns]
    wanted = [layout.columns[role] for role in roles]
    asides = [layout.columns.get(role) for role in ("star", "band", "source")]
    lines, values, group = [], [], []
    groups: dict[_Labels, int] = {}
    for number, cells in table.rows:
        found = _numbers(cells, wanted)
        if not isinstance(found, str):
            found = _fault(found, roles, layout.quantity) or found
        if isinstance(found, str):
            table.reject(number, found, " ".join(cells))
            continue
        lines.append(number)
        values.append(found)
        group.append(groups.setdefault(_labels(cells, asides, default), len(groups)))
    if not lines:
        raise _no_row(table)
    by_role = dict(zip(roles, np.array(values, dtype=np.float64).T, strict=True))
    flags = by_role.get("flags", np.zeros(len(lines)))
    return _Epochs(
        np.array(lines, dtype=np.int64),
        by_role["time"],
        by_role["value"],
        by_role.get("err", np.full(len(lines), np.nan)),
        (flags.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32),
        np.array(group, dtype=np.int64),
        tuple(groups),
    )


def _numbers(cells: list[str], wanted: list[int]) -> list[float] | Reason:
    if len(cells) <= max(wanted):
        return "too_few_columns"
    texts = [cells[place] for place in wanted]
    if any(text.lower() in MISSING for text in texts):
        return "missing"
    if any("_" in text for text in texts):  # float() reads 1_0 as 10
        return "not_a_number"
    try:
        return [float(text) for text in texts]
    except ValueError:
        return "not_a_number"


def _fault(numbers: list[float], roles: Sequence[str], quantity: Quantity) -> Reason | None:
    if "err" in roles and not 0 < numbers[roles.index("err")] < math.inf:
        return "bad_error"
    if any(not abs(number) < ABSURD for number in numbers):
        return "out_of_range"
    if quantity == "mag" and not MAGNITUDES[0] < numbers[1] < MAGNITUDES[1]:
        return "out_of_range"
    return None


def _labels(cells: list[str], asides: list[int | None], default: _Labels) -> _Labels:
    star, band, source = (
        (cells[place] if place is not None and place < len(cells) else "") or other
        for place, other in zip(asides, default, strict=True)
    )
    return star, band, source


def _flux(
    epochs: _Epochs, layout: Layout, line: tuple[float, float] | None, zero_point: float
) -> tuple[FloatArray, FloatArray, str]:
    """Flux and error, with a phrase on how they came about."""
    if layout.quantity == "mag":
        flux = flux_of(epochs.value, zero_point)
        return flux, flux_error(flux, epochs.err), f"nJy from magnitudes, zero point {zero_point:g}"
    if line:
        reference, scale = line
        note = (
            f"nJy = {reference:.6g} {scale:+.6g} x difference flux, by magnitudes with zero point "
            f"{zero_point:g}"
        )
        return reference + scale * epochs.value, abs(scale) * epochs.err, note
    return epochs.value, epochs.err, f"{layout.value_name} in the unit of the file"


def _kind(
    flux: FloatArray, layout: Layout, line: tuple[float, float] | None
) -> Literal["total", "difference"]:
    """Tell the kind: total fluxes of a star are not below zero at a quarter of its epochs."""
    unlinked = layout.quantity == "delta_flux" and line is None
    return "difference" if unlinked or np.mean(flux <= 0) > 0.25 else "total"


def _split(
    epochs: _Epochs, mjd: FloatArray, inside: NDArray[np.bool_]
) -> Iterator[tuple[_Labels, IntArray]]:
    """Yield each star, band and source with its rows in order of time."""
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((mjd[rows], epochs.group[rows]))]
    ends = np.flatnonzero(np.diff(epochs.group[rows])) + 1
    for part in np.split(rows, ends):
        yield epochs.groups[epochs.group[part[0]]], part


def _part(
    table: TextTable,
    survey: str,
    labels: _Labels,
    columns: tuple[FloatArray, FloatArray, FloatArray, NDArray[np.uint32]],
    kind: Literal["total", "difference"],
) -> Photometry:
    mjd, flux, flux_err, flags = columns
    star, band, source = labels
    if len(star.encode()) > MAX_STAR_ID_BYTES or max(len(band), len(source)) > MAX_NAME_CHARACTERS:
        raise SchemaError(
            f"{table.path}: star {star[:80]!r}, band {band[:80]!r} or source {source[:80]!r} is "
            f"longer than {MAX_STAR_ID_BYTES} bytes: give a shorter --star, or rename the file"
        )
    if np.isnan(flux_err).any():
        flux_err = np.full(len(flux), point_to_point_scatter(flux))
        if not flux_err[0] > 0:
            raise SchemaError(f"{table.path}: no error column, and no scatter to estimate one from")
    place = _coordinates(table.keywords)
    unknown = np.full(len(mjd), np.nan)
    stars: list[StarId] = [star] * len(mjd)
    return Photometry(
        survey, band, source, stars, mjd, flux, flux_err, flags, unknown, unknown,
        kind=kind, coordinates={star: place} if place else {},
    )  # fmt: skip


def _coordinates(keywords: dict[str, str]) -> tuple[float, float] | None:
    ra = re.fullmatch(r"(\d+)h(\d+)m([\d.]+)s", keywords.get("RA", ""))
    dec = re.fullmatch(r"([+-]?)(\d+)d(\d+)m([\d.]+)s", keywords.get("DEC", ""))
    if not ra or not dec:
        return None
    sign, *parts = dec.groups()
    hours, degrees = (
        float(a) + float(b) / 60 + float(c) / 3600 for a, b, c in (ra.groups(), parts)
    )
    return 15 * hours, -degrees if sign == "-" else degrees


def _remarks(layout: Layout, kind: str) -> list[str]:
    remarks = []
    if layout.quantity == "mag" and "mag" in layout.columns:
        remarks.append("difference flux and magnitude do not agree: magnitudes read")
    if kind == "difference":
        remarks.append("difference flux: no reference flux is known")
    if "err" not in layout.columns:
        remarks.append("no error column: errors estimated from the point-to-point scatter")
    return remarks


def _no_row(table: TextTable) -> SchemaError:
    first = f"; first: {table.rejected[0]}" if table.rejected else ""
    return SchemaError(f"{table.path}: no readable row: expected {FORMATS}{first}")
