"""Messages of topics that share their stars come in order of time, and are not held for nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from broker_filter.service.time_order import AHEAD_BYTES, TimeOrder
from broker_filter.types import Message, Partition

A, B, ALONE = ("a", 0), ("b", 0), ("alone", 0)
OURS = {A, B, ALONE}


def order() -> TimeOrder:
    return TimeOrder(lambda where: where if where[0] == "alone" else ("^.$", where[1]))


def message(where: Partition, offset: int, stamp: int, size: int = 1) -> Message:
    return Message(*where, offset, None, bytes(size), stamp)


def stamps(
    made: TimeOrder,
    *messages: Message,
    owned: Collection[Partition] = OURS,
    ended: Collection[Partition] = (),
    live_from: Mapping[Partition, int] | None = None,
) -> list[int]:
    return [m.timestamp_ms for m in made.sort(messages, owned, ended, live_from or {})]


def test_a_message_waits_until_none_before_it_can_come() -> None:
    made = order()
    assert stamps(made, message(B, 0, 5), message(B, 1, 7)) == []
    assert made.waiting() == {B}
    assert stamps(made, message(A, 0, 4), message(A, 1, 6)) == [4, 5, 6]
    assert stamps(made, ended=[A]) == [7]
    assert made.waiting() == set()


def test_a_topic_that_shares_with_nobody_passes() -> None:
    made = order()
    assert stamps(made, message(ALONE, 0, 9), message(B, 0, 5), message(ALONE, 1, 8)) == [9, 8]


def test_one_whose_others_are_elsewhere_or_at_their_end_does_not_wait() -> None:
    assert stamps(order(), message(B, 0, 5), owned=[B, ALONE]) == [5]
    assert stamps(order(), message(B, 0, 5), ended=[A]) == [5]
    assert stamps(order(), message(("b", 1), 0, 5)) == [5]


def test_what_is_silent_comes_before_what_counts() -> None:
    made = order()
    late = [message(A, 0, 1), message(B, 0, 2), message(B, 1, 3)]
    assert stamps(made, *late, ended=[A, B], live_from={B: 1}) == [2, 1, 3]


def test_a_partition_that_is_far_ahead_rests() -> None:
    made = order()
    stamps(made, message(B, 0, 5, AHEAD_BYTES), message(B, 1, 6))
    assert made.ahead() == {B}
    stamps(made, message(A, 0, 5), message(A, 1, 9))
    assert made.ahead() == set()


def test_what_went_is_forgotten_and_holds_up_nobody() -> None:
    made = order()
    stamps(made, message(B, 0, 5))
    made.drop([B, ("never", 3)])
    assert stamps(made, message(A, 0, 9), owned=[A]) == [9]
    stamps(made, message(B, 0, 5))
    made.clear()
    assert made.waiting() == made.ahead() == set()
    assert stamps(made, ended=[A, B]) == []


@given(st.lists(st.booleans(), max_size=40))
def test_however_messages_come_they_leave_sorted_and_whole(steps: list[bool]) -> None:
    made, offsets, found = order(), {A: 0, B: 0}, []
    for first in steps:
        where = A if first else B
        # Each topic is in order of time; the two overlap.
        found += stamps(made, message(where, offsets[where], 3 * offsets[where] + first))
        offsets[where] += 1
    found += stamps(made, ended=[A, B])
    wanted = [3 * n + 1 for n in range(offsets[A])] + [3 * n for n in range(offsets[B])]
    assert found == sorted(wanted)
