"""A filter that cannot keep up stays in its group and holds no more than it must."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka as ck
import pytest

from broker_filter.config import Kafka
from broker_filter.kafka.consumer import KafkaSource

pytestmark = pytest.mark.kafka

MAX_POLL_MS = 4_000
MESSAGE_BYTES = 175_000
COUNT = 400


@pytest.fixture
def settings(kafka: str, topics: Any, group: str) -> Kafka:
    return Kafka(
        bootstrap_servers=kafka,
        group_id=group,
        input_topics=(topics("epochs", partitions=4),),
        session_timeout_ms=MAX_POLL_MS,
        max_poll_interval_ms=MAX_POLL_MS,
        options={"heartbeat.interval.ms": 300},
    )


def publish(settings: Kafka, count: int, size: int) -> None:
    producer = ck.Producer({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0})
    for n in range(count):
        producer.produce(settings.input_topics[0], bytes(size), partition=n % 4)
        producer.poll(0)
    assert producer.flush(60) == 0


def take(source: KafkaSource, count: int) -> int:
    taken, end = 0, time.monotonic() + 60
    while taken < count:
        taken += len(source.poll(count - taken, 0.2))
        assert time.monotonic() < end
    return taken


def test_a_paused_member_that_polls_is_not_put_out(settings: Kafka) -> None:
    lost: list[object] = []
    source = KafkaSource(settings, on_revoke=lost.append, on_lost=lost.append)
    publish(settings, 40, 100)
    take(source, 10)
    source.pause()
    end = time.monotonic() + 2 * MAX_POLL_MS / 1000
    while time.monotonic() < end:
        assert source.poll(100, 0.1) == []
    assert lost == []
    source.resume()
    take(source, 30)
    source.close()


def test_little_is_fetched_ahead_of_a_backlog_of_large_messages(settings: Kafka) -> None:
    publish(settings, COUNT, MESSAGE_BYTES)  # 70 MB
    source = KafkaSource(settings)
    most, largest, taken = 0, 0, 0
    end = time.monotonic() + 60
    while taken < COUNT:
        messages = source.poll(10_000, 0.2)
        taken += len(messages)
        largest = max(largest, sum(len(message.value or b"") for message in messages))
        most = max(most, source.fetched_bytes())
        assert time.monotonic() < end
    source.close()
    assert largest < 40e6
    assert most < 40e6
