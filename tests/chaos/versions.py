"""Snapshots of another model, and of another version of the code."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from broker_filter.alerts.alert import Alert
from tests.chaos.lab import Case, Lab, Result
from tests.integration.harness import settings_of
from tests.integration.outcome import Outcome, Verdict, one_after_the_other

__all__ = ["VERSIONS", "SkippedError"]

OLD_CODE = "5f5da7f"
OTHER_MODEL = "fspl-roman-1.1.0"
SHARE = 0.5
DIFFERENT = {"log10_k", "certified", "samples", "light curve", "n_epochs", "first_epoch_mjd_tai"}
"""What newer code says otherwise on purpose: it fits the whole event, and certifies by that fit."""
NETWORK_ERROR = 1e-5
"""By how much of itself K of an alert may differ: the newer table of magnifications, from which
the network's scan is made, is rounded otherwise. Inputs are the same to the last bit.
"""


class SkippedError(Exception):
    """What a case needs is not there."""


def other_model(lab: Lab) -> Result:
    """The archive by one model, then by another from its snapshots, and back again."""
    with lab.trial() as (run, stream):
        ours = run.archive.settings
        model = {"id": OTHER_MODEL, "threads": 1}
        other = settings_of({"alert": ours.alert.model_dump(), "model": model})
        messages = len(run.archive.messages)
        stages = [
            (round(share * messages), settings)
            for share, settings in ((0.4, ours), (0.7, other), (1.0, ours))
        ]
        for place, settings in stages:
            run.sections["model"] = settings.model.model_dump(exclude_unset=True)
            stream.to(place / messages)
            filter_, ends = run.start("a"), run.archive.until(place).ends
            run.until(partial(lambda ends: run.committed() == ends, ends))
            assert filter_.stop() == 0, run.logs()
            how = {line["outcome"] for line in filter_.lines() if line.get("event") == "restored"}
            assert how == {"new" if place == stages[0][0] else "snapshot"}, run.logs()
        expected = one_after_the_other(run.archive, stages)
        kept = expected.events(OTHER_MODEL) & expected.events(ours.model.id)
        assert kept, "no event was open at the change"
        said = f"{ours.model.id}, {OTHER_MODEL} and back; {len(kept)} open events kept their ids"
        return run.verdict(expected), said


def upgrade(lab: Lab) -> Result:
    """Half of the archive by older code, the rest by this from its snapshots."""
    with older(lab.folder / "before") as code, lab.trial() as (run, stream):
        stream.to(SHARE)
        first = run.start("a", code=code)
        ends = run.archive.until(round(SHARE * len(run.archive.messages))).ends
        run.until(lambda: run.committed() == ends)
        assert first.stop() == 0, run.logs()
        before = run.outcome()
        second = run.start("a")
        verdict = lab.end(run, stream, second)
        outcomes = {line["outcome"] for line in second.lines() if line.get("event") == "restored"}
        seen = run.outcome()
        new = {alert.event_id for alert in seen.alerts[len(before) :]}
        kept = new & {alert.event_id for alert in before.alerts}
        lost = lab.expected.events() - seen.events()
        assert not lost, f"events lost: {lost}"
        assert kept, "no event was open at the change"
    said = f"restored from: {', '.join(sorted(outcomes))}; {len(kept)} open events kept their ids"
    return unexplained(verdict, lab.expected, seen), f"{OLD_CODE} at first; {said}"


def unexplained(verdict: Verdict, expected: Outcome, seen: Outcome) -> Verdict:
    """What is left of a verdict without what newer code does otherwise on purpose.

    It has other rules for updates; the K of a final is that of the event's best alert; and it
    differs in the fields of `DIFFERENT`. New events, retractions and finals must be the same.
    """
    wanted, found = (
        {str(alert.alert_id): alert for alert in outcome.alerts} for outcome in (expected, seen)
    )

    def same(text: str) -> bool:
        name, _, fields = text.partition(": ")
        k, other = wanted[name].log10_k, found[name].log10_k
        close = abs(k - other) <= NETWORK_ERROR * max(1.0, abs(k))
        return set(fields.split(", ")) <= DIFFERENT and (close or wanted[name].state == "final")

    def but_updates(names: list[str], alerts: dict[str, Alert]) -> list[str]:
        return [name for name in names if name not in alerts or alerts[name].state != "update"]

    return replace(
        verdict,
        lost=but_updates(verdict.lost, wanted),
        unknown=but_updates(verdict.unknown, found),
        changed=[text for text in verdict.changed if not same(text)],
    )


@contextmanager
def older(folder: Path) -> Iterator[Path]:
    """Check older code out into a folder; raises SkippedError where this clone lacks it."""
    add = ["git", "worktree", "add", "--detach", str(folder), OLD_CODE]
    done = subprocess.run(add, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SkippedError(f"no commit {OLD_CODE} here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], check=True)


VERSIONS: dict[str, Case] = {
    "snapshots of another model": other_model,
    f"upgrade from {OLD_CODE}": upgrade,
}
