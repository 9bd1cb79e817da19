"""A night of events for the page's tests and figures: few alerts, many names."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.parts import Rival, Verdict
from broker_filter.alerts.verdict import VERDICTS
from broker_filter.page import kept
from broker_filter.page.database import Database
from broker_filter.types import AlertState
from tests import build

__all__ = ["HOSTILE", "fill", "name_of", "night"]

HOSTILE = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>\x1b"
_STATES: tuple[AlertState, ...] = ("new", "update", "final")


def name_of(*words: object) -> uuid.UUID:
    """The same identifier for the same words."""
    return uuid.uuid5(uuid.NAMESPACE_OID, " ".join(map(str, words)))


def night(events: int, alerts: int = 2) -> Iterator[Alert]:
    """So many alerts of so many events, with all verdicts; the second star's name is hostile."""
    sample = build.alert()
    flat = np.full(sample.n_epochs, 1.1, np.float32)
    rivals = (Rival("flare", 18.2, 0.1, {"tau": 1.0}, flat),)
    for i in range(events):
        verdict = VERDICTS[i % len(VERDICTS)]
        said = Verdict(verdict, {verdict: 0.9, "unclear": 0.1}, "one lens describes all data")
        for j in range(alerts):
            yield replace(
                sample,
                alert_id=name_of("alert", i, j),
                event_id=name_of("event", i),
                star_id=HOSTILE if i == 1 else f"ZTF26{i:07}",
                state=_STATES[min(j, 2)],
                log10_k=5 + i % 37 + j,
                last_epoch_mjd_tai=sample.last_epoch_mjd_tai - 1 + j / alerts,
                ra=(sample.ra or 0) + i % 97 / 10,
                rivals=rivals,
                verdict=said,
            )


def fill(database: Database, events: int, alerts: int = 2) -> None:
    """Keep the alerts of a night."""
    with database.write() as connection:
        for alert in night(events, alerts):
            kept.keep(connection, alert)
