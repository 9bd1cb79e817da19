"""What travels from stage to stage: messages and the runs of one partition."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker_filter.types import Message, runs_of

WHERE = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2))


@given(st.lists(WHERE))
def test_runs_hold_all_messages_in_order_and_each_differs_from_the_one_before(
    places: list[tuple[str, int]],
) -> None:
    messages = [Message(*where, offset, None, b"") for offset, where in enumerate(places)]
    runs = list(runs_of(messages))
    assert [message for _, run in runs for message in run] == messages
    assert all({(m.topic, m.partition) for m in run} == {where} for where, run in runs)
    assert all(one != other for (one, _), (other, _) in pairwise(runs))
