"""Hopskotch, SCiMMA's Kafka: the alert as an Avro container, which hop-client opens by itself.

The header ``_id`` is the alert's id, where hop-client would draw a number: the same each time, so
that a second hand-over of the same alert can be known by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_message
from broker_filter.alerts.framing import Framing
from broker_filter.errors import StateError, TransientError
from broker_filter.forward.target import Options
from broker_filter.kafka.sink import KafkaSink, open_sink
from broker_filter.types import OutgoingMessage

__all__ = ["Hopskotch", "message"]


def message(alert: Alert, topic: str) -> OutgoingMessage:
    """An alert as a message that hop-client reads as an AvroBlob."""
    plain = to_message(alert, topic, Framing("container"))
    headers = (("_id", alert.alert_id.bytes), *plain.headers)
    return OutgoingMessage(topic, plain.key, plain.value, headers)


@dataclass(slots=True)
class Hopskotch:
    """A topic of a Kafka; the login is in the properties of librdkafka."""

    options: Options
    sink: KafkaSink = field(init=False)
    _queued: uuid.UUID | None = None

    def __post_init__(self) -> None:
        self.options.need("url", "topic")
        topic = self.options.topic
        self.sink = open_sink(self.options.url, topic, self.options.properties)
        self.sink.require({topic: "--target-topic"})

    def send(self, alert: Alert, _earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        if (
            self._queued != alert.alert_id
        ):  # else it waits in the producer's queue since the last time
            out = message(alert, self.options.topic)
            self.sink.produce(out.topic, out.key, out.value, out.headers)
            self._queued = alert.alert_id
        try:
            self.sink.flush(self.options.timeout_s)
        except StateError as error:  # given up after its time: another attempt begins anew
            self._queued = None
            raise TransientError(str(error)) from error
        self._queued = None
        return str(alert.alert_id)

    def close(self) -> None:
        """See `Target.close`."""
        self.sink.close()
