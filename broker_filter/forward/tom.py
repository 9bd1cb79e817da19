"""A TOM (Target and Observation Manager) by its web interface, and with it MOP.

A target is known by its name: it is made where there is none and else updated, so a second
hand-over of the same alert changes nothing. The fields of a microlensing TOM are filled where its
table of targets has them. TOM Toolkit sets them when a target is made and keeps them when it is
updated, so the newest values also go as extras of the target, under names that begin with
``broker_filter``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.words import in_words
from broker_filter.errors import PoisonMessage, TransientError
from broker_filter.forward.model_fields import target_fields, target_name
from broker_filter.forward.post import Server
from broker_filter.forward.target import Options
from broker_filter.observe.text import printable

__all__ = ["Tom", "target"]

PATH: Final = "/api/targets/"
PREFIX: Final = "broker_filter_"
_EXTRAS: Final = ("t0", "t0_error", "u0", "u0_error", "tE", "tE_error", "mag_now")


def target(alert: Alert) -> dict[str, Any]:
    """An alert as a target of a TOM.

    Raises
    ------
    PoisonMessage
        ``no_position``: a TOM takes no target without one.
    """
    if alert.ra is None or alert.dec is None:
        raise PoisonMessage("no_position", "a TOM needs right ascension and declination")
    fields = target_fields(alert)
    extras: dict[str, Any] = {name: fields[name] for name in _EXTRAS if name in fields}
    extras |= {
        "alert_id": str(alert.alert_id),
        "event_id": str(alert.event_id),
        "state": alert.state,
        "log10_k": alert.log10_k,
        "words": printable(in_words(alert)),
    }
    return {
        "name": target_name(alert),
        "type": "SIDEREAL",
        "ra": alert.ra,
        "dec": alert.dec,
        **fields,
        "targetextra_set": [
            {"key": PREFIX + name, "value": str(value)} for name, value in extras.items()
        ],
    }


def update(payload: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The payload for a target that is there: extras that are there keep their numbers."""
    numbers = {one["key"]: one["id"] for one in known.get("targetextra_set", ())}
    extras = [
        ({"id": numbers[one["key"]]} if one["key"] in numbers else {}) | one
        for one in payload["targetextra_set"]
    ]
    return {**payload, "targetextra_set": extras}


@dataclass(frozen=True, slots=True)
class Tom:
    """The web interface of a TOM."""

    options: Options
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.options.need("url", "secret")
        object.__setattr__(self, "server", Server.of(self.options, "Token"))

    def send(self, alert: Alert, _earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        payload = target(alert)
        known = self._known(payload["name"])
        if known is None:
            answer = self.server.post(PATH, payload)
        else:
            path = f"{PATH}{known['id']}/"
            answer = self.server.post(path, update(payload, known), method="PATCH")
        return str(answer.get("id", ""))

    def _known(self, name: str) -> Mapping[str, Any] | None:
        answer = self.server.get(f"{PATH}?name={quote(name)}")
        found = answer.get("results")
        if not isinstance(found, list):
            raise TransientError(f"{self.options.url} does not answer as a TOM does")
        return next((one for one in found if one.get("name") == name), None)

    def close(self) -> None:
        """See `Target.close`."""
