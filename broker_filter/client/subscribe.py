"""Subscribe to the alert topic.

>>> for alert in subscribe("localhost:9092", min_log10_k=5):  # doctest: +SKIP
...     print(alert.star_id, alert.log10_k, alert.posterior["tE"].median())
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_message
from broker_filter.alerts.verdict import VERDICTS
from broker_filter.errors import ConfigError, PoisonMessage
from broker_filter.kafka.reader import TopicReader
from broker_filter.observe.text import printable
from broker_filter.types import ALERT_TOPIC, STATES, Message

__all__ = ["MessageReader", "Subscription", "subscribe"]

_log = logging.getLogger(__name__)
_POLL_S = 0.5
SHOWN = 500
"""Characters of a broken message's fault that are logged."""


class MessageReader(Protocol):
    """Where a subscription gets its messages; `broker_filter.kafka.reader.TopicReader` is one."""

    def poll(self, timeout: float) -> Message | None:
        """Return the next message, or None after ``timeout`` seconds."""
        ...

    def mark_done(self) -> None:
        """Count the last message as handled."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


@dataclass(slots=True)
class Subscription:
    """An iterator over alerts, which counts what it passed over.

    It ends after ``timeout_s`` seconds without a message, by Ctrl-C while it waits, or by `close`.
    A message that cannot be read is logged and passed over; what the headers rule out, not decoded.

    Parameters
    ----------
    reader : MessageReader
    min_log10_k : float or None
        Lowest log10 K.
    states : collection of AlertState or None
        None for all.
    timeout_s : float or None, seconds
        None to wait for ever.
    verdicts : collection of str or None
        None for all, and for alerts without one.
    received, unwanted, broken : int
        Messages so far: all, those ruled out, those that could not be read.
    """

    reader: MessageReader
    min_log10_k: float | None = None
    states: Collection[str] | None = None
    timeout_s: float | None = None
    verdicts: Collection[str] | None = None
    received: int = 0
    unwanted: int = 0
    broken: int = 0
    _closed: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Alert]:
        return self

    def __next__(self) -> Alert:
        try:
            while (message := self._next_message()) is not None:
                if (alert := self._read(message)) is not None:
                    return alert
        except KeyboardInterrupt:
            _log.info("stopped by Ctrl-C")
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def mark_done(self) -> None:
        """Count the last alert as handled in its consumer group, as taking the next does."""
        self.reader.mark_done()

    def stop(self) -> None:
        """End before the next alert; may be called from a signal handler, amid anything."""
        self.timeout_s = 0.0

    def close(self) -> None:
        """End the subscription; a second time does nothing."""
        if not self._closed:
            self._closed = True
            self.reader.close()

    def _next_message(self) -> Message | None:
        start = time.monotonic()
        while not self._closed:
            left = _POLL_S
            if self.timeout_s is not None:  # which `stop` may set meanwhile
                left = min(_POLL_S, start + self.timeout_s - time.monotonic())
                if left <= 0:
                    return None
            if (message := self.reader.poll(left)) is not None:
                self.received += 1
                return message
        return None

    def _read(self, message: Message) -> Alert | None:
        """Decode a message that is wanted; None for one that is not, or is broken."""
        try:
            if not self._wants(*_headers(message)):
                self.unwanted += 1
                return None
            alert = from_message(message)
        except PoisonMessage as error:
            self._count_broken(message, error)
            return None
        verdict = "" if alert.verdict is None else alert.verdict.verdict
        if not self._wants(alert.log10_k, alert.state, verdict):
            self.unwanted += 1
            return None
        return alert

    def _wants(self, log10_k: float | None, state: str | None, verdict: str | None) -> bool:
        """Whether an alert is wanted, as far as is known; None is not known."""
        too_low = (
            self.min_log10_k is not None and log10_k is not None and log10_k < self.min_log10_k
        )
        wrong_state = self.states is not None and state is not None and state not in self.states
        other = self.verdicts is not None and verdict is not None and verdict not in self.verdicts
        return not (too_low or wrong_state or other)

    def _count_broken(self, message: Message, error: PoisonMessage) -> None:
        self.broken += 1
        # A stream that is all broken must not fill a disk with log lines.
        if self.broken <= 10 or self.broken % 1000 == 0:
            _log.warning(
                "%s[%d] offset %d is not an alert (%s); passed over, %d so far",
                message.topic,
                message.partition,
                message.offset,
                printable(error, SHOWN),
                self.broken,
            )


def _headers(message: Message) -> tuple[float | None, str | None, str | None]:
    """Read log10 K, state and verdict from the headers; None where one is missing or null."""
    headers = dict(message.headers)
    try:
        log10_k, state, verdict = (
            value.decode() if (value := headers.get(name)) else None
            for name in ("log10K", "state", "verdict")
        )
        return None if log10_k is None else float(log10_k), state, verdict
    except ValueError as error:
        raise PoisonMessage("headers", f"log10K, state or verdict: {error}") from None


def subscribe(
    bootstrap_servers: str,
    topic: str = ALERT_TOPIC,
    group_id: str | None = None,
    from_beginning: bool = False,
    min_log10_k: float | None = None,
    states: Collection[str] | None = None,
    timeout_s: float | None = None,
    config: Mapping[str, str | int | float | bool] | None = None,
    verdicts: Collection[str] | None = None,
) -> Subscription:
    """Subscribe to alerts.

    Parameters
    ----------
    bootstrap_servers : str
        ``host:port[,host:port...]``.
    topic : str
        The alert topic; it is waited for where it does not exist yet.
    group_id : str or None
        Without, every alert sent from now on comes, and nothing is remembered. With, the topic is
        shared among the group's members, each goes on where the group stopped, and an alert whose
        handling fails comes again.
    from_beginning : bool
        Begin with the oldest alert kept (with a group: only where it has no place yet).
    min_log10_k : float or None
        Only alerts of at least this log10 K. Retractions and finals have a low K, so that this
        leaves them out, too.
    states : collection of str or None
        Only alerts in these states: ``new``, ``update``, ``retraction``, ``final``.
    timeout_s : float or None
        End after so many seconds without a message; None waits for ever.
    config : mapping or None
        Further librdkafka properties, such as ``{"security.protocol": "SASL_SSL", ...}``.
    verdicts : collection of str or None
        Only alerts with one of these verdicts, of `broker_filter.alerts.verdict.VERDICTS`.

    Returns
    -------
    Subscription
        An iterator over `Alert`, already connected and in place.

    Raises
    ------
    ConfigError
        An unknown state or verdict, a property that librdkafka refuses, or refused credentials.
    TransientError
        No broker answers.
    """
    if unknown := set(states or ()) - set(STATES):
        raise ConfigError(
            f"unknown alert state {', '.join(sorted(unknown))}; the states are {', '.join(STATES)}"
        )
    if unknown := set(verdicts or ()) - set(VERDICTS):
        raise ConfigError(
            f"unknown verdict {', '.join(sorted(unknown))}; the verdicts are {', '.join(VERDICTS)}"
        )
    reader = TopicReader(bootstrap_servers, topic, group_id, from_beginning, config)
    return Subscription(reader, min_log10_k, states, timeout_s, verdicts)
