"""A survey with a topic a night: a star is one star, on whatever night and by whatever member."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import numpy as np
import pytest
from confluent_kafka.admin import AdminClient

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_message
from broker_filter.config import Settings
from broker_filter.errors import ConfigError
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.transaction import open_delivery
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.service.assembly import make_service
from broker_filter.types import Message
from tests.integration.harness import messages_of
from tests.kafka_broker import make_topic
from tests.pipeline.test_pipeline import PEAK, epoch, make_pipeline, run

pytestmark = pytest.mark.kafka

PATIENCE_S = 90.0
DAY_MS = 86_400_000
NIGHTS = (60_000.0, 60_020.0, 60_025.2, 60_055.0)
"""Where each night begins, MJD, and the last ends: stretches of days, to hold a whole event."""
STARS = ("one", "two")
PARTITIONS = len(STARS)
ODD = 3


def observed() -> list[tuple[float, Message]]:
    """Two stars that brighten over the nights, one in each partition."""
    rng = np.random.default_rng(2)
    messages = []
    for mjd in np.arange(NIGHTS[0], NIGHTS[-1], 0.4):
        for number, star in enumerate(STARS):
            bump = 600 * math.exp(-0.5 * (mjd - PEAK) ** 2)
            flux = 1000 + bump + 10 * rng.standard_normal()
            message = epoch(len(messages), mjd, flux, star)
            stamp = round((mjd - 40_587) * DAY_MS)
            messages.append((mjd, replace(message, partition=number, timestamp_ms=stamp)))
    return messages


OBSERVED = observed()


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[str, ...]]:
    """The alerts of one topic that has all nights, read by one member that never stops."""
    found = contents(run([message for _, message in OBSERVED]))
    assert len({event for _, event, *_ in found}) == len(STARS)
    return found


def contents(alerts: list[Alert]) -> list[tuple[str, ...]]:
    said = [(str(a.alert_id), str(a.event_id), a.state, f"{a.log10_k:.6f}") for a in alerts]
    assert len({entry[0] for entry in said}) == len(said)
    return sorted(said)


@dataclass
class Sky:
    """The topics of a survey, and what reads them."""

    servers: str
    admin: AdminClient
    name: str
    folder: Path
    published: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    topics: list[str] = field(default_factory=list)

    def topic(self, night: int) -> str:
        # Kafka hands topics out in the order of their names, which must not be what makes it right.
        return f"{self.name}-night-{'cabx'[night]}"

    def settings(self, **kafka: Any) -> Settings:
        ours = {
            "bootstrap_servers": self.servers,
            "group_id": self.name,
            "input_topics": [f"^{self.name}-night-.*"],
            "alert_topic": f"{self.name}-alerts",
            "dead_letter_topic": f"{self.name}-dead",
            "session_timeout_ms": 6_000,
            "commit_interval_s": 0.2,
            "options": {
                "heartbeat.interval.ms": 300,
                "topic.metadata.refresh.interval.ms": 1_000,
            },
            **kafka,
        }
        tree = {
            "kafka": ours,
            "snapshot": {"url": str(self.folder), "interval_s": 3600},
            "metrics": {"enabled": False},
            "input": {"format": "photometry"},
            "schedule": {"every_days": 0.5, "min_points": 5, "rise": None},
            "batch": {"flush_windows": 8, "max_wait_s": 0.05},
        }
        return Settings.model_validate(tree)

    def make(self, topic: str, partitions: int = 1) -> None:
        # The timestamps are those of the exposures, long past any retention.
        make_topic(self.servers, topic, partitions, {"retention.ms": "-1"})
        self.topics.append(topic)

    def publish(self, night: int, *, make: bool = True) -> None:
        """A night's topic, and all that was seen in it."""
        topic = self.topic(night)
        if make:
            self.make(topic, PARTITIONS)
        producer = ck.Producer({"bootstrap.servers": self.servers, "log_level": 0})
        for mjd, message in OBSERVED:
            if NIGHTS[night] <= mjd < NIGHTS[night + 1]:
                producer.produce(
                    topic,
                    message.value,
                    partition=message.partition,
                    timestamp=message.timestamp_ms,
                )
                self.published[topic, message.partition] += 1
        assert producer.flush(PATIENCE_S) == 0

    def delete(self, night: int) -> None:
        (done,) = self.admin.delete_topics([self.topic(night)]).values()
        done.result(PATIENCE_S)
        for number in range(PARTITIONS):
            del self.published[self.topic(night), number]

    def until_read(self, *members: Member) -> None:
        """Wait until the group has committed all that was published."""
        with closing(GroupProgress(self.settings().kafka)) as progress:
            until(
                lambda: all(progress(where) == count for where, count in self.published.items()),
                *members,
            )

    def alerts(self) -> list[Alert]:
        return [from_message(each) for each in messages_of(self.servers, f"{self.name}-alerts")]

    @contextmanager
    def running(self, **kafka: Any) -> Iterator[Member]:
        member = Member(self.settings(**kafka))
        try:
            yield member
        finally:
            member.stop()
        member.check()


class Member:
    """The service in a thread, with a network that is none."""

    def __init__(self, settings: Settings) -> None:
        entry: Any = SimpleNamespace(window_days=20.0, joins_bands=False)
        self.metrics, self.errors = Metrics(), list[BaseException]()
        delivery = open_delivery(settings.kafka, self.metrics)
        self.service = make_service(settings, entry, delivery, self.metrics, Health())
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.service.run()
        except BaseException as error:  # noqa: BLE001  raised by `check`
            self.errors.append(error)

    def stop(self) -> None:
        self.service.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    def check(self) -> None:
        for error in self.errors:
            raise error

    def assigned(self) -> int:
        return int(self.metrics.value("assigned_partitions"))


def until(condition: Callable[[], object], *members: Member) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        for member in members:
            member.check()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def sky(
    kafka: str,
    kafka_admin: AdminClient,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Sky]:
    monkeypatch.setattr(
        "broker_filter.service.assembly.make_assessment",
        lambda *arguments, each_star: (
            make_pipeline(metrics=arguments[-1], each_star=each_star).assessment
        ),
    )
    made = Sky(kafka, kafka_admin, group, tmp_path)
    made.make(f"{group}-alerts")
    made.make(f"{group}-dead")
    yield made
    there = set(kafka_admin.list_topics(timeout=PATIENCE_S).topics).intersection(made.topics)
    kafka_admin.delete_topics(sorted(there))


def test_nights_that_wait_are_read_as_one_topic(
    sky: Sky, undisturbed: list[tuple[str, ...]]
) -> None:
    for night in (2, 0, 1):
        sky.publish(night)
    with sky.running() as member:
        sky.until_read(member)
        until(lambda: member.metrics.value("windows") == len(STARS), member)
    assert contents(sky.alerts()) == undisturbed


def test_nights_that_come_and_go_between_starts_are_read_as_one_topic(
    sky: Sky, undisturbed: list[tuple[str, ...]]
) -> None:
    sky.publish(0)
    with sky.running() as member:
        sky.until_read(member)
    sky.publish(1)
    with sky.running() as member:
        sky.until_read(member)
        sky.make(sky.topic(2), PARTITIONS)
        until(lambda: member.assigned() == 3 * PARTITIONS, member)
        sky.delete(0)
        until(lambda: member.assigned() == 2 * PARTITIONS, member)
        sky.publish(2, make=False)
        sky.until_read(member)
    assert contents(sky.alerts()) == undisturbed


def test_without_snapshots_the_nights_are_replayed_in_order(
    sky: Sky, undisturbed: list[tuple[str, ...]]
) -> None:
    for night in (0, 1):
        sky.publish(night)
    with sky.running() as member:
        sky.until_read(member)
    shutil.rmtree(sky.folder)
    sky.publish(2)
    with sky.running() as member:
        sky.until_read(member)
    assert contents(sky.alerts()) == undisturbed


def test_two_members_share_the_nights_without_parting_a_star(
    sky: Sky, undisturbed: list[tuple[str, ...]]
) -> None:
    sky.publish(0)
    with sky.running() as one, sky.running() as two:
        until(lambda: one.assigned() == two.assigned() == 1, one, two)
        for night in (1, 2):
            sky.publish(night)
            until(lambda: one.assigned() == two.assigned() == night + 1, one, two)  # noqa: B023
        sky.until_read(one, two)
        until(lambda: one.metrics.value("windows") == two.metrics.value("windows") == 1, one, two)
    assert contents(sky.alerts()) == undisturbed


def test_a_topic_with_other_partitions_is_refused_when_it_comes_and_at_the_start(
    sky: Sky,
) -> None:
    refused = rf"night-x has 1, .*night-c has {PARTITIONS}.*a pattern of its own"
    sky.publish(0)
    with pytest.raises(ConfigError, match=refused):
        see_an_odd_topic(sky)
    with pytest.raises(ConfigError, match=refused):
        Member(sky.settings())


def see_an_odd_topic(sky: Sky) -> None:
    with sky.running() as member:
        sky.until_read(member)
        sky.make(sky.topic(ODD), 1)
        until(lambda: False, member)
