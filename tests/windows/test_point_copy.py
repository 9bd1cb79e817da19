"""Copies of pages show the moment at which they were made, whatever is written since."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.state.columns import Column, arrays_of
from broker_filter.windows import point_copy as page_copy
from broker_filter.windows.point_copy import PageCopy
from broker_filter.windows.points import PagedPoints

PAGES, PAGE = 9, 4
places = st.lists(st.integers(0, PAGES * PAGE - 1), min_size=1, max_size=8)


@given(st.lists(places, max_size=12), st.integers(1, 4), st.data())
def test_writes_between_the_slices_do_not_show(
    writes: list[list[int]], slice_pages: int, data: st.DataObject
) -> None:
    live, then = np.arange(PAGES * PAGE, dtype=np.float64), np.arange(PAGES * PAGE)
    copy = PageCopy([live], PAGES - 1, PAGE)  # the last page came later
    early = data.draw(st.integers(0, len(writes)))

    def write(_: float = 0.0) -> None:
        if writes:
            place = np.array(writes.pop())
            copy.keep(place)
            live[place] = -1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_copy, "SLICE_PAGES", slice_pages)
        patch.setattr(page_copy.time, "sleep", write)
        for _ in range(early):
            write()
        got = copy.columns()[0].copy()
        while writes:
            write()
    assert got.tolist() == then[:-PAGE].tolist()
    assert copy.columns()[0].tolist() == got.tolist()


def filled(rows: int, points: int) -> PagedPoints:
    held = PagedPoints()
    held.add_rows(rows)
    for i in range(points):
        grow(held, rows, i)
    return held


def grow(held: PagedPoints, rows: int, i: int) -> None:
    """Append one point to each row and overwrite its first."""
    row = np.arange(rows)
    held.lengthen(row, np.full(rows, i + 1))
    for position in (i, 0):
        columns = (row + i / 8, *np.full((2, rows), i, np.float32), np.full(rows, i, np.uint16))
        held.write(held.index(row, position), columns)


def shown(columns: dict[str, Column]) -> dict[str, bytes]:
    return {name: column.tobytes() for name, column in arrays_of(columns).items()}


def test_a_thread_may_take_the_copy_while_rows_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_copy, "SLICE_PAGES", 2)
    rows, points = 50, 100
    expected = shown(filled(rows, points).state(rows))
    held, got = filled(rows, points), []
    state = held.state(rows)
    taker = threading.Thread(target=lambda: got.append(shown(state)))
    taker.start()
    for i in range(points, 200):
        grow(held, rows, i)
    taker.join()
    assert got == [expected]


def test_several_copies_are_of_their_own_moments() -> None:
    held = filled(10, 70)
    states = []
    for i in range(70, 75):
        states.append(held.state(10))
        grow(held, 10, i)
    for i, state in enumerate(states):
        assert shown(state) == shown(filled(10, 70 + i).state(10))


def test_pages_given_back_and_taken_again_do_not_show() -> None:
    held = filled(10, 200)
    state = held.state(10)
    row = np.arange(10)
    held.drop_front(row, np.full(10, 190))
    for i in range(10, 300):
        grow(held, 10, i)
    assert shown(state) == shown(filled(10, 200).state(10))
