from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

from broker_filter.config import Kafka, Security
from broker_filter.errors import ConfigError, StateError, TransientError
from broker_filter.kafka.client import consumer_config
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.memory import MemorySource
from broker_filter.kafka.progress import GroupProgress, MemoryProgress, newest_of
from broker_filter.kafka.sink import KafkaSink, MemorySink, partition_of
from broker_filter.kafka.source import Ledger
from broker_filter.types import Message, OutgoingMessage
from tests import build

SECRET = "hunter2-in-clear"  # noqa: S105
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def kafka(broker, request):
    """Settings of a group and a topic of the test's own, with two partitions."""
    topic = request.node.name.partition("[")[0]
    broker.create_topic(topic, 2)
    return Kafka(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=topic,
        input_topics=(topic,),
        session_timeout_ms=1500,  # the embedded broker lets a second member wait for it
        options={"heartbeat.interval.ms": 200},
    )


def send(kafka, values, **where):
    sink = KafkaSink(kafka)
    for value in values:
        sink.produce(kafka.input_topics[0], b"key", value, **where)
    sink.close()


def take(source, count, timeout_s=PATIENCE_S):
    """Poll until ``count`` messages have come; fewer only where time runs out."""
    end = time.monotonic() + timeout_s
    messages = []
    while len(messages) < count and time.monotonic() < end:
        messages += source.poll(count - len(messages), 0.2)
    return messages


def until_assigned(source, count):
    """Poll until the group has given ``count`` partitions, none of which yields a message."""
    end = time.monotonic() + PATIENCE_S
    while len(source.assigned()) != count:
        assert source.poll(1, 0.1) == []
        assert time.monotonic() < end


def flushed(sink):
    """Flush until all is out; a sink may say so long that there is more to wait for."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return sink.flush(1.0)
        except TransientError:
            assert time.monotonic() < end


def numbered(count, topic="t", partition=0, start=0):
    return [
        build.message(b"%d" % n, start + n, topic=topic, partition=partition) for n in range(count)
    ]


def next_offsets(messages):
    return {(m.topic, m.partition): m.next_offset for m in messages}


class TestKafkaRoundTrip:
    def test_key_value_headers_and_time_arrive(self, kafka):
        (topic,) = kafka.input_topics
        before = int(time.time() * 1000)
        sink = KafkaSink(kafka)
        outgoing = OutgoingMessage(topic, b"star", b"\x00\xff", (("a", b"1"), ("a", b"\x00")))
        sink.produce(outgoing.topic, outgoing.key, outgoing.value, outgoing.headers)
        sink.produce(topic, None, b"", partition=1)  # empty, and still a message
        sink.close()
        source = KafkaSource(kafka)
        by_value = {m.value: m for m in take(source, 2)}
        source.close()
        got = by_value[b"\x00\xff"]
        assert (got.topic, got.key, got.headers) == (topic, b"star", outgoing.headers)
        assert before <= got.timestamp_ms <= time.time() * 1000
        assert (by_value[b""].key, by_value[b""].partition) == (None, 1)

    def test_order_is_kept_and_poll_respects_its_limit(self, kafka):
        send(kafka, [b"%d" % n for n in range(500)], partition=0)
        source = KafkaSource(kafka)
        messages = []
        while len(messages) < 500:
            batch = source.poll(64, 5.0)
            assert 0 <= len(batch) <= 64
            messages += batch
        source.close()
        assert [m.value for m in messages] == [b"%d" % n for n in range(500)]
        assert [m.offset for m in messages] == list(range(500))

    def test_a_key_goes_where_partition_of_says(self, kafka):
        keys = [b"star-%d" % n for n in range(40)]
        sink = KafkaSink(kafka)
        for key in keys:
            sink.produce(kafka.input_topics[0], key, key)
        sink.close()
        source = KafkaSource(kafka)
        got = {m.key: m.partition for m in take(source, 40)}
        source.close()
        assert got == {key: partition_of(key, 2) for key in keys}
        assert set(got.values()) == {0, 1}

    def test_poll_returns_at_its_timeout(self, kafka):
        source = KafkaSource(kafka)
        until_assigned(source, 2)
        start = time.monotonic()
        assert source.poll(10, 0.2) == []
        assert time.monotonic() - start < 5.0
        source.close()


def test_partition_of_matches_apache_kafka():
    """Values of Kafka's own UtilsTest.testMurmur2, made positive as its partitioner does."""
    for key, murmur in {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}.items():
        assert partition_of(key, 1000) == (murmur & 0x7FFFFFFF) % 1000


class TestCommit:
    def test_second_consumer_goes_on_from_the_committed_offset(self, kafka):
        send(kafka, [b"%d" % n for n in range(10)], partition=0)
        first = KafkaSource(kafka)
        messages = take(first, 10)
        first.commit({(messages[0].topic, 0): messages[3].next_offset})
        first.close()
        second = KafkaSource(kafka)
        assert [m.value for m in take(second, 6)] == [b"%d" % n for n in range(4, 10)]
        second.close()

    def test_without_a_commit_all_comes_again(self, kafka):
        send(kafka, [b"a"], partition=0)
        for _ in range(2):
            source = KafkaSource(kafka)
            assert [m.value for m in take(source, 1)] == [b"a"]
            source.close()

    def test_commit_in_on_revoke_counts(self, kafka):
        send(kafka, [b"%d" % n for n in range(5)], partition=0)
        held = {}
        source = KafkaSource(kafka, on_revoke=lambda _: source.commit(held))
        held.update(next_offsets(take(source, 5)))
        source.close()
        progress = GroupProgress(kafka)
        assert progress((kafka.input_topics[0], 0)) == 5
        progress.close()

    def test_neither_foreign_nor_unread_offsets_are_committed(self, kafka):
        (topic,) = kafka.input_topics
        send(kafka, [b"%d" % n for n in range(5)], partition=0)
        source = KafkaSource(kafka)
        take(source, 2)
        source.commit({(topic, 0): 5, (topic, 1): 1, ("elsewhere", 0): 7})
        source.close()
        progress = GroupProgress(kafka)
        assert [progress((topic, n)) for n in (0, 1)] == [0, 0]
        progress.close()

    def test_partitions_are_held_back_until_start_says_where(self, kafka):
        (topic,) = kafka.input_topics
        send(kafka, [b"%d" % n for n in range(5)], partition=0)
        gained = []
        source = KafkaSource(kafka, on_assign=gained.append)
        until_assigned(source, 2)
        assert take(source, 1, 1.0) == []
        assert gained == [{(topic, 0), (topic, 1)}]
        source.start((topic, 0), 3, 4)
        assert [m.value for m in take(source, 2)] == [b"3", b"4"]
        assert source.committed((topic, 0)) == 4
        assert source.committed((topic, 1)) is None
        source.close()

    def test_a_partition_that_is_held_again_starts_anew(self, kafka):
        (topic,) = kafka.input_topics
        send(kafka, [b"%d" % n for n in range(5)], partition=0)
        source = KafkaSource(kafka)
        assert len(take(source, 5)) == 5
        source.hold(source.assigned())
        send(kafka, [b"5"], partition=0)
        assert take(source, 1, 1.0) == []
        source.start((topic, 0), 4, 0)
        assert [m.value for m in take(source, 2)] == [b"4", b"5"]
        source.close()

    def test_the_position_reaches_the_end_of_an_empty_partition(self, kafka):
        (topic,) = kafka.input_topics
        source = KafkaSource(kafka)
        end = time.monotonic() + PATIENCE_S
        while source.positions() != {(topic, 0): 0, (topic, 1): 0}:
            assert source.poll(1, 0.1) == []
            assert time.monotonic() < end
        source.close()

    def test_a_commit_that_waits_is_acknowledged_on_return(self, kafka):
        (topic,) = kafka.input_topics
        send(kafka, [b"a"], partition=0)
        source = KafkaSource(kafka)
        source.commit(next_offsets(take(source, 1)), wait=True)
        assert source.committed((topic, 0)) == 1
        source.close()

    def test_a_member_tells_how_many_partitions_there_are(self, kafka):
        source = KafkaSource(kafka)
        until_assigned(source, 2)
        assert source.member().partitions[kafka.input_topics[0]] == 2
        source.close()

    def test_outage_does_not_stop_the_source(self, broker, kafka):
        (topic,) = kafka.input_topics
        send(kafka, [b"a"], partition=0)
        source = KafkaSource(kafka)
        offsets = next_offsets(take(source, 1))
        broker.interrupt()
        try:
            start = time.monotonic()
            source.commit(offsets)
            assert source.poll(10, 0.3) == []
            assert time.monotonic() - start < 5.0
        finally:
            broker.restore()
        send(kafka, [b"b"], partition=0)
        assert [m.value for m in take(source, 1)] == [b"b"]
        source.commit({(topic, 0): 2})
        source.close()
        progress = GroupProgress(kafka)
        assert progress((topic, 0)) == 2
        progress.close()


class TestRebalance:
    def test_partitions_move_to_a_second_member_and_back(self, kafka):
        seen = []
        first = KafkaSource(kafka, on_revoke=lambda gone: seen.append(gone))
        while len(first.assigned()) < 2:
            first.poll(1, 0.1)
        second = KafkaSource(kafka)
        end = time.monotonic() + PATIENCE_S
        while not (len(first.assigned()) == len(second.assigned()) == 1):
            first.poll(1, 0.05)
            second.poll(1, 0.05)
            assert time.monotonic() < end
        assert first.assigned().isdisjoint(second.assigned())
        assert [len(gone) for gone in seen] == [1]
        second.close()
        while len(first.assigned()) < 2:
            first.poll(1, 0.1)
            assert time.monotonic() < end
        first.close()

    def test_pause_holds_messages_back_and_resume_brings_all_of_them(self, kafka):
        send(kafka, [b"%d" % n for n in range(50)], partition=0)
        source = KafkaSource(kafka)
        got = take(source, 5)
        source.pause()
        source.pause()
        assert take(source, 1, 1.0) == []
        source.resume()
        got += take(source, 45)
        source.close()
        assert [m.value for m in got] == [b"%d" % n for n in range(50)]

    def test_pause_before_the_assignment_holds_too(self, kafka):
        send(kafka, [b"a"], partition=0)
        source = KafkaSource(kafka)
        source.pause()
        until_assigned(source, 2)
        assert take(source, 1, 1.0) == []
        source.resume()
        assert len(take(source, 1)) == 1
        source.close()

    def test_lag_counts_what_is_left(self, kafka):
        (topic,) = kafka.input_topics
        send(kafka, [b"%d" % n for n in range(10)], partition=0)
        source = KafkaSource(kafka)
        taken = take(source, 4)
        assert {where: lag for where, lag in source.lag().items() if lag} == {(topic, 0): 10}
        source.commit(next_offsets(taken), wait=True)
        assert {where: lag for where, lag in source.lag().items() if lag} == {(topic, 0): 6}
        source.close()


def closed_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class TestErrors:
    @pytest.mark.parametrize("make", [KafkaSource, KafkaSink])
    def test_unreachable_broker_is_named_within_seconds(self, make):
        address = f"127.0.0.1:{closed_port()}"
        kafka = Kafka(bootstrap_servers=address, input_topics=("t",), connect_timeout_s=1)
        start = time.monotonic()
        with pytest.raises(
            ConfigError, match=f"no broker reached at {address} within 1 s.*refused"
        ):
            make(kafka)
        assert time.monotonic() - start < 5

    def test_missing_topic_is_named_with_the_nearest(self, kafka):
        (topic,) = kafka.input_topics
        with pytest.raises(ConfigError, match=f"no topic '{topic}s' at .* did you mean {topic}"):
            KafkaSource(kafka.model_copy(update={"input_topics": (f"{topic}s",)}))

    def test_unknown_option_is_refused(self, kafka):
        with pytest.raises(ConfigError, match=r'"no\.such.property".*kafka.options'):
            KafkaSink(kafka.model_copy(update={"options": {"no.such.property": 1}}))

    def test_refused_login_names_the_user_and_no_secret(self):
        with RefusingBroker() as address:
            kafka = Kafka(
                bootstrap_servers=address,
                input_topics=("t",),
                connect_timeout_s=20,
                security=Security(
                    protocol="sasl_plaintext", mechanism="PLAIN", username="me", password=SECRET
                ),
            )
            start = time.monotonic()
            with pytest.raises(ConfigError, match="'me' was refused") as caught:
                KafkaSource(kafka)
        assert time.monotonic() - start < 10
        assert SECRET not in str(caught.value)
        assert consumer_config(kafka)["sasl.password"] == SECRET

    def test_undelivered_messages_are_counted(self, broker, kafka):
        sink = KafkaSink(kafka)
        broker.interrupt()
        try:
            for _ in range(3):
                sink.produce(kafka.input_topics[0], None, b"x")
            with pytest.raises(TransientError, match=r"3 messages still queued"):
                sink.flush(0.3)
        finally:
            broker.restore()
        flushed(sink)  # a second flush delivers what was still queued
        source = KafkaSource(kafka)
        assert len(take(source, 3)) == 3
        source.close()

    def test_messages_given_up_are_reported(self, broker, kafka):
        sink = KafkaSink(kafka.model_copy(update={"delivery_timeout_s": 1.0}))
        # A producer that has not found the partitions' leaders yet gives nothing up before it has.
        sink.produce(kafka.input_topics[0], None, b"first")
        flushed(sink)
        broker.interrupt()
        try:
            sink.produce(kafka.input_topics[0], None, b"x")
            with pytest.raises(StateError, match=r"1 messages to .* given up"):
                flushed(sink)
        finally:
            broker.restore()
        flushed(sink)  # told once

    def test_too_large_message(self, kafka):
        sink = KafkaSink(kafka)
        with pytest.raises(ConfigError, match=r"too large.*message.max.bytes"):
            sink.produce(kafka.input_topics[0], None, bytes(6_000_000))
        sink.close()

    def test_full_queue_waits_and_loses_nothing(self, kafka):
        sink = KafkaSink(kafka.model_copy(update={"options": {"queue.buffering.max.messages": 10}}))
        for n in range(200):
            sink.produce(kafka.input_topics[0], None, b"%d" % n, partition=0)
        sink.close()
        source = KafkaSource(kafka)
        assert [m.value for m in take(source, 200)] == [b"%d" % n for n in range(200)]
        source.close()


class RefusingBroker:
    """Speaks just enough of Kafka's protocol to refuse every SASL login."""

    API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36

    def __enter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                while request := self._read(connection):
                    key, version, correlation = struct.unpack(">hhi", request[:8])
                    body = struct.pack(">i", correlation) + self._answer(key, version)
                    connection.sendall(struct.pack(">i", len(body)) + body)

    def _read(self, connection):
        head = connection.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return b""
        return connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)

    def _answer(self, key, version):
        if key == self.API_VERSIONS and version > 0:
            return struct.pack(">hi", 35, 0)  # UNSUPPORTED_VERSION: ask again with version 0
        if key == self.API_VERSIONS:
            ranges = [(self.API_VERSIONS, 0, 0), (self.HANDSHAKE, 0, 1), (self.AUTHENTICATE, 0, 0)]
            ranges += [(api, 0, 4) for api in (0, 1, 3)]
            return struct.pack(">hi", 0, len(ranges)) + b"".join(
                struct.pack(">hhh", *item) for item in ranges
            )
        if key == self.HANDSHAKE:
            return struct.pack(">hih", 0, 1, 5) + b"PLAIN"
        return struct.pack(">hh", 58, 6) + b"denied" + struct.pack(">i", 0)


class TestMemorySource:
    def test_hands_out_in_order_and_tracks_commits(self):
        source = MemorySource(numbered(5))
        assert [m.offset for m in source.poll(3, 0)] == [0, 1, 2]
        source.commit({("t", 0): 2, ("t", 1): 4})
        source.commit({("t", 0): 5})  # not handed out yet
        assert source.stored == {("t", 0): 2}
        assert source.lag() == {("t", 0): 3}  # what was handed out counts until it is committed
        assert source.assigned() == {("t", 0)}

    def test_commits_never_go_back(self):
        source = MemorySource(numbered(5))
        source.poll(5, 0)
        source.commit({("t", 0): 4})
        source.commit({("t", 0): 2})
        assert source.stored == {("t", 0): 4}

    def test_pause_and_push(self):
        source = MemorySource(numbered(1))
        source.pause()
        assert source.poll(5, 0) == []
        source.push(*numbered(2, start=1))
        source.resume()
        assert [m.offset for m in source.poll(5, 0)] == [0, 1, 2]

    def test_offsets_from_before_a_revocation_are_not_committed_after_it(self):
        source = MemorySource(numbered(5))
        offsets = next_offsets(source.poll(5, 0))
        source.revoke(("t", 0))
        source.commit(offsets)
        source.assign(("t", 0))
        source.commit(offsets)
        assert source.stored == {}
        assert len(source.poll(9, 0)) == 5

    def test_revoked_commits_count_and_lost_ones_do_not(self):
        source = MemorySource(
            numbered(2) + numbered(2, partition=1),
            on_revoke=lambda gone: source.commit(dict.fromkeys(gone, 2)),
            on_lost=lambda gone: source.commit(dict.fromkeys(gone, 2)),
        )
        source.poll(9, 0)
        source.lose(("t", 1))
        source.close()
        assert source.stored == {("t", 0): 2}
        assert source.assigned() == set()

    def test_assignment_starts_at_the_commit(self):
        source = MemorySource(numbered(4) + numbered(4, partition=1))
        source.stored[("t", 0)] = 2
        source.assign(("t", 0), ("t", 1))
        assert [(m.partition, m.offset) for m in source.poll(9, 0)] == [
            *((0, 2), (0, 3)),
            *((1, n) for n in range(4)),
        ]

    def test_with_on_assign_partitions_are_held_back(self):
        gained = []
        source = MemorySource(numbered(4), on_assign=gained.append)
        assert source.poll(9, 0) == []
        source.start(("t", 0), 2, 3)
        assert [m.offset for m in source.poll(9, 0)] == [2, 3]
        source.commit({("t", 0): 3})
        assert source.stored == {}
        source.hold([("t", 0)])
        source.push(*numbered(1, start=4))
        assert source.poll(9, 0) == []
        source.start(("t", 0), 3, 3)
        assert [m.offset for m in source.poll(9, 0)] == [3, 4]
        assert gained == [{("t", 0)}]


class TestLedger:
    def test_the_end_of_a_partition_may_lie_past_its_last_message(self):
        """Behind a transaction stands its commit marker."""
        ledger = Ledger()
        ledger.gain([("t", 0)], hold=False)
        ledger.start(("t", 0), 0, 0)
        ledger.deliver(("t", 0), 5)
        ledger.position["t", 0] = 6  # as the client says at the end of the partition
        ledger.deliver(("t", 0), 5)
        assert ledger.decided(("t", 0)) == 0
        ledger.confirm({("t", 0): 5})
        assert ledger.decided(("t", 0)) == 6


class TestProgress:
    """The same questions to a broker and to memory."""

    DAY_MS = 86_400_000

    def test_of_a_broker(self, kafka):
        (topic,) = kafka.input_topics
        send(kafka, [b"%d" % n for n in range(5)], partition=0)
        progress = GroupProgress(kafka)
        assert progress.committed((topic, 0)) is None
        assert progress.span((topic, 0)) == (0, 5)
        assert progress.span((topic, 1)) == (0, 0)
        source = KafkaSource(kafka)
        source.commit(next_offsets(take(source, 4)), wait=True)
        source.close()
        assert progress.committed((topic, 0)) == 4
        progress.close()

    NOW_S = 50 * 86_400.0

    def newest_day(self, *days):
        return newest_of([round(day * self.DAY_MS) for day in days], 20.0, self.NOW_S) / self.DAY_MS

    def test_the_newest_is_the_last_that_can_be_believed(self):
        assert self.newest_day(10, 11, 12) == 12
        assert self.newest_day(12, 11, 10) == 12
        assert self.newest_day(10, 11, 3650) == 11  # years ahead of the clock
        assert self.newest_day(3, 4, 45) == 4  # alone behind a gap
        assert self.newest_day(3, 4, 45, 46) == 46
        assert self.newest_day(3650, 3651) == 50  # all of them: now
        assert self.newest_day(0, -1) == 0
        assert self.newest_day() == 0

    def test_of_memory(self):
        messages = [Message("t", 0, n, None, b"", n * self.DAY_MS) for n in range(10, 20)]
        source = MemorySource(messages)
        progress = MemoryProgress(source)
        assert progress.committed(("t", 0)) is None
        assert progress.span(("t", 0)) == (10, 20)
        assert progress.before({("t", 0): 18}, 3.0) == {("t", 0): 14}
        source.poll(9, 0)
        source.commit({("t", 0): 15})
        assert progress.committed(("t", 0)) == 15


def test_memory_sink_keeps_messages_and_plays_an_outage():
    sink = MemorySink()
    sink.produce("t", b"k", b"v", (("h", b"1"),), partition=3)
    sink.flush()
    assert sink.messages == [OutgoingMessage("t", b"k", b"v", (("h", b"1"),))]
    assert sink.partitions == [3]
    sink.failure = TransientError("down")
    with pytest.raises(TransientError, match="down"):
        sink.close()
