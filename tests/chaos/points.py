"""Kills at named points, and the controls that show that lost, doubled and changed are found."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from typing import Any

from tests.chaos.crash import FLUSHED, POINTS
from tests.chaos.lab import Case, Lab, Result, Stream
from tests.integration.harness import Trial

__all__ = ["CONTROLS", "KILLS", "killed_at"]

SHARE = 0.5
"""Of the archive that is there before the kill."""


def killed_at(point: str, lab: Lab, **kafka: Any) -> Result:
    """Kill the filter when it gets to a point, and start it anew."""
    with lab.trial() as (run, stream):
        held = trapped(point, run, stream, **kafka)
        filter_ = run.start("a", **kafka)
        return lab.end(run, stream, filter_), f"1 kill a run, {held} alerts under way"


def trapped(point: str, run: Trial, stream: Stream, **kafka: Any) -> int:
    """Stream until the filter has died at the point; gives the alerts of the last parcel."""
    filter_ = run.start("a", module=("tests.chaos.crash", point, "1"), **kafka)
    stream.to(SHARE)
    run.until(lambda: not filter_.running())
    assert filter_.process.returncode == -signal.SIGKILL, run.logs()
    return int((filter_.logged("crash") or {})["alerts"])


def at_least_once(lab: Lab) -> Result:
    """What went out before its offsets goes out again."""
    verdict, note = killed_at(FLUSHED, lab, delivery="at_least_once")
    return verdict, f"{FLUSHED}: {note}"


def offsets_first(lab: Lab) -> Result:
    """Offsets are committed before their messages are out, so a kill loses them."""
    with lab.trial() as (run, stream):
        held = trapped("offsets before messages", run, stream, delivery="at_least_once")
        filter_ = run.start("a")
        return lab.end(run, stream, filter_), f"1 kill a run, {held} alerts under way"


def windows_forgotten(lab: Lab) -> Result:
    """Snapshots are deleted, and the topic is not read back either."""
    with lab.trial() as (run, stream):
        filter_ = run.start("a")
        stream.to(SHARE)
        run.until(lambda: filter_.logged("snapshot"))
        assert filter_.stop() == 0, run.logs()
        shutil.rmtree(run.folder / "snapshots")
        filter_ = run.start("a", module=("tests.chaos.crash", "windows forgotten", "1"))
        return lab.end(run, stream, filter_), "1 restart"


KILLS: dict[str, Case] = {f"kill {point}": partial(killed_at, point) for point in POINTS}

CONTROLS: dict[str, tuple[Case, str]] = {
    "control: at least once": (at_least_once, "doubled"),
    "control: offsets before messages": (offsets_first, "lost"),
    "control: windows forgotten": (windows_forgotten, "changed"),
}
"""Broken on purpose: the case, and what it must show."""
