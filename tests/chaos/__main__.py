"""Disturb the filter, and count what is lost, doubled or changed: ``make chaos``.

``python -m tests.chaos [--runs N] [--only NAME[=RUNS] ...] [--minutes M] [--seed S] [--out FILE]
[--without-fits]``.
Each run streams the same 30 simulated days through a real Kafka and real processes, disturbs them,
and compares what a reader of committed messages sees with an undisturbed run
(`tests.integration.outcome`). Controls break a guarantee on purpose and must show it. Prints a
table and replaces the rows of these cases in the file; logs stay under ``build/chaos/``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.__main__ import now, processor
from tests.chaos.faults import FAULTS
from tests.chaos.lab import Case, Lab, season
from tests.chaos.points import CONTROLS, KILLS
from tests.chaos.versions import VERSIONS, SkippedError
from tests.chaos.zombies import ZOMBIES
from tests.integration.harness import Archive, version
from tests.integration.outcome import Outcome, undisturbed
from tests.kafka_broker import KafkaCluster, missing_tools

__all__ = ["Row", "main"]

OUT = Path(__file__).with_name("results.json")
LOGS = Path("build/chaos")

CASES: dict[str, Case] = {
    **{name: case for name, (case, _) in CONTROLS.items()},
    **KILLS,
    **ZOMBIES,
    **VERSIONS,
    **FAULTS,
}
MUST = {name: shown for name, (_, shown) in CONTROLS.items()}
COUNTS = ("lost", "doubled", "changed")


@dataclass
class Row:
    """Outcome of all runs of one case.

    Parameters
    ----------
    case : str
    machine, date, commit : str
        Where, when and of which code.
    runs, failed : int
        Runs, and those of them that did not come to an end as they should.
    lost, doubled, changed : int
        Alerts and dead letters that are missing, that came twice, and that are made up or differ.
    must : str
        For a control: which of these it must show.
    seconds : float
        Mean time of a run.
    note : str
        What the last run said.
    """

    case: str
    machine: str
    date: str
    commit: str
    runs: int = 0
    failed: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    must: str = ""
    seconds: float = 0.0
    note: str = ""

    def good(self) -> bool:
        """Whether all is as it should be: nothing went wrong, or what a control must show."""
        if self.must:
            return not self.failed and getattr(self, self.must) > 0
        return not (self.failed or self.lost or self.doubled or self.changed)

    def line(self) -> str:
        """Return it as a line of the table."""
        numbers = (self.runs, self.failed, self.lost, self.doubled, self.changed)
        shown = "".join(f"{number:>8}" for number in numbers)
        bad = "" if self.good() else "  <-- BAD"
        return f"{self.case:<40}{shown}{self.seconds:>9.0f}  {self.note}{bad}"


def disturb(row: Row, lab: Lab) -> None:
    """Run a case once and add up."""
    lab.folder.mkdir(parents=True)
    began = time.monotonic()
    try:
        verdict, row.note = CASES[row.case](lab)
    except SkippedError as error:
        row.note = f"skipped: {error}"
        return
    except Exception as error:  # noqa: BLE001  whatever it was, the other cases are to be run
        row.failed += 1
        row.note = f"{type(error).__name__}: see {lab.folder.relative_to(Path.cwd())}"
        # Where it failed, too: most waits end with the same words, the logs.
        (lab.folder / "failure").write_text("".join(traceback.format_exception(error)))
    else:
        row.note += "" if lab.archive.settings.alert.certified else "; without fits"
        (lab.folder / "verdict").write_text(repr(verdict))
        row.lost += len(verdict.lost)
        row.doubled += len(verdict.doubled)
        row.changed += len(verdict.unknown) + len(verdict.changed)
    row.seconds = round(row.seconds + (time.monotonic() - began - row.seconds) / (row.runs + 1), 1)
    row.runs += 1


def main() -> None:
    """Run the cases, print the table, write the file; status 1 where anything went wrong."""
    args = arguments()
    if reason := missing_tools():
        sys.exit(f"chaos: {reason}")
    logging.disable()  # our own clients complain of every broker that we kill
    shutil.rmtree(LOGS, ignore_errors=True)
    archive = season(fits=not args.without_fits)
    expected = undisturbed(archive)
    print(
        f"{len(archive.messages)} messages, {len(expected)} alerts of"
        f" {len(expected.events())} events, {len(expected.letters)} dead letters"
    )
    print(f"{'':<40}    runs  failed    lost doubled changed  s a run", flush=True)
    end, rows = time.monotonic() + 60 * args.minutes, []
    with KafkaCluster() as cluster:
        for name, runs in args.only or [(name, None) for name in CASES]:
            row = measure(name, runs or args.runs, end, args.seed, cluster, archive, expected)
            if row.runs or row.note:  # else it had no time
                rows.append(row)
                print(row.line(), flush=True)
                write(args.out, row)
    good = all(row.good() for row in rows)
    print(f"{sum(row.runs for row in rows)} runs: {'good' if good else 'BAD'}; see {args.out}")
    sys.exit(0 if good else 1)


def measure(
    name: str,
    runs: int,
    end: float,
    seed: int,
    cluster: KafkaCluster,
    archive: Archive,
    expected: Outcome,
) -> Row:
    """Run one case so many times, or until the time is over."""
    machine = f"{processor()}, {os.cpu_count()} cores"
    row = Row(name, machine, now(), version(), must=MUST.get(name, ""))
    for n in range(runs):
        if time.monotonic() < end:
            rng = random.Random(f"{seed} {name} {n}")  # noqa: S311
            folder = (LOGS / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{n}").absolute()
            disturb(row, Lab(cluster.bootstrap_servers, archive, expected, folder, rng))
    return row


def write(file: Path, row: Row) -> None:
    """Put a row into the list of a file, in the order of the cases, in place of an older one."""
    rows = json.loads(file.read_text()) if file.exists() else []
    kept = {old["case"]: old for old in rows if old["case"] in CASES} | {row.case: asdict(row)}
    file.parent.mkdir(parents=True, exist_ok=True)
    ordered = [kept[name] for name in CASES if name in kept]
    file.write_text(json.dumps(ordered, indent=1) + "\n")


def choice(text: str) -> tuple[str, int | None]:
    """Read the name of a case, with its own number of runs if one is given."""
    name, _, runs = text.partition("=")
    if name not in CASES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of: {', '.join(CASES)}")
    return name, int(runs) if runs else None


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    number: Callable[[str], int] = int
    parser.add_argument("--runs", type=number, default=1, help="of each case (%(default)s)")
    parser.add_argument("--only", nargs="+", type=choice, metavar="NAME[=RUNS]", help="cases")
    parser.add_argument(
        "--without-fits", action="store_true", help="alerts without certified K: ten times quicker"
    )
    parser.add_argument("--minutes", type=float, default=120, help="no further run begins after it")
    parser.add_argument("--seed", type=number, default=1, help="of the moments (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="%(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
