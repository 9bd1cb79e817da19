"""The hand-over of alerts: once each, tried again while the target is away, never lost.

Order of things for one alert: pending in the journal, sent, done in the journal, and only then is
its offset committed. So an alert is sent a second time in one case alone: the process or the answer
was lost between the target's taking it and the journal's note. The key of the alert goes with it
where the target takes one, and it is the same the second time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from broker_filter.alerts.alert import Alert
from broker_filter.backoff import Backoff
from broker_filter.errors import PoisonMessage, TransientError
from broker_filter.forward.journal import Journal
from broker_filter.forward.letters import Letters
from broker_filter.forward.target import Busy, Target
from broker_filter.observe.text import printable

__all__ = ["Forwarder", "Outcome"]

_log = logging.getLogger(__name__)

Outcome = Literal["handed over", "known", "over the day's limit", "dead letter"]
_CORRECTIONS = ("retraction", "final")


class Forwarder:
    """Hands alerts over to one target.

    Parameters
    ----------
    target : Target
    journal : Journal
    letters : callable
        Keeps what the target does not take.
    max_a_day : int or None
        Most alerts a day (UTC) beside retractions and finals of events that were handed over.
    patience_s : float, seconds
        How long a target may be away before the alert is set aside.
    clock, monotonic, sleep : callable
        As in `time`: seconds since 1970, seconds for pauses, and a pause.

    Attributes
    ----------
    outcomes : Counter of Outcome
    """

    def __init__(
        self,
        target: Target,
        journal: Journal,
        letters: Letters,
        *,
        max_a_day: int | None = None,
        patience_s: float = 600.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target, self._journal, self._letters = target, journal, letters
        self._max_a_day, self._patience_s = max_a_day, patience_s
        self._clock, self._monotonic, self._sleep = clock, monotonic, sleep
        self.outcomes: Counter[Outcome] = Counter()

    def take(self, alert: Alert) -> Outcome:
        """Hand one alert over; returns once it is settled, and blocks while the target is away.

        Raises
        ------
        ConfigError
            The target takes nothing from us: the alert stays pending, and comes again.
        StateError
            Journal or dead letters cannot be written.
        """
        outcome = self._settle(alert)
        self.outcomes[outcome] += 1
        return outcome

    def _settle(self, alert: Alert) -> Outcome:
        standing = self._journal.standing(alert)
        if standing in ("done", "dead"):
            return "known"
        day = f"{datetime.fromtimestamp(self._clock(), UTC):%Y-%m-%d}"
        if standing == "new" and self._over(alert, day):
            _log.info("alert %s is beyond the %s of this day", alert.alert_id, self._max_a_day)
            return "over the day's limit"
        if standing == "pending":
            _log.warning("alert %s was sent and not answered for; sent again", alert.alert_id)
        self._journal.begin(alert, day)
        try:
            name = self._sent(alert)
        except PoisonMessage as error:
            return self._set_aside(alert, error.reason, error.detail)
        except TransientError as error:
            return self._set_aside(alert, "unreachable", str(error))
        self._journal.end(alert, "done", name)
        return "handed over"

    def _over(self, alert: Alert, day: str) -> bool:
        if self._max_a_day is None:
            return False
        if alert.state in _CORRECTIONS and self._journal.names_of_event(alert):
            return False
        return self._journal.count(day) >= self._max_a_day

    def _sent(self, alert: Alert) -> str:
        earlier = self._journal.names_of_event(alert)
        backoff = Backoff(self._patience_s, first_s=1.0, longest_s=60.0, clock=self._monotonic)
        while True:
            try:
                return self._target.send(alert, earlier)
            except TransientError as error:
                if not backoff.failing():
                    _log.warning("%s; trying again", printable(error, 500))
                asked = error.wait_s if isinstance(error, Busy) else 0.0
                self._sleep(max(backoff.failed(error), asked))

    def _set_aside(self, alert: Alert, reason: str, detail: str) -> Outcome:
        _log.error("alert %s is set aside: %s", alert.alert_id, printable(detail, 500))
        self._letters(alert, reason, detail)
        self._journal.end(alert, "dead")
        return "dead letter"
