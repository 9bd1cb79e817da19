"""Members share the partitions; state moves with them, and a topic that grew is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from broker_filter.config import Kafka
from broker_filter.errors import StateError
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.progress import GroupProgress
from broker_filter.types import Message
from tests.integration.harness import make_archive, trial
from tests.integration.outcome import undisturbed

pytestmark = pytest.mark.kafka

PATIENCE_S = 60.0
DAY_MS = 86_400_000


def settings(servers: str, topic: str, group: str, **keys: Any) -> Kafka:
    return Kafka.model_validate(
        {
            "bootstrap_servers": servers,
            "group_id": group,
            "input_topics": [topic],
            "session_timeout_ms": 6_000,
            "options": {"heartbeat.interval.ms": 300},
            **keys,
        }
    )


def publish(servers: str, topic: str, count: int, partition: int = 0) -> None:
    """Messages one day apart."""
    producer = ck.Producer({"bootstrap.servers": servers, "log_level": 0})
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=partition, timestamp=(n + 1) * DAY_MS)
    assert producer.flush(30) == 0


def poll_until(condition: Callable[[], object], *sources: KafkaSource) -> list[Message]:
    end, messages = time.monotonic() + PATIENCE_S, []
    while not condition():
        assert time.monotonic() < end
        for source in sources:
            messages += source.poll(100, 0.05)
    return messages


def take(source: KafkaSource, count: int) -> list[Message]:
    messages: list[Message] = []
    end = time.monotonic() + PATIENCE_S
    while len(messages) < count:
        assert time.monotonic() < end
        messages += source.poll(count - len(messages), 0.2)
    return messages


def test_a_second_member_joins_and_leaves(kafka: str, tmp_path: Path) -> None:
    archive = make_archive(stars=6, injected=5, every=4)
    with trial(kafka, archive, tmp_path) as run:
        first = run.start()
        run.until(lambda: first.logged("started"))
        run.feed(10)
        second = run.start()
        run.until(lambda: second.logged("restored"))
        run.until(lambda: run.share_done() > 0.5)
        assert second.stop() == 0, run.logs()
        run.until_done()
        assert first.stop() == 0, run.logs()
        verdict = run.verdict(undisturbed(archive))
        assert verdict, (verdict, run.logs())


@pytest.fixture
def stream(kafka: str, topics: Any, group: str) -> tuple[str, str, str]:
    topic = topics("epochs", partitions=2, config={"retention.ms": "-1"})
    return kafka, topic, group


def test_a_static_member_comes_back_to_its_partitions(stream: tuple[str, str, str]) -> None:
    changes: list[str] = []
    first = KafkaSource(
        settings(*stream, group_instance_id="a"),
        on_revoke=lambda gone: changes.append(f"revoked {len(gone)}"),
    )
    second = KafkaSource(settings(*stream, group_instance_id="b"))
    poll_until(lambda: len(first.assigned()) == len(second.assigned()) == 1, first, second)
    before, changes[:] = second.assigned(), []
    second.close()
    second = KafkaSource(settings(*stream, group_instance_id="b"))
    poll_until(lambda: second.assigned(), first, second)
    assert second.assigned() == before
    assert changes == []
    first.close()
    second.close()


def test_a_member_that_was_shut_out_comes_back_once_and_gives_way_to_a_twin(
    stream: tuple[str, str, str],
) -> None:
    lost: list[str] = []
    kafka = settings(*stream, group_instance_id="a")
    older = KafkaSource(kafka, on_lost=lambda gone: lost.append(f"older {len(gone)}"))
    poll_until(lambda: len(older.assigned()) == 2, older)
    newer = KafkaSource(kafka, on_lost=lambda gone: lost.append(f"newer {len(gone)}"))
    poll_until(lambda: len(newer.assigned()) == 2, newer)
    with pytest.raises(StateError, match=r"another member runs as this one.*group_instance_id"):
        poll_until(lambda: False, newer, older)
    assert [text for text in lost if text[-1] != "0"] == ["older 2", "newer 2"]
    older.close()
    poll_until(lambda: len(newer.assigned()) == 2, newer)
    newer.close()


def test_one_window_back_by_timestamps(stream: tuple[str, str, str]) -> None:
    servers, topic, _ = stream
    publish(servers, topic, 40)
    with closing(GroupProgress(settings(*stream))) as progress:
        # The message before the 31st is of day 30; ten days before that is day 20, offset 19.
        assert progress.before({(topic, 0): 30}, 10.0) == {(topic, 0): 19}
        assert progress.before({(topic, 0): 5}, 10.0) == {(topic, 0): 0}
        assert progress.before({(topic, 1): 0}, 10.0) == {(topic, 1): 0}
        assert progress.span((topic, 0)) == (0, 40)


def test_a_timestamp_years_ahead_does_not_empty_the_windows(stream: tuple[str, str, str]) -> None:
    servers, topic, _ = stream
    publish(servers, topic, 40)
    ahead_ms = round(1000 * time.time()) + 3650 * DAY_MS
    producer = ck.Producer({"bootstrap.servers": servers, "log_level": 0})
    producer.produce(topic, b"x", partition=0, timestamp=ahead_ms)
    assert producer.flush(30) == 0
    with closing(GroupProgress(settings(*stream))) as progress:
        # The newest that can be believed is of day 40; ten days before that is day 30, offset 29.
        assert progress.before({(topic, 0): 41}, 10.0) == {(topic, 0): 29}


@pytest.mark.parametrize("by_transaction", [False, True])
def test_a_topic_that_grew_is_refused_with_advice(
    stream: tuple[str, str, str], kafka_admin: AdminClient, by_transaction: bool
) -> None:
    servers, topic, _ = stream
    publish(servers, topic, 3)
    with closing(KafkaSource(settings(*stream))) as source:
        take(source, 3)
        if by_transaction:
            commit_in_transaction(servers, source, topic)
        else:
            source.commit({(topic, 0): 3}, wait=True)
    with closing(GroupProgress(settings(*stream))) as progress:
        assert progress.committed((topic, 0)) == 3
        (done,) = kafka_admin.create_partitions([NewPartitions(topic, 4)]).values()
        done.result(30)
        with pytest.raises(StateError, match=r"4 partitions and had 2.*new kafka\.group_id"):
            ask_for(PATIENCE_S, lambda: progress.committed((topic, 0)))


def ask_for(seconds: float, question: Callable[[], object]) -> None:
    """Ask again and again: brokers hear of a new partition one after the other."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        question()


def commit_in_transaction(servers: str, source: KafkaSource, topic: str) -> None:
    from broker_filter.kafka.delivery import Parcel
    from broker_filter.kafka.transaction import KafkaTransactions
    from broker_filter.observe.metrics import Metrics

    kafka = Kafka(bootstrap_servers=servers, input_topics=(topic,), delivery="exactly_once")
    delivery = KafkaTransactions(kafka, Metrics())
    delivery.deliver(Parcel(1, (), {(topic, 0): 3}), source)
    delivery.close()


def test_explicit_strategies_share_the_partitions_too(stream: tuple[str, str, str]) -> None:
    for strategy in ("range", "roundrobin"):
        servers, topic, group = stream
        kafka = settings(servers, topic, f"{group}-{strategy}", assignment_strategy=strategy)
        first, second = KafkaSource(kafka), KafkaSource(kafka)
        poll_until(
            lambda a=first, b=second: len(a.assigned()) == len(b.assigned()) == 1, first, second
        )
        assert first.assigned().isdisjoint(second.assigned())
        first.close()
        second.close()
