"""How fast the matched filter settles windows: ``python -m tests.bench.bench_cascade``.

Constant stars of one exposure every 15 minutes, most of which the filter settles. The rival is the
network on windows of as many points, in turn with it. Where a GPU is found, the same on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from broker_filter.config import Model
from broker_filter.inference import scan, zoo
from broker_filter.inference.scorer import Scorer
from broker_filter.types import WindowBatch
from tests.bench.bench_decode import seconds
from tests.bench.bench_scoring import windows
from tests.bench.figures import Figure, show

SLOTS = 1_920  # exposures of 20 days
NETWORK = 128  # windows that it takes to time the network
POINTS = (20, 835)
GPU_CHUNK = 1_024


def constant_stars(n: int, epochs: int) -> WindowBatch:
    """Windows of so many of the exposures, chosen at random for each."""
    rng = np.random.default_rng(1)
    batch = windows(n, epochs)
    chosen = np.stack([np.sort(rng.choice(SLOTS, epochs, replace=False)) for _ in range(n)])
    batch.mjd_tai[:] = batch.t_start[:, None] + (chosen + 0.5) * 20 / SLOTS
    return batch


def cascaded(scorer: Scorer, batch: WindowBatch, log10_k: float) -> None:
    """Settle what can be settled, and evaluate the others."""
    scorer.score(batch, scorer.ceiling(batch, log10_k) >= log10_k)


def measure(*, quick: bool = False) -> list[Figure]:
    """Windows a second of the scan, and of the scan and then the network, beside the network."""
    n = 512 if quick else 8_192
    entry = zoo.verify(zoo.find(Model().id))
    scorer = Scorer(entry)
    scorer.warm_up()
    figures = [figure for points in POINTS for figure in _figures(scorer, entry, n, points)]
    return figures + (_on_a_gpu(entry, 16 * n) if torch.cuda.is_available() else [])


def _on_a_gpu(entry: zoo.Entry, n: int) -> list[Figure]:
    """The cascade and the network on the device, beside each other."""
    scorer = Scorer(entry, device="cuda", chunk=GPU_CHUNK, precision="bfloat16")
    scorer.warm_up()
    figures = []
    for points in POINTS:
        batch = constant_stars(n, points)
        few = batch.take(np.arange(min(n, 4 * GPU_CHUNK)))
        network = len(few) / seconds(lambda few=few: scorer.score(few), 1)
        rate = n / seconds(lambda batch=batch: cascaded(scorer, batch, entry.threshold), 1)
        label = f"Windows settled or scored per second on a GPU, {points} points"
        name = f"cascade_gpu_{points}"
        figures.append(Figure(name, label, rate, "windows/s", "the network on it", network))
    return figures


def _figures(scorer: Scorer, entry: zoo.Entry, n: int, points: int) -> list[Figure]:
    batch, threshold = constant_stars(n, points), entry.threshold
    few = batch.take(np.arange(NETWORK))
    cases: dict[str, tuple[str, Callable[[], object]]] = {
        "scan": (
            "scanned",
            lambda: scan.ceiling(batch, entry.window_days, threshold, scorer.threads),
        ),
        "cascade": ("settled or scored", lambda: cascaded(scorer, batch, threshold)),
    }
    figures = []
    for name, (words, call) in cases.items():
        network = NETWORK / seconds(lambda: scorer.score(few), 1)
        rate = n / seconds(call, 1)
        label = f"Windows {words} per second, {points} points"
        figures.append(Figure(f"{name}_{points}", label, rate, "windows/s", "the network", network))
    return figures


if __name__ == "__main__":
    show(measure())
