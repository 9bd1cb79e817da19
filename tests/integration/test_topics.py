"""Topics as they are: missing, made by the brokers, deleted, behind transactions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from broker_filter.config import Kafka
from broker_filter.errors import ConfigError
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.topic_ids import TopicIds
from broker_filter.kafka.transaction import open_delivery
from broker_filter.observe.metrics import Metrics
from broker_filter.types import Message, Partition
from tests.integration.conftest import StartCluster, Topics
from tests.kafka_broker import make_topic

pytestmark = pytest.mark.kafka

PATIENCE_S = 60.0


def settings(servers: str, *topics: str, group: str, **keys: Any) -> Kafka:
    return Kafka.model_validate(
        {
            "bootstrap_servers": servers,
            "group_id": group,
            "input_topics": topics,
            "session_timeout_ms": 6_000,
            "options": {
                "heartbeat.interval.ms": 300,
                "topic.metadata.refresh.interval.ms": 1_000,
            },
            **keys,
        }
    )


def poll_until(source: KafkaSource, condition: Callable[[], object]) -> list[Message]:
    end, messages = time.monotonic() + PATIENCE_S, []
    while not condition():
        assert time.monotonic() < end
        messages += source.poll(100, 0.1)
    return messages


def publish(servers: str, topic: str, count: int, **properties: Any) -> None:
    producer = ck.Producer({"bootstrap.servers": servers, "log_level": 0, **properties})
    if properties:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=0)
    if properties:
        producer.commit_transaction(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def committed(source: KafkaSource, gone: Partition, kept: Partition) -> bool:
    """Commit both, as work in flight would; whether that of the topic that is left went through."""
    source.commit({gone: 2, kept: 3}, wait=True)
    return source.committed(kept) == 3


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("missing", ["alert_topic", "dead_letter_topic"])
def test_a_missing_topic_is_said_at_the_start_with_its_key(
    kafka: str, topics: Topics, group: str, delivery: str, missing: str
) -> None:
    there = {"alert_topic": topics("alerts"), "dead_letter_topic": topics("dead")}
    named = settings(
        kafka, "epochs", group=group, delivery=delivery, **there | {missing: "not-there"}
    )
    with pytest.raises(ConfigError, match=rf"^kafka\.{missing}: .* no topic 'not-there'"):
        open_delivery(named, Metrics())
    open_delivery(settings(kafka, "epochs", group=group, delivery=delivery, **there), Metrics())


def test_brokers_that_make_topics_by_themselves_make_ours(
    start_cluster: StartCluster, group: str
) -> None:
    cluster = start_cluster(settings={"auto.create.topics.enable": "true"})
    named = settings(cluster.bootstrap_servers, "epochs", group=group)
    open_delivery(named, Metrics()).close()
    topics = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=30)
    assert {named.alert_topic, named.dead_letter_topic} <= set(topics.topics)


def test_a_deleted_topic_of_a_pattern_is_left_behind(
    kafka: str, kafka_admin: AdminClient, group: str
) -> None:
    nights = [f"{group}-night-{n}" for n in range(3)]
    for topic in nights:
        make_topic(kafka, topic)
        publish(kafka, topic, 2)
    gone: list[str] = []
    source = KafkaSource(
        settings(kafka, f"^{group}-night-.*", group=group),
        on_revoke=lambda parts: gone.extend(topic for topic, _ in parts),
        on_lost=lambda parts: gone.extend(topic for topic, _ in parts),
    )
    with closing(source):
        first = poll_until(source, lambda: len(source.positions()) == 3)
        (done,) = kafka_admin.delete_topics(nights[:1]).values()
        done.result(PATIENCE_S)
        first += poll_until(source, lambda: (nights[0], 0) not in source.assigned())
        assert nights[0] in gone
        publish(kafka, nights[2], 1)
        read = poll_until(source, lambda: source.positions().get((nights[2], 0)) == 3)
        read += poll_until(source, lambda: committed(source, (nights[0], 0), (nights[2], 0)))
        poll_until(source, lambda: source.assigned() == {(nights[1], 0), (nights[2], 0)})
    # Of what was not committed yet some may come again, as partitions move with a topic that goes.
    assert {m.offset for m in first + read if m.topic == nights[2]} == {0, 1, 2}
    kafka_admin.delete_topics(nights[1:])


def test_a_deleted_topic_that_was_named_ends_the_process(
    kafka: str, kafka_admin: AdminClient, group: str
) -> None:
    make_topic(kafka, group)
    with closing(KafkaSource(settings(kafka, group, group=group))) as source:
        poll_until(source, lambda: source.positions())
        (done,) = kafka_admin.delete_topics([group]).values()
        done.result(PATIENCE_S)
        with pytest.raises(ConfigError, match=r"topic not found .*kafka\.input_topics"):
            poll_until(source, lambda: False)


def test_there_is_no_lag_behind_the_marker_of_a_transaction(
    kafka: str, topics: Topics, group: str
) -> None:
    topic = topics("epochs")
    publish(kafka, topic, 5, **{"transactional.id": group})
    with closing(KafkaSource(settings(kafka, topic, group=group))) as source:
        poll_until(source, lambda: source.positions().get((topic, 0)) == 6)
        assert source.lag() == {(topic, 0): 6}
        source.commit({(topic, 0): 5}, wait=True)
        assert source.lag() == {(topic, 0): 0}
        source.poll(10, 0.2)
        assert source.lag() == {(topic, 0): 0}


def test_a_topic_made_anew_has_another_id(kafka: str, kafka_admin: AdminClient, group: str) -> None:
    make_topic(kafka, group)
    ids = TopicIds(settings(kafka, group, group=group))
    before = ids([group, "not-there"])
    assert set(before) == {group}
    (done,) = kafka_admin.delete_topics([group]).values()
    done.result(PATIENCE_S)
    made_again(kafka, group)
    assert ids([group]) != before


def made_again(servers: str, topic: str) -> None:
    """Make a topic whose old one may take a moment to go."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return make_topic(servers, topic)
        except ck.KafkaException:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_two_strategies_in_one_group_are_named(kafka: str, topics: Topics, group: str) -> None:
    topic = topics("epochs", partitions=2)
    with closing(KafkaSource(settings(kafka, topic, group=group))) as first:
        poll_until(first, first.assigned)
        other = settings(kafka, topic, group=group, assignment_strategy="roundrobin")
        with (
            closing(KafkaSource(other)) as second,
            pytest.raises(ConfigError, match=r"kafka\.assignment_strategy = roundrobin"),
        ):
            poll_until(second, second.assigned)


def test_a_broker_that_is_away_is_not_reachable(start_cluster: StartCluster, group: str) -> None:
    cluster = start_cluster()
    make_topic(cluster.bootstrap_servers, "epochs")
    with closing(KafkaSource(settings(cluster.bootstrap_servers, "epochs", group=group))) as source:
        poll_until(source, source.assigned)
        assert source.reachable()
        cluster.nodes[0].terminate()
        poll_until(source, lambda: not source.reachable())
