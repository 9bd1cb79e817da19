"""Replaying a range of a live topic from a real Kafka."""

from __future__ import annotations

import os
import time
import uuid

import confluent_kafka as ck
import pytest

from broker_filter.config import Kafka
from broker_filter.errors import ConfigError, TransientError
from broker_filter.kafka.sink import KafkaSink, MemorySink
from broker_filter.replay.publish import Archive, publish
from broker_filter.replay.topic_range import parse_range, streams_of
from tests.kafka_broker import make_topic

pytestmark = pytest.mark.kafka


def number_of(message) -> float:
    return 60_000.0 + int(message.value[1:])


@pytest.fixture
def filled(kafka, topics):
    """A topic of two partitions with 2,000 messages, and the time in the middle of them."""
    topic = topics("range", partitions=2)
    sink = KafkaSink(Kafka(bootstrap_servers=kafka, input_topics=(topic,)))
    for number in range(1000):
        sink.produce(topic, f"k{number}".encode(), f"v{number}".encode(), (), number % 2)
    sink.flush()
    last = int(time.time() * 1000)
    while int(time.time() * 1000) <= last + 1:
        pass  # a millisecond is the grain of Kafka's clock
    middle = time.time()
    for number in range(1000, 2000):
        sink.produce(topic, f"k{number}".encode(), f"v{number}".encode(), (), number % 2)
    sink.close()
    return topic, middle


def replayed(kafka: str, topic: str, query: str = "") -> list[bytes]:
    streams = streams_of(parse_range(f"kafka://{kafka}/{topic}{query}"), number_of)
    sink = MemorySink()
    publish(Archive(streams, pytest.fail), sink, "out")
    return [message.value for message in sink.messages]


def test_partitions_come_merged_by_event_time(kafka, filled):
    topic, _ = filled
    assert replayed(kafka, topic) == [f"v{number}".encode() for number in range(2000)]


def test_a_range_of_time(kafka, filled):
    topic, middle = filled
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(middle)) + f".{int(middle % 1 * 1000):03d}"
    after = replayed(kafka, topic, f"?time={iso}/")
    assert after == [f"v{number}".encode() for number in range(1000, 2000)]
    assert replayed(kafka, topic, f"?time=/{iso}")[-1] == b"v999"


def test_a_live_group_is_neither_joined_nor_moved(kafka, filled, group):
    topic, _ = filled
    member = ck.Consumer({"bootstrap.servers": kafka, "group.id": group, "log_level": 0})
    member.assign([ck.TopicPartition(topic, 0, 5)])
    member.commit(offsets=[ck.TopicPartition(topic, 0, 5)], asynchronous=False)
    replayed(kafka, topic)
    [committed] = member.committed([ck.TopicPartition(topic, 0)], timeout=10)
    assert committed.offset == 5
    replayer = ck.Consumer(
        {"bootstrap.servers": kafka, "group.id": "broker-filter-replay", "log_level": 0}
    )
    [own] = replayer.committed([ck.TopicPartition(topic, 0)], timeout=10)
    assert own.offset == ck.OFFSET_INVALID
    member.close()
    replayer.close()


def test_offsets_that_are_no_longer_kept(kafka, filled, kafka_admin):
    topic, _ = filled
    cut = kafka_admin.delete_records([ck.TopicPartition(topic, 0, 100)])
    for future in cut.values():
        future.result(10)
    with pytest.raises(ConfigError, match=r"offset 5 is no longer kept; the first is 100"):
        replayed(kafka, topic, "?offsets=5:&partitions=0")


def test_a_topic_that_is_deleted_while_it_is_replayed(kafka, kafka_admin):
    topic = f"doomed-{uuid.uuid4().hex[:12]}"
    make_topic(kafka, topic, 1)
    sink = KafkaSink(Kafka(bootstrap_servers=kafka, input_topics=(topic,)))
    for _ in range(60):  # more than is fetched ahead, and not to be compressed
        sink.produce(topic, None, os.urandom(900_000))
    sink.close()
    [stream] = streams_of(parse_range(f"kafka://{kafka}/{topic}"), lambda _: 60_000.0)
    records = stream.read(pytest.fail)
    next(records)
    for future in kafka_admin.delete_topics([topic]).values():
        future.result(10)
    with pytest.raises(TransientError, match="the topic is gone: it was deleted"):
        list(records)
