r"""Light-curve files of the microlensing surveys, and generic tables, to `Photometry` in nJy.

Read are (the word in quotes is `LightCurve.format`)

* "ogle": no header; HJD or HJD - 2450000, magnitude, error, and perhaps seeing and sky;
* "roman-data-challenge": the same layout in BJD, known by file names ``ulwdc1_*``;
* "kmtnet-pysis": difference flux and magnitude side by side (see `total_flux`);
* "ipac": tables of the NASA Exoplanet Archive, with ``\`` and ``|`` lines;
* "named-columns": anything whose header names a time and a magnitude or flux;
* "no-header": time, flux and error, where the caller says so.

A magnitude m becomes 10^(-0.4 (m - zero point)) nJy and its error flux x error x ln 10 / 2.5.
A column of fluxes keeps its unit (counts, e-/s) where its name has none: only the ratio to the
star's baseline matters to the filter. Where a header names both, the one that comes first is read.
What was recognised, assumed or left unread is stated in `LightCurve.notes`; rows that cannot be
used are `LightCurve.rejected`, by file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.native import MAX_NAME_CHARACTERS, MAX_STAR_ID_BYTES
from broker_filter.errors import SchemaError
from broker_filter.observe.text import printable
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.photometry.times import TimeSystem, to_mjd_tai
from broker_filter.replay.lightcurves.epochs import Epochs, no_row, read_epochs
from broker_filter.replay.lightcurves.flux import (
    Flux,
    point_to_point_scatter,
    resolve_pair,
    to_flux,
    total_flux,
)
from broker_filter.replay.lightcurves.layout import Layout, find_layout
from broker_filter.replay.lightcurves.names import Quantity
from broker_filter.replay.lightcurves.series import Labels, Series, part_series
from broker_filter.replay.lightcurves.table import Rejection, TextTable, read_table
from broker_filter.replay.lightcurves.timesystem import recognise
from broker_filter.types import FloatArray, IntArray, Photometry, StarId

__all__ = ["AB_ZERO_POINT", "LightCurve", "point_to_point_scatter", "read_lightcurve", "total_flux"]

MJD_RANGE: Final = (40_000.0, 100_000.0)  # 1968 to 2132
GAIA_TIME: Final = TimeSystem(
    "BJD - 2455197.5", 2455197.5, "TDB"
)  # TCB, 20 s ahead, is not distinguished

_BAND: Final = re.compile(r"[UBVRIJHKugrizyL]|Ks|[FWZ]\d{3}")
_SPACECRAFT: Final = re.compile(r".*sap.*|cadenceno|timecorr")


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


def read_lightcurve(
    path: Path | str,
    *,
    star: str | None = None,
    band: str | None = None,
    survey: str = "archive",
    zero_point: float = AB_ZERO_POINT,
    time_system: TimeSystem | None = None,
    quantity: Quantity | None = None,
    ignore: Sequence[str] = (),
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
    quantity : "mag", "flux" or "delta_flux", optional
        What the file measures, where it does not say it or says several.
    ignore : sequence of str
        Names of columns that are not to be read.

    Raises
    ------
    SchemaError
        The file is no light curve, none of its rows is readable, or it is not clear what a row is.
    """
    path = Path(path)
    table = read_table(path)
    found = find_layout(table, quantity=quantity, ignore=ignore)
    layout, line = resolve_pair(table, found, zero_point)
    epochs = read_epochs(table, layout)
    default = _default_labels(table, star, band)
    series = part_series(path, layout, epochs.cells, default, star=star, band=band)
    system = time_system or _time_system(table, layout, epochs.time)
    mjd = to_mjd_tai(epochs.time, system)
    inside = (mjd > MJD_RANGE[0]) & (mjd < MJD_RANGE[1])
    for number, time in zip(epochs.line[~inside], epochs.time[~inside], strict=True):
        table.reject(int(number), "out_of_range", f"{system.name} = {time:g}")
    if not inside.any():
        raise no_row(table)
    measured = to_flux(epochs, layout, line, zero_point)
    places = series.coordinates or _from_keywords(table, series)
    parts = tuple(
        _part(path, survey, labels, (mjd[rows], measured, rows, epochs), places)
        for labels, rows in _split(series, mjd, inside)
    )
    notes = (system.statement, measured.note, *_remarks(layout, measured.kind))
    notes = (*notes, *series.notes, *epochs.notes)
    rejected = tuple(sorted(table.rejected, key=lambda rejection: rejection.line))
    return LightCurve(path, layout.format, system, parts, notes, rejected)


def _default_labels(table: TextTable, star: str | None, band: str | None) -> Labels:
    stem = table.path.stem
    filters = table.keywords.get("TIME_SERIES_DATA_FILTER")
    words = re.split(r"\W+" if filters else r"[._]", filters or stem)
    bands = [word for word in words if _BAND.fullmatch(word)]
    name = star or table.keywords.get("STAR_ID") or stem
    return name, band or (bands[-1] if bands else filters or "unknown"), stem


def _time_system(table: TextTable, layout: Layout, times: FloatArray) -> TimeSystem:
    column = layout.name("time")
    frame = table.keywords.get("TIME_REFERENCE_FRAME", "").lower()
    typical = float(np.median(times))
    if column == "jd" and frame.startswith(("helio", "hjd", "bary", "bjd")):
        column = f"{frame[0]}jd"
    if layout.archive == "Gaia" and typical < 1e4:
        return GAIA_TIME
    try:
        system = recognise(column, typical, table.path.name)
    except SchemaError as error:
        raise SchemaError(f"{table.path}: {error}") from error
    craft = next((name for name in layout.names if _SPACECRAFT.fullmatch(name)), None)
    if system.assumed and craft and system.zero:
        raise SchemaError(
            f"{table.path}: times around {typical:g} beside {craft} may be "
            "BTJD or BKJD: name the column so, or give --time-system"
        )
    return system


def _split(
    series: Series, mjd: FloatArray, inside: NDArray[np.bool_]
) -> Iterator[tuple[Labels, IntArray]]:
    """Yield each star, band and source with its rows in order of time."""
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((mjd[rows], series.group[rows]))]
    ends = np.flatnonzero(np.diff(series.group[rows])) + 1
    for part in np.split(rows, ends):
        yield series.groups[series.group[part[0]]], part


def _check_names(path: Path, **names: str) -> None:
    """SchemaError for a name that no message can hold."""
    for what, name in names.items():
        try:
            content = name.encode()
        except UnicodeEncodeError:  # a file's name may be any bytes
            fault = "is not UTF-8"
        else:
            if what == "star":
                length, most, unit = len(content), MAX_STAR_ID_BYTES, "bytes"
            else:
                length, most, unit = len(name), MAX_NAME_CHARACTERS, "characters"
            if length <= most and (name or what == "source"):
                continue
            fault = f"is empty, or longer than {most} {unit}"
        raise SchemaError(
            f"{path}: {what} {printable(name, 80)!r} {fault}: give another --star, --band or"
            " --survey, or rename the file"
        )


def _part(
    path: Path,
    survey: str,
    labels: Labels,
    columns: tuple[FloatArray, Flux, IntArray, Epochs],
    places: dict[StarId, tuple[float, float]],
) -> Photometry:
    mjd, measured, rows, epochs = columns
    star, band, source = labels
    _check_names(path, survey=survey, star=star, band=band, source=source)
    flux, flux_err = measured.flux[rows], measured.err[rows]
    if np.isnan(flux_err).any():
        flux_err = np.full(len(flux), point_to_point_scatter(flux))
        if not flux_err[0] > 0:
            raise SchemaError(f"{path}: no error column, and no scatter to estimate one from")
    unknown = np.full(len(mjd), np.nan)
    stars: list[StarId] = [star] * len(mjd)
    return Photometry(
        survey, band, source, stars, mjd, flux, flux_err, epochs.flags[rows], unknown, unknown,
        kind=measured.kind, coordinates={star: places[star]} if star in places else {},
    )  # fmt: skip


def _from_keywords(table: TextTable, series: Series) -> dict[StarId, tuple[float, float]]:
    """The place that the keywords of an IPAC table give, for a table of one star."""
    place = _coordinates(table.keywords)
    stars = {star for star, _, _ in series.groups}
    return dict.fromkeys(stars, place) if place and len(stars) == 1 else {}


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
