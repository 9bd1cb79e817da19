"""Disturb the filter, and count what is lost or doubled: ``make chaos``.

``python -m tests.chaos [--runs N] [--only NAME[=RUNS] ...] [--jobs N] [--minutes M] [--seed S]``.
Each run streams the same simulated archive through a real Kafka and real processes, disturbs them,
and compares the alerts that a reader of committed messages sees with those of an undisturbed run.
Prints a table and writes ``build/chaos.json``; logs stay under ``build/chaos/``. ``--merge FILE``
adds the runs to those of the same fault and the same code that the file already has, so that the
long set can be run piece by piece.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.bench.__main__ import now, processor
from tests.chaos.faults import FAULTS
from tests.chaos.lab import Lab
from tests.integration.harness import expected_alerts, make_archive, version
from tests.kafka_broker import KafkaCluster, missing_tools

__all__ = ["Row", "main"]

OUT = Path("build/chaos.json")
LOGS = Path("build/chaos")


@dataclass
class Row:
    """Outcome of all runs of one fault.

    Parameters
    ----------
    fault : str
    runs, failed : int
        Runs, and those of them that did not come to an end as they should.
    lost, doubled, wrong : int
        Alerts that are missing, that came twice, and that are made up or have another K.
    seconds : float
        Mean time of a run.
    note : str
        What the last run said.
    code : str
        Version of the code.
    """

    fault: str
    code: str = ""
    runs: int = 0
    failed: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    seconds: float = 0.0
    note: str = ""

    def plus(self, other: Row) -> Row:
        """Both together; the other one came later."""
        counts = ("runs", "failed", "lost", "doubled", "wrong")
        sums = {name: getattr(self, name) + getattr(other, name) for name in counts}
        spent = self.runs * self.seconds + other.runs * other.seconds
        return replace(other, **sums, seconds=round(spent / max(1, sums["runs"]), 1))

    def good(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.failed or self.lost or self.doubled or self.wrong)

    def line(self) -> str:
        """Return it as a line of the table."""
        numbers = (self.runs, self.failed, self.lost, self.doubled, self.wrong)
        shown = "".join(f"{number:>8}" for number in numbers)
        return f"{self.fault:<31}{shown}{self.seconds:>9.0f}  {self.note}"


def disturb(row: Row, lab: Lab) -> None:
    """Run a fault once and add up."""
    lab.folder.mkdir(parents=True)
    began = time.monotonic()
    try:
        verdict, row.note = FAULTS[row.fault](lab)
    except Exception as error:  # noqa: BLE001  whatever it was, the other faults are to be run
        row.failed += 1
        row.note = f"{type(error).__name__}: see {lab.folder}"
        # Where it failed, too: most waits end with the same words, the logs.
        (lab.folder / "failure").write_text("".join(traceback.format_exception(error)))
    else:
        row.lost += len(verdict.lost)
        row.doubled += len(verdict.doubled)
        row.wrong += len(verdict.unknown) + len(verdict.changed)
    row.seconds += (time.monotonic() - began - row.seconds) / (row.runs + 1)
    row.runs += 1


def main() -> None:
    """Run the faults, print the table, write the file; status 1 where anything went wrong."""
    args = arguments()
    if reason := missing_tools():
        sys.exit(f"chaos: {reason}")
    logging.disable()  # our own clients complain of every broker that we kill
    shutil.rmtree(LOGS, ignore_errors=True)
    archive = make_archive()
    expected = expected_alerts(archive)
    print(f"{len(archive.messages)} messages, {len(expected)} alerts")
    print(f"{'':<31}    runs  failed    lost doubled   wrong  s a run", flush=True)
    end, code = time.monotonic() + 60 * args.minutes, version()
    with KafkaCluster() as cluster, ThreadPoolExecutor(args.jobs) as pool:

        def measure(name: str, runs: int) -> Row:
            row = Row(name, code)
            for n in range(runs):
                if time.monotonic() < end:
                    rng = random.Random(f"{args.seed} {name} {n}")  # noqa: S311
                    folder = (LOGS / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{n}").absolute()
                    disturb(row, Lab(cluster.bootstrap_servers, archive, expected, folder, rng))
            return row

        rows: list[Row] = []
        wanted = dict(args.only or [(name, None) for name in FAULTS])
        tasks = [pool.submit(measure, name, n or args.runs) for name, n in wanted.items()]
        for done in as_completed(tasks):
            if (row := done.result()).runs:  # else it had no time
                rows.append(row)
                print(row.line(), flush=True)
                write(args.out, rows, args.seed)
                if args.merge:
                    write(args.merge, merged(args.merge, row), args.seed)
    lost, doubled = sum(row.lost for row in rows), sum(row.doubled for row in rows)
    print(f"{sum(row.runs for row in rows)} runs: {lost} lost, {doubled} doubled; see {args.out}")
    sys.exit(0 if all(row.good() for row in rows) else 1)


def merged(file: Path, row: Row) -> list[Row]:
    """Rows of a file, with one more: added to the row of the same fault and code, if there is."""
    rows = [Row(**each) for each in json.loads(file.read_text())["rows"]] if file.exists() else []
    keys = [(each.fault, each.code) for each in rows]
    if (row.fault, row.code) not in keys:
        return [*rows, row]
    place = keys.index((row.fault, row.code))
    return [*rows[:place], rows[place].plus(row), *rows[place + 1 :]]


def write(file: Path, rows: list[Row], seed: int) -> None:
    """Write the figures, with machine and date."""
    result = {
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "date": now(),
        "seed": seed,
        "rows": [asdict(row) for row in rows],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")


def choice(text: str) -> tuple[str, int | None]:
    """Read the name of a fault, with its own number of runs if one is given."""
    name, _, runs = text.partition("=")
    if name not in FAULTS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of: {', '.join(FAULTS)}")
    return name, int(runs) if runs else None


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    number: Callable[[str], int] = int
    parser.add_argument("--runs", type=number, default=1, help="of each fault (%(default)s)")
    parser.add_argument("--only", nargs="+", type=choice, metavar="NAME[=RUNS]", help="faults")
    parser.add_argument("--jobs", type=number, default=1, help="faults at a time (%(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="no further run begins after it")
    parser.add_argument("--seed", type=number, default=1, help="of the moments (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="%(default)s")
    parser.add_argument("--merge", type=Path, help="file to add the figures to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
