"""LSST packets 7.x to 11.1, with the older names that ELAsTiCC uses, as Rubin or Fink send them.

``scienceFlux`` is the star's total flux in nJy; an epoch without it is difference flux, with the
median template flux of its band as reference, if the packet has any. (The template flux of one
epoch is matched to its seeing and changes by 20 to 30 %.) ``midpointMjdTai`` is what it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.config import Packets
from broker_filter.decode.selection import MISSING, Leaf, Many, Packet, Selection
from broker_filter.decode.surveys.epochs import Epochs, Star, epochs_of, make_packet, useless
from broker_filter.decode.surveys.quality import Table, cut, filled, stacked
from broker_filter.decode.surveys.survey import EventTime, Survey
from broker_filter.photometry.times import TIME_SYSTEMS
from broker_filter.types import FloatArray, IntArray, StarId

__all__ = [
    "CUT_FLAGS",
    "DETECTION",
    "ELASTICC",
    "EPOCH",
    "EVENT_TIME",
    "PIXEL_FLAGS",
    "SELECTION",
    "SURVEY",
    "object_of",
    "of_no_use",
    "read",
    "read_elasticc",
]

BANDS: Final = ("u", "g", "r", "i", "z", "y")
DETECTORS: Final = 1000  # more than there are
MIN_TEMPLATES: Final = 5

_OLD_NAMES: Final[Mapping[str, tuple[str, Leaf]]] = {
    "midpointMjdTai": ("midPointTai", "f8"),
    "psfFlux": ("psFlux", "f8"),
    "psfFluxErr": ("psFluxErr", "f8"),
    "scienceFlux": ("totFlux", "f8"),
    "scienceFluxErr": ("totFluxErr", "f8"),
    "band": ("filterName", "str"),
}
"""Present name to that before 5.0, and the type of both."""

PIXEL_FLAGS: Final = (
    "pixelFlags_saturated",
    "pixelFlags_bad",
    "pixelFlags_nodata",
    "pixelFlags_offimage",
    "pixelFlags_edge",
    "pixelFlags_cr",
    "pixelFlags_interpolated",
    "pixelFlags_streak",
    "pixelFlags_suspect",
    "pixelFlags_injected",
    "pixelFlags_injected_template",
)
"""Set where a pixel of the footprint is spoilt, for whoever measures there."""

CUT_FLAGS: Final = (
    *PIXEL_FLAGS,
    "psfFlux_flag",
    "psfFlux_flag_edge",
    "psfFlux_flag_noGoodPixels",
    "forced_PsfFlux_flag",
    "forced_PsfFlux_flag_edge",
    "forced_PsfFlux_flag_noGoodPixels",
    "centroid_flag",
    "glint_trail",
)
"""Flags of a detection that reject it, in order of precedence; null is not set."""

_BOOL: Final[Leaf] = "bool"

EPOCH: Final[Mapping[str, Leaf]] = {
    **{name: leaf for name, (_, leaf) in _OLD_NAMES.items()},
    **dict(_OLD_NAMES.values()),
    "visit": "i8",
    "detector": "i8",
    "timeWithdrawnMjdTai": "f8",
}
"""What is read of a forced measurement."""

DETECTION: Final[Mapping[str, Leaf]] = {
    **EPOCH,
    "templateFlux": "f8",
    "templateFluxErr": "f8",
    "reliability": "f8",
    **dict.fromkeys(CUT_FLAGS, _BOOL),
}
"""What is read of a detection."""

EVENT_TIME: Final[EventTime] = {
    ("diaSource", "midpointMjdTai"): TIME_SYSTEMS["MJD_TAI"],
    ("diaSource", "midPointTai"): TIME_SYSTEMS["MJD_TAI"],  # before 5.0, and ELAsTiCC
}
_POSITION: Final[Selection] = {"ra": "f8", "dec": "f8", "decl": "f8"}
SELECTION: Final[Selection] = {
    "diaSource": {**DETECTION, **_POSITION, "diaObjectId": "i8", "ssObjectId": "i8"},
    "prvDiaSources": Many(DETECTION, time="midpointMjdTai", band="band"),
    "prvDiaForcedSources": Many(EPOCH, time="midpointMjdTai", band="band"),
    "diaObject": {**_POSITION, "diaObjectId": "i8"},
}


def read(record: dict[str, Any], options: Packets, survey: str = "lsst") -> Packet:
    """Make photometry of a packet.

    Parameters
    ----------
    record : dict
        What `SELECTION` selects.
    options : Packets
    survey : str
        Under which the photometry goes.

    Returns
    -------
    Packet
        Rejected: ``withdrawn``, ``unknown_band``, ``reliability``, the flags of `CUT_FLAGS`, and
        what `make_packet` rejects. Where a pixel flag rejects a detection, it rejects the forced
        photometry of the same visit and detector too, which carries no flags. Packets of no use
        count one ``solar_system``, ``withdrawn`` or ``no_object``.
    """
    if (reason := of_no_use(record)) is not None:
        return useless(reason)
    first, (name, position) = record["diaSource"], object_of(record)
    rejected: Counter[str] = Counter()
    found = _renamed(stacked(first, record["prvDiaSources"]))
    forced = _renamed(record["prvDiaForcedSources"])
    spoilt = _spoilt(found, forced)
    found = cut(found, _unusable(found), rejected)
    flags = {"reliability": found["reliability"] < options.lsst_min_reliability}
    flags |= {flag: found[flag] for flag in CUT_FLAGS}
    found = cut(found, flags, rejected, options.ignored_cuts)
    forced = cut(forced, spoilt, rejected, options.ignored_cuts)
    forced = cut(forced, _unusable(forced), rejected)
    parts = [_epochs(found, found, forced=False), _epochs(forced, found, forced=True)]
    return make_packet(Star(survey, name, *position), parts, rejected)


def read_elasticc(record: dict[str, Any], options: Packets) -> Packet:
    """Make photometry of a packet of ELAsTiCC's simulation; see `read`."""
    return read(record, options, survey="elasticc")


def of_no_use(record: dict[str, Any]) -> str | None:
    """Why a packet of this outline has no star to watch, if that is so."""
    first = record["diaSource"]
    if first is None:
        return "no_object"
    if first["ssObjectId"] not in (0, MISSING["i8"]):
        return "solar_system"
    if np.isfinite(first["timeWithdrawnMjdTai"]):
        return "withdrawn"
    return None if object_of(record)[0] else "no_object"


def object_of(record: dict[str, Any]) -> tuple[int, tuple[float, float]]:
    """Id of the star, 0 where there is none, and its position, by object or detection."""
    name, ra, dec = 0, np.nan, np.nan
    for part in (record["diaSource"], record["diaObject"]):
        if part is not None:
            name = part["diaObjectId"] if part["diaObjectId"] not in (0, MISSING["i8"]) else name
            its_dec = part["decl"] if np.isnan(part["dec"]) else part["dec"]
            if np.isfinite(part["ra"] + its_dec):
                ra, dec = part["ra"], its_dec
    return name, (ra, dec)


def _renamed(table: Mapping[str, NDArray[Any]]) -> Table:
    """The columns under their present names, bands in lower case."""
    columns = {new: filled(table[new], table[old]) for new, (old, _) in _OLD_NAMES.items()}
    return {
        **table,
        **columns,
        "band": _lowered(columns["band"]),
        "visit": _visit(table["visit"], table["detector"]),
    }


def _lowered(names: NDArray[Any]) -> NDArray[Any]:
    listed = names.tolist()
    lower = {name: name.lower() for name in set(listed)}
    return np.array([lower[name] for name in listed], "U8")


def _visit(visit: IntArray, detector: IntArray) -> IntArray:
    known = (visit >= 0) & (visit < 1 << 50) & (detector >= 0) & (detector < DETECTORS)
    return np.where(known, np.where(known, visit, 0) * DETECTORS + detector, -1)


def _spoilt(found: Table, forced: Table) -> dict[str, NDArray[np.bool_]]:
    """Pixel flag to the forced epochs that were measured on such pixels."""
    known = found["visit"] >= 0
    return {
        flag: np.isin(forced["visit"], found["visit"][known & found[flag]])
        for flag in PIXEL_FLAGS
        if found[flag].any()
    }


def _unusable(table: Table) -> dict[str, NDArray[np.bool_]]:
    return {
        "withdrawn": np.isfinite(table["timeWithdrawnMjdTai"]),
        "unknown_band": ~np.isin(table["band"], BANDS),
    }


def _epochs(table: Table, detections: Table, *, forced: bool) -> Epochs:
    science, science_err = table["scienceFlux"], table["scienceFluxErr"]
    # ELAsTiCC's forced photometry says -1 +- 1 for "none".
    total = np.isfinite(science) & (science_err > 0) & ~((science == -1) & (science_err == 1))
    none = np.full(len(total), np.nan)
    references = (none, none) if total.all() else _references(table["band"], detections)
    ref_flux, ref_flux_err = (np.where(total, np.nan, column) for column in references)
    return epochs_of(
        table["midpointMjdTai"],
        np.where(total, science, table["psfFlux"]),
        np.where(total, science_err, table["psfFluxErr"]),
        table["band"],
        total=total,
        forced=forced,
        visit=table["visit"],
        ref_flux=ref_flux,
        ref_flux_err=ref_flux_err,
    )


def _references(band: NDArray[Any], detections: Table) -> tuple[FloatArray, FloatArray]:
    """Median template flux of each epoch's band, and its scatter; NaN where there are too few."""
    flux, error = np.full((2, len(band)), np.nan)
    known = np.isfinite(detections["templateFlux"]) & (detections["templateFluxErr"] > 0)
    for name in set(detections["band"][known].tolist()):
        of = known & (detections["band"] == name)
        if of.sum() < MIN_TEMPLATES:
            continue
        median = np.median(detections["templateFlux"][of])
        scatter = 1.4826 * np.median(np.abs(detections["templateFlux"][of] - median))
        flux[band == name] = median
        error[band == name] = max(scatter, np.median(detections["templateFluxErr"][of]))
    return flux, error


def _star_of(record: Mapping[str, Any]) -> StarId:
    source = record["diaSource"]
    return 0 if source is None else int(source["diaObjectId"])


_CUTS: Final = frozenset({"reliability", *CUT_FLAGS})
SURVEY: Final = Survey(
    "lsst",
    SELECTION,
    read,
    schema_name=r"lsst\.v\d+_\d+\.alert",
    event_time=EVENT_TIME,
    cuts=_CUTS,
    star_of=_star_of,
)
ELASTICC: Final = Survey(
    "elasticc",
    SELECTION,
    read_elasticc,
    schema_name=r"elasticc\.v\w+\.alert",
    event_time=EVENT_TIME,
    cuts=_CUTS,
)
