"""Where alerts, dead letters and replayed messages go: Kafka, or a list in memory."""

from __future__ import annotations

import time
from typing import Any, Protocol

import confluent_kafka as ck

from broker_filter.config import Kafka, client_config
from broker_filter.errors import BrokerFilterError, ConfigError, TransientError
from broker_filter.source import ClientErrors, connect, open_client
from broker_filter.types import OutgoingMessage

__all__ = ["Headers", "KafkaSink", "MemorySink", "Sink", "partition_of"]

Headers = tuple[tuple[str, bytes], ...]

MAX_MESSAGE_BYTES = 4 << 20


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

        Raises TransientError naming how many messages are undelivered. Those that were still
        queued stay so and a second flush may deliver them; those that were given up are lost, so
        their input must not be committed.
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

    Raises
    ------
    ConfigError
        Where no broker can be reached within ``kafka.connect_timeout_s``, or the login is refused.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._errors = ClientErrors(kafka)
        self._failed: list[str] = []
        self._closed = False
        config = producer_config(kafka)
        config |= {"error_cb": self._errors.note, "on_delivery": self._on_failure}
        self._producer = open_client(ck.Producer, config)
        connect(self._producer, kafka, self._errors)

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
                self._producer.produce(topic, value=value, key=key, headers=list(headers), **where)
            except BufferError:
                self._producer.poll(0.1)
                self._errors.check()
                if time.monotonic() > end:
                    raise self._undelivered(len(self._producer)) from None
            except ck.KafkaException as error:
                raise self._refused(error.args[0], topic, len(value)) from None
            else:
                self._producer.poll(0)
                return

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Sink.flush`."""
        waiting = self._producer.flush(timeout_s)
        self._errors.check()
        if self._failed or waiting:
            raise self._undelivered(waiting)

    def close(self) -> None:
        """See `Sink.close`."""
        if not self._closed:
            self._closed = True
            self.flush()

    def _on_failure(self, error: Any, raw: Any) -> None:  # noqa: ANN401
        # Only failures are reported, so a delivered message costs no call.
        if error is not None:
            self._failed.append(f"{raw.topic()}[{raw.partition()}]: {error.str()}")

    def _undelivered(self, waiting: int) -> TransientError:
        failed, self._failed = self._failed, []
        reason = failed[0] if failed else self._errors.last or "no answer yet"
        return TransientError(
            f"{len(failed) + waiting} messages undelivered to {self._kafka.bootstrap_servers}"
            f" ({len(failed)} given up, {waiting} still queued): {reason}"
        )

    def _refused(self, error: Any, topic: str, size: int) -> BrokerFilterError:  # noqa: ANN401
        if error.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
            return ConfigError(
                f"message of {size} bytes is too large for topic {topic}: raise message.max.bytes"
                " in kafka.options, and max.message.bytes of the topic"
            )
        return TransientError(f"message to topic {topic} not taken: {error.str()}")


def producer_config(kafka: Kafka) -> dict[str, Any]:
    """Properties of the producer, with the login; it holds the password in clear."""
    return {
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


class MemorySink:
    """Messages kept in a list; keeps the contract of `Sink`.

    Attributes
    ----------
    messages : list of OutgoingMessage
        What was published, oldest first.
    partitions : list of (int or None)
        The partition that was asked for, message by message.
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
