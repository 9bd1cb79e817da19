"""Roman packets of RAPID, 01.00: difference flux alone, in DN.

What the schema says and its writer does are two things: ``psfFlux`` is instrumental, its sign is in
``isdiffpos``, ``midpointMjdTai`` is the start of the exposure in UTC, the number of fitted pixels
is written under another name than the schema's. There is no total and no reference flux.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from broker_filter.config import Packets
from broker_filter.decode.selection import MISSING, Leaf, Many, Packet, Selection
from broker_filter.decode.surveys.epochs import Star, epochs_of, make_packet, useless
from broker_filter.decode.surveys.lsst import object_of, of_no_use
from broker_filter.decode.surveys.quality import Table, cut, stacked
from broker_filter.decode.surveys.survey import EventTime, Survey
from broker_filter.photometry.magnitudes import flux_of
from broker_filter.photometry.times import SECONDS_PER_DAY, TIME_SYSTEMS, to_mjd_tai
from broker_filter.types import FloatArray

__all__ = ["EVENT_TIME", "NOMINAL_ZERO_POINTS", "SELECTION", "SURVEY", "read"]

NOMINAL_ZERO_POINTS: Final[Mapping[str, float]] = {
    "F062": 26.4,
    "F087": 26.3,
    "F106": 26.4,
    "F129": 26.3,
    "F146": 27.5,
    "F158": 26.4,
    "F184": 25.9,
    "F213": 25.4,
}
"""AB magnitude of 1 count in RAPID's simulated images (sims/src/socsims/convert_socsims.py)."""

SENSORS: Final = 100  # more than the 18 there are

_DETECTION: Final[Mapping[str, Leaf]] = {
    "midpointMjdTai": "f8",
    "band": "str",
    "psfFlux": "f8",
    "psfFluxErr": "f8",
    "isdiffpos": "bool",
    "flags": "i8",
    "npixfit": "i8",
    "n_pixels_fit": "i8",
    "timeWithdrawnMjdTai": "f8",
    "field": "i8",
    "sca": "i8",
}
# As the name says: half an exposure, and the clock of the header, matter little to a replay.
EVENT_TIME: Final[EventTime] = {("diaSource", "midpointMjdTai"): TIME_SYSTEMS["MJD_TAI"]}
_POSITION: Final[Selection] = {"ra": "f8", "dec": "f8", "decl": "f8", "diaObjectId": "i8"}
SELECTION: Final[Selection] = {
    "diaSource": {**_DETECTION, **_POSITION, "ssObjectId": "i8"},
    "prvDiaSources": Many(_DETECTION),
    "diaObject": _POSITION,
}


def read(record: dict[str, Any], options: Packets) -> Packet:
    """Make photometry of a packet.

    Parameters
    ----------
    record : dict
        What `SELECTION` selects.
    options : Packets
        Without the zero point of a band its epochs are rejected.

    Returns
    -------
    Packet
        Rejected: ``withdrawn``, ``no_zero_point``, ``bad_sign`` (a flux below zero, whose sign is
        said elsewhere), ``flags``, ``npixfit`` (no pixel was fitted), and what `make_packet`
        rejects. Packets of no use count one ``solar_system``, ``withdrawn`` or ``no_object``.
    """
    if (reason := of_no_use(record)) is not None:
        return useless(reason)
    first, (name, position) = record["diaSource"], object_of(record)
    rejected: Counter[str] = Counter()
    table = _cut(stacked(first, record["prvDiaSources"]), rejected, options)
    scale = flux_of(_zero_points(table, options))
    known = (table["field"] >= 0) & (table["sca"] >= 0) & (table["sca"] < SENSORS)
    epochs = epochs_of(
        _mid_exposure(table["midpointMjdTai"], options),
        np.where(table["isdiffpos"], 1.0, -1.0) * table["psfFlux"] * scale,
        table["psfFluxErr"] * scale,
        table["band"].astype("U8"),
        total=False,
        forced=False,
        source=np.where(known, np.where(known, table["field"], 0) * SENSORS + table["sca"], -1),
    )
    return make_packet(Star("roman", name, *position), [epochs], rejected, _source_name)


def _cut(table: Table, rejected: Counter[str], options: Packets) -> Table:
    usable = {
        "withdrawn": np.isfinite(table["timeWithdrawnMjdTai"]),
        "no_zero_point": ~np.isfinite(_zero_points(table, options)),
        "bad_sign": table["psfFlux"] < 0,
    }
    table = cut(table, usable, rejected)
    pixels = np.maximum(table["npixfit"], table["n_pixels_fit"])  # the one that is missing is least
    quality = {
        "flags": (table["flags"] != 0) & (table["flags"] != MISSING["i8"]),
        "npixfit": (pixels <= 0) & (pixels != MISSING["i8"]),
    }
    return cut(table, quality, rejected, options.ignored_cuts)


def _zero_points(table: Table, options: Packets) -> FloatArray:
    points = [options.roman_zero_points.get(band, np.nan) for band in table["band"].tolist()]
    return np.array(points, np.float64)


def _mid_exposure(time: FloatArray, options: Packets) -> FloatArray:
    if options.roman_time == "mid_tai":
        return time
    return to_mjd_tai(time, TIME_SYSTEMS["MJD"]) + options.roman_exposure_s / 2 / SECONDS_PER_DAY


def _source_name(code: int) -> str:
    """Field and sensor."""
    return f"{code // SENSORS}-{code % SENSORS}" if code >= 0 else ""


SURVEY: Final = Survey(
    "roman",
    SELECTION,
    read,
    schema_name=r"rapid\.v\d+_\d+\.alert",
    event_time=EVENT_TIME,
    cuts=frozenset({"flags", "npixfit"}),
)
