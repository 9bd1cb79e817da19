"""Nothing lost, nothing doubled on a real Kafka, however the filter ends."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from broker_filter.config import Kafka
from broker_filter.errors import ConfigError, StateError, TransientError
from broker_filter.kafka.consumer import KafkaSource, offset_handles
from broker_filter.kafka.delivery import Parcel
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.source import Member
from broker_filter.kafka.transaction import open_delivery
from broker_filter.observe.metrics import Metrics
from broker_filter.types import OutgoingMessage
from tests.integration.harness import Archive, Trial, make_archive, trial
from tests.integration.outcome import Outcome, undisturbed

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def archive() -> Archive:
    return make_archive(stars=6, injected=5, every=4)


@pytest.fixture(scope="module")
def expected(archive: Archive) -> Outcome:
    alerts = undisturbed(archive)
    assert len(alerts) >= 10
    return alerts


@pytest.fixture
def run(kafka: str, archive: Archive, tmp_path: Path) -> Iterator[Trial]:
    with trial(kafka, archive, tmp_path) as made:
        yield made


def test_after_kill_9_the_alerts_are_those_of_an_undisturbed_run(
    run: Trial, expected: Outcome
) -> None:
    moment = random.Random(7).uniform(0.2, 0.8)  # noqa: S311
    first = run.start("a")
    run.until(lambda: first.logged("started"))
    last = round(0.9 * len(run.archive.messages))  # however slow we are, something is left
    feeding = run.feed(8, last)
    run.until(lambda: run.share_done() > moment or not first.running())
    first.kill()
    assert run.share_done() < 1
    feeding.join()
    run.publish(last)
    second = run.start("a")
    run.until_done()
    assert second.stop() == 0, run.logs()
    assert run.verdict(expected), (run.verdict(expected), run.logs())
    outcomes = {line["outcome"] for line in second.lines() if line.get("event") == "restored"}
    # A partition that was not saved yet is replayed from the topic.
    assert outcomes <= {"snapshot", "missing"}, run.logs()


def test_sigterm_settles_what_was_taken_and_a_restart_goes_on(
    run: Trial, expected: Outcome
) -> None:
    first = run.start()
    run.until(lambda: first.logged("started"))
    run.feed(8)
    run.until(lambda: run.share_done() > 0.3)
    began = time.monotonic()
    first.send(signal.SIGTERM)
    assert first.process.wait(60) == 0, run.logs()
    assert time.monotonic() - began < 25
    done = run.share_done()
    assert done > 0.3
    second = run.start()
    run.until_done()
    assert second.stop() == 0
    assert run.verdict(expected), (run.verdict(expected), run.logs())


class Pair:
    """A source and a transactional way out between two topics."""

    def __init__(self, kafka: str, topics: Any, group: str, **keys: Any) -> None:
        self.input, self.output = topics("in"), topics("out", config=keys.pop("config", None))
        self.kafka = Kafka(
            bootstrap_servers=kafka,
            group_id=group,
            input_topics=(self.input,),
            alert_topic=self.output,
            dead_letter_topic=topics("dead"),
            delivery="exactly_once",
            **keys,
        )
        self.metrics = Metrics()
        self.source = KafkaSource(self.kafka)
        self.delivery: Any = open_delivery(self.kafka, self.metrics)
        producer = ck.Producer({"bootstrap.servers": kafka, "log_level": 0})
        producer.produce(self.input, b"0")
        producer.produce(self.input, b"1")
        assert producer.flush(30) == 0

    def parcel(self, number: int, offset: int, size: int = 5) -> Parcel:
        message = OutgoingMessage(self.output, None, random.Random(1).randbytes(size))  # noqa: S311
        return Parcel(number, (message,), {(self.input, 0): offset})

    def take(self, count: int) -> None:
        end, taken = time.monotonic() + 30, 0
        while taken < count:
            taken += len(self.source.poll(10, 0.2))
            assert time.monotonic() < end

    def deliver_at_last(self, parcel: Parcel) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                return self.delivery.deliver(parcel, self.source)
            except TransientError:
                assert time.monotonic() < end
                time.sleep(0.2)

    def seen(self, isolation: str = "read_committed") -> int:
        """How many messages a reader of the output sees."""
        reader = ck.Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": "reader",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        reader.assign([ck.TopicPartition(self.output, 0, ck.OFFSET_BEGINNING)])
        count = 0
        while reader.poll(30).error() is None:
            count += 1
        reader.close()
        return count

    def committed(self) -> int | None:
        with closing(GroupProgress(self.kafka)) as progress:
            return progress.committed((self.input, 0))


@pytest.fixture
def pair(kafka: str, topics: Any, group: str) -> Iterator[Pair]:
    made = Pair(kafka, topics, group)
    yield made
    made.source.close()
    made.delivery.close()


def test_messages_and_offsets_go_out_together(pair: Pair) -> None:
    pair.take(2)
    pair.delivery.deliver(pair.parcel(1, 1), pair.source)
    pair.delivery.deliver(pair.parcel(2, 2), pair.source)
    assert (pair.seen(), pair.committed()) == (2, 2)
    assert pair.source.committed((pair.input, 0)) == 2
    assert pair.metrics.value("transactions_total", outcome="committed") == 2


def other_generation(token: bytes) -> bytes:
    """The group's metadata as of a rebalance that never was."""
    return token[:7] + (99).to_bytes(4, "little") + token[11:]


def shut_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take two messages, and fail to deliver them as a member of another generation."""
    pair.take(2)
    stale = other_generation(pair.source.member().token)
    with monkeypatch.context() as patch:
        patch.setattr(pair.source, "member", lambda: Member(stale))
        with pytest.raises(TransientError, match="not committed"):
            pair.delivery.deliver(pair.parcel(1, 2), pair.source)


def test_a_member_that_was_shut_out_publishes_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie: the coordinator refuses its generation, so its transaction is aborted."""
    shut_out(pair, monkeypatch)
    # Back in the group it goes on with what it has then.
    pair.delivery.deliver(pair.parcel(1, 2).emptied(), pair.source)
    assert (pair.seen(), pair.committed()) == (0, None)
    assert pair.seen("read_uncommitted") <= 1
    pair.delivery.deliver(pair.parcel(2, 2), pair.source)
    assert (pair.seen(), pair.committed()) == (1, 2)
    assert pair.metrics.value("transactions_total", outcome="aborted") == 1


class Changed:
    """A producer, some calls of which do something else."""

    def __init__(self, producer: ck.Producer, **calls: Callable[..., object]) -> None:
        self._producer, self._calls = producer, calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._producer, name)


def refuse(_: float) -> None:
    """Fail as an abort does after a coordinator has moved."""
    raise ck.KafkaException(ck.KafkaError(ck.KafkaError.INVALID_TXN_STATE, "odd", fatal=True))


def test_a_producer_beyond_use_is_replaced_and_what_it_left_is_aborted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut_out(pair, monkeypatch)
    odd = Changed(pair.delivery._producer, abort_transaction=refuse)
    monkeypatch.setattr(pair.delivery, "_producer", odd)
    with pytest.raises(TransientError, match=r"new producer.*odd"):
        pair.delivery.deliver(pair.parcel(1, 2), pair.source)
    pair.deliver_at_last(pair.parcel(1, 2))
    assert (pair.seen(), pair.committed()) == (1, 2)
    assert pair.metrics.value("transactions_total", outcome="aborted") == 1


def test_a_call_that_does_not_return_costs_the_producer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.take(2)
    over = threading.Event()
    stuck = Changed(pair.delivery._producer, send_offsets_to_transaction=lambda *_: over.wait())
    monkeypatch.setattr(pair.delivery, "_producer", stuck)
    with monkeypatch.context() as patch:
        patch.setattr("broker_filter.kafka.transaction.ATTEMPT_S", 0.5)
        with pytest.raises(TransientError, match=r"new producer.*no answer"):
            pair.delivery.deliver(pair.parcel(1, 2), pair.source)
    over.set()
    pair.deliver_at_last(pair.parcel(1, 2))
    assert (pair.seen(), pair.committed()) == (1, 2)


def test_a_producer_of_the_same_name_shuts_the_old_one_out(
    kafka: str, topics: Any, group: str
) -> None:
    pair = Pair(kafka, topics, group, group_instance_id="a")
    pair.take(2)
    successor = open_delivery(pair.kafka, Metrics())
    with pytest.raises(StateError, match=r"fenced|newer|cannot go on|another"):
        pair.delivery.deliver(pair.parcel(1, 2), pair.source)
    successor.deliver(pair.parcel(1, 2), pair.source)
    assert (pair.seen(), pair.committed()) == (1, 2)
    pair.source.close()


@pytest.mark.parametrize("before_the_offsets", [False, True])
def test_a_message_that_the_topic_refuses_ends_with_the_reason(
    kafka: str,
    topics: Any,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    before_the_offsets: bool,
) -> None:
    pair = Pair(kafka, topics, group, config={"max.message.bytes": "1000"})
    pair.take(2)
    if before_the_offsets:  # the refusal comes at once, and no offset can be sent any more
        patient = lambda *args: (pair.delivery._producer.flush(10), offset_handles(*args))[1]  # noqa: E731
        monkeypatch.setattr("broker_filter.kafka.transaction.offset_handles", patient)
    with pytest.raises(ConfigError, match=r"too large.*max\.message\.bytes"):
        pair.delivery.deliver(pair.parcel(1, 2, size=5000), pair.source)
    pair.delivery.close()
    assert (pair.seen(), pair.committed()) == (0, None)
    pair.source.close()
