"""A range of a topic as a source: how it is named, and what comes of it."""

from __future__ import annotations

import pytest

from broker_filter.config import Kafka
from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.sink import KafkaSink
from broker_filter.replay.topic_range import TopicRange, parse_range, streams_of


class TestName:
    def test_all_of_a_topic(self):
        assert parse_range("kafka://a:9092/alerts") == TopicRange("a:9092", "alerts")

    def test_by_offset_and_partition(self):
        part = parse_range("kafka://a:1,b:2/t?offsets=10:20&partitions=0,3")
        assert part == TopicRange("a:1,b:2", "t", offsets=(10, 20), partitions=frozenset({0, 3}))

    def test_an_open_end(self):
        assert parse_range("kafka://a:1/t?offsets=5:").offsets == (5, None)
        assert parse_range("kafka://a:1/t?offsets=:5").offsets == (None, 5)

    def test_times_are_utc_unless_they_say_otherwise(self):
        plain = parse_range("kafka://a:1/t?time=2026-03-10T00:00/2026-03-11")
        assert plain.times_ms == (1773100800000, 1773187200000)
        zoned = parse_range("kafka://a:1/t?time=2026-03-10T01:00%2B01:00/")
        assert zoned.times_ms == (1773100800000, None)

    @pytest.mark.parametrize(
        "text",
        [
            "kafka://a:1",
            "kafka:///t",
            "kafka://a:1/t?offset=1:2",
            "kafka://a:1/t?offsets=1",
            "kafka://a:1/t?offsets=-3:",
            "kafka://a:1/t?offsets=1:2&time=2026-01-01/",
            "kafka://a:1/t?time=yesterday/",
            "kafka://a:1/t?partitions=x",
            "kafka://[::1:9092/t",
        ],
    )
    def test_anything_else_is_refused_with_an_example(self, text):
        with pytest.raises(ConfigError, match=r"such as kafka://"):
            parse_range(text)


def test_no_broker_is_said_so():
    with pytest.raises(TransientError, match="no answer within"):
        streams_of(TopicRange("127.0.0.1:1", "t"), lambda _: 0.0)


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as one:
        one.create_topic("epochs", 2)
        kafka = Kafka(bootstrap_servers=one.bootstrap_servers, input_topics=("epochs",))
        sink = KafkaSink(kafka)
        for number in range(10):
            headers = (("n", str(number).encode()),)
            sink.produce(
                "epochs", f"k{number}".encode(), f"v{number}".encode(), headers, number % 2
            )
        sink.flush()
        yield one
        sink.close()


def number_of(message) -> float:
    return 60_000.0 + int(message.value[1:])


def read(broker, query: str, event_time=number_of):
    part = parse_range(f"kafka://{broker.bootstrap_servers}/epochs{query}")
    said: list[str] = []
    streams = streams_of(part, event_time)
    return [list(stream.read(said.append)) for stream in streams], said


class TestRead:
    def test_messages_keep_key_value_and_headers(self, broker):
        (even, odd), said = read(broker, "")
        assert [record.value for record in even] == [b"v0", b"v2", b"v4", b"v6", b"v8"]
        assert odd[0].key == b"k1"
        assert odd[0].headers == (("n", b"1"),)
        assert odd[0].time == 60_001.0
        assert not said

    def test_offsets_and_partitions(self, broker):
        [odd], _ = read(broker, "?offsets=1:3&partitions=1")
        assert [record.value for record in odd] == [b"v3", b"v5"]

    def test_an_end_past_the_topic_is_its_end_now(self, broker):
        parts, _ = read(broker, "?offsets=3:1000000")
        assert [len(part) for part in parts] == [2, 2]

    def test_a_message_without_a_time_goes_out_behind_the_one_before_it(self, broker):
        def sometimes(message):
            if message.value in (b"v2", b"v4"):
                raise PoisonMessage("undecodable", "damaged")
            return number_of(message)

        [even], said = read(broker, "?partitions=0", sometimes)
        assert [record.time - 60_000 for record in even] == [0, 0, 0, 6, 8]
        assert len(said) == 1
        assert "epochs[0] offset 1" in said[0]

    def test_the_progress_ends_at_the_size(self, broker):
        part = parse_range(f"kafka://{broker.bootstrap_servers}/epochs?partitions=0")
        [stream] = streams_of(part, number_of)
        assert [record.place for record in stream.read(lambda _: None)][-1] == stream.size

    def test_an_unknown_topic_or_partition(self, broker):
        part = parse_range(f"kafka://{broker.bootstrap_servers}/epochs?partitions=7")
        with pytest.raises(ConfigError, match="no such topic or partition"):
            streams_of(part, number_of)
