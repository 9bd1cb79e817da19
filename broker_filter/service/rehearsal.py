"""The whole filter in one process: embedded broker, publisher, service and subscriber.

The demo and the tests use it. All parts are the real ones; only the broker is librdkafka's own
stand-in, which needs no installation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing

from broker_filter.alerts.alert import Alert
from broker_filter.client.subscribe import Subscription, subscribe
from broker_filter.config import Settings
from broker_filter.errors import BrokerFilterError, TransientError
from broker_filter.inference.zoo import Entry
from broker_filter.kafka.delivery import AtLeastOnce
from broker_filter.kafka.embedded import BoundedPublisher, EmbeddedBroker
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.sink import KafkaSink, Sink
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.schemas import schema_id
from broker_filter.service.assembly import make_service

__all__ = ["rehearse"]

Publish = Callable[[Sink], None]


def rehearse(
    make_settings: Callable[[str], Settings],
    entry: Entry,
    publish: Publish,
    metrics: Metrics,
    *,
    partitions: int = 4,
) -> list[Alert]:
    """Publish, filter and subscribe at the same time, until all that was published is settled.

    Parameters
    ----------
    make_settings : callable
        Given the broker's address, the settings of the service. They name one input topic.
    entry : Entry
        Model to use.
    publish : callable
        Given a sink, publishes to the input topic; runs in a thread of its own.
    metrics : Metrics
        Filled while the filter runs.
    partitions : int
        Of the input topic.

    Returns
    -------
    list of Alert
        In order of arrival.
    """
    with EmbeddedBroker() as broker:
        settings = make_settings(broker.bootstrap_servers)
        kafka = settings.kafka
        for topic, count in (
            (kafka.input_topics[0], partitions),
            (kafka.alert_topic, 1),
            (kafka.dead_letter_topic, 1),
        ):
            broker.create_topic(topic, count)
        # The embedded broker takes transactions and commits nothing.
        delivery = AtLeastOnce(KafkaSink(kafka))
        service = make_service(settings, entry, delivery, metrics, Health())
        publisher = _Publisher(broker, settings, publish, service.stop)
        with subscribe(kafka.bootstrap_servers, kafka.alert_topic, from_beginning=True) as alerts:
            reader = _Reader(alerts)
            publisher.start()
            service.run()
            publisher.finish()
            return reader.take(
                int(metrics.value("alerts_published_total", schema=schema_id("alert")))
            )


class _Publisher:
    """Publishes in a thread, waits until the filter has settled all of it, then calls ``done``."""

    def __init__(
        self, broker: EmbeddedBroker, settings: Settings, publish: Publish, done: Callable[[], None]
    ) -> None:
        self._broker, self._kafka = broker, settings.kafka
        self._publish, self._done = publish, done
        self._error: BrokerFilterError | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Wait for the thread; raises what it raised."""
        self._thread.join(timeout=60)
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            with closing(GroupProgress(self._kafka)) as progress:
                sink = BoundedPublisher(KafkaSink(self._kafka), self._broker.topics, progress)
                self._publish(sink)
                sink.close()
                while any(progress(where) < count for where, count in sink.sent.items()):
                    time.sleep(0.05)
        except BrokerFilterError as error:
            self._error = error
        finally:
            self._done()


class _Reader:
    """Reads alerts in a thread while the filter runs, since the broker keeps only the newest."""

    def __init__(self, subscription: Subscription) -> None:
        self._alerts: list[Alert] = []
        self._subscription = subscription
        self._news = threading.Condition()
        threading.Thread(target=self._run, name="subscriber", daemon=True).start()

    def take(self, count: int, timeout_s: float = 30.0) -> list[Alert]:
        """All alerts, once ``count`` of them have come."""
        with self._news:
            if not self._news.wait_for(lambda: len(self._alerts) >= count, timeout_s):
                raise TransientError(
                    f"{len(self._alerts)} of {count} alerts reached the subscriber"
                )
            return list(self._alerts)

    def _run(self) -> None:
        for alert in self._subscription:
            with self._news:
                self._alerts.append(alert)
                self._news.notify()
