"""Windows and the offsets that they settle travel together; chunks hold windows of one length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.inference.buckets import by_bucket
from broker_filter.pipeline.batcher import Batcher, Forgotten, Origin
from broker_filter.types import WindowBatch

BUCKETS = (128, 256, 512, 1000)


def windows(lengths: list[int], name: str = "s") -> WindowBatch:
    count, width = len(lengths), max(lengths, default=1)
    return WindowBatch(
        slot=np.arange(count),
        star=[f"{name}{i}" for i in range(count)],
        survey=["test"] * count,
        band=["r"] * count,
        coordinates=[None] * count,
        t_start=np.zeros(count),
        mjd_tai=np.ones((count, width)),
        flux=np.ones((count, width), np.float32),
        sigma=np.ones((count, width), np.float32),
        n=np.array(lengths, np.int64),
        baseline=np.ones(count),
        baseline_err=np.ones(count),
        baseline_error=np.ones(count),
        relative=np.zeros(count, np.bool_),
        source=np.zeros((count, width), np.int16),
        sources=[(("r", "camera"),)] * count,
        source_level=np.ones((count, 1)),
        source_error=np.ones((count, 1)),
        source_history=np.zeros((count, 1, 6)),
    )


def test_nothing_taken_is_never_due_and_flushes_to_nothing() -> None:
    batcher = Batcher()
    assert not batcher.due(1e9)
    assert batcher.flush() is None


def test_enough_windows_are_due_at_once() -> None:
    batcher = Batcher(flush_windows=3, max_wait_s=100)
    batcher.add(windows([1, 1]), 0.0)
    assert not batcher.due(0.0)
    batcher.add(windows([1]), 0.0)
    assert batcher.due(0.0)


def test_what_is_forgotten_stands_between_the_windows_before_and_after() -> None:
    batcher = Batcher()
    star = [("test", "s0", "r")]
    batcher.add(windows([1, 1]), 0.0, Origin(("a", 0)))
    batcher.add(windows([1]), 0.0, Origin(("b", 0)))
    batcher.forget(("a", 1), star, 0.0)
    batcher.add(windows([1]), 0.0, Origin(("b", 0)))
    batcher.forget(("b", 0), star, 0.0)
    batcher.drop([], [("b", 0)])
    batcher.forget(("c", 0), star, 0.0)
    work = batcher.flush()
    assert work is not None
    assert work.forgotten == [Forgotten(2, ("a", 1), star), Forgotten(2, ("c", 0), star)]


def test_what_is_forgotten_alone_is_work() -> None:
    batcher = Batcher()
    batcher.forget(("a", 0), [], 0.0)
    work = batcher.flush()
    assert work is not None
    assert work.windows is None
    assert len(work.forgotten) == 1
    assert batcher.flush() is None


def test_the_first_taken_waits_no_longer_than_allowed() -> None:
    batcher = Batcher(flush_windows=100, max_wait_s=2.0)
    batcher.add(windows([1]), 10.0)
    batcher.add(windows([1]), 11.5)
    assert not batcher.due(11.9)
    assert batcher.due(12.0)


def test_offsets_without_windows_move_on() -> None:
    batcher = Batcher(max_wait_s=2.0)
    batcher.note_offsets({("epochs", 0): 7}, 0.0)
    assert batcher.due(2.0)
    work = batcher.flush()
    assert work is not None
    assert work.windows is None
    assert work.offsets == {("epochs", 0): 7}


def test_a_flush_hands_over_all_windows_in_order_with_the_newest_offsets_and_forgets_them() -> None:
    batcher = Batcher()
    batcher.add(windows([2, 5], "a"), 0.0)
    batcher.note_offsets({("epochs", 0): 7, ("epochs", 1): 3}, 0.0)
    batcher.add(windows([9], "b"), 0.0)
    batcher.note_offsets({("epochs", 0): 8}, 0.0)
    work = batcher.flush()
    assert work is not None
    assert work.windows is not None
    assert work.windows.star == ["a0", "a1", "b0"]
    assert work.windows.n.tolist() == [2, 5, 9]
    assert work.windows.mjd_tai.shape == (3, 9)
    assert work.windows.flux.dtype == np.float32
    assert work.offsets == {("epochs", 0): 8, ("epochs", 1): 3}
    assert batcher.flush() is None


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 128), (128, 128), (129, 256), (512, 512), (1000, 1000), (4096, 1000)]
)
def test_a_window_goes_to_the_smallest_bucket_that_holds_it(length: int, bucket: int) -> None:
    ((found, rows),) = by_bucket(windows([length]), BUCKETS, chunk=4)
    assert found == bucket
    assert rows.tolist() == [0]


@given(st.lists(st.integers(1, 1200), max_size=40), st.integers(1, 7))
def test_chunks_hold_each_window_once_in_order_and_are_full_but_for_the_last(
    lengths: list[int], chunk: int
) -> None:
    chunks = list(by_bucket(windows(lengths), BUCKETS, chunk))
    assert sorted(row for _, rows in chunks for row in rows.tolist()) == list(range(len(lengths)))
    for bucket in BUCKETS:
        sizes = [len(rows) for found, rows in chunks if found == bucket]
        assert all(size == chunk for size in sizes[:-1])
        rows = [row for found, part in chunks if found == bucket for row in part.tolist()]
        assert rows == sorted(rows)


def test_windows_in_other_bands_keep_their_owners_through_a_flush() -> None:
    batcher = Batcher()
    batcher.add(windows([2, 5], "a"), 0.0)
    batcher.add(windows([3, 4], "b"), 0.0, others=windows([7, 8], "x"), owner=np.array([1, 1]))
    batcher.add(windows([1], "c"), 0.0, others=windows([9], "y"), owner=np.array([0]))
    work = batcher.flush()
    assert work is not None
    assert work.others is not None
    assert work.others.star == ["x0", "x1", "y0"]
    assert work.owner.tolist() == [3, 3, 4]
    assert work.others.take(np.array([2])).n.tolist() == [9]
