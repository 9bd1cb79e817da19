"""The demo: its verdict, its progress, and what it keeps when it is ended."""

from __future__ import annotations

import argparse
import json
import re
import sys

import pytest
from scipy.stats import poisson

from broker_filter.client.read import read_alert
from broker_filter.commands import demo
from broker_filter.commands.demo_options import add_arguments
from broker_filter.commands.demo_progress import LINE_S, Progress
from broker_filter.commands.demo_verdict import CHANCE, expected_false_stars, most_false_stars
from broker_filter.errors import TransientError
from broker_filter.observe.metrics import Metrics
from tests.pages import DEMO


class TestVerdict:
    def test_expected_are_the_windows_over_k(self):
        assert expected_false_stars(2.0, windows=700) == pytest.approx(7.0)

    @pytest.mark.parametrize("mean", [0.0, 0.3, 1.1, 2.4, 40.0])
    def test_a_run_as_good_as_stated_fails_with_the_stated_chance_at_most(self, mean):
        most = most_false_stars(mean)
        assert poisson.sf(most, mean) <= CHANCE
        assert most == 0 or poisson.sf(most - 1, mean) > CHANCE


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TestProgress:
    def test_a_line_comes_by_share_or_by_time(self, capsys):
        metrics, clock = Metrics(), Clock()
        progress = Progress(metrics, 100, clock)
        for _ in range(10):
            progress.sent(50)
        progress.show()
        metrics.inc("points_inserted_total", 250, outcome="inserted")
        progress.show()
        progress.show()
        clock.now = LINE_S
        progress.show()
        assert capsys.readouterr().err.splitlines() == [
            "demo: 5 % filtered, 0 alerts, 0 s",
            f"demo: 5 % filtered, 0 alerts, {LINE_S:.0f} s",
        ]

    def test_it_ends_at_all_of_it(self, capsys):
        metrics = Metrics()
        with Progress(metrics, 2) as progress:
            progress.sent(30)
            progress.sent(10)
            metrics.inc("points_inserted_total", 40, outcome="inserted")
        assert capsys.readouterr().err.splitlines()[-1].startswith("demo: 100 % filtered")


@pytest.fixture
def arguments(tmp_path, monkeypatch) -> argparse.Namespace:
    monkeypatch.setattr(demo, "stop_on_signals", lambda _: None)
    monkeypatch.setattr(demo, "configure_logging", lambda *_: None)
    monkeypatch.setattr(demo, "use_one_thread", lambda: None)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    small = ["--stars=12", "--injected=2", "--no-plots", f"--out={tmp_path / 'out'}"]
    return parser.parse_args(small)


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), TransientError("the cause")])
def test_what_ends_it_is_reported_and_what_came_is_written(cause, arguments, monkeypatch, capsys):
    def rehearse(_settings, _entry, _publish, metrics, **_):
        metrics.inc("points_inserted_total", 7, outcome="inserted")
        raise cause

    monkeypatch.setattr(demo, "rehearse", rehearse)
    with pytest.raises(type(cause)) as raised:
        demo.run(arguments)
    assert raised.value is cause
    summary = json.loads((arguments.out / "summary.json").read_text())
    assert summary["epochs"] == 7
    assert summary["failure"] == (str(cause) or "KeyboardInterrupt")
    assert summary["passed"] is False
    assert "not finished: 0 of" in capsys.readouterr().out


def test_a_small_demo_on_the_embedded_broker(arguments, capsys):
    status = demo.run(arguments)
    summary = json.loads((arguments.out / "summary.json").read_text())
    assert status == (0 if summary["passed"] else 1)
    assert summary["failure"] is None
    assert summary["epochs"] > 12 * 1000
    assert summary["windows_evaluated"] > 12 * 100
    assert 0 < summary["false_alert_stars_expected"] < 0.2
    assert summary["looks"] > 0
    filed = json.loads(DEMO.read_text())
    assert set(filed) == set(summary) | {"date", "machine"}
    assert filed["passed"]
    out, err = capsys.readouterr()
    assert "detectable events alerted" in out
    saved = list((arguments.out / "alerts").glob("*.avro"))
    assert len(saved) == summary["alerts"]
    certified = {f"{one.certified.log10_k:.1f}" for one in map(read_alert, saved) if one.certified}
    rows = [line.split() for line in out.splitlines() if re.match(r"1\d{6} ", line)]
    assert rows
    assert {row[1] for row in rows} <= certified | {"-"}
    assert (" page --archive " in out) == bool(saved)
    assert "demo: 100 % filtered" in err or sys.stderr.isatty()


@pytest.mark.parametrize("known", [True, False])
def test_the_offer_is_a_command_that_this_shell_finds(known, arguments, monkeypatch):
    monkeypatch.setattr(demo.shutil, "which", lambda name: f"/bin/{name}" if known else None)
    monkeypatch.setattr(demo.sys, "argv", [".venv/bin/broker-filter", "demo"])
    program = "broker-filter" if known else ".venv/bin/broker-filter"
    assert demo._offer(arguments, ["an alert"]).startswith(
        f"look at them: {program} page --archive"
    )
    assert demo._offer(arguments, []) == ""
