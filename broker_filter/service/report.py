"""What the main loop reports: logs of alerts and dead letters, gauges of the group."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence

from broker_filter.alerts.alert import Alert
from broker_filter.kafka.source import Source
from broker_filter.observe.metrics import Metrics
from broker_filter.schemas import schema_id
from broker_filter.types import DeadLetter, Message, Partition, runs_of

__all__ = ["Reporter", "fields"]

_log = logging.getLogger(__name__)

_LAGS = ("consumer_lag_records", "consumer_lag_seconds")


def fields(where: Partition) -> dict[str, object]:
    """Name a partition in a line of the log."""
    return {"topic": where[0], "partition": where[1]}


class Reporter:
    """Keeps count of what passes through the main loop.

    Parameters
    ----------
    metrics : Metrics
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._taken: dict[Partition, deque[tuple[int, int]]] = {}  # next offset, timestamp in ms

    def taken(self, messages: Sequence[Message], dead: Iterable[DeadLetter]) -> None:
        """Messages have been put into the windows, those that could not be used left out."""
        newest_s = min(messages[-1].timestamp_ms / 1000, time.time())  # a sender may run ahead
        self._metrics.set("last_record_timestamp_seconds", newest_s)
        for partition, run in runs_of(messages):
            mark = run[-1].next_offset, run[-1].timestamp_ms
            self._taken.setdefault(partition, deque()).append(mark)
        for letter in dead:
            message = letter.message
            where = fields((message.topic, message.partition))
            extra = {"event": "dead_letter", "reason": letter.reason, "offset": message.offset}
            _log.warning(letter.detail, extra=extra | where)

    def published(self, alerts: Iterable[Alert]) -> None:
        """Alerts are out, for all to see."""
        for alert in alerts:
            self._metrics.inc("alerts_published_total", schema=schema_id("alert"))
            said = {
                "event": "alert",
                "alert_id": str(alert.alert_id),
                "state": alert.state,
                "log10_k": round(alert.log10_k, 2),
                "model_id": alert.model_id,
            }
            if alert.received_ms is not None:
                # A sender's clock that runs ahead of ours says nothing of how long we took.
                passed = max(0.0, time.time() - alert.received_ms / 1000)
                self._metrics.observe("event_to_alert_seconds", passed)
                said["seconds"] = round(passed, 3)
            _log.info("alert", extra=said)

    def group(self, source: Source) -> None:
        """Set the gauges of our share of the group."""
        self._metrics.set("assigned_partitions", len(source.assigned()))
        self._metrics.set("fetch_queue_bytes", source.fetched_bytes())
        now = time.time()
        for where, lag in source.lag().items():
            labels = fields(where)
            decided_ms = self._decided_ms(where, source.committed(where) or 0)
            self._metrics.set("consumer_lag_records", lag, **labels)
            if not lag or decided_ms is not None:
                age_s = max(0.0, now - (decided_ms or 0) / 1000) if lag else 0.0
                self._metrics.set("consumer_lag_seconds", age_s, **labels)

    def _decided_ms(self, where: Partition, committed: int) -> int | None:
        """Timestamp of the newest message that is decided on; of the oldest taken before any is."""
        taken = self._taken.get(where)
        if not taken:
            return None
        while len(taken) > 1 and taken[1][0] <= committed:
            taken.popleft()
        return taken[0][1]

    def forget(self, gone: Iterable[Partition]) -> None:
        """Drop the gauges of partitions that went."""
        for where in gone:
            self._taken.pop(where, None)
            for name in _LAGS:
                self._metrics.forget(name, **fields(where))
