"""An alert as a VOEvent 2.0 packet (IVOA), the XML in which observatories pass events on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, register_namespace, tostring

import numpy as np

from broker_filter.alerts.alert import Alert, mjd_to_datetime
from broker_filter.alerts.parts import UNITS
from broker_filter.alerts.words import in_words
from broker_filter.errors import ConfigError
from broker_filter.observe.text import printable
from broker_filter.photometry.times import MJD_ZERO, to_mjd_utc
from broker_filter.schemas import software_version

__all__ = ["AUTHORITY", "ivorn", "voevent"]

AUTHORITY: Final = "org.broker-filter"
"""First part of the identifiers where nobody gives another."""

_NAMESPACE: Final = "http://www.ivoa.net/xml/VOEvent/v2.0"
_SCHEMA: Final = "http://www.ivoa.net/xml/VOEvent/VOEvent-v2.0.xsd"
_XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_AUTHORITY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,}")
_UCD: Final = {
    "t0": "time.epoch",
    "u0": "phys.gravitationalLensing",
    "tE": "time.duration",
    "rho": "phys.size",
    "f_s": "arith.ratio",
}
_POSITION_ERROR_DEG: Final = 1 / 3600
"""No survey's message gives one: an arc second, so that a reader has something to search."""


def ivorn(alert: Alert, authority: str = AUTHORITY) -> str:
    """The packet's identifier: the same for the same alert.

    Raises
    ------
    ConfigError
        The authority is no such name.
    """
    if not _AUTHORITY.fullmatch(authority):
        raise ConfigError(f"{authority!r} is no authority of the Virtual Observatory")
    return f"ivo://{authority}/microlensing#{alert.alert_id}"


def voevent(alert: Alert, authority: str = AUTHORITY, earlier: Sequence[str] = ()) -> bytes:
    """Write an alert as a packet of UTF-8.

    Parameters
    ----------
    alert : Alert
    authority : str
        Registered name of who sends it, such as ``org.example``.
    earlier : sequence of str
        Identifiers of the packets of the same event that were published: a retraction retracts
        them, every other alert supersedes them.

    Raises
    ------
    ConfigError
        As `ivorn`.
    """
    register_namespace("voe", _NAMESPACE)
    register_namespace("xsi", _XSI)
    packet = Element(
        f"{{{_NAMESPACE}}}VOEvent",
        {
            "ivorn": ivorn(alert, authority),
            "role": "observation",
            "version": "2.0",
            f"{{{_XSI}}}schemaLocation": f"{_NAMESPACE} {_SCHEMA}",
        },
    )
    _who(packet, alert, authority)
    _what(packet, alert)
    _where(packet, alert)
    why = SubElement(packet, "Why", importance=f"{alert.p_event:.6g}")
    SubElement(why, "Concept").text = "process.variation.burst;em.opt"
    SubElement(why, "Description").text = printable(in_words(alert))
    _citations(packet, alert, earlier)
    indent(packet)
    return bytes(tostring(packet, encoding="utf-8", xml_declaration=True))


def _who(packet: Element, alert: Alert, authority: str) -> None:
    who = SubElement(packet, "Who")
    SubElement(who, "AuthorIVORN").text = f"ivo://{authority}"
    made = datetime.fromtimestamp(alert.created_ms / 1000, UTC)
    SubElement(who, "Date").text = made.strftime("%Y-%m-%dT%H:%M:%S")
    author = SubElement(who, "Author")
    SubElement(author, "title").text = f"broker-filter {software_version()}"


def _what(packet: Element, alert: Alert) -> None:
    what = SubElement(packet, "What")
    certified, verdict = alert.certified, alert.verdict
    texts = {
        "alert_id": alert.alert_id,
        "event_id": alert.event_id,
        "state": alert.state,
        "star": alert.star_id,
        "survey": alert.survey,
        "band": alert.band,
        "verdict": None if verdict is None else verdict.verdict,
        "model": alert.model_id,
    }
    numbers: dict[str, tuple[float | None, str, str]] = {
        "log10_K": (alert.log10_k, "stat.likelihood", ""),
        "log10_K_certified": (
            None if certified is None else certified.log10_k,
            "stat.likelihood",
            "",
        ),
        "log10_K_certified_error": (
            None if certified is None else certified.log10_k_error,
            "stat.error",
            "",
        ),
        "magnitude_now": (alert.magnitude_now, "phot.mag", "mag"),
        "magnitude_peak": (alert.magnitude_peak, "phot.mag", "mag"),
        "magnitude_baseline": (alert.baseline_magnitude, "phot.mag", "mag"),
        "reduced_chi2": (alert.reduced_chi2, "stat.fit.chi2", ""),
    }
    for name, text in texts.items():
        if text is not None:
            SubElement(what, "Param", name=name, value=printable(text), dataType="string")
    for name, (value, ucd, unit) in numbers.items():
        if value is not None:
            _number(what, name, value, ucd, unit)
    for one in alert.summary:
        group = SubElement(what, "Group", name=one.name)
        for name in ("median", "p16", "p84"):
            value = getattr(one, name)
            value = MJD_ZERO + _utc(value) if one.name == "t0" else value
            _number(group, name, value, _UCD[one.name], UNITS[one.name])
    note = SubElement(what, "Description")
    note.text = "t0 is JD in UTC, not corrected to the Sun. Magnitudes are AB."


def _citations(packet: Element, alert: Alert, earlier: Sequence[str]) -> None:
    """What the packet does to those before it; no element where there are none."""
    if not earlier:
        return
    citations = SubElement(packet, "Citations")
    cite = "retraction" if alert.state == "retraction" else "supersedes"
    for name in earlier:
        SubElement(citations, "EventIVORN", cite=cite).text = name


def _utc(mjd_tai: float) -> float:
    return float(to_mjd_utc(np.array(mjd_tai)))


def _number(parent: Element, name: str, value: float, ucd: str, unit: str) -> None:
    fields = {"name": name, "value": repr(float(value)), "ucd": ucd, "dataType": "float"}
    SubElement(parent, "Param", fields | ({"unit": unit} if unit in ("d", "mag") else {}))


def _where(packet: Element, alert: Alert) -> None:
    """Place and time of the epoch that brought the alert; no element where there is no place."""
    if alert.ra is None or alert.dec is None:
        return
    data = SubElement(SubElement(packet, "WhereWhen"), "ObsDataLocation")
    SubElement(data, "ObservatoryLocation", id=printable(alert.survey))
    location = SubElement(data, "ObservationLocation")
    SubElement(location, "AstroCoordSystem", id="UTC-ICRS-TOPO")
    place = SubElement(location, "AstroCoords", coord_system_id="UTC-ICRS-TOPO")
    instant = SubElement(SubElement(place, "Time", unit="s"), "TimeInstant")
    when = mjd_to_datetime(_utc(alert.last_epoch_mjd_tai))
    SubElement(instant, "ISOTime").text = when.isoformat(timespec="milliseconds")
    position = SubElement(place, "Position2D", unit="deg")
    SubElement(position, "Name1").text = "RA"
    SubElement(position, "Name2").text = "Dec"
    value = SubElement(position, "Value2")
    SubElement(value, "C1").text = repr(float(alert.ra))
    SubElement(value, "C2").text = repr(float(alert.dec))
    SubElement(position, "Error2Radius").text = f"{_POSITION_ERROR_DEG:.6f}"
