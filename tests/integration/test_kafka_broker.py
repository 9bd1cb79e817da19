"""The broker that the other tests rely on: it keeps its port and data, and cleans up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kafka_broker import HOST, KafkaCluster, make_topic

pytestmark = pytest.mark.kafka
QUIET = {"log_level": 0}


def publish(servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **QUIET})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def content(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, 30)
    consumer.close()
    return [message.value() for message in messages]


def test_the_shared_broker_makes_topics_of_its_own_for_each_test(kafka, kafka_admin, topics):
    one, two = topics("epochs", partitions=3), topics("epochs")
    known = kafka_admin.list_topics(timeout=10).topics
    assert (len(known[one].partitions), len(known[two].partitions)) == (3, 1)
    publish(kafka, two, b"x")
    assert content(kafka, two, 1) == [b"x"]


def test_an_acknowledged_message_survives_a_crash_of_the_broker(start_cluster):
    cluster: KafkaCluster = start_cluster()
    servers = cluster.bootstrap_servers
    make_topic(servers, "epochs")
    publish(servers, "epochs", b"before")
    cluster.nodes[0].kill()
    assert not cluster.nodes[0].running
    cluster.nodes[0].start()
    cluster.wait_ready()
    assert cluster.bootstrap_servers == servers
    publish(servers, "epochs", b"after")
    assert content(servers, "epochs", 2) == [b"before", b"after"]


@pytest.mark.usefixtures("java")
def test_the_command_names_its_port_and_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "tests.kafka_broker", "--topics", "epochs:2"]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        topics = (
            AdminClient({"bootstrap.servers": words[-1], **QUIET}).list_topics(timeout=10).topics
        )
        process.terminate()
        assert process.wait(60) == 0
    assert len(topics["epochs"].partitions) == 2
    assert words[-1].startswith(f"{HOST}:")
    assert list(tmp_path.iterdir()) == []
