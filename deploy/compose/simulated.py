"""Publish a simulated archive at a steady pace, for a trial: ``python simulated.py --help``.

The stars are those of ``broker-filter demo``: most are constant, some are magnified. Thirty days of
exposures pass in a few minutes; then the truth is printed, to compare the alerts with.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import closing

from broker_filter.commands.demo_archive import MadeUpField
from broker_filter.config import Kafka, Model
from broker_filter.decode.native import encode_block
from broker_filter.inference.zoo import find, verify
from broker_filter.kafka.sink import KafkaSink, Sink
from broker_filter.schemas import schema_header


def publish(
    archive: MadeUpField,
    sink: Sink,
    topic: str,
    exposures_per_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Send all exposures, one block a shard, and return how many blocks there were."""
    header = schema_header("photometry_block")
    began, first, sent = clock(), float(archive.times[0]), 0
    order = {float(mjd): number for number, mjd in enumerate(archive.times)}
    for shard, block in archive.exposures():
        due = began + order.get(float(block.mjd_tai[0]), 0) / exposures_per_s
        if (ahead := due - clock()) > 0:
            sleep(ahead)
        sink.produce(topic, None, encode_block(block), (header,), shard)
        sent += 1
    sink.flush()
    sys.stdout.write(f"{sent} blocks from MJD {first:.2f} on; the magnified stars are:\n")
    for lens in sorted(archive.truth.values(), key=lambda lens: lens.t0):
        sys.stdout.write(
            f"  star {lens.star}: t0 {lens.t0:.2f}, tE {lens.tE:.3f} d, u0 {lens.u0:.2f},"
            f" signal-to-noise {lens.snr:.0f}\n"
        )
    return sent


def main(argv: list[str] | None = None) -> int:
    """Simulate, connect, publish."""
    parser = argparse.ArgumentParser(description="Publish a simulated archive.")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="photometry")
    parser.add_argument("--stars", type=int, default=1000)
    parser.add_argument("--injected", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exposures-per-s", type=float, default=10.0, help="15 minutes each")
    args = parser.parse_args(argv)
    entry = verify(find(Model().id))
    archive = MadeUpField(
        args.stars, args.injected, args.seed, entry.config["prior"], entry.window_days
    )
    kafka = Kafka(bootstrap_servers=args.bootstrap_servers, input_topics=(args.topic,))
    with closing(KafkaSink(kafka)) as sink:
        publish(archive, sink, args.topic, args.exposures_per_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
