"""Processes that were thought dead and come back with alerts in an open transaction."""

from __future__ import annotations

import signal
from typing import Any

from tests.chaos.crash import FROZEN
from tests.chaos.lab import EXIT_ERROR, Case, Lab, Result, live
from tests.integration.harness import Filter, Trial

__all__ = ["ZOMBIES"]

SAYS = "broker-filter: "
"""How a filter's last words begin."""
REASONS = ("was shut out", "another member runs as this one")


def taken_over(lab: Lab) -> Result:
    """Frozen beyond session and transaction timeout; others have its partitions when it is back."""
    with lab.trial(kafka={"transaction_timeout_s": 10}) as (run, stream):
        zombie = frozen(run)
        stream.to(0.5)
        run.until(lambda: zombie.logged("crash"))
        heir = run.start()
        live(run, heir)
        stream.to(0.75)
        return revived(lab, run, stream, zombie, heir)


def replaced(lab: Lab) -> Result:
    """Frozen, and started anew under its name, as a supervisor does with what hangs."""
    with lab.trial() as (run, stream):
        zombie = frozen(run, "a")
        stream.to(0.5)
        run.until(lambda: zombie.logged("crash"))
        heir = run.start("a")
        live(run, heir)
        stream.to(0.75)
        return revived(lab, run, stream, zombie, heir)


def frozen(run: Trial, member: str | None = None) -> Filter:
    """A filter that stops itself (SIGSTOP) when its first parcel with alerts is on the broker."""
    return run.start(member, module=("tests.chaos.crash", FROZEN, "1"))


def revived(lab: Lab, run: Trial, stream: Any, zombie: Filter, heir: Filter) -> Result:
    """Let it go on: it must end with a reason, and a reader must see nothing of what it held."""
    held = (zombie.logged("crash") or {})["alerts"]
    zombie.send(signal.SIGCONT)
    run.until(lambda: not zombie.running())
    assert zombie.process.returncode == EXIT_ERROR, run.logs()
    (reason,) = (line for line in zombie.log().splitlines() if line.startswith(SAYS))
    assert any(words in reason for words in REASONS), run.logs()
    verdict = lab.end(run, stream, heir)
    hidden = len(run.read("read_uncommitted")) - len(run.read())
    assert hidden >= held > 0, f"{held} alerts held, {hidden} hidden"
    return verdict, f"{held} alerts held, none seen; status 2: {reason.removeprefix(SAYS)}"


ZOMBIES: dict[str, Case] = {
    "zombie, partitions taken over": taken_over,
    "zombie, started anew": replaced,
}
