"""Arrays of a user, with units or without, as photometry in order of time.

Objects of astropy, lightkurve and pandas are known by what they can do; none is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker_filter.errors import SchemaError
from broker_filter.photometry.magnitudes import flux_error, flux_of
from broker_filter.photometry.statistics import median_level
from broker_filter.photometry.times import MJD_ZERO, TIME_SYSTEMS, to_mjd_tai
from broker_filter.replay.lightcurves.layout import STAR_MAGNITUDES
from broker_filter.replay.lightcurves.names import Role, role_of, snake
from broker_filter.scoring.flags import flag_columns, flags_of
from broker_filter.types import FloatArray, Photometry, StarId

__all__ = ["Baseline", "photometry_of"]

Baseline = float | tuple[float, float] | Literal["median"] | None
"""Flux of the quiet star, alone or with its 1-sigma error; the median; or None: not given."""

DAYS_1970: Final = 40587.0


def photometry_of(
    time: ArrayLike,
    flux: ArrayLike | None,
    error: ArrayLike | None,
    *,
    star: StarId,
    survey: str,
    band: str | Sequence[str] | None,
    source: str | Sequence[str] | None,
    flags: ArrayLike | None,
    baseline: Baseline,
    time_system: str,
    zero_point: float | None,
) -> list[Photometry]:
    """One `Photometry` for each band and source; parameters as of `score`.

    Raises
    ------
    SchemaError
        Columns are missing or of different lengths, units do not fit, times are in no such
        system, or magnitudes are given as flux.
    """
    if flux is None:
        table = time
        time, flux, error = _columns_of(table)
        band = _labels(table, "band") if band is None else band
        source = _labels(table, "source") if source is None else source
        flags = flags_of(table, flag_columns(_columns(table))) if flags is None else flags
    mjd = _mjd_tai(time, time_system)
    value, sigma = _values(flux, error, zero_point)
    n = len(mjd)
    if len(value) != n:
        raise SchemaError(f"time and flux hold {n} and {len(value)} values; they must agree")
    if not n:
        raise SchemaError("the light curve is empty")
    marks = _marks(flags, n)
    bands, sources = _names("band", band, n, "-"), _names("source", source, n, "")
    parts = []
    for name in sorted(set(zip(bands, sources, strict=True))):
        mine = np.flatnonzero([pair == name for pair in zip(bands, sources, strict=True)])
        rows = mine[np.argsort(mjd[mine], kind="stable")]
        good = rows[marks[rows] == 0]
        level, level_error = _level(value[good], sigma[good], baseline, zero_point)
        parts.append(
            Photometry(
                survey, *name, [star] * len(rows), mjd[rows], value[rows], sigma[rows],
                marks[rows], np.full(len(rows), level), np.full(len(rows), level_error),
            )
        )  # fmt: skip
    return parts


def _columns_of(table: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401  any kind of table
    """Time, flux and error of a light curve of lightkurve, a table or a data frame."""
    names = _columns(table)
    error = next((name for name in ("flux_err", "flux_error", "error") if name in names), None)
    time = next((name for name in ("time", "mjd_tai", "mjd") if name in names), None)
    if "flux" not in names or error is None or time is None:
        found = f"columns {', '.join(names)!r}" if names else f"a {type(table).__name__}"
        raise SchemaError(
            f"{found}: needed are time, flux and error, or a table with columns time, flux and"
            " flux_err"
        )
    stars = _labels(table, "star") or _labels(table, "id")
    if stars is not None and len(set(stars)) > 1:
        raise SchemaError(f"the table holds {len(set(stars))} stars: use score_table")
    return table[time], table["flux"], table[error]


def _columns(table: Any) -> list[str]:  # noqa: ANN401  any kind of table
    return [str(name) for name in getattr(table, "colnames", getattr(table, "columns", ()))]


def _labels(table: Any, role: Role) -> list[str] | None:  # noqa: ANN401  any kind of table
    """Texts of the first column whose name says that it holds this; None where there is none."""
    found = next((name for name in _columns(table) if role_of(snake(name)) == role), None)
    return None if found is None else [str(value) for value in table[found]]


def _mjd_tai(time: Any, time_system: str) -> FloatArray:  # noqa: ANN401  an array or astropy's Time
    if hasattr(time, "tai"):
        return _plain("time", time.tai.mjd)
    system = TIME_SYSTEMS.get(time_system.upper())
    if system is None:
        raise SchemaError(f"time_system {time_system!r} is none of {', '.join(TIME_SYSTEMS)}")
    if hasattr(time, "to_value"):
        time = _converted("time", time, "d")
    times = np.asarray(time)
    if times.dtype.kind == "M":  # calendar dates, UTC
        days = (times - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
        return to_mjd_tai(days + DAYS_1970, TIME_SYSTEMS["MJD"])
    mjd = to_mjd_tai(_plain("time", time), system)
    typical = float(np.median(known)) if len(known := mjd[np.isfinite(mjd)]) else MJD_ZERO
    if known.size and not 30_000 < typical < 100_000:
        raise SchemaError(
            f"times around {typical + MJD_ZERO - system.zero:g} are no {system.name}: give"
            f" time_system, one of {', '.join(TIME_SYSTEMS)}"
        )
    return mjd


def _values(flux: Any, error: Any, zero_point: float | None) -> tuple[FloatArray, FloatArray]:  # noqa: ANN401
    """Flux and error; nJy where the units say so or the values are magnitudes."""
    if error is None:
        raise SchemaError("no errors are given: K needs the 1-sigma error of each flux")
    if (unit := getattr(flux, "unit", None)) is not None:
        to = "nJy" if _is_flux_density(flux) else unit
        flux = _converted("flux", flux, to)
        error = _converted("error", error, to) if hasattr(error, "to_value") else error
    elif getattr(error, "unit", None) is not None:
        raise SchemaError(f"error is in {error.unit} and flux has no unit: give both the same")
    value, sigma = _plain("flux", flux), _plain("error", error)
    if len(value) != len(sigma):
        raise SchemaError(
            f"flux and error hold {len(value)} and {len(sigma)} values; they must agree"
        )
    if zero_point is not None:
        total = flux_of(value, zero_point)
        return total, flux_error(total, sigma)
    if unit is None:
        _refuse_magnitudes(value, sigma)
    elif str(unit) == "mag":
        raise SchemaError("flux is in mag: give zero_point, the magnitude of 1 nJy (31.4 for AB)")
    return value, sigma


def _is_flux_density(flux: Any) -> bool:  # noqa: ANN401  astropy's Quantity
    try:
        flux.to_value("nJy")
    except Exception:  # noqa: BLE001  astropy's UnitConversionError, which is not imported here
        return False
    return True


def _converted(name: str, values: Any, unit: Any) -> Any:  # noqa: ANN401  astropy's Quantity
    try:
        return values.to_value(unit)
    except Exception as error:
        raise SchemaError(f"{name} is in {values.unit}, which is no {unit}") from error


def _refuse_magnitudes(value: FloatArray, sigma: FloatArray) -> None:
    known = np.isfinite(value) & np.isfinite(sigma)
    low, high = STAR_MAGNITUDES
    if not known.any() or not ((value[known] > low) & (value[known] < high)).all():
        return
    raise SchemaError(
        f"flux of {np.median(value[known]):.4g} +- {np.median(sigma[known]):.2g} looks like a"
        " magnitude: give zero_point (31.4 for AB), or flux in nJy or divided by its median"
    )


def _level(
    value: FloatArray, sigma: FloatArray, baseline: Baseline, zero_point: float | None
) -> tuple[float, float]:
    """Reference flux and its error; NaN where none is given."""
    if baseline is None:
        return np.nan, np.nan
    if baseline == "median":
        return median_level(value, sigma)
    level, level_error = baseline if isinstance(baseline, tuple) else (float(baseline), np.nan)
    if zero_point is not None:
        flux = flux_of(np.array([level]), zero_point)
        return float(flux[0]), float(flux_error(flux, np.array([level_error]))[0])
    if not level > 0:
        raise SchemaError(f"baseline {level:g} is not above 0")
    return float(level), float(level_error)


def _names(what: str, given: str | Sequence[str] | None, n: int, default: str) -> list[str]:
    if given is None or isinstance(given, str):
        return [default if given is None else given] * n
    names = [str(name) for name in given]
    if len(names) != n:
        raise SchemaError(f"{what} holds {len(names)} names, and there are {n} epochs")
    return names


def _marks(flags: ArrayLike | None, n: int) -> NDArray[np.uint32]:
    """0 for a good epoch, shape (n,)."""
    marks = np.zeros(n, np.uint32) if flags is None else np.atleast_1d(np.asarray(flags))
    if marks.shape != (n,) or marks.dtype.kind not in "biu":
        raise SchemaError(
            f"flags of type {marks.dtype} and shape {marks.shape}: needed are {n} whole numbers or"
            " booleans, 0 where an epoch is good"
        )
    return np.where(marks.astype(np.uint64) >> 32, 1 << 31, marks).astype(np.uint32)


def _plain(name: str, values: Any) -> NDArray[np.float64]:  # noqa: ANN401  anything like an array
    """A flat float64 array; masked values are NaN."""
    filled = values.filled(np.nan) if hasattr(values, "filled") else values
    try:
        array = np.atleast_1d(np.asarray(filled, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{name} holds something that is no number: {error}") from None
    if array.ndim != 1:
        raise SchemaError(f"{name} has shape {array.shape}; one star is a flat array")
    return array
