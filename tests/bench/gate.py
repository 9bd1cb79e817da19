"""Whether the hot paths are as fast as they were: ``python -m tests.bench.gate``; CI calls it.

Each is compared with plain array operations in the same process, in turn with them, and the best of
several runs counts; so a slow or busy machine slows both. Processors differ in what they do fast
(sorts of whole arrays by a factor of six), so the ratios to hold are those of the same processor,
and the lowest of all where it is a new one. The status is 1 where a path has lost 30 % of that.
``--write`` takes today's ratios as those to hold for this processor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from broker_filter.inference import scan
from broker_filter.windows.schedule import Schedule
from tests.bench.__main__ import processor
from tests.bench.bench_cascade import constant_stars
from tests.bench.bench_stars import DAYS, filled, processor_time
from tests.bench.bench_window import CADENCE, START, exposure

HELD = Path(__file__).with_name("gate.json")
LOSS = 0.3
ROUNDS = 7
TRIES = 3


def in_turn(ours: Callable[[], object], plain: Callable[[], object]) -> float:
    """How many times longer the plain operations take."""
    pairs = [(processor_time(ours), processor_time(plain)) for _ in range(ROUNDS)]
    mine, theirs = zip(*pairs, strict=True)
    return min(theirs) / min(mine)


def scanned() -> float:
    """The scan of windows, and forty passes over their fluxes."""
    batch = constant_stars(256, 835)
    work = np.empty_like(batch.flux)

    def passes() -> None:
        for _ in range(40):
            np.multiply(batch.flux, batch.sigma, out=work)

    return in_turn(lambda: scan.ceiling(batch, DAYS, 3.0), passes)


def inserted() -> float:
    """The insertion of exposures, and sorting their fluxes three times."""
    rng = np.random.default_rng(1)
    store = filled(20_000, 2)
    blocks = iter([exposure(store.star, START + i * CADENCE, rng) for i in range(2, ROUNDS + 2)])
    flux = exposure(store.star, START, rng).flux

    def sorts() -> None:
        for _ in range(3):
            np.sort(flux)

    return in_turn(lambda: store.insert(next(blocks)), sorts)


def passed_over() -> float:
    """One more exposure of settled stars, none of which is looked at, and three sorts."""
    rng = np.random.default_rng(3)
    store, schedule = filled(5_000, 200), Schedule(DAYS, 10)
    slots, first = np.arange(5_000), START + 200 * CADENCE
    schedule.due(store, slots)
    store.read(slots)
    blocks = iter([exposure(store.star, first + i * CADENCE, rng) for i in range(ROUNDS)])
    flux = exposure(store.star, START, rng).flux

    def sorts() -> None:
        for _ in range(3):
            np.sort(flux)

    return in_turn(lambda: schedule.due(store, store.insert(next(blocks))), sorts)


def to_hold(held: Mapping[str, Mapping[str, float]], name: str) -> float:
    """The ratio of a path on this processor, or the lowest of all where it is a new one."""
    own = held.get(processor())
    return own[name] if own is not None else min(each[name] for each in held.values())


PATHS = {"scan": scanned, "insert": inserted, "settled_star": passed_over}


def main() -> int:
    """Measure, print, compare or write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gate", description=__doc__)
    parser.add_argument("--write", action="store_true", help="hold today's ratios from now on")
    write = parser.parse_args().write
    scan.warm_up()
    filled(10, 3)
    held = json.loads(HELD.read_text())
    found, good = {}, True
    for name, path in PATHS.items():
        least = 0.0 if write else (1 - LOSS) * to_hold(held, name)
        for _ in range(TRIES):
            found[name] = max(found.get(name, 0.0), path())
            if found[name] >= least and not write:
                break
        good &= found[name] >= least
        print(f"{name}: {found[name]:.3g}, at least {least:.3g}", flush=True)
    if write:
        held[processor()] = {name: round(found[name], 3) for name in found}
        HELD.write_text(json.dumps(held, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
