"""What is to go out: alerts, dead letters, and the offsets of the input that they settle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_message
from broker_filter.alerts.framing import BARE, Framing
from broker_filter.backoff import Backoff
from broker_filter.config import Kafka
from broker_filter.errors import TransientError
from broker_filter.kafka.delivery import Delivery, Outbox, Parcel
from broker_filter.kafka.source import Source
from broker_filter.pipeline.assessment import Outputs
from broker_filter.service.dead_letters import encode_dead_letter
from broker_filter.service.report import Reporter
from broker_filter.types import DeadLetter, OutgoingMessage, Partition

__all__ = ["Outgoing"]

_log = logging.getLogger(__name__)

OUTBOX_BYTES = 32 << 20
ALERT_S = 0.25
"""An alert does not wait longer for the next commit."""
COMMIT_S = 5.0
"""Longest time between two commits, whatever the settings: a transaction has to stay small."""


class Outgoing:
    """Gathers what is to go out, and delivers it as one parcel after the other.

    Nothing is committed before its alerts are out. Where a delivery fails, the same parcel is
    tried again.

    Parameters
    ----------
    kafka : Kafka
        Settings.
    delivery : Delivery
    reporter : Reporter
    framing : Framing
        Of the alerts.
    """

    def __init__(
        self, kafka: Kafka, delivery: Delivery, reporter: Reporter, framing: Framing = BARE
    ) -> None:
        self._kafka, self._delivery, self._reporter = kafka, delivery, reporter
        self._framing = framing
        self._backoff = Backoff(kafka.delivery_timeout_s)
        self._letters: list[DeadLetter] = []
        self._outbox, self._parcel = Outbox(), _NO_PARCEL
        self._alerts: list[Alert] = []  # those in the outbox
        self._sealed: list[Alert] = []  # those in the parcel
        self._era = 0  # results of work from before a rewind are void
        self._last_commit = time.monotonic()

    def set_aside(self, letters: Sequence[DeadLetter]) -> None:
        """Take dead letters; they go with the work that settles their offsets."""
        self._letters += letters

    def receiver(self, done: Callable[[Outputs], object]) -> Callable[[Outputs], None]:
        """Return what takes the results of work that is handed over now, with its dead letters.

        ``done`` is called with them too, unless a `rewind` has made them void in between.
        """
        era, letters, self._letters = self._era, self._letters, []

        def receive(outputs: Outputs) -> None:
            if era == self._era:
                self._pack(letters, outputs)
                done(outputs)

        return receive

    def _pack(self, letters: Sequence[DeadLetter], outputs: Outputs) -> None:
        now, kafka = time.time(), self._kafka
        messages: list[OutgoingMessage] = [
            encode_dead_letter(letter, now, topic=kafka.dead_letter_topic) for letter in letters
        ]
        messages += [to_message(one, kafka.alert_topic, self._framing) for one in outputs.alerts]
        self._outbox.add(messages, outputs.offsets)
        self._alerts += outputs.alerts

    def deliver(self, source: Source, *, last: bool = False) -> None:
        """Have out what is due, or with ``last`` all there is; blocks for one attempt at most.

        Raises
        ------
        TransientError
            Nothing has gone out for ``kafka.delivery_timeout_s``.
        ConfigError, StateError
            As `Delivery.deliver`.
        """
        if self._parcel is _NO_PARCEL:
            if not last and (self._outbox.empty() or not self._due()):
                return
            self._parcel = self._outbox.seal()
            self._sealed, self._alerts = self._alerts, []
        if not self._backoff.ready():
            return
        try:
            self._delivery.deliver(self._parcel, source, last=last)
        except TransientError as error:
            self._failed(error)
        else:
            self._delivered()

    def _failed(self, error: TransientError) -> None:
        if not self._backoff.failing():
            _log.warning("%s; trying again", error, extra={"event": "delivery_failed"})
        self._backoff.failed(error)

    def _delivered(self) -> None:
        self._last_commit, self._parcel = time.monotonic(), _NO_PARCEL
        if self._backoff.failing():
            _log.info("delivery goes on", extra={"event": "delivery_resumed"})
            self._backoff.succeeded()
        self._reporter.published(self._sealed)
        self._sealed = []

    def _due(self) -> bool:
        waited = time.monotonic() - self._last_commit
        return (
            waited >= min(self._kafka.commit_interval_s, COMMIT_S)
            or (len(self._outbox) > 0 and waited >= ALERT_S)
            or self._outbox.nbytes >= OUTBOX_BYTES
        )

    def failing(self) -> bool:
        """Whether the last delivery failed."""
        return self._backoff.failing()

    def in_flight(self) -> bool:
        """Whether a delivery has begun and not succeeded yet."""
        return self._parcel is not _NO_PARCEL

    def empty(self) -> bool:
        """Whether all is out that work has given so far."""
        return not self.in_flight() and self._outbox.empty()

    def drop(self, gone: Collection[Partition]) -> None:
        """Forget dead letters of partitions that others own now."""
        self._letters = [
            letter
            for letter in self._letters
            if (letter.message.topic, letter.message.partition) not in gone
        ]

    def rewind(self) -> None:
        """Forget all that is not out, results still to come included: it is read again."""
        self._era += 1
        self._outbox.clear()
        self._letters, self._alerts, self._sealed = [], [], []
        if self.in_flight():
            # A commit may be under way: it is ended before anything is read again.
            self._parcel = self._parcel.emptied()

    def close(self) -> None:
        """Let go of the delivery."""
        self._delivery.close()


_NO_PARCEL = Parcel(0)
