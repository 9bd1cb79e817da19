"""Single messages of constant stars through the whole service on a real Kafka.

Parts of `tests.bench.bench_service`. Filters are frozen (SIGSTOP) while a topic is filled, so that
what is timed is their work alone; time in which the machine gave them no core is told apart, as
other programs may share it.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from broker_filter.config import Batch, ScheduleSettings
from broker_filter.decode.native import encode_photometry
from broker_filter.decode.native_reader import layout_of
from tests import build
from tests.bench.bench_window import START
from tests.bench.cpu_quota import limited, where
from tests.bench.figures import Figure
from tests.bench.service_load import (
    LONG_S,
    NO_LOOKS,
    PARTITIONS,
    Feed,
    Size,
    going_on,
    moved,
    started,
    store,
    ticks,
)
from tests.integration.harness import Filter, Trial
from tests.kafka_broker import free_ports

__all__ = ["latency", "rebalance_1m", "single_messages"]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CADENCE_DAYS = 0.02
LIMIT_CORES = 0.4
"""So much of two cores that the broker can keep up with two instances."""
PLAIN = {"schedule": ScheduleSettings().model_dump(), "batch": Batch().model_dump()}
"""As users have it, not as fault tests do."""

RAW = """
import json, sys, time
import confluent_kafka as ck
servers, topic, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = ck.Consumer({
    "bootstrap.servers": servers, "group.id": topic + "-raw", "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "log_level": 0,
})
consumer.subscribe([topic])
done = 0
while not done:
    done = len(consumer.consume(10_000, 0.1))
first, began, cpu = done, time.monotonic(), time.process_time()
while done < n:
    for message in consumer.consume(10_000, 0.1):
        done += message.error() is None
        message.value()
spent = time.monotonic() - began, time.process_time() - cpu
print(json.dumps([(n - first) / spent[0], 1e6 * spent[1] / (n - first)]))
"""
"""Reads a topic with the Kafka client and does nothing; messages a second, CPU us of each."""

Figures = list[Figure]


@dataclass(slots=True)
class ConstantStars:
    """So many stars, an epoch every 0.02 days; a few brighten by half, at times of their own.

    Parameters
    ----------
    stars : int
    lensed : int
        How many of them brighten, for a day each.
    days : float
        Time over which their peaks are spread.
    """

    stars: int
    lensed: int = 0
    days: float = 1.0
    _parts: tuple[bytes, ...] = field(init=False)
    _noise: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        one = encode_photometry(
            build.photometry(START, "star 00000000", ref_flux=1000.0, ref_flux_err=1.0)
        )
        at = layout_of(one)
        self._parts = (
            one[: at.star.start],
            one[at.star.stop : at.times.start],
            one[at.times.stop : at.flux.start],
            one[at.flux.stop :],
        )
        self._noise = np.random.default_rng(1).normal(1000, 10, 1 << 16)

    def message(self, n: int) -> tuple[int, bytes]:
        """Partition and bytes of the ``n``-th message: one epoch of one star."""
        epoch, star = divmod(n, self.stars)
        mjd, flux = START + CADENCE_DAYS * epoch, float(self._noise[(7919 * n) & 0xFFFF])
        if star < self.lensed:
            peak = START + 1.5 + self.days * star / self.lensed
            flux += 500 * np.exp(-0.5 * ((mjd - peak) / 0.3) ** 2)
        head, middle, tail, end = self._parts
        name, time_, brightness = (
            b"star %08d" % star,
            struct.pack("<d", mjd),
            struct.pack("<f", flux),
        )
        return star % PARTITIONS, b"".join((head, name, middle, time_, tail, brightness, end))


@dataclass(frozen=True, slots=True)
class Spent:
    """What a filter has spent.

    Parameters
    ----------
    cpu_s : float
        Processor time of all its threads.
    waited_s : float
        Time in which its main thread could have run and had no core.
    """

    cpu_s: float
    waited_s: float

    @classmethod
    def of(cls, filter_: Filter) -> Spent:
        """Until now."""
        folder = Path(f"/proc/{filter_.process.pid}")
        user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        waited_ns = (folder / "task" / folder.name / "schedstat").read_text().split()[1]
        return cls((int(user) + int(system)) / TICKS_PER_S, int(waited_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second, those without other programs, and CPU microseconds of a message."""

    rate: float
    alone: float
    cpu_us: float


def single_messages(servers: str, folder: Path, size: Size) -> Figures:
    """One instance, two, one, two; and the Kafka client alone on the same topic."""
    one: list[Rate] = []
    two: list[Rate] = []
    raw: list[tuple[float, float]] = []
    for rates, instances in ((one, 1), (two, 2)) * 2:
        with frozen(servers, folder, instances) as run:
            fill(run, ConstantStars(size.messages // 30), size.messages)
            rates.append(taken(run, size.messages))
            raw.append(consumed(servers, run.input, size.messages))
    client = mean([rate for rate, _ in raw]), mean([cpu for _, cpu in raw])
    rate, alone, cpu = (mean([getattr(r, name) for r in one]) for name in Rate.__slots__)
    both, cpu_both = mean([r.rate for r in two]), mean([r.cpu_us for r in two])
    reader = "the Kafka client alone"
    return [
        Figure(
            "service_kafka",
            "Single messages of constant stars per second, exactly once",
            *(rate, "messages/s", reader, client[0]),
        ),
        Figure(
            "service_kafka_alone",
            "The same without the time in which other programs had the core",
            *(alone, "messages/s"),
        ),
        Figure(
            "service_cpu",
            "Processor time of one of these messages",
            *(cpu, "us", reader, client[1]),
        ),
        Figure(
            "instances_2",
            "The same by two instances that share the partitions",
            *(both, "messages/s", "one instance", rate),
        ),
        Figure(
            "instances_2_cpu",
            "Processor time of one of these messages, two instances",
            *(cpu_both, "us", "one instance", cpu),
        ),
        *_of_limited(servers, folder, size),
    ]


def _of_limited(servers: str, folder: Path, size: Size) -> list[Figure]:
    """One instance and two, each with a container's limit, which leaves the broker its cores.

    Without limits two instances and the broker want more than two cores, so what a second one adds
    cannot be seen there.
    """
    if where() is None:
        print("instances_2_limited: left out, no control group may be made here", flush=True)
        return []
    rates: dict[int, list[float]] = {1: [], 2: []}
    for instances in (1, 2) * 2:
        with frozen(servers, folder, instances) as run:
            fill(run, ConstantStars(size.messages // 30), size.messages)
            with limited([filter_.process.pid for filter_ in run.filters], LIMIT_CORES):
                rates[instances].append(taken(run, size.messages).rate)
    one, two = mean(rates[1]), mean(rates[2])
    label = f"The same by two instances of {LIMIT_CORES:g} core each"
    rival = f"one instance of {LIMIT_CORES:g} core"
    return [Figure("instances_2_limited", label, two, "messages/s", rival, one)]


@contextmanager
def frozen(servers: str, folder: Path, instances: int) -> Iterator[Trial]:
    """Filters that have their partitions, and stand still until `taken`."""
    kafka = {
        "delivery": "exactly_once",
        "commit_interval_s": 2.0,
        "session_timeout_ms": 300_000,
        "options": {},
    }
    kept = {"snapshot": {"url": None}, "kafka": kafka, "forks": True}
    with started(servers, folder, **kept, **PLAIN) as run:
        for _ in range(instances):
            run.start()
        share = PARTITIONS // instances
        run.until(lambda: all(held(filter_) == share for filter_ in run.filters), LONG_S)
        # Nothing is committed before the model is ready.
        first = fill(run, ConstantStars(PARTITIONS), PARTITIONS)
        run.until(lambda: run.committed() == first.ends, LONG_S)
        for filter_ in run.filters:
            filter_.send(signal.SIGSTOP)
        yield run


def held(filter_: Filter) -> int:
    """How many partitions a filter has."""
    signs = {"partitions_assigned": 1, "partitions_revoked": -1}
    found = [(signs.get(line.get("event", ""), 0), line) for line in filter_.lines()]
    return sum(sign * line["count"] for sign, line in found if sign)


def fill(run: Trial, sky: ConstantStars, messages: int) -> Feed:
    """Publish so many messages."""
    feed = Feed(run)
    for n in range(messages):
        partition, value = sky.message(n)
        feed.send(partition, "photometry", value)
    feed.flush()
    return feed


def taken(run: Trial, messages: int) -> Rate:
    """Let the filters go, until all is committed."""
    before = [Spent.of(filter_) for filter_ in run.filters]
    done = PARTITIONS + messages
    began = time.monotonic()
    for filter_ in run.filters:
        filter_.send(signal.SIGCONT)
    run.until(lambda: sum(run.committed().values()) == done, LONG_S)
    took = time.monotonic() - began
    after = [Spent.of(filter_) for filter_ in run.filters]
    cpu_s = sum(b.cpu_s - a.cpu_s for a, b in zip(before, after, strict=True))
    waited_s = mean([b.waited_s - a.waited_s for a, b in zip(before, after, strict=True)])
    for filter_ in run.filters:
        assert filter_.stop() == 0, run.logs()
    return Rate(messages / took, messages / (took - waited_s), 1e6 * cpu_s / messages)


def consumed(servers: str, topic: str, messages: int) -> tuple[float, float]:
    """What the Kafka client does alone: messages a second, CPU us of one."""
    command = [sys.executable, "-c", RAW, servers, topic, str(messages)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate, cpu_us = json.loads(output)
    return rate, cpu_us


def latency(servers: str, folder: Path, size: Size) -> Figures:
    """Half of what one instance takes, with an event now and then, as users have it set."""
    (port,) = free_ports(1)
    metrics = {"enabled": True, "port": port}
    epochs = seconds = round(60 * size.latency_minutes)
    with frozen(servers, folder, 1) as run:  # windows as long as they become below
        fill(run, ConstantStars(size.messages // epochs), size.messages)
        load = taken(run, size.messages).rate / 2
    sky = ConstantStars(round(load), seconds // 15, days=CADENCE_DAYS * epochs - 2)
    kafka = {"delivery": "exactly_once", "commit_interval_s": 2.0}
    kept = {"snapshot": {"url": None}, "kafka": kafka, "metrics": metrics, "forks": True}
    with started(servers, folder, **kept, **PLAIN) as run:
        feed, filter_ = Feed(run), run.start()
        run.until(lambda: held(filter_) == PARTITIONS)
        sent = 0

        def publish(_: int) -> None:
            nonlocal sent
            for n in range(sent, sent + round(load)):
                feed.send(*_with_schema(sky.message(n)))
            sent += round(load)

        with going_on(publish):
            for _ in ticks(seconds, 1.0):
                pass
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        assert filter_.stop() == 0, run.logs()
        taken_s = [line["seconds"] for line in filter_.lines() if line.get("event") == "alert"]
    return [
        Figure("latency_load", "Epoch to alert: load, half of what is taken", load, "messages/s"),
        Figure("latency_sent", "Epoch to alert: messages published", sent / seconds, "messages/s"),
        *_percentiles(taken_s),
        *_stages(text),
    ]


def _with_schema(message: tuple[int, bytes]) -> tuple[int, str, bytes]:
    partition, value = message
    return partition, "photometry", value


def _percentiles(taken_s: list[float]) -> Figures:
    """Of the times from epochs to their alerts."""
    half, most = np.quantile(taken_s, [0.5, 0.99])
    return [
        Figure("latency_alerts", "Epoch to alert: alerts", len(taken_s), ""),
        Figure("latency_p50", "Epoch to alert: half take less than", float(half), "s"),
        Figure("latency_p99", "Epoch to alert: 99 % take less than", float(most), "s"),
    ]


def _stages(text: str) -> Figures:
    """Median and 99 % of the histograms that say where an alert's time goes."""
    found = []
    for stage in ("scan", "evidence", "posterior", "certified", "event", "rivals"):
        bins = histogram(text, "inference_seconds", {"stage": stage})
        for share, words in ((0.5, "half take"), (0.99, "99 % take")):
            label = f"Epoch to alert, {stage} of a batch or window: {words} less than"
            if bins and bins[-1][1]:
                name = f"latency_{stage}_p{100 * share:.0f}"
                found.append(Figure(name, label, quantile(bins, share), "s"))
    return found


def histogram(text: str, name: str, labels: dict[str, str]) -> list[tuple[float, float]]:
    """Bounds and counts below them of one series of the filter's metrics."""
    return [
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"broker_filter_{name}_bucket" and labels.items() <= sample.labels.items()
    ]


def quantile(bins: list[tuple[float, float]], share: float) -> float:
    """Where a share of all values lies below, linear within a bucket; infinite past the last."""
    wanted, low, below = share * bins[-1][1], 0.0, 0.0
    for bound, count in bins:
        if count >= wanted:
            inside = (wanted - below) / max(count - below, 1)
            return float(low + (bound - low) * inside) if np.isfinite(bound) else float("inf")
        low, below = bound, count
    return float("inf")


def rebalance_1m(servers: str, folder: Path, size: Size) -> Figures:
    """Stop one of two members, until the other has read on in all partitions."""
    stars, epochs = 10 * size.stars, 3
    kept = {"schedule": NO_LOOKS, "snapshot": store(folder), "forks": True}
    with started(servers, folder, **kept) as run:
        feed, filters = Feed(run), [run.start(), run.start()]
        feed.exposures(stars, 0, epochs)
        run.until(lambda: run.committed() == feed.ends, LONG_S)
        began = time.monotonic()
        filters[0].send(signal.SIGTERM)
        filters[0].process.wait(LONG_S)
        left = time.monotonic() - began
        before = dict(feed.ends)
        feed.exposures(stars, epochs, epochs + 1)
        run.until(lambda: moved(run.committed(), before), LONG_S)
        moved_on = time.monotonic() - began
        run.until(lambda: run.committed() == feed.ends, LONG_S)
        assert held(filters[1]) == PARTITIONS
        assert filters[1].stop() == 0, run.logs()
    return [
        Figure("rebalance_1m_stars", "A member leaves: stars of the group", stars, ""),
        Figure("rebalance_1m_left", "A member leaves: its drain and snapshots", left, "s"),
        Figure(
            "rebalance_1m",
            "A member leaves: until the other has all stars and reads on everywhere",
            *(moved_on, "s"),
        ),
    ]


def mean(values: list[float]) -> float:
    """Of a few runs."""
    return float(np.mean(values))
