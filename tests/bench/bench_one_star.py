"""What one star costs from Python: loading, a star without alerts, one with: processor time.

``python -m tests.bench.bench_one_star`` prints it. Loading is that of a process of its own, whose
modules were compiled before (by a run that does not count), beside torch's alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

from broker_filter.inference.magnification import magnification
from broker_filter.scoring.score import score
from broker_filter.types import FloatArray
from tests.bench.bench_stars import processor_time
from tests.bench.figures import Figure, show

LOAD = """
import time
import numpy as np
from broker_filter import score
score(np.arange(60_000.0, 60_020.0, 0.5), np.full(40, 1000.0), np.full(40, 10.0), baseline=1000.0)
print(time.process_time())
"""
TORCH = "import time, torch; print(time.process_time())"
TIMES = np.arange(60_000.0, 60_020.0, 0.5)


def loaded(code: str, times: int) -> float:
    """Seconds of processor time of a new process, the least of several."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {
            "PYTHONPYCACHEPREFIX": folder,
            "PYTHONDONTWRITEBYTECODE": "",
            "OMP_NUM_THREADS": "1",
        }
        done = [
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, **kept},
                capture_output=True,
                text=True,
                check=True,
            )
            for _ in range(times + 1)
        ]
    return min(float(one.stdout) for one in done[1:])


def light_curve(peak: float) -> FloatArray:
    """Fluxes with a hundredth of noise; a lens of three days that adds ``peak`` at u0 = 0.3."""
    noise = 10 * np.random.default_rng(4).standard_normal(len(TIMES))
    u = np.hypot(0.3, (TIMES - TIMES.mean()) / 3)
    return np.asarray(1000 * (1 + peak * (magnification(u, 0.01) - 1)) + noise)


def star(peak: float, times: int, *, now: bool = False) -> tuple[float, int]:
    """Seconds of processor time of a star, the least of several, and how many alerts it has."""
    flux, error = light_curve(peak), np.full(len(TIMES), 10.0)
    found = score(TIMES, flux, error, baseline=1000.0, now=now)

    def once() -> None:
        _ = score(TIMES, flux, error, baseline=1000.0, now=now).words

    return min(processor_time(once) for _ in range(times)), len(found.alerts)


def measure(*, quick: bool = False) -> list[Figure]:
    """Seconds and milliseconds of one thread."""
    torch.set_num_threads(1)
    times = 1 if quick else 3
    quiet, _ = star(0.0, times)
    lensed, alerts = star(0.8, times)
    once, _ = star(0.8, times, now=True)
    load, alone = loaded(LOAD, times), loaded(TORCH, times)
    each = f"Time of a lensed star of {len(TIMES)} epochs, {alerts} alerts"
    return [
        Figure("star_load", "Time to load and score a first star", load, "s", "torch", alone),
        Figure(
            "star_quiet", f"Time of a star of {len(TIMES)} epochs, no alert", 1000 * quiet, "ms"
        ),
        Figure("star_lensed", each, 1000 * lensed, "ms"),
        Figure("star_now", "Time of the same star, one look as it is now", 1000 * once, "ms"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each once")
    show(measure(quick=parser.parse_args().quick))


if __name__ == "__main__":
    main()
