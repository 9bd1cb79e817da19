"""Gauges of the group: lag counts what is not decided on, and no clock of a sender fools them."""

from __future__ import annotations

import logging
import time

import pytest

from broker_filter.kafka.memory import MemorySource
from broker_filter.observe.metrics import Metrics
from broker_filter.service.report import Reporter, fields
from broker_filter.types import Message
from tests import build

PARTITION = ("epochs", 0)
HALF_AN_HOUR_MS = 1_800_000


def messages(count: int, age_s: float = 0.0, step_s: float = 0.0) -> list[Message]:
    """So many messages; the first of an age in seconds, the others later by a step each."""
    first_ms = round(1000 * (time.time() - age_s))
    return [
        Message(*PARTITION, n, None, b"", first_ms + round(1000 * n * step_s)) for n in range(count)
    ]


def lag(metrics: Metrics) -> tuple[float, float]:
    names = ("consumer_lag_records", "consumer_lag_seconds")
    records, seconds = (metrics.value(name, **fields(PARTITION)) for name in names)
    return records, seconds


def test_what_was_taken_and_is_not_decided_on_is_lag() -> None:
    metrics = Metrics()
    reporter, source = Reporter(metrics), MemorySource(messages(4, age_s=300, step_s=60))
    taken = source.poll(2, 0) + source.poll(2, 0)
    reporter.taken(taken[:2], [])
    reporter.taken(taken[2:], [])
    reporter.group(source)
    records, seconds = lag(metrics)
    assert records == 4
    assert seconds == pytest.approx(240, abs=30)  # the first two end 240 s ago
    source.commit({PARTITION: 4})
    reporter.group(source)
    assert lag(metrics) == (0, 0)


def test_a_clock_ahead_of_ours_gives_no_negative_time() -> None:
    metrics = Metrics()
    reporter = Reporter(metrics)
    source = MemorySource(messages(2, age_s=-HALF_AN_HOUR_MS / 1000))
    reporter.taken(source.poll(2, 0), [])
    reporter.group(source)
    assert lag(metrics) == (2, 0)
    received = round(1000 * time.time()) + HALF_AN_HOUR_MS
    reporter.published([build.alert(received_ms=received)])
    name = "broker_filter_event_to_alert_seconds"
    assert metrics.registry.get_sample_value(f"{name}_count") == 1
    assert metrics.registry.get_sample_value(f"{name}_sum") == 0
    assert metrics.value("last_record_timestamp_seconds") <= time.time()


def test_an_alert_is_logged_with_the_time_that_it_took(caplog: pytest.LogCaptureFixture) -> None:
    received = round(1000 * (time.time() - 7))
    with caplog.at_level(logging.INFO):
        Reporter(Metrics()).published(
            [build.alert(received_ms=received), build.alert(received_ms=None)]
        )
    timed, other = caplog.records
    assert 7 <= timed.seconds < 60  # type: ignore[attr-defined]
    assert not hasattr(other, "seconds"), "not known when it was received"
