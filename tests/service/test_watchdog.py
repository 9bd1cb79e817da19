"""The watchdog reports a loop that hangs, once, and ends a process that stays stuck."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker_filter.service.watchdog import EXIT_STUCK, Watchdog, stacks


@contextmanager
def hanging(name: str) -> Iterator[None]:
    """A thread that waits in a function of that name of ours."""
    started, end = threading.Event(), threading.Event()

    def stand_still() -> None:
        started.set()
        end.wait()

    thread = threading.Thread(target=stand_still, name=name)
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_stacks_name_every_thread_and_where_it_stands() -> None:
    with hanging("inference"):
        text = stacks()
    assert "thread inference:" in text
    assert "stand_still" in text
    assert "thread MainThread:" in text


def test_a_stall_is_told_once_with_all_stacks(caplog: pytest.LogCaptureFixture) -> None:
    stalled, ends = [0.0], []
    dog = Watchdog(lambda: stalled[0], 100, end=ends.append)
    with caplog.at_level(logging.ERROR), hanging("restore"):
        dog.check()
        assert caplog.records == []
        for stalled[0] in (31.0, 32.0, 33.0):
            dog.check()
        assert len(caplog.records) == 1
        assert "stand_still" in caplog.records[0].getMessage()
        stalled[0] = 0.0
        dog.check()
        stalled[0] = 31.0
        dog.check()
    assert len(caplog.records) == 2
    assert ends == []


def test_a_stall_beyond_the_limit_ends_the_process() -> None:
    ends: list[int] = []
    Watchdog(lambda: 101.0, 100, end=ends.append).check()
    assert ends == [EXIT_STUCK]
    assert EXIT_STUCK != 0


def test_it_looks_by_itself_until_it_is_left() -> None:
    looks = threading.Semaphore(0)

    def stalled_s() -> float:
        looks.release()
        return 0.0

    with Watchdog(stalled_s, 100, check_s=0.001):
        for _ in range(3):
            assert looks.acquire(timeout=10)
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())
