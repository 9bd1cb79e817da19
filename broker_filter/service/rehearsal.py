"""The whole filter in one process: embedded broker, publisher, service and subscriber.

The demo and the tests use it. All parts are the real ones; only the broker is librdkafka's own
stand-in, which needs no installation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress

from broker_filter.alerts.alert import Alert
from broker_filter.client.subscribe import Subscription, subscribe
from broker_filter.config import Settings
from broker_filter.errors import BrokerFilterError, TransientError
from broker_filter.inference.zoo import Entry
from broker_filter.kafka.delivery import AtLeastOnce
from broker_filter.kafka.embedded import BoundedPublisher, EmbeddedBroker, StandStill
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.sink import KafkaSink, Sink
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.schemas import schema_id
from broker_filter.service.assembly import make_service
from broker_filter.types import Partition

__all__ = ["rehearse"]

Publish = Callable[[Sink], None]

STALL_S = 600.0
"""So long may nothing move at all: no message settled, no epoch taken, no window evaluated."""
CHECK_S = 0.05
"""Between two questions how far the filter has come."""
GRACE_S = 2.0
"""After a failure, for alerts that are out already but not yet read."""


def rehearse(
    make_settings: Callable[[str], Settings],
    entry: Entry,
    publish: Publish,
    metrics: Metrics,
    *,
    partitions: int = 4,
    on_alert: Callable[[Alert], object] = lambda _: None,
) -> list[Alert]:
    """Publish, filter and subscribe at the same time, until all that was published is settled.

    It takes as long as it takes; only where nothing moves any more it gives up (`STALL_S`).

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
    on_alert : callable
        Called with each alert as it arrives, in a thread of its own; so a caller has those that
        came before a failure.

    Returns
    -------
    list of Alert
        In order of arrival.

    Raises
    ------
    BrokerFilterError
        What ended it first: of the publisher, else of the service, else of the subscriber.
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
        publisher = _Publisher(broker, settings, publish, service.stop, metrics)

        def published() -> int:
            return int(metrics.value("alerts_published_total", schema=schema_id("alert")))

        with subscribe(kafka.bootstrap_servers, kafka.alert_topic, from_beginning=True) as alerts:
            reader = _Reader(alerts, on_alert)
            publisher.start()
            try:
                service.run()
                publisher.finish()
            except BaseException as error:
                failed_first = publisher.error
                publisher.stop()
                reader.wait_for(published(), GRACE_S)
                if failed_first is not None and isinstance(error, BrokerFilterError):
                    raise failed_first from None
                raise
            return reader.take(published())


class _Publisher:
    """Publishes in a thread, waits until the filter has settled all of it, then calls ``done``."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        settings: Settings,
        publish: Publish,
        done: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self.error: BrokerFilterError | None = None
        self._publish, self._done, self._metrics = publish, done, metrics
        self._progress = GroupProgress(settings.kafka)
        self._stopped = threading.Event()
        self._sink = BoundedPublisher(
            KafkaSink(settings.kafka),
            broker.topics,
            _LastKnown(self._progress),
            stall_s=STALL_S,
            work=self._work,
            pause=lambda _: self._stopped.wait(CHECK_S),
        )
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon, whatever is left."""
        self._stopped.set()
        self._sink.stop()
        self._thread.join(timeout=GRACE_S)

    def finish(self) -> None:
        """Wait for the thread; raises what it raised."""
        self._thread.join(timeout=60)
        if self.error:
            raise self.error

    def _work(self) -> object:
        """What changes as long as the filter does anything."""
        metrics = self._metrics
        windows = metrics.value("log_bayes_factor") + metrics.value("windows_settled_total")
        return metrics.total("points_inserted_total"), windows

    def _run(self) -> None:
        try:
            with closing(self._progress):
                self._publish(self._sink)
                self._sink.close()
                self._settle(_LastKnown(self._progress), StandStill(STALL_S))
        except BrokerFilterError as error:
            self.error = error
        finally:
            self._done()

    def _settle(self, settled: Callable[[Partition], int], still: StandStill) -> None:
        """Wait until the group has committed all that was sent."""
        sent = self._sink.sent
        while left := sum(max(0, count - settled(where)) for where, count in sent.items()):
            if still((left, self._work())):
                raise TransientError(
                    f"{left} of {sent.total()} messages not settled, and nothing has moved"
                    f" for {STALL_S:g} s"
                )
            if self._stopped.wait(CHECK_S):
                return


class _LastKnown:
    """Committed offsets; where the broker does not answer in time, those known before."""

    def __init__(self, progress: GroupProgress) -> None:
        self._progress = progress
        self._known: dict[Partition, int] = {}

    def __call__(self, where: Partition) -> int:
        with suppress(TransientError):
            self._known[where] = self._progress(where)
        return self._known.get(where, 0)


class _Reader:
    """Reads alerts in a thread while the filter runs, since the broker keeps only the newest."""

    def __init__(self, subscription: Subscription, on_alert: Callable[[Alert], object]) -> None:
        self._alerts: list[Alert] = []
        self._subscription, self._on_alert = subscription, on_alert
        self._news = threading.Condition()
        threading.Thread(target=self._run, name="subscriber", daemon=True).start()

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Whether ``count`` alerts have come in time."""
        with self._news:
            return self._news.wait_for(lambda: len(self._alerts) >= count, timeout_s)

    def take(self, count: int, stall_s: float = 60.0) -> list[Alert]:
        """All alerts, once ``count`` of them have come."""
        still = StandStill(stall_s)
        while not self.wait_for(count, 0.5):
            if still(len(self._alerts)):
                raise TransientError(
                    f"{len(self._alerts)} of {count} alerts reached the subscriber"
                )
        return list(self._alerts)

    def _run(self) -> None:
        for alert in self._subscription:
            with self._news:
                self._alerts.append(alert)
                self._on_alert(alert)
                self._news.notify()
