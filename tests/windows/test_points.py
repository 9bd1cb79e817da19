"""Paged rows of points against plain lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.windows.points import PagedPoints

ROWS = 4
steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "drop", "cut", "keep"]),
        st.integers(0, ROWS - 1),
        st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 130]),
    ),
    max_size=40,
)


def append(held: PagedPoints, row: int, start: float, n: int) -> list[float]:
    """Append ``n`` points of consecutive times; the times."""
    time, at, where = start + np.arange(n), int(held.count[row]), np.array([row])
    held.lengthen(where, np.array([at + n]))
    index = held.index(np.full(n, row), at + np.arange(n))
    held.write(index, (time, *time.astype(np.float32)[None].repeat(2, 0), np.full(n, 7, np.uint16)))
    return time.tolist()


@given(steps)
@settings(max_examples=100, deadline=None)
def test_rows_hold_what_plain_lists_would(steps: list[tuple[str, int, int]]) -> None:
    held, lists, time = PagedPoints(), [[] for _ in range(ROWS)], 1.0
    held.add_rows(ROWS)
    for kind, row, n in steps:
        where, n_held = np.array([row]), len(lists[row])
        if kind == "append":
            lists[row] += append(held, row, time, n)
            time += n
        elif kind == "drop":
            held.drop_front(where, np.array([min(n, n_held)]))
            lists[row] = lists[row][min(n, n_held) :]
        elif kind == "cut" and n_held:
            held.resize(where, np.array([min(n, n_held)]))
            lists[row] = lists[row][:n]
        elif kind == "keep":  # without one row, and with a new one at the end
            held.keep(np.delete(np.arange(ROWS), row))
            held.add_rows(ROWS)
            lists = [*lists[:row], *lists[row + 1 :], []]
        for i, expected in enumerate(lists):
            index = held.index(np.full(len(expected), i), np.arange(len(expected)))
            found = held.columns(index)
            assert found[0].tolist() == found[1].tolist() == expected
    assert held.points_in_use <= sum(len(values) + 2 * 64 for values in lists if values)


def test_a_row_of_few_points_pays_for_few_and_moves_when_they_are_many() -> None:
    held = PagedPoints()
    held.add_rows(1)
    times = append(held, 0, 1.0, 8)
    assert held.points_in_use == 8
    times += append(held, 0, 9.0, 1)
    assert held.points_in_use == 64
    held.drop_front(np.array([0]), np.array([9]))
    assert held.points_in_use == 0


def test_a_full_page_is_searched_to_its_end_beside_rows_that_take_longer() -> None:
    held = PagedPoints()
    held.add_rows(2)
    for row in range(2):
        append(held, row, 1.0, 64)
    bound = np.array([100.0, 0.0])
    found = held.search(np.arange(2), lambda index: held.time(index) < bound)
    assert found.tolist() == [64, 0]


def test_a_search_from_the_end_finds_what_a_search_of_all_finds() -> None:
    held = PagedPoints()
    sizes = [0, 1, 15, 16, 17, 200]
    held.add_rows(len(sizes))
    for row, size in enumerate(sizes):
        if size:
            append(held, row, 0.0, size)
    row = np.repeat(np.arange(len(sizes)), 202)
    wanted = np.tile(np.arange(202) - 0.5, len(sizes))
    found = held.search(row, lambda index: held.time(index) < wanted, last_few=True)
    assert found.tolist() == np.minimum(np.arange(202), np.array(sizes)[:, None]).ravel().tolist()
