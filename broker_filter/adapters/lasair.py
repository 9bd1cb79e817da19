"""Lasair: an annotator that scores the objects of a filter's stream.

It fetches each object's light curve from Lasair, so K sees all history there. Where the filter
itself runs on LSST's alerts, ``broker-filter forward --to lasair`` annotates from its alerts
without fetching anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from broker_filter.adapters.evidence import Evidence, evidence, lsst_columns
from broker_filter.forward.lasair import VERSION, safe

__all__ = ["annotate", "object_evidence"]

BATCH: Final = 50


class Client(Protocol):
    """What is used of ``lasair.lasair_client``."""

    def object(self, objectId: int, lite: bool, lasair_added: bool) -> Mapping[str, Any]: ...

    def annotate_list(self, annotations_input: list[dict[str, Any]]) -> Any: ...  # noqa: ANN401


def object_evidence(record: Mapping[str, Any]) -> Evidence:
    """K of an object as Lasair's interface gives it, with lists of sources and forced sources."""
    if "error" in record:
        return Evidence(reason=f"Lasair answers: {record['error']}")
    sources, forced = record["diaSourcesList"], record["diaForcedSourcesList"]
    seen = {(one.get("midpointMjdTai"), one.get("band")) for one in forced}
    others = [one for one in sources if (one.get("midpointMjdTai"), one.get("band")) not in seen]
    star = int(record["diaObjectId"])
    return evidence(star, *lsst_columns([*forced, *others]), survey="lsst")


def annotate(client: Client, topic: str, objects: Iterable[int], min_log10_k: float = 3.0) -> int:
    """Score objects and annotate those whose K reaches a level; gives their number.

    Lasair keeps one row for each object and topic, so a second run changes nothing.
    """
    rows: list[dict[str, Any]] = []
    sent = 0
    for number in objects:
        found = object_evidence(client.object(number, lite=False, lasair_added=False))
        if found.log10_k >= min_log10_k:
            rows.append(_row(topic, number, found))
        if len(rows) == BATCH:
            sent += _send(client, rows)
    return sent + _send(client, rows)


def _send(client: Client, rows: list[dict[str, Any]]) -> int:
    if rows:
        client.annotate_list(rows)
    count = len(rows)
    rows.clear()
    return count


def _row(topic: str, number: int, found: Evidence) -> dict[str, Any]:
    known = found.known()
    text = f"log10 K {found.log10_k:.2f}" + (f", {found.verdict}" if found.verdict else "")
    return {
        "objectId": number,
        "topic": topic,
        "classification": found.verdict or "candidate",
        "version": VERSION,
        "explanation": safe(text),
        "classdict": known,
    }
