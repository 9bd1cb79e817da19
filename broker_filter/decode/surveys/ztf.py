"""ZTF packets 3.2 to 4.02, those of its simulation before, and Fink's, which have the same fields.

Photometry is measured on difference images. Where the reference image shows a star there,
its flux makes the difference total (`broker_filter.photometry.magnitudes.add_reference`); else the
epoch stays difference flux without a reference. Detections come as AB magnitudes with a sign
(``isdiffpos``), forced photometry (since 4.01) in DN with a zero point for each epoch. ``jd`` is
the start of the exposure, UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.config import Packets
from broker_filter.decode.selection import Leaf, Many, Packet, Selection
from broker_filter.decode.surveys.epochs import (
    SAME_EPOCH_DAYS,
    Epochs,
    Star,
    epochs_of,
    make_packet,
    useless,
)
from broker_filter.decode.surveys.quality import Cuts, Table, cut, stacked
from broker_filter.decode.surveys.survey import EventTime, Survey
from broker_filter.photometry.magnitudes import add_reference, flux_error, flux_of
from broker_filter.photometry.times import SECONDS_PER_DAY, TIME_SYSTEMS, to_mjd_tai
from broker_filter.types import FloatArray, IntArray

__all__ = [
    "CUTS",
    "EVENT_TIME",
    "EXPOSURE_S",
    "REFERENCE",
    "SAME_EXPOSURE_S",
    "SELECTION",
    "SURVEY",
    "exposures_alike",
    "mid_exposure",
    "quality",
    "read",
    "reference",
    "star_behind",
]

EXPOSURE_S: Final = 30.0
SAME_EXPOSURE_S: Final = 31.0
"""By how much the middle of one exposure may differ from packet to packet: half of what exposures
of up to 90 s are longer than 30 s, which is assumed where a packet gives none. Exposures of 30 s
follow one another by 38 s at least."""

BANDS: Final = np.array(["", "g", "r", "i"])  # by fid
PIXEL_ARCSEC: Final = 1.01
CHANNELS: Final = 64  # readout channels of the camera, rcid 0 to 63
SOLAR_SYSTEM_ARCSEC: Final = 5.0
MAGNITUDES: Final = (0.0, 40.0)  # -999 and -99999 stand for "none"
NOT_MEASURED: Final = -99_998.0  # forced fluxes of -99999 are none
NOT_FITTED: Final = -900.0  # -999 and -99999 again
POSITIVE: Final = ("t", "1")
NEGATIVE: Final = ("f", "0")

CUTS: Final = frozenset({"solar_system", "nbad", "rb"})
"""Reasons of `quality`."""

REFERENCE: Final[Mapping[str, Leaf]] = {
    "magnr": "f8",
    "sigmagnr": "f8",
    "distnr": "f8",
    "chinr": "f8",
    "sharpnr": "f8",
}
"""What a packet says of the nearest source in the reference image."""

_EXPOSURE: Final[Mapping[str, Leaf]] = {
    "jd": "f8",
    "exptime": "f8",
    "fid": "i8",
    "field": "i8",
    "rcid": "i8",
}
_DETECTION: Final[Mapping[str, Leaf]] = {
    **_EXPOSURE,
    **REFERENCE,
    "magpsf": "f8",
    "sigmapsf": "f8",
    "isdiffpos": "str",
    "nbad": "i8",
    "rb": "f8",
    "ssdistnr": "f8",
}
EVENT_TIME: Final[EventTime] = {("candidate", "jd"): TIME_SYSTEMS["JD"]}
SELECTION: Final[Selection] = {
    "objectId": "str",
    "candidate": {**_DETECTION, "ra": "f8", "dec": "f8"},
    "prv_candidates": Many(_DETECTION),
    "fp_hists": Many(
        {
            **_EXPOSURE,
            **REFERENCE,
            "forcediffimflux": "f8",
            "forcediffimfluxunc": "f8",
            "magzpsci": "f8",
            "procstatus": "str",
        }
    ),
}


def read(record: dict[str, Any], options: Packets) -> Packet:
    """Make photometry of a packet.

    Parameters
    ----------
    record : dict
        What `SELECTION` selects.
    options : Packets

    Returns
    -------
    Packet
        Rejected: ``upper_limit`` (nothing was detected), ``not_measured``, ``no_zero_point``,
        ``unknown_band``, ``bad_sign``, ``solar_system`` (a known body within 5 arcsec), ``nbad``
        (bad pixels), ``rb``, ``procstatus`` (warnings of forced photometry), and what
        `make_packet` rejects; ``no_object`` where the packet names no star.
    """
    first = record["candidate"]
    if first is None or not record["objectId"]:
        return useless("no_object")
    rejected: Counter[str] = Counter()
    found = _cut_detections(stacked(first, record["prv_candidates"]), rejected, options)
    forced = _cut_forced(record["fp_hists"], rejected, options)
    exposures_alike(found, forced)
    parts = [_detections(found, options), _forced(forced, options)]
    star = Star("ztf", record["objectId"], first["ra"], first["dec"], SAME_EXPOSURE_S)
    return make_packet(star, parts, rejected, source_name)


def exposures_alike(*tables: Table) -> None:
    """Put the length of each exposure, where any list of a packet holds it, into all of its lists.

    Parameters
    ----------
    tables : Table
        With columns ``jd`` (start of the exposure, days) and ``exptime`` (seconds; no positive
        number where unknown), both float64; the second is replaced.

    Notes
    -----
    Detections of earlier packets come without the length of their exposure, forced photometry of
    the same exposures with it.
    """
    exposure_s = np.concatenate([table["exptime"] for table in tables])
    known = _is_length(exposure_s)
    if not (known & (exposure_s != EXPOSURE_S)).any():
        return  # all are as long as those of unknown length are taken to be
    exposure_s = np.where(known, exposure_s, -np.inf)
    jd = np.concatenate([table["jd"] for table in tables])
    order = np.argsort(jd, kind="stable")
    first = ~(np.diff(jd[order], prepend=-np.inf) < SAME_EPOCH_DAYS)  # NaN is like no other
    if first.all():
        return
    longest = np.maximum.reduceat(exposure_s[order], np.flatnonzero(first))
    exposure_s[order] = longest[np.cumsum(first) - 1]
    ends = np.cumsum([len(table["jd"]) for table in tables])[:-1]
    for table, alike in zip(tables, np.split(exposure_s, ends), strict=True):
        table["exptime"] = alike


def _is_length(exposure_s: FloatArray) -> NDArray[np.bool_]:
    return np.asarray((exposure_s > 0) & (exposure_s < SECONDS_PER_DAY))


def mid_exposure(jd: FloatArray, exposure_s: FloatArray) -> FloatArray:
    """Middle of an exposure that began at ``jd``.

    Parameters
    ----------
    jd : ndarray, shape (n,), float64, days
        Julian date UTC.
    exposure_s : ndarray, shape (n,), float64, seconds
        30 s where it is NaN or no exposure time.

    Returns
    -------
    ndarray, shape (n,), float64, days
        MJD TAI.
    """
    half = np.where(_is_length(exposure_s), exposure_s, EXPOSURE_S) / 2
    return to_mjd_tai(jd, TIME_SYSTEMS["JD"]) + half / SECONDS_PER_DAY


def star_behind(
    distance: FloatArray, chi: FloatArray, sharpness: FloatArray, options: Packets
) -> NDArray[np.bool_]:
    """Whether the nearest source of the reference image is a star at the epoch's position.

    Parameters
    ----------
    distance : ndarray, shape (n,), float64, pixels
    chi, sharpness : ndarray, shape (n,), float64
        Of DAOPhot's fit to that source.
    options : Packets
        ``star_behind`` says whether both shape criteria must hold, or one. Both must be there.

    Notes
    -----
    The limits are those of ``is_source_behind`` in astrolabsoftware/fink-utils, which takes either
    criterion, and one that it is not given as met.
    """
    near = (distance >= 0) & (distance <= 1.5)
    measured = (chi > NOT_FITTED) & (sharpness > NOT_FITTED)
    fits, sharp = (chi >= 0.5) & (chi <= 1.5), np.abs(sharpness) <= 0.5
    shape = fits & sharp if options.star_behind == "both" else fits | sharp
    return np.asarray(near & measured & shape)


def reference(
    table: Table, pixels: FloatArray, options: Packets
) -> tuple[NDArray[np.bool_], FloatArray, FloatArray]:
    """Whether a star is behind each epoch, and its flux and error in the reference image, nJy."""
    mag, mag_err = table["magnr"], table["sigmagnr"]
    known = _plausible(mag) & (mag_err >= 0)
    known &= star_behind(pixels, table["chinr"], table["sharpnr"], options)
    flux = flux_of(np.where(known, mag, np.nan))
    return known, flux, flux_error(flux, mag_err)


def source_name(code: int) -> str:
    """Field and readout channel, which have a reference image of their own."""
    return f"{code // CHANNELS}-{code % CHANNELS}" if code >= 0 else ""


def _cut_detections(table: Table, rejected: Counter[str], options: Packets) -> Table:
    mag = table["magpsf"]
    usable = {
        "upper_limit": np.isnan(mag),
        "not_measured": ~_plausible(mag),
        "unknown_band": _unknown_band(table),
        "bad_sign": ~np.isin(table["isdiffpos"].astype(np.str_), POSITIVE + NEGATIVE),
    }
    table = cut(table, usable, rejected)
    return cut(table, quality(table, options), rejected, options.ignored_cuts)


def quality(table: Table, options: Packets) -> Cuts:
    """Cuts on the quality of detections."""
    return {
        "solar_system": (table["ssdistnr"] >= 0) & (table["ssdistnr"] <= SOLAR_SYSTEM_ARCSEC),
        "nbad": table["nbad"] > 0,
        "rb": table["rb"] < options.ztf_min_rb,
    }


def _cut_forced(table: Table, rejected: Counter[str], options: Packets) -> Table:
    usable = {
        "not_measured": ~(table["forcediffimflux"] > NOT_MEASURED)
        | ~(table["forcediffimfluxunc"] > 0),
        "unknown_band": _unknown_band(table),
        "no_zero_point": ~_plausible(table["magzpsci"]),
    }
    table = cut(table, usable, rejected)
    warned = {"procstatus": table["procstatus"] != "0"}
    return cut(table, warned, rejected, options.ignored_cuts)


def _plausible(mag: FloatArray) -> NDArray[np.bool_]:
    return np.asarray((mag > MAGNITUDES[0]) & (mag < MAGNITUDES[1]))


def _unknown_band(table: Table) -> NDArray[np.bool_]:
    return np.asarray((table["fid"] < 1) | (table["fid"] >= len(BANDS)))


def _detections(table: Table, options: Packets) -> Epochs:
    sign = np.where(np.isin(table["isdiffpos"].astype(np.str_), POSITIVE), 1.0, -1.0)
    flux = flux_of(table["magpsf"])
    error = flux_error(flux, table["sigmapsf"])
    return _epochs(table, sign * flux, error, table["distnr"], options, forced=False)


def _forced(table: Table, options: Packets) -> Epochs:
    scale = flux_of(table["magzpsci"])  # of 1 DN
    return _epochs(
        table,
        table["forcediffimflux"] * scale,
        table["forcediffimfluxunc"] * scale,
        table["distnr"] / PIXEL_ARCSEC,  # here in arcsec
        options,
        forced=True,
    )


def _epochs(
    table: Table,
    difference: FloatArray,
    error: FloatArray,
    pixels: FloatArray,
    options: Packets,
    *,
    forced: bool,
) -> Epochs:
    behind, ref_flux, ref_flux_err = reference(table, pixels, options)
    total, total_err = add_reference(difference, error, ref_flux, ref_flux_err)
    return epochs_of(
        mid_exposure(table["jd"], table["exptime"]),
        np.where(behind, total, difference),
        np.where(behind, total_err, error),
        BANDS[table["fid"]],
        total=behind,
        forced=forced,
        source=_source(table["field"], table["rcid"]),
        ref_flux=ref_flux,
        ref_flux_err=ref_flux_err,
    )


def _source(field: IntArray, channel: IntArray) -> IntArray:
    known = (field >= 0) & (channel >= 0) & (channel < CHANNELS)
    return np.where(known, np.where(known, field, 0) * CHANNELS + channel, -1)


SURVEY: Final = Survey(
    "ztf",
    SELECTION,
    read,
    schema_name=r"ztf\.alert",
    outline=frozenset({"objectId", "candidate", "prv_candidates"}),
    event_time=EVENT_TIME,
    cuts=CUTS | {"procstatus"},
)
