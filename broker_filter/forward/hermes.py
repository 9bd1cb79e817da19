"""HERMES, the message exchange of SCiMMA (github.com/LCOGT/hermes), by its web interface.

HERMES gives each message a number of its own and compares nothing, so an alert whose answer was
lost comes a second time; both messages carry the same ``alertId`` in their text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.words import in_words
from broker_filter.errors import PoisonMessage
from broker_filter.forward.model_fields import MAGNITUDES_PER_E, jd_utc, target_name
from broker_filter.forward.post import Server
from broker_filter.forward.target import Options
from broker_filter.observe.text import printable
from broker_filter.photometry.magnitudes import AB_ZERO_POINT

__all__ = ["Hermes", "message"]

PATH: Final = "/api/v0/submit_message/"
EPOCHS: Final = 50
"""Newest epochs that go along."""


def message(alert: Alert, topic: str, submitter: str) -> dict[str, Any]:
    """An alert as a message of HERMES: one target, its photometry, and the event in words.

    Raises
    ------
    PoisonMessage
        ``no_position``: HERMES takes no target without one.
    """
    if alert.ra is None or alert.dec is None:
        raise PoisonMessage("no_position", "HERMES needs right ascension and declination")
    name = target_name(alert)
    what = "microlensing candidate" if alert.verdict is None else alert.verdict.verdict
    t0 = jd_utc(alert.t0_mjd_tai)
    intervals = ", ".join(
        f"{one.name} {median} +{up} -{down}"
        for one in alert.summary
        if one.name != "t0"
        for median, up, down in (one.rounded(),)
    )
    target = {"name": name, "ra": str(alert.ra), "dec": str(alert.dec)}
    return {
        "title": f"{alert.state}: {name}, {what}",
        "topic": topic,
        "submitter": submitter,
        "authors": submitter,
        "message_text": f"{printable(in_words(alert))}.\n\nt0 = JD(UTC) {t0:.5f}; {intervals}"
        f" (medians and 68 % intervals).\n\nalertId {alert.alert_id}\neventId {alert.event_id}",
        "data": {
            "event_id": str(alert.event_id),
            "targets": [target | {"comments": printable(in_words(alert))}],
            "photometry": _photometry(alert, name),
            "broker_filter": {"alertId": str(alert.alert_id), "log10K": alert.log10_k},
        },
    }


def _photometry(alert: Alert, name: str) -> list[dict[str, Any]]:
    """The newest epochs that have a magnitude."""
    if alert.source is None or alert.baseline_magnitude is None:
        return []
    rows = []
    for i in range(max(0, alert.n_epochs - EPOCHS), alert.n_epochs):
        source = alert.sources[int(alert.source[i])]
        flux = float(alert.flux[i]) * source.baseline_flux
        if not flux > 0:
            continue
        rows.append(
            {
                "target_name": name,
                "date_obs": f"{jd_utc(alert.mjd_tai[i]):.6f}",
                "telescope": printable(f"{alert.survey} {source.source}".strip()),
                "bandpass": printable(source.band),
                "brightness": round(AB_ZERO_POINT - 2.5 * math.log10(flux), 4),
                "brightness_error": round(
                    MAGNITUDES_PER_E * float(np.float64(alert.sigma[i]) / alert.flux[i]), 4
                ),
                "brightness_unit": "AB mag",
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class Hermes:
    """HERMES at an address, and a topic of it."""

    options: Options
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.options.need("url", "topic", "submitter", "secret")
        object.__setattr__(self, "server", Server.of(self.options, "Token"))

    def send(self, alert: Alert, _earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        payload = message(alert, self.options.topic, self.options.submitter)
        answer = self.server.post(PATH, payload, key=str(alert.alert_id))
        return str(answer.get("uuid", ""))

    def close(self) -> None:
        """See `Target.close`."""
