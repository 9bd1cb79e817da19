"""Julian dates of archives, in all their spellings, to MJD TAI.

Light-curve files rarely say on which clock their dates run. `recognise` decides by the name of the
column first and by the size of the numbers second; what it decided is stated by
`TimeSystem.statement`, and a caller who knows better passes one of `TIME_SYSTEMS`.

Only the clock is changed. The light-travel correction to the Sun or to the barycentre (up to
8.3 min over a year) needs the star's place and is left as it is in the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from broker_filter.errors import SchemaError
from broker_filter.types import FloatArray

__all__ = [
    "MJD_ZERO",
    "SECONDS_PER_DAY",
    "TIME_SYSTEMS",
    "TimeSystem",
    "names_time",
    "recognise",
    "tai_minus_utc",
    "to_mjd_tai",
]

MJD_ZERO: Final = 2400000.5
SECONDS_PER_DAY: Final = 86400.0
TDB_MINUS_TAI_S: Final = 32.184  # TDB and TT agree within 2 ms

# TAI - UTC in seconds from the given MJD on: IERS Bulletin C, no change since 2017.
_LEAP_SECONDS: Final = (
    (41317, 10), (41499, 11), (41683, 12), (42048, 13), (42413, 14), (42778, 15), (43144, 16),
    (43509, 17), (43874, 18), (44239, 19), (44786, 20), (45151, 21), (45516, 22), (46247, 23),
    (47161, 24), (47892, 25), (48257, 26), (48804, 27), (49169, 28), (49534, 29), (50083, 30),
    (50630, 31), (51179, 32), (53736, 33), (54832, 34), (56109, 35), (57204, 36), (57754, 37),
)  # fmt: skip
_LEAP_MJD = np.array([mjd for mjd, _ in _LEAP_SECONDS], dtype=np.float64)
_LEAP_S = np.array([seconds for _, seconds in _LEAP_SECONDS], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class TimeSystem:
    """How the numbers of a time column become dates.

    Parameters
    ----------
    name : str
        As it is stated to people, such as ``"HJD - 2450000"``.
    zero : float
        Julian date at which the column reads zero.
    scale : "UTC", "TDB" or "TAI"
        The clock.
    assumed : bool
        True where neither the file nor the caller named the system.
    """

    name: str
    zero: float
    scale: Literal["UTC", "TDB", "TAI"]
    assumed: bool = False

    @property
    def statement(self) -> str:
        """One phrase for people, with what was assumed and what was not corrected."""
        travel = {"H": "heliocentric", "B": "barycentric"}.get(self.name[0])
        kept = f", {travel} correction kept" if travel else ""
        assumed = ", assumed from the size of the numbers" if self.assumed else ""
        return f"{self.name} ({self.scale}{kept}{assumed})"


TIME_SYSTEMS: Final = {
    "HJD": TimeSystem("HJD", 0.0, "UTC"),
    "HJD'": TimeSystem("HJD - 2450000", 2450000.0, "UTC"),
    "BJD": TimeSystem("BJD", 0.0, "TDB"),
    "BTJD": TimeSystem("BTJD = BJD - 2457000", 2457000.0, "TDB"),
    "BKJD": TimeSystem("BKJD = BJD - 2454833", 2454833.0, "TDB"),
    "JD": TimeSystem("JD", 0.0, "UTC"),
    "MJD": TimeSystem("MJD", MJD_ZERO, "UTC"),
    "MJD_TAI": TimeSystem("MJD", MJD_ZERO, "TAI"),
}

_SPACECRAFT: Final = ("btjd", "bkjd")
_FRAMES: Final = ("jd", "hjd", "bjd", "mjd")
_TIME_WORDS: Final = frozenset({*_SPACECRAFT, *_FRAMES, "time", "t", "date", "epoch"})
_TIME_EXTRAS: Final = frozenset({"utc", "tai", "tdb", "obs", "mid", "days", "day", "d"})

# Files that carry no name for their time column, but whose own name tells its maker.
_MAKERS: Final = (
    (re.compile(r"ulwdc1_"), "BJD"),  # Roman (WFIRST) microlensing data challenge
    (re.compile(r"tic[ _-]?\d|tess", re.IGNORECASE), "BTJD"),
    (re.compile(r"kic[ _-]?\d|epic[ _-]?\d|kplr|ktwo", re.IGNORECASE), "BKJD"),
)


def names_time(column: str) -> bool:
    """Tell a column name (lower case, ``_`` for all else) that means a date."""
    words = [word for word in column.split("_") if not word.isdigit() and word not in _TIME_EXTRAS]
    return bool(words) and _TIME_WORDS.issuperset(words)


def recognise(column: str, typical: float, file_name: str = "") -> TimeSystem:
    """Tell the time system of a column.

    Parameters
    ----------
    column : str
        Its name in lower case with ``_`` for all else, such as ``"hjd_2450000"``; empty if unnamed.
    typical : float
        A typical value (the median), days.
    file_name : str
        Some makers are known by their file names: ``ulwdc1_`` (BJD), ``TIC`` (BTJD), ``KIC`` and
        ``EPIC`` (BKJD).

    Raises
    ------
    SchemaError
        Where the numbers are no dates in any system that we know.
    """
    words = column.split("_")
    if short := next((word for word in words if word in _SPACECRAFT), None):
        return TIME_SYSTEMS["BJD" if typical > 2.4e6 else short.upper()]
    frame = next((word.upper() for word in words if word in _FRAMES), None)
    if frame is None and (maker := _maker(typical, file_name)):
        return maker
    name = frame or ("MJD" if 30_000 < typical < 100_000 else "HJD")
    zero = _stated_zero(column) or _zero_by_size(name, typical)
    return TimeSystem(_spell(name, zero), zero, _scale(name, words), assumed=frame is None)


def _maker(typical: float, file_name: str) -> TimeSystem | None:
    for pattern, name in _MAKERS:
        system = TIME_SYSTEMS[name]
        if pattern.match(file_name) and (typical > 2.4e6) == (system.zero == 0.0):
            return system
    return None


def _scale(name: str, words: list[str]) -> Literal["UTC", "TDB", "TAI"]:
    if "tai" in words:
        return "TAI"
    return "TDB" if "tdb" in words or (name == "BJD" and "utc" not in words) else "UTC"


def _stated_zero(column: str) -> float | None:
    """Read the offset that is part of a column's name, as in ``hjd_2450000``."""
    found = re.search(r"2[345]\d{5}(_5)?(?!\d)", column)
    return float(found[0].replace("_", ".")) if found else None


def _zero_by_size(name: str, typical: float) -> float:
    if 2.43e6 < typical < 2.5e6:
        return 0.0
    if 30_000 < typical < 100_000:
        return MJD_ZERO if name == "MJD" else 2_400_000.0
    if 500 < typical < 20_000:
        return 2_450_000.0
    raise SchemaError(
        f"times around {typical:g} are no date: expected a Julian date, MJD, or JD - 2450000 "
        f"(name the system with --time-system: {', '.join(TIME_SYSTEMS)})"
    )


def _spell(name: str, zero: float) -> str:
    own = MJD_ZERO if name == "MJD" else 0.0
    return name if zero == own else f"{name} - {zero:.10g}"


def tai_minus_utc(mjd_utc: FloatArray) -> FloatArray:
    """TAI - UTC in seconds.

    Parameters
    ----------
    mjd_utc : ndarray, shape (n,), float64, days
        MJD UTC. Before 1972, when UTC had no whole seconds, the 10 s of 1972 are used.

    Returns
    -------
    ndarray, shape (n,), float64, seconds
    """
    step = np.searchsorted(_LEAP_MJD, mjd_utc, side="right") - 1
    return np.asarray(_LEAP_S[np.maximum(step, 0)])


def to_mjd_tai(times: FloatArray, system: TimeSystem) -> FloatArray:
    """Convert a time column to MJD TAI; light-travel corrections are kept.

    Parameters
    ----------
    times : ndarray, shape (n,), float64, days
        As they stand in the file.
    system : TimeSystem

    Returns
    -------
    ndarray, shape (n,), float64, days
        MJD TAI, good to 0.04 ms where ``times`` are full Julian dates (float64 there).
    """
    mjd = np.asarray(times, dtype=np.float64) + (system.zero - MJD_ZERO)
    if system.scale == "UTC":
        return np.asarray(mjd + tai_minus_utc(mjd) / SECONDS_PER_DAY)
    if system.scale == "TDB":
        return np.asarray(mjd - TDB_MINUS_TAI_S / SECONDS_PER_DAY)
    return mjd
