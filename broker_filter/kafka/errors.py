"""Errors of the Kafka client as ours: which of them end the process, and what mends them.

One table says which codes mean that the brokers refuse us; the service, a reader of a topic and a
replayed range all use it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck

from broker_filter.config import Kafka
from broker_filter.errors import BrokerFilterError, ConfigError, StateError

__all__ = [
    "ClientErrors",
    "ShutOutError",
    "Throttle",
    "client_error",
    "partitions_changed",
    "refused",
]

QUIET_S = 30.0  # between two warnings of one kind
MAX_KINDS = 256

_log = logging.getLogger(__name__)


class Throttle:
    """Lets each kind of message through once in `QUIET_S`: an outage repeats itself at once."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def passed_over(self, kind: str) -> int | None:
        """How many of a kind were held back since the last one; None for one to hold back."""
        now = time.monotonic()
        began, held_back = self._since.get(kind, (now - QUIET_S, 0))
        if now - began < QUIET_S:
            self._since[kind] = began, held_back + 1
            return None
        if len(self._since) >= MAX_KINDS:
            self._since.clear()
        self._since[kind] = now, 0
        return held_back


class ShutOutError(StateError):
    """Another member has taken our name in the group, or a producer of our name is newer."""


class ClientErrors:
    """What a Kafka client reported on its own: kept until it is taken.

    Callbacks run deep inside the client, so they only take note here.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._end: BrokerFilterError | None = None
        self._throttle = Throttle()
        self._reported = True
        self.last = ""

    @contextmanager
    def unreported(self) -> Iterator[None]:
        """Log nothing meanwhile: who waits raises `last` at the end."""
        self._reported = False
        try:
            yield
        finally:
            self._reported = True

    def note(self, error: Any) -> None:  # noqa: ANN401  the client has no types for mypy
        """Take note of a KafkaError: one that no retry can mend is raised by `check`."""
        self.last = error.str()
        self._end = self._end or client_error(error, self._kafka)
        if self._end is None:
            self._warn(error.name(), error.str())

    def end(self, error: BrokerFilterError) -> None:
        """Have `check` raise an error that was found in a callback."""
        self._end = self._end or error

    def check(self) -> None:
        """Raise what ended the client, if anything did."""
        if self._end is not None:
            raise self._end

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        """Call one of the client's functions, and then `check`.

        The client keeps a fatal error from the callback and raises it out of the next call, be it
        to poll or to flush; so it is translated here.
        """
        try:
            result = function(*arguments)
        except (ck.KafkaException, SystemError) as failure:
            # Python complains where another callback came to run after it was raised.
            cause = failure.__cause__ if isinstance(failure, SystemError) else failure
            if not isinstance(cause, ck.KafkaException):
                raise
            end = client_error(cause.args[0], self._kafka)
            if end is None:
                raise cause from None
            raise end from None
        self.check()
        return result

    def _warn(self, reason: str, detail: str) -> None:
        if self._reported and self._throttle.passed_over(reason) is not None:
            _log.warning("kafka_error", extra={"reason": reason, "detail": detail})


def client_error(error: Any, kafka: Kafka, where: str = "") -> BrokerFilterError | None:  # noqa: ANN401
    """Return the error to end with, or None for what librdkafka mends by itself.

    ``where`` names what the error is about, such as ``"topic[partition]"``, if that is known.
    """
    code, text = error.code(), f"{where}: {error.str()}" if where else error.str()
    if code in _LOGIN:
        if _away(text):
            return None
        return ConfigError(
            f"login to kafka.bootstrap_servers = {kafka.bootstrap_servers} as {_who(kafka)} was"
            f" refused: check kafka.security ({text})"
        )
    if code == ck.KafkaError._SSL:  # noqa: SLF001
        return ConfigError(
            f"TLS with {kafka.bootstrap_servers} failed: {text}: check kafka.security.ca_location,"
            " and that the brokers' certificates are of that authority, for these hosts, and not"
            " expired"
        )
    if code == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
        return ConfigError(
            f"topic not found at {kafka.bootstrap_servers}: {text}: create it, or mend"
            f" {_key_of_topic(kafka, text)}"
        )
    if code == ck.KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        return ConfigError(
            f"another member of group {kafka.group_id} shares out partitions in another way than"
            f" kafka.assignment_strategy = {kafka.strategy} ({text}): give all members"
            " the same, or this one another kafka.group_id"
        )
    if code in _DENIED:
        return ConfigError(
            f"{_who(kafka)} lacks a right at {kafka.bootstrap_servers}: grant"
            f" {_DENIED[code](kafka, text)}, or mend the setting ({text})"
        )
    fatal = error.fatal() or code == ck.KafkaError._FATAL  # noqa: SLF001
    if code in _SHUT_OUT or (fatal and any(words in text for words in _SHUT_OUT_TEXTS)):
        return ShutOutError(f"another member runs as this one: {text}: kafka.group_instance_id")
    # What ended a consumer comes as a message, of the code _FATAL and without the mark.
    if fatal:
        return StateError(f"the Kafka client cannot go on: {text}: restart")
    return None


def _who(kafka: Kafka) -> str:
    security = kafka.security
    if security.mechanism == "OAUTHBEARER":
        return f"client {security.client_id!r}"
    return f"user {security.username!r}" if security.username else "this program"


def _key_of_topic(kafka: Kafka, text: str) -> str:
    """The setting that names the topic in an error's text."""
    words = set(re.findall(r"[\w.-]+", text))
    keys = {kafka.alert_topic: "alert_topic", kafka.dead_letter_topic: "dead_letter_topic"}
    return "kafka." + next((key for topic, key in keys.items() if topic in words), "input_topics")


def _topic_rights(kafka: Kafka, text: str) -> str:
    """Rights on the topics that the error names; on all of ours where it names none."""
    read = dict.fromkeys(kafka.input_topics, "Read and Describe on topic {} (kafka.input_topics)")
    ours = {
        **read,
        kafka.alert_topic: "Write and Describe on topic {} (kafka.alert_topic)",
        kafka.dead_letter_topic: "Write and Describe on topic {} (kafka.dead_letter_topic)",
    }
    words = set(re.findall(r"[\w.-]+", text))
    named = [topic for topic in ours if topic in words] or list(ours)
    return ", ".join(ours[topic].format(topic) for topic in named)


def refused(error: Any, what: str, *, grouped: bool) -> ConfigError | None:  # noqa: ANN401
    """Return the error to end with where the brokers refuse a reader that has no `Kafka` settings.

    Parameters
    ----------
    error : KafkaError
    what : str
        What was to be read, such as ``topic alerts``.
    grouped : bool
        Whether it is read in a consumer group; without, no right on a group is needed.
    """
    needless = error.code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED and not grouped
    if error.code() not in _REFUSED or needless or _away(error.str()):
        return None
    return ConfigError(
        f"Kafka refuses {what}: {error.str()}; check the security settings (security.protocol,"
        " sasl.*, ssl.*) and the user's rights"
    )


def _away(text: str) -> bool:
    """Whether the OAuth server is away: the client tries again, and a token lasts."""
    return _NO_TOKEN in text and not _OAUTH_REFUSAL.search(text)


def partitions_changed(topic: str, then: int, now: int) -> StateError:
    """Return the error for a topic that has got more partitions."""
    return StateError(
        f"topic {topic} has {now} partitions and had {then} before: keys have moved, so stars"
        " would be split between old and new windows. Make a new topic with the number that you"
        " want and read it with a new kafka.group_id"
    )


_LOGIN = {ck.KafkaError._AUTHENTICATION, ck.KafkaError.SASL_AUTHENTICATION_FAILED}  # noqa: SLF001
_SHUT_OUT = {ck.KafkaError.FENCED_INSTANCE_ID, ck.KafkaError._FENCED}  # noqa: SLF001
# What ended a client may come without its own code; of the last ones a client may recover.
_SHUT_OUT_TEXTS: list[str] = [
    ck.KafkaError(reason).str()
    for reason in (
        *_SHUT_OUT,
        ck.KafkaError.PRODUCER_FENCED,
        ck.KafkaError.INVALID_PRODUCER_EPOCH,
    )
]
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token"  # noqa: S105
# RFC 6749, section 5.2: errors that no further request mends.
_OAUTH_REFUSAL = re.compile(
    "invalid_(client|grant|request|scope)|unauthorized_client|unsupported_grant_type"
)
_DENIED: dict[int, Callable[[Kafka, str], str]] = {
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED: _topic_rights,
    ck.KafkaError.GROUP_AUTHORIZATION_FAILED: lambda kafka, _: (
        f"Read on group {kafka.group_id} (kafka.group_id)"
    ),
    # A right to write to some topic is enough to be an idempotent producer, too.
    ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED: lambda kafka, _: _topic_rights(
        kafka, f"{kafka.alert_topic} {kafka.dead_letter_topic}"
    ),
    ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: lambda kafka, _: (
        f"Write and Describe on transactional ids that begin with {kafka.group_id} (kafka.group_id;"
        " none is needed with kafka.delivery = at_least_once)"
    ),
}
_REFUSED = frozenset({*_LOGIN, *_DENIED, ck.KafkaError._SSL})  # noqa: SLF001
"""Login, encryption or a right refused: no further request mends it."""
