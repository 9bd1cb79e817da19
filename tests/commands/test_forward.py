"""``broker-filter forward`` from a topic to a target, across restarts."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_message
from broker_filter.cli import main
from broker_filter.commands import forward as forward_command
from broker_filter.config.secret import read_secret
from broker_filter.errors import ConfigError
from broker_filter.forward.target import SECRET_VARIABLE, Options
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.sink import open_sink
from tests import build
from tests.forward.stand_in import Answer, StandIn, stand_in


@pytest.fixture
def target() -> Iterator[StandIn]:
    with stand_in() as server:
        yield server


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"alerts": 1, "dead": 1}) as broker:
        yield broker


def publish(kafka: EmbeddedBroker, *alerts: Alert) -> None:
    sink = open_sink(kafka.bootstrap_servers, "alerts")
    for alert in alerts:
        message = to_message(alert, "alerts")
        sink.produce("alerts", message.key, message.value, message.headers)
    sink.close()


def alert(number: int, **changes: Any) -> Alert:
    return build.alert(alert_id=uuid.UUID(int=number), **changes)


def forward(kafka: EmbeddedBroker, target: StandIn, path: Path, alerts: int, *options: str) -> int:
    end = ["--max-alerts", str(alerts), "--timeout", "60"]
    return main(["forward", *arguments(kafka, target, path), *end, *options])


def arguments(kafka: EmbeddedBroker, target: StandIn, path: Path) -> list[str]:
    # The embedded broker lets a group's next member wait for as long as the session lasts.
    config = path / "client.properties"
    config.write_text("session.timeout.ms=1500\nheartbeat.interval.ms=300\n")
    where = ["--to", "webhook", "--url", target.url, "--topic", "alerts", "--from-beginning"]
    files = ["--journal", str(path / "journal"), "--dead-letters", str(path / "dead")]
    source = ["--bootstrap-servers", kafka.bootstrap_servers, "--client-config", str(config)]
    return [*where, *files, *source]


def received(target: StandIn) -> list[int]:
    return [uuid.UUID(request.body["alert"]["alertId"]).int for request in target.requests]


def test_each_alert_goes_once_across_restarts(
    kafka: EmbeddedBroker, target: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(kafka, alert(1), alert(2), alert(1))
    assert forward(kafka, target, tmp_path, 1) == 0
    assert received(target) == [1]
    # Another group begins anew; the journal knows better.
    assert forward(kafka, target, tmp_path, 3, "--group-id", "other") == 0
    assert received(target) == [1, 2]
    assert "1 handed over" in capsys.readouterr().out
    publish(kafka, alert(3))
    assert forward(kafka, target, tmp_path, 1, "--group-id", "other") == 0
    assert received(target) == [1, 2, 3]


def test_only_what_is_wanted_goes(kafka: EmbeddedBroker, target: StandIn, tmp_path: Path) -> None:
    wanted = {"log10_k": 9.0, "state": "new"}
    publish(
        kafka,
        alert(1, **wanted | {"log10_k": 1.0}),
        alert(2, **wanted | {"state": "final"}),
        alert(3, **wanted),
        alert(4, **wanted, event_id=uuid.UUID(int=9)),
    )
    options = ("--min-log10-k", "5", "--state", "new", "--max-a-day", "1")
    assert forward(kafka, target, tmp_path, 2, *options) == 0
    assert received(target) == [3]


def test_a_refused_alert_is_kept(kafka: EmbeddedBroker, target: StandIn, tmp_path: Path) -> None:
    target.script = [Answer(422, b"no")]
    publish(kafka, alert(1), alert(2))
    assert forward(kafka, target, tmp_path, 2) == 0
    (line,) = (tmp_path / "dead").read_text().splitlines()
    assert json.loads(line)["alert"]["alertId"] == str(uuid.UUID(int=1))
    assert received(target) == [1, 2]


def test_a_refused_login_ends_it_and_the_alert_comes_again(
    kafka: EmbeddedBroker,
    target: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "s3cret")
    target.script = [Answer(401, b"s3cret is wrong")]
    publish(kafka, alert(1))
    assert forward(kafka, target, tmp_path, 1) == 2
    printed = capsys.readouterr()
    assert "refuses the login" in printed.err
    assert "s3cret" not in printed.err + printed.out
    assert forward(kafka, target, tmp_path, 1) == 0
    assert received(target) == [1, 1]
    assert target.requests[-1].headers["authorization"] == "Bearer s3cret"


def test_dead_letters_may_go_to_a_topic(
    kafka: EmbeddedBroker, target: StandIn, tmp_path: Path
) -> None:
    target.script = [Answer(400, b"no")]
    publish(kafka, alert(1))
    assert forward(kafka, target, tmp_path, 1, "--dead-letter-topic", "dead") == 0
    out = tmp_path / "alerts"
    read = ["subscribe", "--topic", "dead", "--bootstrap-servers", kafka.bootstrap_servers]
    assert main([*read, "--from-beginning", "--max-alerts", "1", "--avro", str(out)]) == 0
    assert [path.stem for path in out.iterdir()] == [str(uuid.UUID(int=1))]


def process(kafka: EmbeddedBroker, target: StandIn, path: Path, *options: str) -> Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "broker_filter.cli", "forward"]
    return Popen([*command, *arguments(kafka, target, path), *options], stdout=PIPE, text=True)


def test_a_process_killed_amid_a_hand_over_loses_nothing(
    kafka: EmbeddedBroker, target: StandIn, tmp_path: Path
) -> None:
    publish(kafka, alert(1), alert(2), alert(3))
    target.script = [Answer(), Answer(hangs=True)]
    with process(kafka, target, tmp_path) as first:
        target.wait_for(2)
        first.kill()
    # Which of its offsets it committed does not matter: the journal knows what was done.
    with process(kafka, target, tmp_path, "--group-id", "new", "--max-alerts", "3") as second:
        assert second.wait(60) == 0
    assert received(target) == [1, 2, 2, 3]
    keys = [request.headers["idempotency-key"] for request in target.requests]
    assert keys[1] == keys[2]


def test_a_signal_ends_it_after_the_alert_under_way(
    kafka: EmbeddedBroker, target: StandIn, tmp_path: Path
) -> None:
    publish(kafka, alert(1))
    with process(kafka, target, tmp_path) as running:
        target.wait_for(1)
        running.terminate()
        out, _ = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "1 handed over\n")


def test_a_target_without_an_address_is_a_wrong_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["forward", "--to", "tom"]) == 2
    assert "--url" in capsys.readouterr().err


def test_two_targets_of_a_kind_share_neither_group_nor_journal() -> None:
    parser = argparse.ArgumentParser()
    forward_command.add_arguments(parser)
    names = {
        forward_command._name(parser.parse_args(["--to", to, *more]), Options(secret=secret))
        for to, more, secret in (
            ("tom", ("--url", "https://a"), "1"),
            ("tom", ("--url", "https://b"), "1"),
            ("slack", (), "https://hooks/1"),
            ("slack", (), "https://hooks/2"),
        )
    }
    assert len(names) == 4
    assert not [name for name in names if "hooks" in name]


def test_a_secret_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", " one\n")
    file = tmp_path / "secret"
    file.write_text("two\n")
    assert read_secret("NAME") == "one"
    assert read_secret("NAME", file) == "two"
    assert read_secret("OTHER") is None
    file.write_text("three\nfour")
    with pytest.raises(ConfigError, match="one line") as caught:
        read_secret("NAME", file)
    assert "three" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret("NAME", tmp_path / "nowhere")
