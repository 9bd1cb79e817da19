"""Whose turn it is, and what becomes of copies that a store cannot take."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_filter.observe.metrics import Metrics
from broker_filter.service.snapshots import SnapshotWriter
from broker_filter.state.partition import PartitionState, SnapshotError
from broker_filter.state.store import SnapshotStore
from tests.state.test_store import make_state

A, B = ("epochs", 3), ("epochs", 4)
WAIT_S = 20.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class GatedStore:
    """Stands in for a store: holds each write until it is let go, or fails it."""

    url = "memory://test"

    def __init__(self) -> None:
        self.gate, self.began = threading.Event(), threading.Event()
        self.error: SnapshotError | None = None
        self.offsets: list[int] = []

    def write(self, state: PartitionState, *, committed: Any) -> Any:
        self.began.set()
        assert self.gate.wait(WAIT_S)
        if self.error:
            raise self.error
        self.offsets.append(state.offset)
        return ManifestLike(sum(committed.values()))


class ManifestLike:
    topic, partition, bytes = "epochs", 3, 1

    def __init__(self, offset: int) -> None:
        self.offset = offset


@pytest.fixture
def parts() -> Iterator[tuple[SnapshotWriter, GatedStore, Metrics, Clock]]:
    stub: Any = GatedStore()
    metrics, clock = Metrics(), Clock()
    writer = SnapshotWriter(stub, metrics, interval_s=60, slow_s=10, clock=clock)
    writer.start()
    yield writer, stub, metrics, clock
    stub.gate.set()
    assert writer.close(WAIT_S)


Parts = tuple[SnapshotWriter, GatedStore, Metrics, Clock]


def test_partitions_take_turns_and_one_copy_is_on_its_way_at_a_time(parts: Parts) -> None:
    writer, store, _, clock = parts
    writer.follow(A, age_s=5)
    writer.follow(B)
    assert writer.due() is None
    clock.now += 60
    assert writer.due() == A
    assert writer.due() is None  # its copy is on its way through the network's queue
    writer.submit(make_state(), {A: 40})
    assert writer.due() is None  # and is being written
    store.gate.set()
    assert writer.wait(WAIT_S)
    assert writer.due() == B


def test_a_copy_that_never_comes_does_not_stop_the_others(parts: Parts) -> None:
    writer, _, _, clock = parts
    writer.follow(A)
    clock.now += 60
    assert writer.due() == A
    clock.now += 60
    assert writer.due() == A


def test_a_copy_that_waits_is_replaced_by_a_newer_one(parts: Parts) -> None:
    writer, store, _, _ = parts
    writer.submit(make_state(10), {A: 10})
    assert store.began.wait(WAIT_S)
    for offset in (20, 30):
        writer.submit(make_state(offset), {A: offset})
    assert not writer.wait(0.01)
    store.gate.set()
    assert writer.wait(WAIT_S)
    assert store.offsets == [10, 30]


def test_a_partition_that_went_is_not_written_any_more(parts: Parts) -> None:
    writer, store, _, clock = parts
    writer.follow(A)
    writer.submit(make_state(10), {A: 10})
    assert store.began.wait(WAIT_S)
    writer.submit(make_state(20), {A: 20})
    writer.forget([A])
    store.gate.set()
    assert writer.wait(WAIT_S)
    assert store.offsets == [10]
    clock.now += 1000
    assert writer.due() is None


def test_a_failure_is_counted_and_tried_again_at_the_next_turn(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    writer, store, metrics, clock = parts
    store.gate.set()
    store.error = SnapshotError("full", "memory://test: No space left")
    writer.follow(A)
    clock.now += 60
    assert writer.due() == A
    with caplog.at_level(logging.WARNING):
        writer.submit(make_state(), {A: 40})
        assert writer.wait(WAIT_S)
    assert "No space left" in caplog.text
    assert metrics.value("snapshots_total", outcome="failed") == 1
    writer.report()
    assert metrics.value("snapshot_age_seconds") == 60
    assert writer.due() is None
    store.error = None
    clock.now += 60
    assert writer.due() == A
    writer.submit(make_state(), {A: 40})
    assert writer.wait(WAIT_S)
    assert metrics.value("snapshots_total", outcome="written") == 1
    assert metrics.value("snapshot_seconds") == 1
    writer.report()
    assert metrics.value("snapshot_age_seconds") == 0


def test_the_age_is_that_of_the_oldest_and_of_ours_only(parts: Parts) -> None:
    writer, _, metrics, clock = parts
    writer.report()
    assert metrics.value("snapshot_age_seconds") == 0
    writer.follow(A, age_s=100)
    writer.follow(B, age_s=-5)  # from a clock ahead of ours
    clock.now += 7
    writer.report()
    assert metrics.value("snapshot_age_seconds") == 107
    writer.forget([A])
    writer.report()
    assert metrics.value("snapshot_age_seconds") == 7


def test_a_slow_store_is_told_once(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    writer, store, _, clock = parts
    writer.submit(make_state(), {A: 40})
    assert store.began.wait(WAIT_S)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now += 6
            writer.report()
    assert [record.message for record in caplog.records if "slow" in record.message] != []
    assert len(caplog.records) == 1


def test_closing_does_not_wait_longer_than_told() -> None:
    stub: Any = GatedStore()
    writer = SnapshotWriter(stub, Metrics(), interval_s=60)
    writer.start()
    writer.submit(make_state(), {A: 40})
    assert stub.began.wait(WAIT_S)
    assert not writer.close(0.01)
    stub.gate.set()
    assert writer.wait(WAIT_S)


def test_what_it_writes_can_be_loaded(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    writer = SnapshotWriter(store, Metrics(), interval_s=60)
    writer.start()
    writer.submit(make_state(), {A: 45})
    assert writer.close(WAIT_S)
    manifest, state = store.load(A, window_days=20.0, at_most={A: 45})
    assert (manifest.committed, state.offset) == ({"epochs": 45}, 40)
