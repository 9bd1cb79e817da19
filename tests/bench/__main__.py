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
    bench_decode,
    bench_intake,
    bench_packets,
    bench_scoring,
    bench_snapshot,
    bench_window,
)

OUT = Path("build/bench.json")


def main() -> None:
    """Measure, print the table, write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds in all")
    quick = parser.parse_args().quick
    where = machine()
    figures: dict[str, float] = {}
    snapshot, packets = bench_snapshot.measure, bench_packets.measure
    for part in (bench_scoring.measure, bench_intake.measure, window, decode, packets, snapshot):
        measured = part(quick=quick)
        figures |= measured
        for case, figure in measured.items():
            print(f"{case:<55} {shown(figure):>12}", flush=True)
    result = {"machine": where, "date": now(), "quick": quick, "figures": figures}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{', '.join(map(str, where.values()))}; see {OUT}")


def shown(figure: float) -> str:
    """Whole numbers where they say enough."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def decode(*, quick: bool) -> dict[str, float]:
    """Figures of decoding alone; it has no small size."""
    return {} if quick else bench_decode.measure()


def window(*, quick: bool) -> dict[str, float]:
    """Figures of the window store alone."""
    if not quick:
        return bench_window.measure()
    return {
        "insert, blocks of 2,000 stars (points/s)": bench_window.insert_blocks(2_000, 5),
        "read, 835 points, catalogue (windows/s)": bench_window.read_windows(
            50, 835, catalogue=True
        ),
    }


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
