from __future__ import annotations

import random
import socket
import threading
import time

import pytest

from broker_filter.config import Kafka
from broker_filter.errors import ConfigError, StateError, TransientError
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.embedded import BoundedPublisher, EmbeddedBroker, StandStill
from broker_filter.kafka.sink import KafkaSink, MemorySink, partition_of

MESSAGE = 10_000
COUNT = 2_200  # 22 MB


def settings(broker, **changes):
    return Kafka(
        **{
            "bootstrap_servers": broker.bootstrap_servers,
            "group_id": "test",
            "input_topics": ("stream",),
            # Little read-ahead, so that unread messages stay with the broker.
            "options": {
                "queued.max.messages.kbytes": 64,
                "fetch.message.max.bytes": 50_000,
                "fetch.queue.backoff.ms": 5,
            },
            **changes,
        }
    )


def payloads():
    noise = random.Random(1)  # noqa: S311  incompressible, not secret
    return [b"%08d" % i + noise.randbytes(MESSAGE) for i in range(COUNT)]


def read_until_quiet(source, quiet_s=1.0):
    """All that comes until nothing has come for a while."""
    last = time.monotonic()
    while time.monotonic() - last < quiet_s:
        for message in source.poll(100, 0.1):
            last = time.monotonic()
            yield message


def test_topics_have_the_partitions_that_were_asked_for():
    with EmbeddedBroker({"stream": 3}) as broker:
        source = KafkaSource(settings(broker))
        list(read_until_quiet(source, 0.3))
        assert source.assigned() == {("stream", n) for n in range(3)}
        source.close()
        with pytest.raises(StateError, match="'stream' with 2 partitions"):
            broker.create_topic("stream", 2)


def test_two_brokers_do_not_meet():
    with EmbeddedBroker({"stream": 1}) as one, EmbeddedBroker({"stream": 1}) as two:
        assert one.bootstrap_servers != two.bootstrap_servers


def test_nothing_is_written_to_stderr(capfd):
    with EmbeddedBroker({"stream": 1}):
        pass
    assert capfd.readouterr() == ("", "")


def test_a_closed_broker_listens_no_more_and_may_be_closed_again():
    broker = EmbeddedBroker()
    host, _, port = broker.bootstrap_servers.partition(":")
    socket.create_connection((host, int(port))).close()
    broker.close()
    broker.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_more_than_20_mb_pass_one_partition_with_a_slow_consumer():
    with EmbeddedBroker({"stream": 1}) as broker:
        source = KafkaSource(settings(broker))
        read = {("stream", 0): 0}
        publisher = BoundedPublisher(KafkaSink(settings(broker)), broker.topics, read.__getitem__)
        sent = payloads()

        def publish():
            for value in sent:
                publisher.produce("stream", None, value)
            publisher.flush()

        thread = threading.Thread(target=publish)
        thread.start()
        got, deadline = [], time.monotonic() + 55
        while len(got) < COUNT and time.monotonic() < deadline:
            for message in source.poll(20, 1.0):
                got.append(message.value)
                read["stream", 0] = message.next_offset
        thread.join(30)
        source.close()
        assert got == sent


def test_without_the_bound_the_broker_drops_unread_messages():
    """The control of the test above: it is the bound that saves the messages."""
    with EmbeddedBroker({"stream": 1}) as broker:
        sink = KafkaSink(settings(broker))
        for value in payloads():
            sink.produce("stream", None, value)
        sink.flush()
        source = KafkaSource(settings(broker))
        got = sum(1 for _ in read_until_quiet(source))
        source.close()
        assert 0 < got < COUNT / 2


class TestBoundedPublisher:
    def test_waits_until_the_consumer_has_read(self):
        sink = MemorySink()
        read = [0]
        waits = []

        def pause(seconds):
            waits.append(seconds)
            read[0] += 1

        publisher = BoundedPublisher(
            sink, {"t": 1}, lambda _: read[0], limit_bytes=3000, pause=pause
        )
        for n in range(10):
            publisher.produce("t", None, bytes(900))
            assert n + 1 - read[0] <= 3
        assert len(waits) == 7

    def test_partitions_do_not_wait_for_each_other(self):
        sink = MemorySink()
        publisher = BoundedPublisher(sink, {"t": 2}, lambda _: 0, limit_bytes=1000, stall_s=0)
        publisher.produce("t", None, bytes(800), partition=0)
        publisher.produce("t", None, bytes(800), partition=1)
        with pytest.raises(TransientError, match=r"t\[1\] stands at offset 0"):
            publisher.produce("t", None, bytes(800), partition=1)

    def test_a_second_replay_counts_from_where_the_consumer_stands(self):
        publisher = BoundedPublisher(
            MemorySink(), {"t": 1}, lambda _: 500, limit_bytes=1000, stall_s=0
        )
        publisher.produce("t", None, bytes(800))
        with pytest.raises(TransientError, match=r"stands at offset 500"):
            publisher.produce("t", None, bytes(800))

    def test_work_of_the_consumer_counts_as_progress(self):
        read, worked = [0], iter(range(1000))

        def pause(_):
            if next(worked) > 50:  # the limit is none at all, had nothing moved
                read[0] = 1

        publisher = BoundedPublisher(
            MemorySink(),
            {"t": 1},
            lambda _: read[0],
            limit_bytes=1000,
            stall_s=0.0,
            work=lambda: next(worked),
            pause=pause,
        )
        for _ in range(2):
            publisher.produce("t", None, bytes(800))
        assert publisher.sent["t", 0] == 2

    def test_a_stop_ends_the_wait(self):
        publisher = BoundedPublisher(
            MemorySink(), {"t": 1}, lambda _: 0, limit_bytes=10, pause=lambda _: publisher.stop()
        )
        publisher.produce("t", None, bytes(800))
        with pytest.raises(TransientError, match="stopped"):
            publisher.produce("t", None, bytes(800))

    def test_a_message_beyond_the_limit_goes_alone(self):
        sink = MemorySink()
        publisher = BoundedPublisher(sink, {"t": 1}, lambda _: 0, limit_bytes=10, stall_s=0)
        publisher.produce("t", None, bytes(5000))
        assert len(sink.messages) == 1
        with pytest.raises(TransientError, match=r"t\[0\] stands at offset 0"):
            publisher.produce("t", None, b"")

    def test_keeps_key_and_headers_and_chooses_the_key_s_partition(self):
        sink = MemorySink()
        publisher = BoundedPublisher(sink, {"t": 8}, lambda _: 0)
        publisher.produce("t", b"star", b"v", (("a", b"1"),))
        assert sink.partitions == [partition_of(b"star", 8)]
        assert (sink.messages[0].key, sink.messages[0].headers) == (b"star", (("a", b"1"),))

    def test_unknown_topic(self):
        publisher = BoundedPublisher(MemorySink(), {}, lambda _: 0)
        with pytest.raises(ConfigError, match="'t' was not created"):
            publisher.produce("t", None, b"")


class TestStandStill:
    def run(self, moves: list[tuple[float, object]], limit_s: float = 3.0) -> list[bool]:
        now = [0.0]
        still = StandStill(limit_s, lambda: now[0])
        answers = []
        for step, seen in moves:
            now[0] += step
            answers.append(still(seen))
        return answers

    def test_it_takes_the_whole_limit_without_any_change(self):
        assert self.run([(1, 7)] * 5) == [False, False, False, True, True]

    def test_the_slowest_change_is_one(self):
        assert not any(self.run([(1, n // 3) for n in range(30)]))

    def test_a_process_that_was_stopped_does_not_blame_others(self):
        assert self.run([(1, 7), (3600, 7), (0.1, 7)]) == [False, False, False]
