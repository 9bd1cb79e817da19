"""Where alerts, dead letters and replayed messages go: Kafka, or a list in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import confluent_kafka as ck
from pydantic import ValidationError

from broker_filter.backoff import Backoff
from broker_filter.config import Kafka
from broker_filter.config.file import problem_lines
from broker_filter.errors import BrokerFilterError, ConfigError, StateError, TransientError
from broker_filter.kafka.client import client_logger, connect, open_client, producer_config
from broker_filter.kafka.errors import ClientErrors, client_error
from broker_filter.types import Headers, OutgoingMessage

__all__ = [
    "CONNECT_S",
    "TOPIC_S",
    "KafkaSink",
    "MemorySink",
    "Sink",
    "open_sink",
    "partition_of",
    "refusal",
]

_PURGED = {ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT}  # noqa: SLF001
_NOT_YET = {ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError.LEADER_NOT_AVAILABLE}

CONNECT_S = 10.0  # somebody waits at the terminal
TOPIC_S = 5.0
"""How long a topic may take to come into being where the brokers make topics by themselves."""


class Sink(Protocol):
    """A place to publish messages."""

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Queue one message; without a partition the key decides (murmur2, as in Java).

        Returns at once, or waits for room in the queue. Raises ConfigError for a message that is
        too large, TransientError where no room comes.
        """
        ...

    def flush(self, timeout_s: float = 30.0) -> None:
        """Return once all that was queued has been delivered; blocks for ``timeout_s`` at most.

        Raises TransientError naming how many messages are still queued; a second flush may deliver
        them. Raises StateError or ConfigError where messages were given up: they are lost, so their
        input must not be committed.
        """
        ...

    def close(self) -> None:
        """Flush and let go; a second call does nothing. Raises as ``flush`` does."""
        ...


def partition_of(key: bytes, count: int) -> int:
    """Return the partition out of ``count`` that Kafka's own producers give a key (murmur2)."""
    return int(ck.murmur2(key, count))


class KafkaSink:
    """An idempotent Kafka producer (all replicas acknowledge); keeps the contract of `Sink`.

    Parameters
    ----------
    kafka : Kafka
        Settings.
    properties : mapping, optional
        Further properties of librdkafka, for transactions.
    wait : bool
        Whether to wait until a broker is reached; else that shows when messages go out.

    Attributes
    ----------
    producer : confluent_kafka.Producer
    errors : ClientErrors
        What the producer reported on its own.

    Raises
    ------
    ConfigError
        Where no broker can be reached within ``kafka.connect_timeout_s``, or the login is refused.
    """

    def __init__(
        self, kafka: Kafka, properties: Mapping[str, Any] | None = None, *, wait: bool = True
    ) -> None:
        self._kafka = kafka
        self.errors = ClientErrors(kafka)
        self._failed: list[tuple[str, Any]] = []
        self._closed = False
        config = producer_config(kafka) | dict(properties or {})
        config |= {"error_cb": self.errors.note, "on_delivery": self._on_failure}
        self.producer = open_client(ck.Producer, config)
        if wait:
            connect(self.producer, kafka, self.errors)

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Sink.produce`."""
        where = {} if partition is None else {"partition": partition}
        end = time.monotonic() + self._kafka.delivery_timeout_s
        while True:
            try:
                self.producer.produce(topic, value=value, key=key, headers=list(headers), **where)
            except BufferError:
                self.errors.call(self.producer.poll, 0.1)
                if time.monotonic() > end:
                    raise self._queued(len(self.producer)) from None
            except ck.KafkaException as error:
                reason = error.args[0]
                raise refusal(reason, self._kafka, topic) or TransientError(
                    f"message of {len(value)} bytes to {topic} not taken: {reason.str()}"
                ) from None
            else:
                self.errors.call(self.producer.poll, 0)
                return

    def require(self, topics: Mapping[str, str]) -> None:
        """Look for topics before anything is sent: blocks for some seconds where one is missing.

        Parameters
        ----------
        topics : mapping of str to str
            Topic to the setting that names it.

        Raises
        ------
        ConfigError
            There is none, and the brokers make none; or the login lacks the right to see it.
        """
        for topic, key in topics.items():
            backoff = Backoff(TOPIC_S)
            while (reason := self._missing(topic)) is not None:
                absent = ConfigError(
                    f"{key}: there is no topic {topic!r} at {self._kafka.bootstrap_servers}"
                    f" ({reason}): create it, or mend {key}"
                )
                self.producer.poll(backoff.failed(absent))

    def _missing(self, topic: str) -> str | None:
        """Why a topic cannot be written to for now; None where it can. Raises what is for good."""
        try:
            about = self.producer.list_topics(topic, timeout=TOPIC_S).topics[topic]
        except ck.KafkaException as error:
            self.errors.call(self.producer.poll, 0)
            return str(error.args[0].str())
        if about.error is None:
            return None
        if about.error.code() not in _NOT_YET and (
            end := client_error(about.error, self._kafka, topic)
        ):
            raise end
        return str(about.error.str())

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Sink.flush`."""
        waiting = self.errors.call(self.producer.flush, timeout_s)
        if failed := self.failures():
            where, error = failed[0]
            raise refusal(error, self._kafka, where) or StateError(
                f"{len(failed)} messages to {self._kafka.bootstrap_servers} given up; to {where}:"
                f" {error.str()}"
            )
        if waiting:
            raise self._queued(waiting)

    def failures(self) -> list[tuple[str, Any]]:
        """Where messages were bound for that were given up since the last call, and why."""
        failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """See `Sink.close`."""
        if not self._closed:
            self._closed = True
            self.flush()

    def _on_failure(self, error: Any, raw: Any) -> None:  # noqa: ANN401
        # Only failures are reported, so a delivered message costs no call. What a transaction
        # throws away when it is aborted is none.
        if error is not None and error.code() not in _PURGED:
            self._failed.append((f"{raw.topic()}[{raw.partition()}]", error))

    def _queued(self, waiting: int) -> TransientError:
        return TransientError(
            f"{waiting} messages still queued for {self._kafka.bootstrap_servers}:"
            f" {self.errors.last or 'no answer yet'}"
        )


def refusal(error: Any, kafka: Kafka, where: str) -> BrokerFilterError | None:  # noqa: ANN401
    """Return the error to end with where a message to ``where`` will never be taken, else None."""
    if error.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
        return ConfigError(
            f"a message to {where} is too large: raise message.max.bytes in kafka.options, and"
            f" max.message.bytes of the topic ({error.str()})"
        )
    return client_error(error, kafka, where)


def open_sink(
    bootstrap_servers: str, topic: str, properties: Mapping[str, Any] | None = None
) -> KafkaSink:
    """Connect a producer for one topic, where there are no settings of a filter.

    Parameters
    ----------
    bootstrap_servers, topic : str
    properties : mapping, optional
        Further properties of librdkafka, such as those for SASL and TLS.

    Raises
    ------
    ConfigError
        Servers, topic or properties are wrong, or no broker answers within `CONNECT_S`.
    """
    given = {
        "bootstrap_servers": bootstrap_servers,
        "input_topics": (topic,),
        "connect_timeout_s": CONNECT_S,
    }
    try:
        kafka = Kafka.model_validate(given)
    except ValidationError as error:
        lines = problem_lines(Kafka, error, {}, given)
    else:
        logger = client_logger()
        sink = KafkaSink(kafka, {"logger": logger, **(properties or {})})
        logger.disabled = False
        return sink
    raise ConfigError("\n".join(lines))


class MemorySink:
    """Messages kept in a list; keeps the contract of `Sink`.

    Attributes
    ----------
    messages : list of OutgoingMessage
        What was published, oldest first.
    partitions : list of (int or None)
        The partition that was given, message by message.
    failure : BrokerFilterError or None
        Raised by `flush` once set, to play an outage.
    """

    def __init__(self) -> None:
        self.messages: list[OutgoingMessage] = []
        self.partitions: list[int | None] = []
        self.failure: BrokerFilterError | None = None

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Sink.produce`."""
        self.messages.append(OutgoingMessage(topic, key, value, headers))
        self.partitions.append(partition)

    def flush(self, timeout_s: float = 30.0) -> None:  # noqa: ARG002
        """See `Sink.flush`."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """See `Sink.close`."""
        self.flush()
