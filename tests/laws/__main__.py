"""Try the laws with other inputs, again and again: ``python -m tests.laws --seeds N [--first S]``.

Writes how many inputs of each kind were tried to ``tests/laws/fuzz.json``. A run of the tests does
the same once, with a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.bench.__main__ import now, processor
from tests.integration.harness import version

HERE = Path(__file__).parent
OUT = HERE / "fuzz.json"
KINDS = {
    "test_decode_laws.py": "messages: packets of surveys and our own with schema, bytes, blocks,"
    " compression or framing spoilt",
    "test_avro_laws.py": "Avro schemas with records, read as fastavro reads them, cut and damaged",
    "test_window_laws.py": "streams of epochs, cut, repeated, saved and restored",
    "test_text_laws.py": "names and texts in files, logs and pictures",
}


def main() -> None:
    """Run, add up and write; status 1 where a law does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.laws", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, metavar="N")
    parser.add_argument("--first", type=int, default=1, metavar="S")
    args = parser.parse_args()
    tried: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    status = 0
    for seed in range(args.first, args.first + args.seeds):
        for file in KINDS:
            began = time.monotonic()
            status |= (done := run(file, seed)).returncode
            seconds[file] += round(time.monotonic() - began)
            for good, bad, _ in counts(done.stdout):
                tried[file] += good + bad
                failed[file] += bad
        print(f"seed {seed}: {tried.total():,} inputs, {failed.total()} failed", flush=True)
    rows = [
        {"what": what, "inputs": tried[file], "failed": failed[file], "seconds": seconds[file]}
        for file, what in KINDS.items()
    ]
    result = {
        "command": f"python -m tests.laws --seeds {args.seeds}",
        "date": now()[:10],
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "commit": version(),
        "rows": rows,
    }
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if status else 0)


def run(file: str, seed: int) -> subprocess.CompletedProcess[str]:
    """Run the tests of one file with a seed; what fails is shown."""
    options = ("-q", f"--hypothesis-seed={seed}", "--hypothesis-show-statistics")
    command = (sys.executable, "-m", "pytest", str(HERE / file), *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    return done


def counts(statistics: str) -> list[tuple[int, ...]]:
    """Inputs of each test that passed, failed and were none, as hypothesis reports them."""
    found = re.findall(r"(\d+) passing, (\d+) failing, and (\d+) invalid", statistics)
    return [tuple(map(int, row)) for row in found]


if __name__ == "__main__":
    main()
