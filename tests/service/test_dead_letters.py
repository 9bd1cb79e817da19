"""A stream that is bad as a whole stops the consumer; a bad hour of long ago does not."""

from __future__ import annotations

import pytest

from broker_filter.errors import StateError
from broker_filter.service.dead_letters import MEMORY, StreamGuard
from broker_filter.types import DeadLetter
from tests import build


def poll(guard: StreamGuard, count: int, dead: int) -> None:
    """Count some messages, the bad ones spread evenly."""
    messages = [build.message(offset=n) for n in range(count)]
    every = count // dead if dead else 0
    bad = messages[::every][:dead] if dead else []
    guard.count(messages, [DeadLetter(m, "truncated", "at byte 3") for m in bad])


def test_the_share_is_taken_over_the_newest_messages() -> None:
    guard = StreamGuard(0.01, 1000)
    for _ in range(100):
        poll(guard, 1000, 0)
    # 1.5 % of the newest, and next to nothing of all since the start.
    for _ in range(6):
        poll(guard, 1000, 15)
    with pytest.raises(StateError, match=r"could not be used.*truncated: at byte 3.*max_ratio"):
        poll(guard, 1000, 15)


def test_what_is_bad_is_forgotten_in_time() -> None:
    def bad_hours(count: int, good_polls: int) -> None:
        guard = StreamGuard(0.01, 1000)
        poll(guard, MEMORY, 0)
        for _ in range(count):
            poll(guard, 1000, 90)
            for _ in range(good_polls):
                poll(guard, 1000, 0)

    bad_hours(50, good_polls=MEMORY // 1000)
    with pytest.raises(StateError, match="max_ratio"):
        bad_hours(2, good_polls=0)


def test_a_few_bad_messages_at_the_start_say_little() -> None:
    guard = StreamGuard(0.01, 1000)
    poll(guard, 10, 10)
    with pytest.raises(StateError, match="11 of 20"):
        poll(guard, 10, 1)


def test_a_row_goes_on_over_polls() -> None:
    guard = StreamGuard(1.0, 30)
    poll(guard, 20, 20)
    with pytest.raises(StateError, match="max_consecutive"):
        poll(guard, 10, 10)
