"""A real process on a real Kafka protocol gets SIGTERM: it settles what it took and exits 0."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_avro
from broker_filter.config import Kafka
from broker_filter.decode.native import encode_photometry
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.sink import KafkaSink
from broker_filter.schemas import schema_header
from tests import build

PATIENCE_S = 120.0
TOPICS = {"epochs": 2, "microlensing-alerts": 1, "microlensing-dead-letters": 1}
STARS = 6


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(TOPICS) as broker:
        yield broker


class Filter:
    """The running process and what it logs."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def lines(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in self._log.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def logged(self, event: str) -> dict[str, Any] | None:
        return next((line for line in self.lines() if line["event"] == event), None)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def answer(self, page: str) -> str:
        port = (self.logged("observing") or {})["port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_S)


@contextmanager
def running(
    broker: EmbeddedBroker, entry: Path, folder: Path, until: str = "started"
) -> Iterator[Filter]:
    """The filter as a process of its own, which does nothing of itself before it is stopped."""
    config = {
        "kafka": {
            "bootstrap_servers": broker.bootstrap_servers,
            "group_id": "stop",
            "input_topics": ["epochs"],
            "commit_interval_s": 60,
        },
        "model": {"path": str(entry), "threads": 1},
        # The network is untrained: every window is an alert, and none before the end.
        "alert": {"log10_k": -10, "posterior_samples": 20},
        "schedule": {"every_days": 0, "min_points": 5},
        "batch": {"flush_windows": 1_000_000, "max_wait_s": 60},
        "metrics": {"port": 0},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "broker_filter.cli", "run", "--config"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, str(folder / "config.yaml")],
            stderr=log,
            stdout=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            filter_ = Filter(process, folder / "log")
            filter_.until(lambda: filter_.logged(until))
            yield filter_
        finally:
            process.kill()
            process.wait()


def publish(broker: EmbeddedBroker) -> dict[int, int]:
    """Ten epochs of each of some stars; gives the number of messages of each partition."""
    sent = {0: 0, 1: 0}
    with closing(KafkaSink(kafka(broker))) as sink:
        for i in range(10 * STARS):
            star, mjd = f"star {i % STARS}", 60_000 + 0.1 * i
            photometry = build.photometry(mjd, star, ref_flux=1000.0, ref_flux_err=1.0)
            partition = (i % STARS) % 2
            value = encode_photometry(photometry)
            sink.produce("epochs", star.encode(), value, (schema_header("photometry"),), partition)
            sent[partition] += 1
    return sent


def kafka(broker: EmbeddedBroker, topic: str = "epochs", group: str = "stop") -> Kafka:
    return Kafka(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group,
        input_topics=(topic,),
        alert_topic="unused",
    )


def alerts_of(broker: EmbeddedBroker, stars: int) -> list[Alert]:
    """What the alert topic holds, read until so many stars have come."""
    alerts: list[Alert] = []
    with closing(KafkaSource(kafka(broker, "microlensing-alerts", "reader"))) as source:
        deadline = time.monotonic() + PATIENCE_S
        while len({alert.star_id for alert in alerts}) < stars and time.monotonic() < deadline:
            alerts += [from_avro(message.value or b"") for message in source.poll(100, 0.2)]
    return alerts


def test_sigterm_ends_an_idle_filter_with_status_0(
    broker: EmbeddedBroker, tiny_entry: Path, tmp_path: Path
) -> None:
    with running(broker, tiny_entry, tmp_path) as filter_:
        filter_.until(lambda: filter_.answer("readyz") == "ok\n")
        assert filter_.stop() == 0
        assert [line["event"] for line in filter_.lines()][-1] == "stopped"
        assert all({"time", "level", "logger"} <= set(line) for line in filter_.lines())


def test_sigterm_settles_what_was_taken(
    broker: EmbeddedBroker, tiny_entry: Path, tmp_path: Path
) -> None:
    sent = publish(broker)
    taken = f'records_consumed_total{{topic="epochs"}} {float(sum(sent.values()))}'
    with (
        closing(GroupProgress(kafka(broker))) as progress,
        running(broker, tiny_entry, tmp_path) as filter_,
    ):
        filter_.until(lambda: taken in filter_.answer("metrics"))
        assert [progress(("epochs", partition)) for partition in sent] == [0, 0]
        assert filter_.stop() == 0
        assert {p: progress(("epochs", p)) for p in sent} == sent
    alerts = alerts_of(broker, STARS)
    assert {alert.star_id for alert in alerts} == {f"star {i}" for i in range(STARS)}
    assert len({alert.alert_id for alert in alerts}) == len(alerts)


def test_sigterm_before_the_start_ends_with_status_0(
    broker: EmbeddedBroker, tiny_entry: Path, tmp_path: Path
) -> None:
    with running(broker, tiny_entry, tmp_path, until="observing") as filter_:
        assert filter_.logged("started") is None
        assert filter_.stop() == 0
        assert filter_.logged("started") is None
