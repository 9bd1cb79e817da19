"""A real Apache Kafka for the tests that need one: once per session, the first way that works.

1. ``KAFKA_BOOTSTRAP_SERVERS`` names one that runs already.
2. Docker starts one, through testcontainers.
3. Java and Maven start one (``tests/kafka_broker.py``).

Where none works the tests are skipped with the reasons; with ``CI=true`` they fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka_broker import (
    POM,
    KafkaCluster,
    free_ports,
    make_topic,
    missing_tools,
    server_settings,
)

Topics = Callable[..., str]
StartCluster = Callable[..., KafkaCluster]


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """Bootstrap servers of a broker that all tests share: never stop or overload it."""
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if servers:
        yield servers
    elif not (no_docker := _missing_docker()):
        with _container() as servers:
            yield servers
    elif not (no_java := missing_tools()):
        with KafkaCluster() as cluster:
            yield cluster.bootstrap_servers
    else:
        _unavailable(f"KAFKA_BOOTSTRAP_SERVERS is not set; {no_docker}; {no_java}")


@pytest.fixture(scope="session")
def kafka_admin(kafka: str) -> AdminClient:
    """Administrator of the shared broker."""
    return AdminClient({"bootstrap.servers": kafka, "log_level": 0})


@pytest.fixture
def topics(kafka: str, kafka_admin: AdminClient) -> Iterator[Topics]:
    """Make a topic of a fresh name: ``topics("epochs", partitions=4, config={...})``."""
    made: list[str] = []

    def make(
        name: str = "topic", *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        topic = f"{name}-{uuid.uuid4().hex[:12]}"
        make_topic(kafka, topic, partitions, config)
        made.append(topic)
        return topic

    yield make
    if made:
        for done in kafka_admin.delete_topics(made).values():
            done.result(timeout=30)


@pytest.fixture
def group() -> str:
    """A consumer group of a fresh name."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def java() -> None:
    """What a broker of the test's own needs is there."""
    if reason := missing_tools():
        _unavailable(reason)


@pytest.fixture
def start_cluster(java: None) -> Iterator[StartCluster]:  # noqa: ARG001
    """Start a cluster of the test's own, to break it: arguments of `KafkaCluster`."""
    with ExitStack() as stack:

        def start(nodes: int = 1, **options: Any) -> KafkaCluster:
            return stack.enter_context(KafkaCluster(nodes, **options))

        yield start


def _unavailable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"no Kafka: {reason}")
    pytest.skip(f"no Kafka: {reason}")


def _missing_docker() -> str:
    """Why Docker cannot be used; empty where it can."""
    command = ["docker", "info", "--format", "{{.ServerVersion}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no Docker engine ({error})"
    return f"no Docker engine ({done.stderr.strip()})" if done.returncode else ""


@contextmanager
def _container() -> Iterator[str]:
    """The same broker, with the same settings, from the image of the Apache project."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    version = re.search(r"<kafka\.version>(.+)</", POM.read_text())
    # The address that a broker advertises must be known before it starts.
    port = free_ports(1)[0]
    settings = {
        **server_settings(),
        "node.id": 1,
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": f"CLIENT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"CLIENT://127.0.0.1:{port}",
        "inter.broker.listener.name": "CLIENT",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    container = DockerContainer(f"apache/kafka:{version[1] if version else 'latest'}")
    # The method for this would publish the port to the whole network.
    container.ports[str(port)] = ("127.0.0.1", port)
    for key, value in settings.items():
        container.with_env(f"KAFKA_{key.upper().replace('.', '_')}", str(value))
    with container:
        wait_for_logs(container, "Kafka Server started", timeout=60)
        yield f"127.0.0.1:{port}"
