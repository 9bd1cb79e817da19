"""Lasair's annotations: one row for each object and topic, which the newest alert overwrites.

So a second hand-over of the same alert changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.words import in_words
from broker_filter.errors import (
    BrokerFilterError,
    ConfigError,
    PoisonMessage,
    TransientError,
)
from broker_filter.forward.post import Server
from broker_filter.forward.target import Options
from broker_filter.observe.text import printable

__all__ = ["VERSION", "Lasair", "annotation", "safe"]

URL: Final = "https://api.lasair.lsst.ac.uk/api"
VERSION: Final = "broker-filter"
LONGEST: Final = {"explanation": 1024, "classdict": 4096}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9 .,;:()+=%/_-]")
"""Lasair puts the explanation into a statement of SQL as it is: a quote would lose the row."""


def annotation(alert: Alert, topic: str) -> dict[str, Any]:
    """An alert as an annotation.

    Raises
    ------
    PoisonMessage
        ``no_object``: the star is no diaObjectId, a whole number of 63 bits.
    """
    star = str(alert.star_id)
    if not re.fullmatch(r"[0-9]{1,19}", star) or int(star) >= 1 << 63:
        raise PoisonMessage("no_object", f"Lasair knows objects by number, not {star[:60]!r}")
    return {
        "objectId": int(star),
        "topic": topic,
        "classification": "candidate" if alert.verdict is None else alert.verdict.verdict,
        "version": VERSION,
        "explanation": safe(in_words(alert)),
        "classdict": json.dumps(_numbers(alert), allow_nan=False)[: LONGEST["classdict"]],
        "url": "",
    }


def safe(text: str) -> str:
    """An explanation that Lasair can keep."""
    return _UNSAFE.sub("", text)[: LONGEST["explanation"]]


def _numbers(alert: Alert) -> dict[str, Any]:
    certified = alert.certified
    numbers: dict[str, Any] = {
        "alertId": str(alert.alert_id),
        "state": alert.state,
        "log10K": round(alert.log10_k, 3),
        "log10KCertified": None if certified is None else round(certified.log10_k, 3),
        "pEvent": round(alert.p_event, 6),
        "daysToPeak": alert.days_to_peak,
        "magnitudeNow": alert.magnitude_now,
    }
    for one in alert.summary:
        numbers[one.name] = [float(f"{value:.10g}") for value in (one.median, one.p16, one.p84)]
    if alert.verdict is not None:
        numbers["probabilities"] = {
            name: round(value, 4) for name, value in alert.verdict.probabilities.items()
        }
    return numbers


def _meaning(said: str) -> BrokerFilterError:
    """What an error of Lasair means for us: it says most of them with one status, or with 200."""
    if "Annotator error" in said:
        return ConfigError(f"Lasair does not let us annotate: {said}")
    if "Kafka production failed" in said or "Cannot connect" in said:
        return TransientError(f"Lasair fails: {said}")
    return PoisonMessage("refused", f"Lasair answers: {said}")


@dataclass(frozen=True, slots=True)
class Lasair:
    """Lasair's web interface, and a topic of which the login is the owner."""

    options: Options
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.options.need("topic", "secret")
        object.__setattr__(self, "server", Server.of(self.options, "Token", URL))

    def send(self, alert: Alert, _earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        row = annotation(alert, self.options.topic)
        try:
            error = self.server.post("/annotate/", row).get("error")
        except PoisonMessage as refused:
            error = refused.detail
        if error:
            raise _meaning(printable(error, 300))
        return str(alert.star_id)

    def close(self) -> None:
        """See `Target.close`."""
