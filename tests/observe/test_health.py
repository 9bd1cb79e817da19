"""Liveness and readiness."""

from __future__ import annotations

import pytest

from broker_filter.observe.health import Health


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock=clock)


def test_a_stall_ends_with_the_next_pass(health: Health, clock: Clock) -> None:
    health.beat()
    clock.now += 29
    assert health.liveness() == (True, "ok")
    assert health.stalled_s() == 0
    clock.now += 2
    assert health.liveness() == (False, "no pass of the main loop for 31 s")
    assert health.stalled_s() == 31
    health.beat()
    assert health.liveness() == (True, "ok")


def test_a_start_may_take_longer_than_a_pass(health: Health, clock: Clock) -> None:
    clock.now += 299
    assert health.liveness() == (True, "ok")
    clock.now += 2
    assert health.liveness() == (False, "no pass of the main loop for 301 s")


def test_ready_once_nothing_is_missing(health: Health) -> None:
    assert health.readiness() == (False, "waiting for model, partitions, broker")
    for need in ("model", "partitions", "broker"):
        health.set_ready(need)
    assert health.readiness() == (True, "ok")
    health.set_ready("partitions", False)
    assert health.missing() == ["partitions"]
    assert health.readiness() == (False, "waiting for partitions")


def test_an_unknown_need_is_refused(health: Health) -> None:
    with pytest.raises(KeyError, match="modle"):
        health.set_ready("modle")
