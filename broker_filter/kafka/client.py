"""The Kafka client: librdkafka's properties from our settings, and how a client is opened."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka as ck
from pydantic import SecretStr

from broker_filter.backoff import Backoff
from broker_filter.config import Kafka, Security
from broker_filter.errors import ConfigError
from broker_filter.kafka.errors import ClientErrors, Throttle
from broker_filter.types import Headers, Message

__all__ = [
    "check_clients",
    "client_config",
    "client_logger",
    "connect",
    "consumer_config",
    "message_of",
    "messages_of",
    "open_client",
    "producer_config",
]

MAX_MESSAGE_BYTES = 4 << 20
MOCK_CLUSTER = "mockCluster"
"""How the id of librdkafka's stand-in begins: it takes transactions and commits nothing."""
MAX_KIND = 200  # characters by which lines of the client are distinguished
ANSWER_S = 0.5

_log = logging.getLogger(__name__)
_client_log = logging.getLogger("broker_filter.librdkafka")


class _Seldom(logging.Filter):
    """Throttles a log; lines are of one kind if they differ in numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to pass the line on."""
        text = record.getMessage()
        held_back = self._throttle.passed_over(re.sub(r"\d+", "#", text)[:MAX_KIND])
        if held_back:
            record.msg, record.args = f"{text} ({held_back} like it in between)", ()
        return held_back is not None


_client_log.addFilter(_Seldom())


def client_logger() -> logging.Logger:
    """Make the logger of one client for people: throttled, and disabled until it has connected.

    What goes wrong before that is in the error that ends the attempt, once and not line by line.
    """
    logger = logging.Logger(_client_log.name)
    logger.parent = _client_log.parent
    logger.addFilter(_Seldom())
    logger.disabled = True
    return logger


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
        "partition.assignment.strategy": kafka.strategy,
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
    if kafka.patterns:  # by default new topics are seen after five minutes
        limits["topic.metadata.refresh.interval.ms"] = 15_000
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


def check_clients(kafka: Kafka) -> None:
    """Make the clients of the settings and end them again; no broker is asked for anything.

    Raises
    ------
    ConfigError
        Where librdkafka refuses a property, such as a file of certificates that is not there.
    """
    for factory, config in (
        (ck.Consumer, consumer_config(kafka)),
        (ck.Producer, producer_config(kafka)),
    ):
        # Without the servers nothing is connected to.
        client = open_client(factory, {**config, "bootstrap.servers": "", "log_level": 0})
        if isinstance(client, ck.Consumer):
            client.close()


def connect(client: Any, kafka: Kafka, errors: ClientErrors) -> set[str]:  # noqa: ANN401
    """Wait until a broker answers, and return the topics that it has.

    Blocks for at most ``kafka.connect_timeout_s``.

    Raises
    ------
    ConfigError
        Where none answers in time, or refuses the login.
    """
    backoff = Backoff(kafka.connect_timeout_s, longest_s=ANSWER_S)
    with errors.unreported():
        while True:
            try:
                return set(client.list_topics(timeout=ANSWER_S).topics)
            except ck.KafkaException as error:
                client.poll(0)  # runs the error callback
                errors.check()
                reason = errors.last or error.args[0].str()
            client.poll(backoff.failed(_no_broker(kafka, reason)))


def _no_broker(kafka: Kafka, reason: str) -> ConfigError:
    return ConfigError(
        f"no broker reached at {kafka.bootstrap_servers} within {kafka.connect_timeout_s:g} s:"
        f" {reason}. Does it run there, with protocol {kafka.security.protocol}? The address is"
        " kafka.bootstrap_servers, or --bootstrap-servers; login and encryption are"
        " kafka.security, or --client-config"
    )


def message_of(raw: Any) -> Message:  # noqa: ANN401
    """Our own type for a message of the Kafka client."""
    return messages_of([raw])[0]


def messages_of(raws: Iterable[Any]) -> list[Message]:
    """Our own type for messages of the Kafka client; those that are alike share their headers."""
    messages: list[Message] = []
    topic, found = "", None
    headers: Headers = ()
    for raw in raws:
        if (name := raw.topic()) != topic:
            topic = name
        if (newer := _found(raw)) != found:
            found, headers = newer, tuple((key, value or b"") for key, value in newer or ())
        stamp = max(0, raw.timestamp()[1])
        at = raw.partition(), raw.offset()
        messages.append(Message(topic, *at, raw.key(), raw.value(), stamp, headers))
    return messages


def _found(raw: Any) -> Any:  # noqa: ANN401
    """Headers of a message; none where their names are no text, which the client cannot read."""
    try:
        return raw.headers()
    except (UnicodeDecodeError, SystemError):
        return None
