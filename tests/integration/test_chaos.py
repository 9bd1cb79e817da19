"""Kills at the one moment that tells exactly once from at least once; `make chaos` has the rest."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.crash import FLUSHED
from tests.integration.harness import Archive, make_archive, trial
from tests.integration.outcome import Outcome, Verdict, undisturbed

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def archive() -> Archive:
    return make_archive(stars=6, injected=3, every=4)


@pytest.fixture(scope="module")
def expected(archive: Archive) -> Outcome:
    outcome = undisturbed(archive)
    assert len(outcome) >= 5
    return outcome


def killed_between_flush_and_commit(
    kafka: str, archive: Archive, expected: Outcome, folder: Path, delivery: str
) -> Verdict:
    with trial(kafka, archive, folder, forks=True, kafka={"delivery": delivery}) as run:
        run.publish()
        first = run.start("a", module=("tests.chaos.crash", FLUSHED, "1"))
        run.until(lambda: not first.running())
        assert first.process.returncode == -signal.SIGKILL, run.logs()
        second = run.start("a")
        run.until_done()
        assert second.stop() == 0, run.logs()
        return run.verdict(expected)


def test_a_kill_between_flush_and_commit_doubles_nothing(
    kafka: str, archive: Archive, expected: Outcome, tmp_path: Path
) -> None:
    verdict = killed_between_flush_and_commit(kafka, archive, expected, tmp_path, "exactly_once")
    assert verdict, verdict


def test_the_same_kill_doubles_alerts_where_delivery_is_at_least_once(
    kafka: str, archive: Archive, expected: Outcome, tmp_path: Path
) -> None:
    """The control: what the kill could not show here, it could not show above either."""
    verdict = killed_between_flush_and_commit(kafka, archive, expected, tmp_path, "at_least_once")
    assert verdict.doubled
    assert verdict == Verdict(doubled=verdict.doubled)
