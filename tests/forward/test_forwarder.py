"""The hand-over of alerts: once each, across failures, restarts and days."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_message, to_avro
from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.forward.forwarder import Forwarder
from broker_filter.forward.journal import Journal
from broker_filter.forward.letters import letters_file, letters_topic
from broker_filter.forward.target import Busy
from broker_filter.kafka.sink import MemorySink
from broker_filter.types import Message
from tests import build

DAY_S = 86_400.0


def alert(number: int = 1, event: int = 1, **changes: Any) -> Alert:
    ids = {"alert_id": uuid.UUID(int=number), "event_id": uuid.UUID(int=1000 + event)}
    return build.alert(**ids | changes)


class Script:
    """A target that does what it is bidden, and then takes everything."""

    def __init__(self, *steps: BaseException) -> None:
        self.steps = list(steps)
        self.taken: list[int] = []
        self.earlier: list[Sequence[str]] = []

    def send(self, alert: Alert, earlier: Sequence[str] = ()) -> str:
        if self.steps:
            raise self.steps.pop(0)
        self.taken.append(alert.alert_id.int)
        self.earlier.append(earlier)
        return f"theirs {alert.alert_id.int}"

    def close(self) -> None: ...


class Time:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.pauses = 1_000_000.0, []  # type: tuple[float, list[float]]

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def forwarder(target: Script, path: Path, **options: Any) -> Forwarder:
    time = options.pop("time", Time())
    letters = options.pop("letters", letters_file(path / "letters.jsonl", "target"))
    journal = Journal(path / "journal", "target")
    return Forwarder(
        target, journal, letters, clock=time, monotonic=time, sleep=time.sleep, **options
    )


def letters(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "letters.jsonl").read_text().splitlines()]


def test_an_alert_that_comes_again_is_not_sent_again(tmp_path: Path) -> None:
    target = Script()
    first = forwarder(target, tmp_path)
    assert [first.take(alert()), first.take(alert())] == ["handed over", "known"]
    assert forwarder(target, tmp_path).take(alert()) == "known"  # another process
    assert target.taken == [1]


def test_the_target_gets_its_names_of_earlier_alerts_of_the_event(tmp_path: Path) -> None:
    target = Script()
    first = forwarder(target, tmp_path)
    for number, event in [(1, 1), (2, 1), (3, 2)]:
        first.take(alert(number, event))
    target.steps = [PoisonMessage("refused", "no")]
    first.take(alert(4))
    forwarder(target, tmp_path).take(alert(5))  # another process
    assert target.earlier == [[], ["theirs 1"], [], ["theirs 1", "theirs 2"]]


def test_one_journal_serves_several_targets(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", "one") as one, Journal(tmp_path / "journal", "two") as two:
        one.begin(alert(), "2026-01-01")
        one.end(alert(), "done")
        assert (one.standing(alert()), two.standing(alert())) == ("done", "new")


def test_a_target_that_is_away_is_tried_again(tmp_path: Path) -> None:
    time, target = Time(), Script(*[TransientError("away")] * 4)
    assert forwarder(target, tmp_path, time=time).take(alert()) == "handed over"
    assert time.pauses == [1, 2, 4, 8]


def test_a_target_may_ask_for_a_pause(tmp_path: Path) -> None:
    time, target = Time(), Script(Busy("too many", 30.0))
    forwarder(target, tmp_path, time=time).take(alert())
    assert time.pauses == [30]


def test_an_alert_that_stays_unsent_becomes_a_dead_letter(tmp_path: Path) -> None:
    target = Script(*[TransientError("away")] * 1000)
    assert forwarder(target, tmp_path, patience_s=100).take(alert(event=7)) == "dead letter"
    (letter,) = letters(tmp_path)
    assert (letter["reason"], letter["detail"]) == ("unreachable", "away")
    assert letter["alert"]["alertId"] == str(uuid.UUID(int=1))
    target.steps.clear()
    assert forwarder(target, tmp_path).take(alert(event=7)) == "known"


def test_a_refused_alert_stops_nothing(tmp_path: Path) -> None:
    target = Script(PoisonMessage("no_position", "where?"))
    hand_over = forwarder(target, tmp_path)
    assert [hand_over.take(alert(n)) for n in (1, 2)] == ["dead letter", "handed over"]
    assert letters(tmp_path)[0]["reason"] == "no_position"
    assert hand_over.outcomes == {"dead letter": 1, "handed over": 1}


def test_a_refused_login_ends_it_and_loses_nothing(tmp_path: Path) -> None:
    target = Script(ConfigError("who are you?"))
    with pytest.raises(ConfigError):
        forwarder(target, tmp_path).take(alert())
    assert forwarder(target, tmp_path).take(alert()) == "handed over"


class Killed(BaseException):
    pass


def test_a_process_that_dies_while_it_sends_sends_again(tmp_path: Path) -> None:
    target = Script(Killed())
    with pytest.raises(Killed):
        forwarder(target, tmp_path).take(alert())
    with Journal(tmp_path / "journal", "target") as journal:
        assert journal.standing(alert()) == "pending"
    assert forwarder(target, tmp_path, max_a_day=1).take(alert()) == "handed over"


def test_no_more_than_so_many_a_day(tmp_path: Path) -> None:
    time, target = Time(), Script()
    hand_over = forwarder(target, tmp_path, time=time, max_a_day=2)
    outcomes = [hand_over.take(alert(n, event=n)) for n in range(4)]
    assert outcomes == ["handed over"] * 2 + ["over the day's limit"] * 2
    time.now += DAY_S
    assert hand_over.take(alert(9, event=9)) == "handed over"
    assert target.taken == [0, 1, 9]


def test_what_takes_an_alert_back_comes_beyond_the_limit(tmp_path: Path) -> None:
    target = Script()
    hand_over = forwarder(target, tmp_path, max_a_day=1)
    hand_over.take(alert(1, event=1))
    assert hand_over.take(alert(2, event=1, state="retraction")) == "handed over"
    assert hand_over.take(alert(3, event=2, state="retraction")) == "over the day's limit"
    assert hand_over.take(alert(4, event=1, state="update")) == "over the day's limit"


def test_a_dead_letter_in_a_topic_is_an_alert_again(tmp_path: Path) -> None:
    sink = MemorySink()
    target = Script(PoisonMessage("refused", "no"))
    forwarder(target, tmp_path, letters=letters_topic(sink, "dead", "tom")).take(alert())
    (sent,) = sink.messages
    headers = dict(sent.headers)
    assert (headers["target"], headers["reason"], headers["detail"]) == (b"tom", b"refused", b"no")
    read = from_message(Message("dead", 0, 0, sent.key, sent.value, headers=sent.headers))
    assert to_avro(read) == to_avro(alert())
