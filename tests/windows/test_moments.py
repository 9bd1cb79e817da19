"""Times and sources that points share, against plain arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from broker_filter.types import FloatArray
from broker_filter.windows.moments import SHORT, Moments, OwnMoments, SharedMoments

N = 200_000
Times = Callable[[np.random.Generator], FloatArray]


def few(rng: np.random.Generator) -> FloatArray:
    return 60000 + rng.integers(0, 2_000, N) / 96


def many(rng: np.random.Generator) -> FloatArray:
    return 60000 + rng.integers(0, SHORT, 10 * N) / 1e6


def own(rng: np.random.Generator) -> FloatArray:
    return 60000 + rng.permutation(N) / 1e6


def written(time: FloatArray, source: np.ndarray, step: int) -> Moments:
    """Moments to which points were written, a few at a time."""
    moments: Moments = SharedMoments(
        np.zeros(len(time), np.uint16), np.zeros(0), np.zeros(0, np.uint16)
    )
    for first in range(0, len(time), step):
        index = np.arange(first, min(first + step, len(time)))
        if not moments.write(index, time[index], source[index]):
            moments = moments.roomier(time[index], source[index])
            assert moments.write(index, time[index], source[index])
    return moments


@pytest.mark.parametrize(
    ("times", "kind", "bytes_a_point"),
    [(few, SharedMoments, 3.5), (many, SharedMoments, 9), (own, OwnMoments, 10)],
)
@pytest.mark.parametrize("step", [10_000, 2_000_000])
def test_points_have_their_times_and_sources_in_few_bytes(
    times: Times, kind: type, bytes_a_point: float, step: int
) -> None:
    rng = np.random.default_rng(1)
    time = times(rng)
    source = rng.integers(0, 3, len(time)).astype(np.uint16)
    moments = written(time, source, step)
    index = rng.permutation(len(time))
    np.testing.assert_array_equal(moments.time(index), time[index])
    np.testing.assert_array_equal(moments.source(index), source[index])
    assert isinstance(moments, kind)
    assert moments.nbytes <= bytes_a_point * len(time)


def test_a_reader_sees_what_was_whatever_is_written_later() -> None:
    moments = written(np.arange(9.0), np.arange(9, dtype=np.uint16), 9)
    reader, columns = moments.reader(), [column.copy() for column in moments.columns]
    index = np.arange(9)
    moments.write(index, index + 100.0, np.full(9, 7, np.uint16))
    time, source = reader(columns, index)
    assert time.tolist() == source.tolist() == index.tolist()


def test_exposures_of_which_no_point_is_left_make_room_for_others() -> None:
    moments = written(np.arange(1000.0), np.zeros(1000, np.uint16), 1000)
    size = moments.nbytes
    for first in range(1000, 50_000, 500):
        time, index = first + np.arange(500.0), np.arange(first, first + 500) % 1000
        source = np.zeros(500, np.uint16)
        if not moments.write(index, time, source):
            moments = moments.roomier(time, source)
            assert moments.write(index, time, source)
    assert moments.nbytes < 8 * size
