"""All speeds in one table: ``python -m tests.bench [--quick]``; ``make bench`` calls it.

Writes the same to ``build/bench.json``, with machine and date. Figures of a machine that is busy
with other things mean little; ``--quick`` only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.bench import (
    bench_cascade,
    bench_decode,
    bench_intake,
    bench_one_star,
    bench_packets,
    bench_scoring,
    bench_snapshot,
    bench_stars,
    bench_window,
)
from tests.bench.figures import Figure, show

OUT = Path("build/bench.json")
PARTS = (
    bench_scoring,
    bench_cascade,
    bench_intake,
    bench_one_star,
    bench_window,
    bench_decode,
    bench_packets,
    bench_snapshot,
    bench_stars,
)


def main() -> None:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds in all")
    quick = parser.parse_args().quick
    where = machine()
    figures: list[Figure] = []
    for part in PARTS:
        measured = part.measure(quick=quick)
        show(measured)
        figures += measured
    rows = [figure.row() for figure in figures]
    result = {"machine": where, "date": now(), "quick": quick, "figures": rows}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{', '.join(map(str, where.values()))}; see {OUT}")


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "processor": processor(),
        "cores": f"{os.cpu_count()} cores",
        "torch": f"torch {torch.__version__}",
        "threads": f"{torch.get_num_threads()} threads",
    }


def processor() -> str:
    """Model of the processor, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def now() -> str:
    """ISO date and time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    main()
