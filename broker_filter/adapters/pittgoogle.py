"""Pitt-Google: the two callbacks of its consumer, for LSST alerts.

An alert is acknowledged only once it has been scored, and what passed has been handed to
``publish``: Pub/Sub forgets what is acknowledged. History is what the packet carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_filter.adapters.evidence import Evidence, evidence, lsst_columns

__all__ = ["alert_evidence", "make_callback"]


def alert_evidence(packet: Mapping[str, Any]) -> Evidence:
    """K of an LSST alert packet, from its history and its own epoch."""
    source = packet.get("diaSource") or {}
    forced = packet.get("prvDiaForcedSources") or ()
    # Forced photometry comes first: of two points of a visit the pipeline keeps the first.
    records = [*forced, *(packet.get("prvDiaSources") or ()), source]
    star = source.get("diaObjectId") or (packet.get("diaObject") or {}).get("diaObjectId") or 0
    return evidence(int(star), *lsst_columns(_one_a_visit(records)), survey="lsst")


def _one_a_visit(records: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first record of each visit and band."""
    kept: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    for one in records:
        kept.setdefault((one.get("visit", one.get("midpointMjdTai")), one.get("band")), one)
    return list(kept.values())


def make_callback(
    respond: Callable[..., Any],
    publish: Callable[[Mapping[str, Any], Evidence], object] = lambda *_: None,
    min_log10_k: float = 5.0,
) -> Callable[[Any], Any]:
    """Make a ``msg_callback``.

    Parameters
    ----------
    respond : callable
        ``pittgoogle.pubsub.Response``.
    publish : callable
        Takes packet and evidence of what passes; where it raises, the alert comes again.
    min_log10_k : float
    """

    def msg_callback(alert: Any) -> Any:  # noqa: ANN401  pittgoogle's Alert and Response
        packet = alert.dict
        found = alert_evidence(packet)
        if not found.log10_k >= min_log10_k:
            return respond(ack=True, result=None)
        try:
            publish(packet, found)
        except Exception:  # noqa: BLE001  whatever the publisher met, the alert must come again
            return respond(ack=False, result=None)
        return respond(ack=True, result=found.known())

    return msg_callback
