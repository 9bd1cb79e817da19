"""Pauses grow up to a bound, the limit is kept, and success starts afresh."""

from __future__ import annotations

import pytest

from broker_filter.backoff import Backoff
from broker_filter.errors import StateError, TransientError


class Clock:
    """Time that moves on when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pauses(backoff: Backoff, clock: Clock) -> list[float]:
    """The pauses up to the limit, each waited for."""
    found: list[float] = []
    while True:
        try:
            found.append(backoff.failed(StateError("shut")))
        except StateError:
            return found
        assert backoff.failing()
        assert not backoff.ready()
        clock.now += found[-1]
        assert backoff.ready()


def test_pauses_grow_and_end_at_the_limit() -> None:
    clock = Clock()
    found = pauses(Backoff(60, clock=clock), clock)
    assert clock.now == pytest.approx(160)
    assert found[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert found[:-1] == sorted(found[:-1])
    assert max(found) == 5.0


def test_first_and_longest_pause_can_be_set() -> None:
    clock = Clock()
    found = pauses(Backoff(4, first_s=0.5, longest_s=1.0, clock=clock), clock)
    assert found == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.5])


def test_success_starts_afresh() -> None:
    clock = Clock()
    backoff = Backoff(60, clock=clock)
    first = backoff.failed(TransientError("a"))
    clock.now += 59
    backoff.succeeded()
    assert not backoff.failing()
    assert backoff.ready()
    clock.now += 1000
    assert backoff.failed(TransientError("b")) == first
