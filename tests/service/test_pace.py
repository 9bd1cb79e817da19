"""Batches are as large as are evaluated in about `BATCH_S`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.service.pace import BATCH_S, LEAST, Pace


def test_a_slow_batch_makes_the_next_one_as_small_as_fits() -> None:
    pace = Pace(2048)
    assert not pace.is_slow
    pace.note(400, 100 * BATCH_S)
    assert pace.windows == LEAST
    pace.note(4, BATCH_S / 2)
    assert pace.windows == 2 * LEAST
    pace.note(8, 1.6 * BATCH_S)
    assert pace.windows == 5
    assert pace.is_slow


def test_it_becomes_faster_again_also_where_nothing_was_due() -> None:
    pace = Pace(100)
    pace.note(100, 1000 * BATCH_S)
    sizes = []
    while pace.is_slow:
        pace.note(0, 0.0)
        sizes.append(pace.windows)
    assert sizes == [8, 16, 32, 64, 100]


@pytest.mark.parametrize("most", [1, 3, 2048])
@given(batches=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), max_size=20))
def test_it_stays_between_the_least_and_the_most(
    most: int, batches: list[tuple[int, float]]
) -> None:
    pace = Pace(most)
    for windows, seconds in batches:
        pace.note(windows, seconds)
        assert min(LEAST, most) <= pace.windows <= most
