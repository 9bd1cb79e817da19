"""The Kafka client: librdkafka's properties from our settings, and its errors as ours.

`source`, `sink` and `reader` build on it; together they are the modules that import
confluent_kafka.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
from pydantic import SecretStr

from broker_filter.config import Kafka, Security
from broker_filter.errors import BrokerFilterError, ConfigError, StateError

__all__ = [
    "ClientErrors",
    "ShutOutError",
    "client_config",
    "client_error",
    "connect",
    "consumer_config",
    "open_client",
    "producer_config",
]

MAX_MESSAGE_BYTES = 4 << 20
QUIET_S = 30.0  # between two warnings of one kind
MAX_KINDS, MAX_KIND = 256, 200

_log = logging.getLogger(__name__)
_client_log = logging.getLogger("broker_filter.librdkafka")


class _Throttle:
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


class _Seldom(logging.Filter):
    """Throttles a log; lines are of one kind if they differ in numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = _Throttle()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to pass the line on."""
        text = record.getMessage()
        held_back = self._throttle.passed_over(re.sub(r"\d+", "#", text)[:MAX_KIND])
        if held_back:
            record.msg, record.args = f"{text} ({held_back} like it in between)", ()
        return held_back is not None


_client_log.addFilter(_Seldom())


def client_config(kafka: Kafka) -> dict[str, Any]:
    """Properties that consumers and producers share: servers, login, options.

    The result holds secrets in clear, because the client needs them: never log it.
    """
    ours = {
        "bootstrap.servers": kafka.bootstrap_servers,
        **{key: str(value) for key, value in _login(kafka.security).items() if value is not None},
    }
    manners = {
        "client.id": "broker-filter",
        # A broker that was away for a minute is found again within seconds of its return.
        "reconnect.backoff.ms": 250,
        "reconnect.backoff.max.ms": 5_000,
        # Firewalls forget a connection that is silent between two exposures.
        "socket.keepalive.enable": True,
    }
    return {**manners, **kafka.options, **ours}


def _login(security: Security) -> dict[str, object]:
    login: dict[str, object] = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "ssl.ca.location": security.ca_location,
        "ssl.certificate.location": security.certificate_location,
        "ssl.key.location": security.key_location,
        "ssl.key.password": _clear(security.key_password),
    }
    if security.mechanism == "OAUTHBEARER":
        return login | {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": security.token_url,
            "sasl.oauthbearer.client.id": security.client_id,
            "sasl.oauthbearer.client.secret": _clear(security.client_secret),
            "sasl.oauthbearer.scope": security.scope,
            "https.ca.location": security.token_ca_location,
        }
    return login | {
        "sasl.username": security.username,
        "sasl.password": _clear(security.password),
    }


def _clear(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def consumer_config(kafka: Kafka) -> dict[str, Any]:
    """Properties of a consumer of the group, with the login; it holds the password in clear."""
    ours = {
        "group.id": kafka.group_id,
        "group.instance.id": kafka.group_instance_id,
        "auto.offset.reset": kafka.auto_offset_reset,
        "partition.assignment.strategy": kafka.assignment_strategy,
        "session.timeout.ms": kafka.session_timeout_ms,
        "max.poll.interval.ms": kafka.max_poll_interval_ms,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
    }
    limits = {
        # A backlog would otherwise fill 64 MB per client, and far more with many partitions.
        "queued.max.messages.kbytes": 16_384,
        "queued.min.messages": 10_000,
        # One answer of one broker comes on top of that, and by default may be 50 MB.
        "fetch.max.bytes": 16 << 20,
        # Of one partition: by default a single packet of 0.6 MB would take a request for itself.
        "max.partition.fetch.bytes": 4 << 20,
        # By default a full queue stops fetching for a second: 16 MB/s at most.
        "fetch.queue.backoff.ms": 50,
    }
    given = {key: value for key, value in ours.items() if value is not None}
    return {**limits, **client_config(kafka), **given}


def producer_config(kafka: Kafka) -> dict[str, Any]:
    """Properties of the producer, with the login; it holds the password in clear."""
    return {
        # By default 1 MB before compression, which is near a dead letter with a packet of 0.6 MB.
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "linger.ms": 10,
        **client_config(kafka),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": kafka.compression,
        "message.timeout.ms": int(1000 * kafka.delivery_timeout_s),
        "delivery.report.only.error": True,
    }


def open_client(factory: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:  # noqa: ANN401
    """Make a Kafka client that logs to ``broker_filter.librdkafka``.

    Raises
    ------
    ConfigError
        Where librdkafka refuses a property.
    """
    try:
        return factory({"logger": _client_log, **config})
    except ck.KafkaException as error:
        raise ConfigError(
            f"librdkafka refuses the settings: {error.args[0].str()}: check kafka.options"
            " and kafka.security"
        ) from None


def connect(client: Any, kafka: Kafka, errors: ClientErrors) -> set[str]:  # noqa: ANN401
    """Wait until a broker answers, and return the topics that it has.

    Blocks for at most ``kafka.connect_timeout_s``.

    Raises
    ------
    ConfigError
        Where none answers in time, or refuses the login.
    """
    end = time.monotonic() + kafka.connect_timeout_s
    while True:
        left = end - time.monotonic()
        try:
            return set(client.list_topics(timeout=max(0.01, min(0.5, left))).topics)
        except ck.KafkaException as error:
            client.poll(0)  # lets the error callback speak
            errors.check()
            if left <= 0.5:
                detail = errors.last or error.args[0].str()
                raise ConfigError(
                    f"no broker reached at kafka.bootstrap_servers = {kafka.bootstrap_servers}"
                    f" within {kafka.connect_timeout_s:g} s: {detail}. Does it run there, and does"
                    f" it speak kafka.security.protocol = {kafka.security.protocol}?"
                ) from None


class ShutOutError(StateError):
    """Another member has taken our name in the group, or a producer of our name is newer."""


class ClientErrors:
    """What a Kafka client reported on its own: kept until its owner asks.

    Callbacks run deep inside the client, so they only take note here.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._end: BrokerFilterError | None = None
        self._throttle = _Throttle()
        self.last = ""

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
        if self._throttle.passed_over(reason) is not None:
            _log.warning("kafka_error", extra={"reason": reason, "detail": detail})


def client_error(error: Any, kafka: Kafka, where: str = "") -> BrokerFilterError | None:  # noqa: ANN401
    """Return the error to end with, or None for what librdkafka mends by itself.

    ``where`` names what the error is about, such as ``"topic[partition]"``, if that is known.
    """
    code, text = error.code(), f"{where}: {error.str()}" if where else error.str()
    if code in _LOGIN:
        if _NO_TOKEN in text and not _OAUTH_REFUSAL.search(text):
            return None  # the OAuth server is away; the client asks it again, and a token lasts
        return ConfigError(
            f"login to kafka.bootstrap_servers = {kafka.bootstrap_servers} as {_who(kafka)} was"
            f" refused: check kafka.security ({text})"
        )
    if code == ck.KafkaError._SSL:  # noqa: SLF001
        reason = _certificate_problem(text, kafka.security) or text
        return ConfigError(
            f"TLS with {kafka.bootstrap_servers} failed: {reason}: check the brokers' certificates"
            " and kafka.security.ca_location"
        )
    if code == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
        return ConfigError(
            f"topic not found at {kafka.bootstrap_servers}: {text}:"
            " create it, or mend kafka.input_topics"
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
# RFC 6749, section 5.2: errors that asking again does not mend.
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


def _certificate_problem(text: str, security: Security) -> str:
    """What is wrong with a broker's certificate, which librdkafka does not say; "" if unknown.

    Blocks for some seconds at most: it shakes hands with the broker that ``text`` names.
    """
    address = re.search(r"://(.+):(\d+)/", text)
    if address is None:
        return ""
    host, port = address[1].strip("[]"), int(address[2])
    try:
        context = ssl.create_default_context(cafile=security.ca_location)
        with (
            socket.create_connection((host, port), timeout=3) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {host}:{port} was refused: {error.verify_message}"
    except (OSError, ValueError):
        return ""
