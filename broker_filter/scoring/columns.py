"""Arrays of a user, with units or without, as photometry in order of time.

Objects of astropy, lightkurve and pandas are known by what they can do; none is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker_filter.errors import SchemaError
from broker_filter.photometry.statistics import median_level
from broker_filter.photometry.times import MJD_ZERO, TIME_SYSTEMS, to_mjd_tai
from broker_filter.replay.lightcurves.names import Role, role_of, snake
from broker_filter.scoring.flags import flag_columns, flags_of
from broker_filter.scoring.units import converted, flat, flux_values, quantity
from broker_filter.types import FloatArray, Photometry, StarId

__all__ = ["Baseline", "photometry_of"]

Baseline = float | tuple[float, float] | Literal["median"] | None
"""Flux of the quiet star, alone or with its 1-sigma error; the median; or None: not given."""

DAYS_1970: Final = 40587.0
PAIR: Final = 2


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
    value, sigma = flux_values(flux, error, zero_point)
    stated = _stated_level(baseline, getattr(flux, "unit", None), zero_point)
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
        level, level_error = stated or median_level(value[good], sigma[good])
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
        return flat("time", time.tai.mjd)
    system = TIME_SYSTEMS.get(str(time_system).upper())
    if system is None:
        raise SchemaError(f"time_system {time_system!r} is none of {', '.join(TIME_SYSTEMS)}")
    time = quantity(time)
    if getattr(time, "unit", None) is not None:
        time = converted("time", time, "d")
    times = np.asarray(time)
    if times.dtype.kind == "M":  # calendar dates, UTC
        days = (times - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
        return to_mjd_tai(days + DAYS_1970, TIME_SYSTEMS["MJD"])
    mjd = to_mjd_tai(flat("time", time), system)
    typical = float(np.median(known)) if len(known := mjd[np.isfinite(mjd)]) else MJD_ZERO
    if known.size and not 30_000 < typical < 100_000:
        raise SchemaError(
            f"times around {typical + MJD_ZERO - system.zero:g} are no {system.name}: give"
            f" time_system, one of {', '.join(TIME_SYSTEMS)}"
        )
    return mjd


def _stated_level(
    baseline: Baseline,
    unit: Any,  # noqa: ANN401  astropy's
    zero_point: float | None,
) -> tuple[float, float] | None:
    """Reference flux and its error, NaN where not given; None where the median is wanted.

    Numbers without a unit are in that of the flux.
    """
    if baseline is None:
        return np.nan, np.nan
    if isinstance(baseline, str):
        if baseline != "median":
            raise SchemaError(f"baseline {baseline!r} is neither a number nor 'median'")
        return None
    pair = baseline if isinstance(baseline, tuple | list) else (baseline, np.nan)
    if len(pair) != PAIR:
        raise SchemaError(f"baseline holds {len(pair)} values: a flux and its error are needed")
    level, error = pair
    level = _in_unit(level, unit)
    error = _in_unit(error, getattr(level, "unit", None))
    value, sigma = flux_values(level, error, zero_point)
    if not 0 < value[0] < np.inf:
        raise SchemaError(f"baseline {value[0]:g} is not above 0, or not finite")
    if sigma[0] < 0:
        raise SchemaError(f"the baseline's error {sigma[0]:g} is below 0")
    return float(value[0]), float(sigma[0])


def _in_unit(value: Any, unit: Any) -> Any:  # noqa: ANN401  a number, or astropy's Quantity
    return value if unit is None or hasattr(value, "unit") else value * unit


def _names(what: str, given: str | Sequence[str] | None, n: int, default: str) -> list[str]:
    if given is None or isinstance(given, str) or not hasattr(given, "__iter__"):
        return [default if given is None else str(given)] * n
    names = [default if name is None else str(name) for name in given]
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
