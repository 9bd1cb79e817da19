"""Figures of the whole service on a real Kafka: ``python -m tests.bench.bench_service NAME ...``.

``throughput``
    A backlog of one-star messages, filtered in turn with either guarantee: what exactly once costs.
``restart``
    One instance that holds 100,000 stars is stopped and started again: until all its partitions
    have committed something new.
``rebalance``
    A third instance joins two that share 100,000 stars: the longest time in which some partition
    committed nothing, while all of them are fed.
``burst``
    A backlog of real packets of ZTF and LSST, each of a star of its own: until all are scored and
    committed. Needs the folder of real packets (BROKER_FILTER_TEST_DATA).
``single_messages``
    Single messages of constant stars, by one instance and by two, beside the Kafka client alone.
``latency``
    Half of the load that one instance takes: time from epoch to alert, from the filter's metrics.
``rebalance_1m``
    One of two members leaves, which share ten times the stars: until the other reads on.
``soak``
    One instance at half of the load that it can take, for half an hour: growth of its memory.

Prints the figures and adds them to a JSON file, with machine, date and version of the code. The
status is 1 where a limit is missed. ``--quick`` takes small sizes, which only shows that all runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broker_filter.config import Input
from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.native import encode_photometry
from broker_filter.service.decoding import make_decoder
from broker_filter.types import Message, Photometry, StarId
from tests.bench.__main__ import machine, now
from tests.bench.bench_packets import DATA, packets
from tests.bench.bench_rates import latency, rebalance_1m, single_messages
from tests.bench.bench_window import START
from tests.bench.figures import Figure
from tests.bench.service_load import (
    LONG_S,
    NO_LOOKS,
    PARTITIONS,
    STEP_S,
    Feed,
    Size,
    going_on,
    moved,
    stamp,
    started,
    store,
    ticks,
)
from tests.integration.harness import Filter, Trial, version
from tests.kafka_broker import KafkaCluster

OUT = Path("build/bench_service.json")
LIMITS = {
    "exactly_once_loss": 0.15,
    "restart_stop": 25.0,
    "restart_live": 20.0,
    "rebalance_pause": 15.0,
    "burst_one": 39.0,
    "burst_two": 39.0,
    "soak_growth": 0.02,
}
"""What a figure may be at most, by its name."""
Figures = list[Figure]


@dataclass(frozen=True, slots=True)
class Sky:
    """So many stars, a hundredth of which brighten once a month; an epoch every 0.1 days."""

    stars: int

    def message(self, n: int) -> tuple[int, bytes]:
        """Partition and bytes of the ``n``-th message: one epoch of one star."""
        epoch, star = divmod(n, self.stars)
        mjd, one = START + 0.1 * epoch, np.ones(1)
        bump = 0.5 * np.exp(-(((mjd - START) % 30 - 15) ** 2) / 2) if star % 100 == 0 else 0.0
        noise = 10 * np.sin(12.9898 * n)  # cheap, and never the same
        photometry = Photometry(
            survey="test",
            band="r",
            source="",
            star=[f"star {star}"],
            mjd_tai=mjd * one,
            flux=(1000 * (1 + bump) + noise) * one,
            flux_err=10 * one,
            flags=np.zeros(1, np.uint32),
            ref_flux=1000 * one,
            ref_flux_err=one,
        )
        return star % PARTITIONS, encode_photometry(photometry)


def throughput(servers: str, folder: Path, size: Size) -> Figures:
    """Messages a second with either guarantee, each twice, in turn."""
    kinds = ("at_least_once", "exactly_once")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    sky = Sky(size.messages // 100)
    for kind in kinds * 2:
        keys = {"delivery": kind, "commit_interval_s": 2.0}
        with started(servers, folder, kafka=keys, snapshot={"url": None}) as run:
            feed = Feed(run)
            for n in range(size.messages):
                partition, value = sky.message(n)
                feed.send(partition, "photometry", value)
            feed.flush()
            rates[kind].append(size.messages / seconds_to_take(run, feed))
    once, exactly = (statistics.mean(rates[kind]) for kind in kinds)
    spread = max(abs(a - b) / max(a, b) for a, b in rates.values())
    return [
        Figure("at_least_once", "Messages per second, at least once", once, "messages/s"),
        Figure("exactly_once", "Messages per second, exactly once", exactly, "messages/s"),
        Figure("exactly_once_loss", "Throughput lost by exactly once", 1 - exactly / once, "share"),
        Figure("throughput_spread", "Difference between two equal runs", spread, "share"),
    ]


def restart(servers: str, folder: Path, size: Size) -> Figures:
    """Stop and start an instance that holds all stars."""
    with started(servers, folder, schedule=NO_LOOKS, snapshot=store(folder)) as run:
        feed = Feed(run)
        filter_ = run.start("a")
        feed.exposures(size.stars, 0, size.epochs)
        run.until(lambda: run.committed() == feed.ends, LONG_S)
        began = time.monotonic()
        assert filter_.stop() == 0, run.logs()
        stopped = time.monotonic() - began
        before = dict(feed.ends)
        feed.exposures(size.stars, size.epochs, size.epochs + 2)
        filter_, began = run.start("a"), time.time()
        run.until(lambda: moved(run.committed(), before), LONG_S)
        live = time.time()
        restored = [line for line in filter_.lines() if line.get("event") == "restored"]
        assert {line["outcome"] for line in restored} == {"snapshot"}, run.logs()
        assigned = stamp(filter_.logged("partitions_assigned"))
    return [
        Figure("restart_stop", "Restart: from SIGTERM to the exit", stopped, "s"),
        Figure(
            "restart_assigned",
            "Restart: from the start of the process to its partitions",
            assigned - began,
            "s",
        ),
        Figure(
            "restart_live",
            "Restart: from its partitions to new commits on all of them",
            live - assigned,
            "s",
        ),
    ]


def rebalance(servers: str, folder: Path, size: Size) -> Figures:
    """Let a third instance join two, while an epoch comes every second."""
    with started(servers, folder, schedule=NO_LOOKS, snapshot=store(folder)) as run:
        feed = Feed(run)
        filters = [run.start(), run.start()]
        feed.exposures(size.stars, 0, size.epochs)
        run.until(lambda: run.committed() == feed.ends, LONG_S)
        with going_on(lambda i: feed.exposures(size.stars, size.epochs + i, size.epochs + i + 1)):
            usual = longest_stop(run, lambda: False, 10)
            filters.append(run.start())
            longest = longest_stop(run, lambda: not shares(filters[2]), 20)
        restored = [line for line in filters[2].lines() if line.get("event") == "restored"]
        outcomes = {line["outcome"] for line in restored}
        assert outcomes == {"snapshot"}, f"{outcomes}: {run.logs()}"
        for filter_ in filters:
            assert filter_.stop() == 0, run.logs()
    return [
        Figure("rebalance_pause", "Rebalance: longest time without a commit", longest, "s"),
        Figure("usual_pause", "The same without a rebalance", usual, "s"),
    ]


def burst(servers: str, folder: Path, size: Size) -> Figures:
    """Filter real packets, each of a star that was not seen before.

    Nearly all of these are of stars that vary, so nearly all would be fitted and alert, which takes
    its own time: that of scoring is measured without fits and with a threshold that none reaches,
    that of alerts with fewer packets. One instance decodes in one thread; two share the
    partitions, and the cores.
    """
    few, plain = size.packets // 50, {"log10_k": 1e6, "certified": False}
    scored, sent, _ = take_packets(servers, folder, size.packets, **plain)
    shared, _, _ = take_packets(servers, folder, size.packets, instances=2, **plain)
    rates = []
    for threads in (1, 2):
        alerted, _, alerts = take_packets(servers, folder, few, threads=threads)
        rates.append(alerts / (alerted - few * scored / size.packets))
    return [
        Figure("burst_packets", "Burst: packets", size.packets, ""),
        Figure("burst_size", "Burst: size", sent / 1e6, "MB"),
        Figure("burst_one", "Burst: scored and committed by one instance", scored, "s"),
        Figure(
            "burst_rate",
            "Burst: packets per second, one instance",
            size.packets / scored,
            "packets/s",
        ),
        Figure("burst_two", "Burst: scored and committed by two instances", shared, "s"),
        Figure("burst_alerts", "Burst: alerts of a second, smaller burst", alerts, ""),
        Figure("burst_alert_rate", "Burst: alerts per second in it", rates[0], "alerts/s"),
        Figure(
            "burst_alert_rate_2",
            "Burst: alerts per second in it, two threads",
            *(rates[1], "alerts/s", "one thread", rates[0]),
        ),
    ]


def take_packets(
    servers: str, folder: Path, n: int, instances: int = 1, threads: int = 1, **alert: float
) -> tuple[float, int, int]:
    """Seconds that a filter takes for so many packets, their bytes, and its number of alerts."""
    alerts, sent = DATA / "alerts", 0
    schemas = {"schema_folder": str((alerts / "avsc").resolve())}
    own = {"alert": alert, "model": {"threads": threads}, "snapshot": {"url": None}}
    with started(servers, folder, input=schemas, **own) as run:
        feed = Feed(run)
        for i, value in enumerate(itertools.islice(of_new_stars(alerts), n)):
            feed.send(i % PARTITIONS, None, value)
            sent += len(value)
        feed.flush()
        taken = seconds_to_take(run, feed, instances)
        for filter_ in run.filters:
            assert filter_.stop() == 0, run.logs()
        return taken, sent, len(run.read())


def of_new_stars(alerts: Path) -> Iterator[bytes]:
    """The real packets again and again, each under a name of its own, of the same length."""
    decoder = make_decoder(Input(schema_folder=alerts / "avsc"))
    named = []
    for value in packets(alerts):
        photometry = decoder.decode(Message("burst", 0, 0, None, value)).photometry
        stars = {star for part in photometry for star in part.star}
        # Names cannot be found in a compressed packet, and one without epochs is of no use.
        if len(stars) == 1 and written(name := stars.pop()) in value:
            named.append((value, name))
    for n, (value, name) in enumerate(itertools.cycle(named), 1):
        new = f"{name[:5]}{n:0>{len(name) - 5}}" if isinstance(name, str) else name ^ n
        yield value.replace(written(name), written(new))


def written(name: StarId) -> bytes:
    """A star's name as Avro has it."""
    return name.encode() if isinstance(name, str) else write_long(name)


def soak(servers: str, folder: Path, size: Size) -> Figures:
    """Feed half of what goes through, and look at the memory."""
    sky, count = Sky(2_000), itertools.count()
    snapshot = {**store(folder), "interval_s": 60}
    with started(servers, folder, snapshot=snapshot) as run:
        feed = Feed(run)

        def publish(messages: int) -> None:
            for n in itertools.islice(count, messages):
                partition, value = sky.message(n)
                feed.send(partition, "photometry", value)

        publish(size.messages // 2)
        feed.flush()
        load = size.messages / 2 / seconds_to_take(run, feed) / 2
        filter_ = run.filters[0]
        with going_on(lambda _: publish(round(load))):
            memory = [rss_mb(filter_) for _ in ticks(60 * size.minutes, 5.0)]
        behind = sum(feed.ends.values()) - sum(run.committed().values())
        assert filter_.stop() == 0, run.logs()
    warm = memory[len(memory) // 6 :]
    tenth = max(1, len(warm) // 10)
    first, last = statistics.median(warm[:tenth]), statistics.median(warm[-tenth:])
    return [
        Figure("soak_minutes", "Soak: duration", size.minutes, "min"),
        Figure("soak_load", "Soak: load, half of what one instance takes", load, "messages/s"),
        Figure("soak_first", "Soak: memory after warm-up", first, "MB"),
        Figure("soak_last", "Soak: memory at the end", last, "MB"),
        Figure("soak_growth", "Soak: growth of memory after warm-up", last / first - 1, "share"),
        Figure("soak_peak", "Soak: largest memory after warm-up", max(warm), "MB"),
        Figure("soak_behind", "Soak: messages not yet committed at the end", behind, ""),
        Figure("soak_alerts", "Soak: alerts", len(run.read()), ""),
    ]


def seconds_to_take(run: Trial, feed: Feed, instances: int = 1) -> float:
    """Start a filter, and wait for all that is there; from its first sign of readiness on."""
    filters = [run.start() for _ in range(instances)]
    run.until(lambda: run.committed() == feed.ends, LONG_S)
    end = time.time()
    lines = itertools.chain.from_iterable(filter_.lines() for filter_ in filters)
    return end - min(stamp(each) for each in lines if each.get("event") == "partitions_assigned")


def longest_stop(run: Trial, busy: Callable[[], bool], after_s: float) -> float:
    """Longest time that a partition's offset stood still, until something is over and a bit."""
    longest, seen = 0.0, run.committed()
    moved_at = dict.fromkeys(seen, time.monotonic())
    end = time.monotonic() + after_s
    while (at := time.monotonic()) < end:
        for partition, offset in run.committed().items():
            if offset != seen[partition]:
                seen[partition], moved_at[partition] = offset, at
        longest = max(longest, *(at - moment for moment in moved_at.values()))
        assert longest < LONG_S, run.logs()
        if busy():
            end = at + after_s
        time.sleep(STEP_S)
    return longest


def shares(filter_: Filter) -> bool:
    """Whether a member has its share of the partitions."""
    begun = [line for line in filter_.lines() if line.get("event") == "restored"]
    return len(begun) >= PARTITIONS // 3


def rss_mb(filter_: Filter) -> float:
    """Resident memory of a process now."""
    lines = Path(f"/proc/{filter_.process.pid}/status").read_text().splitlines()
    (now_kb,) = (line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(now_kb) / 1024


PARTS: dict[str, Callable[[str, Path, Size], Figures]] = {
    "throughput": throughput,
    "restart": restart,
    "rebalance": rebalance,
    "burst": burst,
    "soak": soak,
    "single_messages": single_messages,
    "latency": latency,
    "rebalance_1m": rebalance_1m,
}


def main() -> int:
    """Measure on a broker of its own, print, and add to the file."""
    args = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes, too
    size = Size(
        *(args.stars, args.epochs, args.messages, args.packets),
        *(args.minutes, args.latency_minutes),
    )
    if args.quick:
        size = Size(1_200, 20, 5_000, 300, minutes=0.5, latency_minutes=0.5)
    good = True
    for name in args.names:
        with KafkaCluster() as cluster, tempfile.TemporaryDirectory() as folder:
            figures = PARTS[name](cluster.bootstrap_servers, Path(folder), size)
        for figure in figures:
            missed = figure.value > LIMITS.get(figure.name, float("inf"))
            good = good and not missed
            limit = f"  (limit {LIMITS[figure.name]:g})" if figure.name in LIMITS else ""
            print(f"{figure}{limit}{'  MISSED' if missed else ''}", flush=True)
        add(args.out, name, figures, quick=args.quick)
    return 0 if good or args.quick else 1


def add(file: Path, name: str, figures: Figures, *, quick: bool) -> None:
    """Put the figures of a part in the place of its earlier ones."""
    parts = json.loads(file.read_text()) if file.exists() else {}
    load = round(os.getloadavg()[1], 1)  # of the last five minutes, ours included
    where = {"machine": machine(), "date": now(), "code": version(), "quick": quick, "load": load}
    parts[name] = {**where, "figures": [figure.row() for figure in figures]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(parts, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    usual = Size()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.bench_service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=list(PARTS), help="what to measure")
    parser.add_argument("--stars", type=int, default=usual.stars, help="%(default)s")
    parser.add_argument("--epochs", type=int, default=usual.epochs, help="%(default)s")
    parser.add_argument("--messages", type=int, default=usual.messages, help="%(default)s")
    parser.add_argument("--packets", type=int, default=usual.packets, help="%(default)s")
    parser.add_argument("--minutes", type=float, default=usual.minutes, help="%(default)s")
    parser.add_argument(
        "--latency-minutes", type=float, default=usual.latency_minutes, help="%(default)s"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, a minute")
    parser.add_argument("--out", type=Path, default=OUT, help="%(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
