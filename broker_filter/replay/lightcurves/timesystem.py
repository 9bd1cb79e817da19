"""Which time system the dates of a light-curve file are in.

Such files rarely say on which clock their dates run. `recognise` decides by the name of the column
first and by the size of the numbers second; what it decided is stated by `TimeSystem.statement`,
and a caller with better information passes one of `TIME_SYSTEMS`.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from broker_filter.errors import SchemaError
from broker_filter.photometry.times import MJD_ZERO, TIME_SYSTEMS, TimeSystem

__all__ = ["names_frame", "names_time", "recognise"]

_SPACECRAFT: Final = ("btjd", "bkjd")
_FRAMES: Final = ("jd", "hjd", "bjd", "mjd", "hmjd", "bmjd")
_TIME_WORDS: Final = frozenset({*_SPACECRAFT, *_FRAMES, "time", "t", "date", "epoch"})
_TIME_EXTRAS: Final = frozenset(
    {"utc", "tai", "tdb", "tcb", "tt", "obs", "mid", "midpoint", "exp", "exposure", "observation"}
    | {"days", "day", "d"}
)
# Written in one word by ATLAS, PTF, LSST and others.
_TOGETHER: Final = re.compile(
    r"(obs|exp|mid)(?=mjd|jd|hjd|time)|(?<=jd)(?=tai|utc|tdb|obs|mid|date)"
)

# Files that carry no name for their time column, but whose own name shows its maker.
_MAKERS: Final = (
    (re.compile(r"ulwdc1_"), "BJD"),  # Roman (WFIRST) microlensing data challenge
    (re.compile(r"tic[ _-]?\d|tess", re.IGNORECASE), "BTJD"),
    (re.compile(r"kic[ _-]?\d|epic[ _-]?\d|kplr|ktwo", re.IGNORECASE), "BKJD"),
)


def names_time(column: str) -> bool:
    """Whether a column's name (lower case, ``_`` for all else) means a date."""
    words = [word for word in _words(column) if not word.isdigit() and word not in _TIME_EXTRAS]
    return bool(words) and _TIME_WORDS.issuperset(words)


def names_frame(column: str) -> bool:
    """Whether the name of a time says its kind, as ``hjd`` does and ``time`` does not."""
    return not {*_FRAMES, *_SPACECRAFT}.isdisjoint(_words(column))


def _words(column: str) -> list[str]:
    return _TOGETHER.sub(r"\g<0>_", column).split("_")


def recognise(column: str, typical: float, file_name: str = "") -> TimeSystem:
    """Find the time system of a column.

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
    words = _words(column)
    if short := next((word for word in words if word in _SPACECRAFT), None):
        return TIME_SYSTEMS["BJD" if typical > 2.4e6 else short.upper()]
    frame = next((word.upper() for word in words if word in _FRAMES), None)
    if frame is None and (maker := _maker(typical, file_name)):
        return maker
    name = frame or ("MJD" if 30_000 < typical < 100_000 else "HJD")
    stated = _stated_zero(column)
    zero = stated or _zero_by_size(name, typical)
    # An "mjd" that is none has lost digits, and in which way the file does not say.
    assumed = frame is None or (not stated and name.endswith("MJD") and zero != MJD_ZERO)
    return TimeSystem(_spell(name, zero), zero, _scale(name, words), assumed=assumed)


def _maker(typical: float, file_name: str) -> TimeSystem | None:
    for pattern, name in _MAKERS:
        system = TIME_SYSTEMS[name]
        if pattern.match(file_name) and (typical > 2.4e6) == (system.zero == 0.0):
            return system
    return None


def _scale(name: str, words: list[str]) -> Literal["UTC", "TDB", "TAI"]:
    if "tai" in words:
        return "TAI"
    return "TDB" if "tdb" in words or (name.startswith("B") and "utc" not in words) else "UTC"


def _stated_zero(column: str) -> float | None:
    """Read the offset that is part of a column's name, as in ``hjd_2450000``."""
    found = re.search(r"2[345]\d{5}(_5)?(?!\d)", column)
    return float(found[0].replace("_", ".")) if found else None


def _zero_by_size(name: str, typical: float) -> float:
    if 2.43e6 < typical < 2.5e6:
        return 0.0
    if 30_000 < typical < 100_000:
        return MJD_ZERO if name.endswith("MJD") else 2_400_000.0
    if 500 < typical < 20_000:
        return 2_450_000.0
    raise SchemaError(
        f"times around {typical:g} are no date: expected a Julian date, MJD, or JD - 2450000 "
        f"(name the system with --time-system: {', '.join(TIME_SYSTEMS)})"
    )


def _spell(name: str, zero: float) -> str:
    own = MJD_ZERO if name.endswith("MJD") else 0.0
    return name if zero == own else f"{name} - {zero:.10g}"
