"""Merging streams: order, bounds, late records, and going on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.replay.merge import Merge, first_times, sorted_window
from broker_filter.replay.stream import Record, Report, first_time


@dataclass
class FakeStream:
    """Records of given times; it counts how many readers are open."""

    name: str
    times: list[float]
    size: int = 0
    in_order: bool = False
    reads: int = 0
    open_now: list[int] = field(default_factory=lambda: [0, 0])  # now, at most

    def begins(self, report: Report) -> float | None:
        return first_time(self, report)

    def read(self, report: Report) -> Iterator[Record]:
        self.reads += 1
        self.open_now[0] += 1
        self.open_now[1] = max(self.open_now)
        try:
            for number, time in enumerate(self.times):
                yield Record(time, f"{self.name}{number}".encode(), place=number + 1)
            if not self.times:
                report(f"{self.name} is empty")
        finally:
            self.open_now[0] -= 1


def make(*times: list[float]) -> list[FakeStream]:
    shared = [0, 0]
    return [FakeStream(str(i), one, size=len(one), open_now=shared) for i, one in enumerate(times)]


def merged(streams, **options) -> Merge:
    return Merge(streams, lambda _: None, first_times(streams, lambda _: None), **options)


def values(records) -> list[bytes]:
    return [record.value for record in records]


STREAMS = st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=6)


@settings(deadline=None)
@given(STREAMS)
def test_sorted_streams_come_out_sorted_each_record_once(times):
    streams = make(*map(sorted, times))
    merge = merged(streams, max_open=2)
    out = list(merge)
    assert [r.time for r in out] == sorted(t for one in times for t in one)
    assert len(set(values(out))) == len(out)
    assert merge.late == 0
    assert merge.done == sum(stream.size for stream in streams)


@settings(deadline=None)
@given(STREAMS, st.integers(1, 3))
def test_never_more_streams_open_than_allowed(times, limit):
    streams = make(*map(sorted, times))
    for stream in streams:
        stream.open_now[1] = 0
    list(merged(streams, max_open=limit))
    assert not streams or streams[0].open_now[1] <= max(1, limit)
    assert not streams or streams[0].open_now[0] == 0


@settings(deadline=None)
@given(STREAMS, st.integers(0, 40), st.integers(1, 3))
def test_goes_on_behind_the_record_where_it_stopped(times, stop, limit):
    """Unsorted streams, too: a second run gives what the first one would have given next."""
    options = {"max_open": limit, "sort_bytes": 4096}
    whole = values(merged(make(*times), **options))
    merge = merged(make(*times), **options)
    records = iter(merge)
    before = values(islice(records, stop))
    position = json.loads(json.dumps(merge.position))
    after = values(merged(make(*times), at=position, **options))
    # The last record is given again, as nobody knows whether it was published.
    again = 1 if 0 < stop <= len(whole) else 0
    assert before[: len(before) - again] + after == whole


def test_an_interrupted_read_loses_no_place():
    @dataclass
    class Breaks(FakeStream):
        def read(self, report):
            for record in super().read(report):
                if record.time == 3 and self.reads == 2:
                    raise KeyboardInterrupt
                yield record

    stream = Breaks("x", [1, 2, 3, 4], in_order=True)
    merge = merged([stream])
    out = []
    with pytest.raises(KeyboardInterrupt):
        out.extend(record.time for record in _noting(merge, out))
    assert out == [1, 2]
    rest = [r.time for r in merged([stream], at=json.loads(json.dumps(merge.position)))]
    assert rest == [3, 4]


def _noting(merge, out):
    for record in merge:
        out.append(record.time)
    return iter(())


def test_a_stream_is_not_opened_before_its_time():
    early, late = FakeStream("a", [1, 2, 3]), FakeStream("b", [10, 11])
    merge = merged([early, late])
    assert (early.reads, late.reads) == (1, 1)  # looked into
    list(islice(merge, 2))
    assert (early.reads, late.reads) == (2, 1)


def test_a_record_out_of_place_comes_late_and_is_counted():
    times = [float(t) for t in range(100)]
    times.insert(90, 5.0)
    [stream] = make(times)
    merge = merged([stream], sort_bytes=8 * 600)  # a window of a few records
    out = [record.time for record in merge]
    assert sorted(out) == sorted(times)
    assert merge.late == 1
    assert out != sorted(out)


def test_a_record_within_the_window_is_put_in_its_place():
    times = [float(t) for t in range(100)]
    times.insert(90, 5.0)
    merge = merged(make(times))
    assert [record.time for record in merge] == sorted(times)
    assert merge.late == 0


def test_the_window_holds_no_more_than_its_bytes():
    held = 0
    most = 0

    def source():
        nonlocal held, most
        for number in range(1000):
            held += 1
            most = max(most, held)
            yield Record(1000.0 - number, bytes(9_500))

    for _ in sorted_window(source(), 100_000):
        held -= 1
    assert most <= 12
    assert held == 0


def test_records_of_one_time_keep_their_order():
    records = [Record(1.0, bytes([n])) for n in range(50)]
    assert values(sorted_window(iter(records), 5_000)) == values(records)


def test_what_is_wrong_with_an_empty_stream_is_said_once():
    said: list[str] = []
    streams = make([], [1.0])
    first = first_times(streams, said.append)
    assert first == [None, 1.0]
    assert values(Merge(streams, said.append, first)) == [b"10"]
    assert said == ["0 is empty"]
