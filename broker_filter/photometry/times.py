"""Dates of surveys and archives, on any of their clocks, to MJD TAI.

Only the clock is changed. The light-travel correction to the Sun or to the barycentre (up to
8.3 min over a year) needs the star's position and is left as it is in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from broker_filter.types import FloatArray

__all__ = [
    "MJD_ZERO",
    "SECONDS_PER_DAY",
    "TIME_SYSTEMS",
    "TimeSystem",
    "tai_minus_utc",
    "to_mjd_tai",
    "to_mjd_utc",
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


def to_mjd_utc(mjd_tai: FloatArray) -> FloatArray:
    """MJD in UTC.

    Parameters
    ----------
    mjd_tai : ndarray, shape (n,), float64, days

    Returns
    -------
    ndarray, shape (n,), float64, days
    """
    near = mjd_tai - tai_minus_utc(mjd_tai) / SECONDS_PER_DAY
    return np.asarray(mjd_tai - tai_minus_utc(near) / SECONDS_PER_DAY)


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
