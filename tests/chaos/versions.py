"""Snapshots of another model, and of another version of the code."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.chaos.lab import Case, Lab, Result
from tests.integration.harness import settings_of
from tests.integration.outcome import with_other_model

__all__ = ["VERSIONS", "SkippedError"]

OLD_CODE = "5f5da7f"
OTHER_MODEL = "fspl-paper-1.0.0"
SHARE = 0.5
DIFFERENT = {"log10_k", "certified"}
"""What newer code may estimate otherwise: a certificate of the older code stays until it is due."""


class SkippedError(Exception):
    """What a case needs is not there."""


def other_model(lab: Lab) -> Result:
    """Half of the archive by one model, the rest by another from its snapshots."""
    with lab.trial(model={"id": OTHER_MODEL, "threads": 1}) as (run, stream):
        stream.to(SHARE)
        first = run.start("a")
        place = round(SHARE * len(run.archive.messages))
        ends = run.archive.until(place).ends
        run.until(lambda: run.committed() == ends)
        assert first.stop() == 0, run.logs()
        del run.sections["model"]
        second = run.start("a")
        lab.end(run, stream, second)
        outcomes = {line["outcome"] for line in second.lines() if line.get("event") == "restored"}
        assert outcomes == {"snapshot"}, run.logs()
        tree = settings_of({"model": {"id": OTHER_MODEL, "threads": 1}})
        expected = with_other_model(run.archive, place, tree, run.archive.settings)
        kept = expected.events(OTHER_MODEL) & expected.events(run.archive.settings.model.id)
        assert kept, "no event was open at the change"
        return run.verdict(
            expected
        ), f"{OTHER_MODEL} at first; {len(kept)} open events kept their ids"


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
    other = [text for text in verdict.changed if set(text.split(": ")[1].split(", ")) <= DIFFERENT]
    verdict = replace(verdict, changed=sorted(set(verdict.changed) - set(other)))
    said = f"restored from: {', '.join(sorted(outcomes))}; {len(kept)} open events kept their ids"
    said = f"{said}; {len(other)} alerts differ in K or certified K alone"
    return verdict, f"{OLD_CODE} at first; {said}"


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
