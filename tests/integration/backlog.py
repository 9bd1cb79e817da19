"""Memory of the filter after a backlog of large messages: ``python -m tests.integration.backlog``.

Messages of 175 kB, as real alert packets may be, wait in the topic before the filter starts. All
are the same exposure, so that windows do not grow and what is measured is the way in: the client's
queue, decoding, batches. The bound is `BOUND_MB` above the filter's memory without any backlog.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import confluent_kafka as ck
import numpy as np

from broker_filter.decode.native import encode_block
from broker_filter.schemas import schema_header
from broker_filter.types import Message
from tests import build
from tests.integration.harness import Archive, Filter, Trial, settings_of
from tests.kafka_broker import KafkaCluster

BOUND_MB = 300
PARTITIONS = 4
STARS = 5_470


def block() -> bytes:
    """One exposure of so many stars, about 175 kB."""
    rng = np.random.default_rng(1)
    flux = 1000 + rng.standard_normal(STARS)
    error = 1 + rng.random(STARS)
    photometry = build.photometry(
        60_000.0,
        range(STARS),
        flux=flux,
        flux_err=error,
        ref_flux=flux,
        ref_flux_err=error,
    )
    return encode_block(photometry)


def measure(servers: str, count: int, folder: Path) -> dict[str, float]:
    """Peak memory without and with the backlog, MB, and the time that it took."""
    value = block()
    header = (schema_header("photometry_block"),)
    few = tuple(
        Message("epochs", n % PARTITIONS, n // PARTITIONS, None, value, 0, header)
        for n in range(PARTITIONS)
    )
    figures: dict[str, float] = {"message_kb": len(value) / 1000, "messages": count}
    for name, sent in (("idle", PARTITIONS), ("backlog", count)):
        archive = Archive(PARTITIONS, few, settings_of({}))
        with closing(Trial(servers, archive, folder, snapshot={"url": None})) as trial:
            fill(trial, value, header, sent)
            began = time.monotonic()
            filter_ = trial.start()
            done = dict.fromkeys(range(PARTITIONS), sent // PARTITIONS)
            trial.until(lambda t=trial, d=done: t.committed() == d, 600)
            figures[f"{name}_peak_mb"] = peak_mb(filter_)
            figures[f"{name}_seconds"] = time.monotonic() - began
            filter_.stop()
    figures["above_idle_mb"] = figures["backlog_peak_mb"] - figures["idle_peak_mb"]
    return figures


def fill(trial: Trial, value: bytes, headers: tuple[tuple[str, bytes], ...], count: int) -> None:
    """Publish the same message so many times, shared out over the partitions."""
    producer = ck.Producer({"bootstrap.servers": trial.servers, "linger.ms": 50, "log_level": 0})
    for n in range(count):
        while True:
            try:
                producer.produce(
                    trial.input, value, partition=n % PARTITIONS, headers=list(headers)
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(300) == 0


def peak_mb(filter_: Filter) -> float:
    """Largest resident memory that a process has had."""
    lines = Path(f"/proc/{filter_.process.pid}/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) / 1024


def main() -> int:
    """Measure on a broker of its own; the exit status is 1 above the bound."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.integration.backlog", description=__doc__
    )
    parser.add_argument("--count", type=int, default=20_000, help="default: %(default)s")
    count = parser.parse_args().count
    with KafkaCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        figures = measure(cluster.bootstrap_servers, count, Path(folder))
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}, indent=1))
    return 0 if figures["above_idle_mb"] <= BOUND_MB else 1


if __name__ == "__main__":
    sys.exit(main())
