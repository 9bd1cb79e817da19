"""What the benchmarks of the whole service share: how much they publish, and how."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import numpy as np

from broker_filter.decode.native import encode_block
from broker_filter.schemas import schema_header
from tests.bench.bench_window import CADENCE, START, exposure, names
from tests.integration.harness import Archive, Trial, settings_of, trial

PARTITIONS = 6
BLOCK = 5_000
"""Stars of one message: such a block has less than a third of a megabyte."""
LONG_S = 900.0
STEP_S = 0.05
NO_LOOKS = {"every_days": 20, "min_points": 1000}
"""Only windows and snapshots count: no star is looked at."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything.

    Parameters
    ----------
    stars, epochs : int
        Of restart and rebalance.
    messages : int
        Of a run of throughput.
    packets : int
        Of the burst.
    minutes : float
        Of the soak.
    latency_minutes : float
        Of the run at half load.
    """

    stars: int = 100_000
    epochs: int = 500
    messages: int = 400_000
    packets: int = 10_000
    minutes: float = 30.0
    latency_minutes: float = 3.0


class Feed:
    """Publishes to a trial's input, and keeps count.

    Parameters
    ----------
    run : Trial
    """

    def __init__(self, run: Trial) -> None:
        self._topic = run.input
        self._producer = ck.Producer(
            {"bootstrap.servers": run.servers, "linger.ms": 20, "log_level": 0}
        )
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    def send(self, partition: int, schema: str | None, value: bytes) -> None:
        """Queue one message, with its schema if it is of ours; waits where the queue is full."""
        headers = [] if schema is None else [schema_header(schema)]
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition, headers=headers)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                self.ends[partition] += 1
                return

    def flush(self) -> None:
        """Wait until all is on the broker."""
        assert self._producer.flush(LONG_S) == 0

    def exposures(self, stars: int, first: int, last: int) -> None:
        """Publish epochs of all stars, which are shared out over the partitions, in blocks."""
        share = stars // PARTITIONS
        for i in range(first, last):
            rng = np.random.default_rng(i)
            for partition, start in itertools.product(range(PARTITIONS), range(0, share, BLOCK)):
                some = names(min(BLOCK, share - start), partition * share + start)
                block = exposure(some, START + i * CADENCE, rng)
                self.send(partition, "photometry_block", encode_block(block))
        self.flush()


def store(folder: Path) -> dict[str, Any]:
    """Settings of snapshots that are taken seldom, and on a stop."""
    return {"url": str(folder / "snapshots"), "interval_s": 120}


@contextmanager
def started(servers: str, folder: Path, **sections: Any) -> Iterator[Trial]:
    """Topics of a run, with our number of partitions."""
    schedule = {"every_days": 0.5, "min_points": 10}
    with trial(
        servers,
        Archive(PARTITIONS, (), settings_of({})),
        folder,
        **{"schedule": schedule, **sections},
    ) as run:
        yield run


def moved(committed: dict[int, int], before: dict[int, int]) -> bool:
    """Whether all partitions have gone on."""
    return bool(committed) and all(committed[n] > before[n] for n in before)


@contextmanager
def going_on(action: Callable[[int], object]) -> Iterator[None]:
    """Do something every second, in the background."""
    over = threading.Event()
    failures: list[BaseException] = []

    def loop() -> None:
        began = time.monotonic()
        try:
            for n in itertools.count():
                if over.wait(max(0.0, began + n - time.monotonic())):
                    return
                action(n)
        except BaseException as error:  # noqa: BLE001  raised below
            failures.append(error)

    thread = threading.Thread(target=loop, name="feed")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for error in failures:
        raise error


def ticks(seconds: float, step_s: float) -> Iterator[int]:
    """Count, a step at a time."""
    began = time.monotonic()
    for n in range(max(1, round(seconds / step_s))):
        time.sleep(max(0.0, began + n * step_s - time.monotonic()))
        yield n


def stamp(line: dict[str, Any] | None) -> float:
    """Unix time of a line of the log."""
    assert line is not None
    return datetime.fromisoformat(line["time"]).timestamp()
