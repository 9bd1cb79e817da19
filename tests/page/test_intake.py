"""Alerts come into the database once each, whatever fails on the way."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from broker_filter.alerts.codec import to_message
from broker_filter.client.save import avro_files
from broker_filter.errors import TransientError
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.reader import TopicReader
from broker_filter.page import intake, kept
from broker_filter.page.database import Database
from broker_filter.page.intake import FolderIntake, TopicIntake
from broker_filter.page.kept import Bounds
from broker_filter.types import Message
from tests import build

LONGEST_S = 30.0


@pytest.fixture
def base(tmp_path: Path) -> Database:
    return Database(tmp_path / "page.sqlite")


def count(base: Database) -> int:
    with base.read() as connection:
        return int(connection.execute("SELECT count(*) FROM alerts").fetchone()[0])


def message(offset: int, value: bytes | None = None) -> Message:
    alert = build.alert(alert_id=uuid.uuid5(uuid.NAMESPACE_OID, str(offset)))
    sent = to_message(alert, "alerts")
    return Message("alerts", 0, offset, sent.key, value or sent.value, headers=sent.headers)


class Topic:
    """Messages of one partition; each reader fails after so many of them."""

    def __init__(self, messages: list[Message], stop: threading.Event, fail_after: list[int]):
        self.messages, self.stop, self.fail_after = messages, stop, fail_after
        self.starts: list[Mapping[int, int]] = []

    def connect(self, places: Mapping[int, int]) -> Topic:
        self.starts.append(places)
        self.at = places.get(0, 0)
        self.left = self.fail_after.pop(0) if self.fail_after else 10**6
        return self

    def poll(self, timeout: float) -> Message | None:
        if self.left == 0:
            raise TransientError("gone")
        self.left -= 1
        if self.at >= len(self.messages):
            if timeout:
                self.stop.set()
            return None
        self.at += 1
        return self.messages[self.at - 1]

    def mark_done(self) -> None:
        pass

    def close(self) -> None:
        pass


def read(
    base: Database, messages: list[Message], fail_after: list[int]
) -> tuple[Topic, TopicIntake]:
    stop = threading.Event()
    topic = Topic(messages, stop, fail_after)
    reading = TopicIntake(base, "alerts", topic.connect, Bounds())
    reading.run(stop)
    return topic, reading


def test_reading_goes_on_where_the_database_ends(base: Database) -> None:
    read(base, [message(0), message(1)], [])
    topic, again = read(base, [message(i) for i in range(3)], [])
    assert topic.starts == [{0: 2}]
    assert (again.standing.received, count(base)) == (1, 3)


def test_a_failure_in_between_loses_and_doubles_nothing(
    base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "Backoff", lambda *_, **__: NoPause())
    topic, reading = read(base, [message(i) for i in range(5)], [0, 2, 3])
    assert topic.starts[:2] == [{}, {}]
    assert (count(base), reading.standing.trouble) == (5, "")


class NoPause:
    def failed(self, error: Exception) -> float:  # noqa: ARG002
        return 0.0

    def succeeded(self) -> None:
        pass


def test_what_is_no_alert_is_counted_and_passed_over(base: Database) -> None:
    _, reading = read(base, [message(0, b"broken"), message(1)], [])
    assert (reading.standing.broken, count(base)) == (1, 1)


def test_an_alert_sent_twice_is_kept_once(base: Database) -> None:
    read(base, [message(0), replace(message(0), offset=1)], [])
    with base.read() as connection:
        assert kept.positions(connection, "alerts") == {0: 2}
    assert count(base) == 1


# A real client


def until(condition: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(int(LONGEST_S / 0.05)):
        if condition():
            return
        waited.wait(0.05)
    pytest.fail("it never came true")


def test_a_topic_of_kafka_is_read_through_a_restart_and_a_lost_broker(base: Database) -> None:
    with EmbeddedBroker({"alerts": 1}) as broker, closing(Sender(broker)) as sender:
        sender.send(3)
        for expected in (3, 5):
            stop = threading.Event()
            reading = TopicIntake(base, "alerts", connect(broker), Bounds())
            thread = threading.Thread(target=reading.run, args=(stop,))
            thread.start()
            until(lambda expected=expected: count(base) == expected)
            if expected == 3:
                broker.interrupt()
                broker.restore()
            stop.set()
            thread.join(LONGEST_S)
            assert not thread.is_alive()
            sender.send(2)


class Sender:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self.producer, self.sent = Producer({"bootstrap.servers": broker.bootstrap_servers}), 0

    def send(self, number: int) -> None:
        for _ in range(number):
            one = message(self.sent)
            self.producer.produce("alerts", one.value, one.key, headers=list(one.headers))
            self.sent += 1
        assert self.producer.flush(LONGEST_S) == 0

    def close(self) -> None:
        pass


def connect(broker: EmbeddedBroker) -> Callable[[Mapping[int, int]], TopicReader]:
    return lambda places: TopicReader(
        broker.bootstrap_servers, "alerts", from_beginning=True, positions=places
    )


# A folder


def test_a_folder_is_read_once_and_again_where_it_changes(base: Database, tmp_path: Path) -> None:
    folder = tmp_path / "saved" / "night"
    save = avro_files(folder)
    save(build.alert())
    (folder / "half.avro").write_bytes(b"Obj\x01")
    reading = FolderIntake(base, tmp_path / "saved", Bounds())
    assert (reading.load(), reading.load(), reading.standing.broken) == (1, 0, 1)
    save(build.alert(alert_id=uuid.uuid4()))
    assert (reading.load(), reading.standing.broken, count(base)) == (1, 1, 2)
