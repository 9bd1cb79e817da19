"""Packets of Babamul, the public stream of BOOM, for ZTF and for LSST.

Histories hold signed difference flux alone: in nJy for LSST, and for ZTF in a unit of 1e-6 nJy that
is called nJy (10^(-0.4 (m - 23.9)) 1e9). ``jd`` is the start of the exposure in UTC for ZTF, and
its middle in TAI for LSST. Written from the schema that BOOM derives from ``EnrichedZtfAlert`` and
``EnrichedLsstAlert``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.config import Packets
from broker_filter.decode.selection import MISSING, Leaf, Many, Packet, Selection
from broker_filter.decode.surveys import lsst, ztf
from broker_filter.decode.surveys.epochs import Epochs, Star, epochs_of, make_packet, useless
from broker_filter.decode.surveys.quality import Table, cut
from broker_filter.decode.surveys.survey import EventTime, Survey
from broker_filter.photometry.times import MJD_ZERO, TIME_SYSTEMS

__all__ = [
    "LSST",
    "LSST_SELECTION",
    "ZTF",
    "ZTF_SELECTION",
    "ZTF_UNIT_NJY",
    "read_lsst",
    "read_ztf",
]

ZTF_UNIT_NJY: Final = 1e-6
"""What ZTF fluxes count, in nJy."""

_POINT: Final[Mapping[str, Leaf]] = {
    "jd": "f8",
    "psfFlux": "f8",
    "psfFluxErr": "f8",
    "band": "str",
}
ZTF_SELECTION: Final[Selection] = {
    "objectId": "str",
    "candidate": {
        **_POINT,
        **ztf.REFERENCE,
        "exptime": "f8",
        "nbad": "i8",
        "rb": "f8",
        "ssdistnr": "f8",
        "ra": "f8",
        "dec": "f8",
    },
    "prv_candidates": Many(_POINT),
    "prv_nondetections": Many({"jd": "f8"}),
    "fp_hists": Many(_POINT),
}
LSST_SELECTION: Final[Selection] = {
    "candidate": lsst.SELECTION["diaSource"],
    "prv_candidates": Many(_POINT),
    "fp_hists": Many(_POINT),
}


def read_ztf(record: dict[str, Any], options: Packets) -> Packet:
    """Make photometry of a ZTF packet.

    Parameters
    ----------
    record : dict
        What `ZTF_SELECTION` selects.
    options : Packets

    Returns
    -------
    Packet
        Difference flux. In the band of the alert it has a reference flux, where a star is behind
        it; of the other bands the packet holds none. Rejected: ``upper_limit``, the cuts of
        detections in `broker_filter.decode.surveys.ztf.read` on the alert itself, and what
        `make_packet` rejects; ``no_object`` where the packet names no star.
    """
    first = record["candidate"]
    if first is None or not record["objectId"]:
        return useless("no_object")
    rejected = Counter({"upper_limit": len(record["prv_nondetections"]["jd"])})
    alert = {name: np.array([value]) for name, value in first.items()}
    band, ref_flux, ref_flux_err = first["band"], *_reference(alert, options)

    def epochs(table: Mapping[str, NDArray[Any]], *, forced: bool) -> Epochs:
        bands = table["band"].astype("U8")
        return epochs_of(
            ztf.mid_exposure(table["jd"], table["exptime"]),
            table["psfFlux"] * ZTF_UNIT_NJY,
            table["psfFluxErr"] * ZTF_UNIT_NJY,
            bands,
            total=False,
            forced=forced,
            ref_flux=np.where(bands == band, ref_flux, np.nan),
            ref_flux_err=np.where(bands == band, ref_flux_err, np.nan),
        )

    before, forced = (_timed(record[name]) for name in ("prv_candidates", "fp_hists"))
    ztf.exposures_alike(alert, before, forced)
    alert = cut(alert, ztf.quality(alert, options), rejected, options.ignored_cuts)
    parts = [
        epochs(alert, forced=False),
        epochs(before, forced=False),
        epochs(forced, forced=True),
    ]
    position = first["ra"], first["dec"]
    star = Star("babamul-ztf", record["objectId"], *position, ztf.SAME_EXPOSURE_S)
    return make_packet(star, parts, +rejected)


def read_lsst(record: dict[str, Any], options: Packets) -> Packet:
    """Make photometry of an LSST packet, whose alert alone has a total flux.

    Parameters
    ----------
    record : dict
        What `LSST_SELECTION` selects.
    options : Packets

    Returns
    -------
    Packet
        As from `broker_filter.decode.surveys.lsst.read`.
    """
    as_lsst = {
        "diaSource": record["candidate"],
        "prvDiaSources": _as_lsst(lsst.DETECTION, record["prv_candidates"]),
        "prvDiaForcedSources": _as_lsst(lsst.EPOCH, record["fp_hists"]),
        "diaObject": None,
    }
    return lsst.read(as_lsst, options, survey="babamul-lsst")


def _timed(points: Table) -> Table:
    """A history, whose exposures are of unknown length."""
    return {**points, "exptime": np.full(len(points["jd"]), np.nan)}


def _reference(alert: Table, options: Packets) -> tuple[float, float]:
    _, flux, error = ztf.reference(alert, alert["distnr"], options)
    return float(flux[0]), float(error[0])


def _as_lsst(fields: Mapping[str, Leaf], points: Mapping[str, NDArray[Any]]) -> Table:
    """A history in the columns of LSST's own."""
    missing = {name: np.full(len(points["jd"]), MISSING[leaf]) for name, leaf in fields.items()}
    given = {name: points[name] for name in fields.keys() & points.keys()}
    return {**missing, **given, "midpointMjdTai": points["jd"] - MJD_ZERO}


# LSST's is in TAI and the middle of the exposure; half a minute matters little to a replay.
_EVENT_TIME: Final[EventTime] = {("candidate", "jd"): TIME_SYSTEMS["JD"]}
ZTF: Final = Survey(
    "babamul-ztf",
    ZTF_SELECTION,
    read_ztf,
    schema_name=r"(.*\.)?EnrichedZtfAlert",
    outline=frozenset({"objectId", "candidate", "prv_nondetections"}),
    event_time=_EVENT_TIME,
    cuts=ztf.CUTS,
)
LSST: Final = Survey(
    "babamul-lsst",
    LSST_SELECTION,
    read_lsst,
    schema_name=r"(.*\.)?EnrichedLsstAlert",
    outline=frozenset({"objectId", "candidate", "properties"}),
    event_time=_EVENT_TIME,
    cuts=lsst.SURVEY.cuts,
)
