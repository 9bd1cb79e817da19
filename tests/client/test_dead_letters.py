"""``broker-filter dead-letters``: what is printed of a dead-letter topic."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from broker_filter.cli import main
from broker_filter.client import dead_letters
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.ranges import TopicRange
from broker_filter.service.dead_letters import encode_dead_letter
from broker_filter.types import DeadLetter, Message

HOUR = 3600
VALUE = b"\x00\xffbytes"
NOON = 1_767_268_800  # 2026-01-01T12:00 UTC


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


class Topic:
    """A dead-letter topic, and the command that reads it."""

    def __init__(self, servers: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.servers, self.name = servers, f"dead-{uuid.uuid4().hex[:8]}"
        self._capsys = capsys
        self._producer = Producer({"bootstrap.servers": servers})

    def send(self, reason: str, detail: str = "at byte 3", offset: int = 7, hours: int = 0) -> None:
        """Set one message aside, some hours after noon."""
        message = Message("epochs", 2, offset, b"star", VALUE, 1_700_000_000_000)
        seconds = NOON + hours * HOUR
        letter = encode_dead_letter(DeadLetter(message, reason, detail), seconds)
        self._produce(letter.value, list(letter.headers), 1000 * seconds)

    def send_junk(self) -> None:
        """Send something else."""
        self._produce(b"junk", [], 1000 * NOON)

    def _produce(self, value: bytes, headers: list[tuple[str, bytes]], time_ms: int) -> None:
        self._producer.produce(self.name, value, headers=headers, timestamp=time_ms)
        assert self._producer.flush(10) == 0

    def read(self, *options: str) -> tuple[list[str], str]:
        """Lines of stdout, and stderr."""
        where = ["--bootstrap-servers", self.servers, "--topic", self.name]
        assert main(["dead-letters", *where, *options]) == 0
        captured = self._capsys.readouterr()
        return captured.out.splitlines(), captured.err


@pytest.fixture
def topic(servers: str, capsys: pytest.CaptureFixture[str]) -> Topic:
    return Topic(servers, capsys)


def test_a_line_says_when_why_and_where(topic: Topic) -> None:
    topic.send("truncated", "at byte 3")
    lines, summary = topic.read()
    assert lines == [
        "2026-01-01T12:00:00Z  truncated  epochs[2] offset 7  key star  7 bytes  at byte 3"
    ]
    assert summary == f"{topic.name}: 1 dead letters, 1 shown (1 truncated)\n"


def test_json_holds_the_same_under_the_names_of_the_schema(topic: Topic) -> None:
    topic.send("truncated", "record ends at byte 3")
    (line,), _ = topic.read("--json")
    record = json.loads(line)
    assert record["valueSha256"] == hashlib.sha256(VALUE).hexdigest()
    del record["valueSha256"], record["softwareVersion"]
    assert record == {
        "reason": "truncated",
        "detail": "record ends at byte 3",
        "topic": "epochs",
        "partition": 2,
        "offset": 7,
        "key": "star",
        "timestampMs": 1_700_000_000_000,
        "failedAtMs": 1000 * NOON,
        "valueLength": 7,
    }


def test_the_newest_come_oldest_first_and_all_are_counted(topic: Topic) -> None:
    for hours in (3, 1, 2, 0):
        topic.send("truncated" if hours % 2 else "bad_name", offset=hours, hours=hours)
    topic.send_junk()
    lines, summary = topic.read("--limit", "3")
    assert [line.split(" offset ")[1][0] for line in lines] == ["1", "2", "3"]
    assert "5 dead letters, 3 shown (2 " in summary
    assert "1 (not a dead letter)" in summary


def test_only_the_wanted_reason_is_printed(topic: Topic) -> None:
    for reason in ("truncated", "bad_name", "too_large", "bad_name"):
        topic.send(reason)
    lines, summary = topic.read("--reason", "bad_name", "--reason", "too_large")
    assert sorted(line.split("  ")[1] for line in lines) == ["bad_name", "bad_name", "too_large"]
    assert "4 dead letters, 3 shown" in summary


def test_only_what_was_sent_since_a_time_is_read(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TopicRange] = []
    # The embedded broker does not know offsets by time.
    monkeypatch.setattr(dead_letters, "offsets_of", lambda part, _: asked.append(part) or [])
    for since in ("2026-01-01T14:00", "2026-01-01T15:00+01:00"):
        lines, summary = topic.read("--from", since)
        assert (lines, summary) == ([], f"{topic.name}: 0 dead letters, 0 shown\n")
    assert [one.times_ms for one in asked] == [(1000 * (NOON + 2 * HOUR), None)] * 2


def test_control_characters_do_not_reach_the_terminal(topic: Topic) -> None:
    topic.send("cut\x1b[2Jshort", "a\nb\x7f\u202ec" + "x" * 5000)
    (line,), summary = topic.read()
    assert "cut?[2Jshort" in line
    assert "a?b??c" in line
    assert line.isprintable()
    assert len(line) < 500
    assert summary.rstrip("\n").isprintable()
    (line,), _ = topic.read("--json")
    assert line.isprintable()
    assert line.isascii()


def test_a_topic_with_many_reasons_is_summed_up_in_one_bounded_line(topic: Topic) -> None:
    for number in range(50):
        topic.send(f"reason-{number}-" + "x" * 500)
    _, summary = topic.read()
    assert "50 dead letters, 50 shown" in summary
    assert "30 (others)" in summary
    assert len(summary) < 3000


def test_a_topic_that_does_not_exist_is_named(
    servers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--bootstrap-servers", servers, "--topic", "no such topic"]
    assert main(["dead-letters", *options]) == 2
    assert "no such topic" in capsys.readouterr().err


def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["dead-letters", "--from", "yesterday"])
    assert end.value.code == 2
    assert "2026-03-10T12:00" in capsys.readouterr().err
