"""Whatever stars, bands and surveys are called, terminals get text that prints."""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_filter import cli
from broker_filter.alerts.codec import to_avro
from broker_filter.client.subscribe import Subscription
from broker_filter.commands import recovery, replay, replay_options
from broker_filter.commands import subscribe as subscribing
from broker_filter.kafka.sink import MemorySink
from broker_filter.types import Message
from tests import build

SAMPLE = build.alert()

PARTS = ["a", "7", " ", "$", "$x$", "\\", "\x1b[2J", "\x1b]0;t\x07", "\x00", "\x7f", "\x9b", "\r"]
PARTS += ["\n", "\t", "\u202e", "\u2066", "\u200f", "\u2028", "\ufeff", "é", "{}", "%s", ",", '"']
names = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join)
same_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)


def nothing_raw(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed since the last call; fails where a character of it does not print."""
    out, err = capsys.readouterr()
    assert not [c for c in out + err if not (c.isprintable() or c == "\n")]
    return out


class Reader:
    """Plays messages; then the subscription ends by its timeout."""

    def __init__(self, messages: list[Message]) -> None:
        self._left = list(messages)

    def poll(self, _: float) -> Message | None:
        return self._left.pop(0) if self._left else None

    def mark_done(self) -> None: ...

    def close(self) -> None: ...


@same_folder
@given(star=names, band=names, survey=names, as_json=st.booleans())
def test_subscribe(star, band, survey, as_json, capsys, monkeypatch) -> None:
    alert = replace(SAMPLE, star_id=star, band=band, survey=survey)
    broken = f"{star} {band}".encode()
    messages = [
        Message("alerts", 0, 0, None, to_avro(alert)),
        Message("alerts", 0, 1, broken, broken, headers=(("log10K", broken), ("schema", broken))),
    ]

    def opened(*_: object) -> Subscription:
        return Subscription(Reader(messages), timeout_s=0.001)

    monkeypatch.setattr("broker_filter.client.subscribe.subscribe", opened)
    parser = argparse.ArgumentParser()
    subscribing.add_arguments(parser)
    assert subscribing.run(parser.parse_args(["--json"] if as_json else [])) == 0
    lines = nothing_raw(capsys).splitlines()
    assert len(lines) == 1
    assert not as_json or json.loads(lines[0])["starId"] == star


@same_folder
@given(star=names, band=names, survey=names)
def test_replay(star, band, survey, capsys, tmp_path, monkeypatch) -> None:
    path = tmp_path / "curve.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["mjd", "mag", "magerr", "filter", "id"])
        rows.writerows(
            [[60000 + day, 18.0, error, band, star] for day in (0, 1) for error in (1, 0)]
        )
    for options in ([], [f"--star={star}", f"--band={band}", f"--survey={survey}"], ["--json"]):
        parser = argparse.ArgumentParser()
        replay_options.add_arguments(parser)
        args = parser.parse_args([str(path), "--topic", "t", *options])
        args.command = "replay"
        command = SimpleNamespace(run=lambda args: replay.publish_archive(args, MemorySink()))
        monkeypatch.setattr(cli, "_module", lambda _, command=command: command)
        cli._status(args)
        nothing_raw(capsys)


@same_folder
@given(star=names, band=names, whole=st.booleans())
def test_recovery(star, band, whole, capsys, tmp_path) -> None:
    event = {"kind": "event", "star": star, "band": band, "t0": 6e4, "u0": 0.3, "tE": 2.0}
    event |= {"rho": 0.01, "f_s": 1.0, "snr": 30.0, "first_detectable_mjd": 59999.0}
    run = {"kind": "run", "window_days": 20.0, "detectable_snr": 12.0, "untouched_windows": 40}
    alert = {"alertId": star, "starId": star, "state": "new", "lastEpochMjdTai": 6e4}
    alert |= {"log10KThreshold": 2.0, "receivedMs": 1000, "createdMs": 1500 if whole else star}
    truth, alerts = tmp_path / "truth.jsonl", tmp_path / "alerts.jsonl"
    truth.write_text(f"{json.dumps(run)}\n{json.dumps(event)}\n")
    alerts.write_text(json.dumps(alert) + "\n")
    for options in ([], ["--json"]):
        parser = argparse.ArgumentParser()
        recovery.add_arguments(parser)
        args = parser.parse_args([str(truth), str(alerts), *options])
        args.command = "recovery"
        status = cli._status(args)
        nothing_raw(capsys)
        assert status == 0 or not whole
