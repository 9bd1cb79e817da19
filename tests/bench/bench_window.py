"""How fast photometry fills windows and windows are read: ``python -m tests.bench.bench_window``.

Prints one row a case; ``measure`` returns the same figures for the table of ``make bench``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from broker_filter.types import Photometry
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from broker_filter.windows.waves import concatenate, waves
from tests.bench.figures import Figure, show

STARS = 50_000
START = 60_000.0
CADENCE = 15 / 1440


def exposure(stars: Sequence[str], mjd: float, rng: np.random.Generator) -> Photometry:
    """One epoch of each star, constant stars with a catalogue flux."""
    n = len(stars)
    return Photometry(
        survey="roman",
        band="F146",
        source="",
        star=list(stars),
        mjd_tai=np.full(n, mjd),
        flux=rng.normal(15_000, 30, n),
        flux_err=np.full(n, 30.0),
        flags=np.zeros(n, np.uint32),
        ref_flux=np.full(n, 15_000.0),
        ref_flux_err=np.full(n, 15.0),
    )


def names(n: int, offset: int = 0) -> list[str]:
    """Fresh strings, as a decoder makes them, so that their hashes are not cached."""
    return [f"roman-{offset + i:012d}" for i in range(n)]


def insert_blocks(n_stars: int, n_blocks: int) -> float:
    """Points a second, due-check included, once every star is known."""
    rng = np.random.default_rng(1)
    store, schedule = WindowStore(), Schedule(0.25, 5)
    blocks = [exposure(names(n_stars), START + i * CADENCE, rng) for i in range(n_blocks + 1)]
    store.insert(blocks[0])
    began = time.process_time()
    for block in blocks[1:]:
        schedule.due(store, store.insert(block))
    return n_stars * n_blocks / (time.process_time() - began)


def insert_days(n_stars: int, days: float) -> tuple[float, float]:
    """Points a second over many anchors, and the longest single block in seconds."""
    rng = np.random.default_rng(2)
    store, star = WindowStore(), names(n_stars)
    spent = []
    for i in range(int(days / CADENCE)):
        block = exposure(star, START + i * CADENCE, rng)
        began = time.process_time()
        store.insert(block)
        spent.append(time.process_time() - began)
    return n_stars * len(spent) / sum(spent), max(spent)


def insert_messages(n_stars: int, n_messages: int, poll: int, *, shuffled: bool) -> float:
    """One-epoch messages a second: waves, concatenation and insertion."""
    rng = np.random.default_rng(3)
    star = names(n_stars)
    store = WindowStore()
    store.insert(exposure(star, START, rng))
    turn = rng.integers(0, n_stars, n_messages) if shuffled else np.arange(n_messages) % n_stars
    pieces = [exposure([star[s]], START + 1e-5 * (i + 1), rng) for i, s in enumerate(turn)]
    began = time.process_time()
    for first in range(0, n_messages, poll):
        for wave in waves([[piece] for piece in pieces[first : first + poll]]):
            for piece in concatenate(wave):
                store.insert(piece)
    return n_messages / (time.process_time() - began)


def redeliver(n_stars: int, n_epochs: int) -> float:
    """Duplicate points a second, of windows of ``n_epochs``."""
    rng = np.random.default_rng(4)
    store, star = WindowStore(), names(n_stars)
    blocks = [exposure(star, START + i * CADENCE, rng) for i in range(n_epochs)]
    for block in blocks:
        store.insert(block)
    began = time.process_time()
    for block in blocks[-10:]:
        store.insert(block)
    return 10 * n_stars / (time.process_time() - began)


def read_windows(n_windows: int, n_epochs: int, *, catalogue: bool) -> float:
    """Windows a second."""
    rng = np.random.default_rng(5)
    store, star = WindowStore(), names(n_windows)
    for i in range(n_epochs):
        block = exposure(star, START + i * CADENCE, rng)
        if not catalogue:
            block.ref_flux[:] = np.nan
        store.insert(block)
    slots = np.arange(n_windows)
    best = np.inf
    for _ in range(5):
        began = time.process_time()
        store.read(slots)
        best = min(best, time.process_time() - began)
    return n_windows / best


def read_mature(n_windows: int) -> float:
    """Windows a second where every star has a history of its own; about 1,500 points each."""
    rng = np.random.default_rng(6)
    store, star = WindowStore(), names(n_windows)
    for i in range(int(24 / CADENCE)):
        store.insert(exposure(star, START + i * CADENCE, rng))
    began = time.process_time()
    store.read(np.arange(n_windows))
    return n_windows / (time.process_time() - began)


def measure(*, quick: bool = False) -> list[Figure]:
    """Points, messages or windows a second, and one time."""
    stars = 2_000 if quick else STARS
    label = f"Points inserted per second, blocks of {stars:,} stars"
    rate = insert_blocks(stars, 5 if quick else 10)
    figures = [Figure("insert_blocks", label, rate, "points/s")]
    if not quick:
        figures += _insertions()
    return [*figures, *_readings(50 if quick else 1_000)]


def _insertions() -> list[Figure]:
    steady, longest = insert_days(2_000, 26)
    in_turn = insert_messages(20_000, 40_000, 10_000, shuffled=False)
    at_random = insert_messages(20_000, 40_000, 10_000, shuffled=True)
    return [
        Figure(
            "insert_days", "Points inserted per second, 2,000 stars for 26 days", steady, "points/s"
        ),
        Figure("insert_longest", "Longest insertion of one block among them", longest, "s"),
        Figure(
            "insert_in_turn",
            "Messages of one epoch inserted per second, star after star",
            in_turn,
            "messages/s",
        ),
        Figure(
            "insert_at_random",
            "Messages of one epoch inserted per second, stars at random",
            at_random,
            "messages/s",
        ),
        Figure(
            "redelivery",
            "Epochs per second recognised as delivered before, windows of 835 points",
            redeliver(1_000, 835),
            "points/s",
        ),
    ]


def _readings(n: int) -> list[Figure]:
    return [
        Figure(
            "read_catalogue",
            "Windows read per second, 835 points, baseline from the catalogue",
            read_windows(n, 835, catalogue=True),
            "windows/s",
        ),
        Figure(
            "read_unknown",
            "Windows read per second, 835 points, neither catalogue nor history",
            read_windows(n, 835, catalogue=False),
            "windows/s",
        ),
        Figure(
            "read_history",
            "Windows read per second, 1,500 points, baseline from the star's history",
            read_mature(n // 2),
            "windows/s",
        ),
    ]


if __name__ == "__main__":
    show(measure())
