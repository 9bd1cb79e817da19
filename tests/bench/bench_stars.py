"""What a star costs in memory and time: ``python -m tests.bench.bench_stars``.

Memory beside plain columns of the same points, the time of a point among a million stars beside
that among ten thousand, and one more exposure of settled stars beside a look at each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from broker_filter.inference import scan
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from tests.bench.bench_window import CADENCE, START, exposure
from tests.bench.figures import Figure, show

POINTS = 512
PLAIN = 8 + 4 + 4 + 2
"""Bytes of a point in columns of time, flux, error and source."""
RISE = 9.0
DAYS = 20.0


def filled(n_stars: int, n_epochs: int) -> WindowStore:
    """A store of stars that share their exposures."""
    rng = np.random.default_rng(1)
    store, star = WindowStore(DAYS, rise=RISE), list(range(10**12, 10**12 + n_stars))
    for i in range(n_epochs):
        store.insert(exposure(star, START + i * CADENCE, rng))
    return store


def point_time(n_stars: int, n_blocks: int) -> float:
    """Processor time of one point, microseconds, once every star is known."""
    rng = np.random.default_rng(2)
    star = list(range(10**12, 10**12 + n_stars))
    store = WindowStore(DAYS, rise=RISE)
    spent = []
    for i in range(n_blocks + 1):
        block = exposure(star, START + i * CADENCE, rng)
        spent.append(processor_time(lambda block=block: store.insert(block)))  # type: ignore[misc]
    return 1e6 * sum(spent[1:]) / n_blocks / n_stars


def one_more(n_stars: int) -> tuple[float, float]:
    """Stars a second that get one more exposure, and with a look at each of them."""
    rng = np.random.default_rng(3)
    store, slots = filled(n_stars, 835), np.arange(n_stars)
    star, schedule = store.star, Schedule(DAYS, 10)
    schedule.due(store, slots)
    store.read(slots)
    first = START + 835 * CADENCE
    blocks = [exposure(star, first + i * CADENCE, rng) for i in range(3)]

    def passed(block: int) -> float:
        return processor_time(lambda: schedule.due(store, store.insert(blocks[block])))

    def looked() -> float:
        return processor_time(lambda: scan.ceiling(store.read(slots), DAYS, 3.0))

    checks, looks = zip(*[(passed(i), looked()) for i in range(len(blocks))], strict=True)
    return n_stars / min(checks), n_stars / (min(looks) + min(checks))


def processor_time(action: Callable[[], object]) -> float:
    """Of one call, seconds."""
    began = time.process_time()
    action()
    return time.process_time() - began


def measure(*, quick: bool = False) -> list[Figure]:
    """Bytes a star, times a point, stars a second."""
    n = 200 if quick else 10_000
    scan.warm_up()
    filled(10, 2)
    sizes = {epochs: filled(n, epochs).nbytes / n for epochs in (POINTS, 1)}
    few, many = (1_000, 10_000) if quick else (10_000, 1_000_000)
    growth = point_time(many, 3), point_time(few, 200)
    check, look = one_more(200 if quick else 2_000)
    return [
        Figure(
            *("bytes_per_star_512", "Memory of a star with 512 points of shared exposures"),
            *(sizes[POINTS], "bytes", "plain columns", float(PLAIN * POINTS)),
        ),
        Figure("bytes_per_star_1", "Memory of a star with one epoch", sizes[1], "bytes"),
        Figure(
            *("growth_1m", f"Time to insert one point among {many:,} stars"),
            *(growth[0], "us", f"among {few:,}", growth[1]),
        ),
        Figure(
            *("settled_star", "Settled stars of 835 points a second that get one more exposure"),
            *(check, "stars/s", "with a look at each", look),
        ),
    ]


if __name__ == "__main__":
    show(measure())
