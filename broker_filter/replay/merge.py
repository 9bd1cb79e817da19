"""Merge many streams by time, in memory that does not grow with their size or number.

The first records of each stream are read to learn when it begins; it is opened only when its time
has come.
While it is open, a *sort window* puts its records in order: as many as fit into the stream's share
of memory are held, and the earliest of them goes first. So a file that is sorted, or nearly so,
comes out sorted. A record that is out of place by more than its window is not held back and not
lost: it comes late, as soon as it is met, and is counted.

At most `MAX_OPEN` streams are open at once. Where more overlap in time, the one that is needed last
is closed, and read again from its beginning when its turn comes: slow for long files, but right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Final

from broker_filter.replay.stream import Record, Report, Stream

__all__ = ["MAX_OPEN", "SORT_BYTES", "Merge", "first_times", "sorted_window"]

MAX_OPEN: Final = 64
SORT_BYTES: Final = 256 << 20
"""Bytes that the sort windows of all open streams hold together."""

RECORD_BYTES: Final = 500  # of a record beside its value


@dataclass(slots=True)
class _Open:
    """A stream under way: its records in order, the next of them, and how many were given."""

    records: Iterator[Record]
    window: int
    given: int
    head: Record | None = None


@dataclass(slots=True)
class Merge:
    """The records of all streams by time; an iterator with a position.

    Parameters
    ----------
    streams : sequence of Stream
        Records of one time come in this order.
    report : Report
        Takes a line on each thing that was passed over, once.
    first : list of float or None, MJD TAI
        When each stream begins, as `first_times` found it; None for one without any record.
    position : mapping, optional
        What `position` gave in an earlier run with the same streams: the records before are left
        out. Streams that were under way are read again from their beginning.
    sort_bytes, max_open : int
    late : int
        Records that came after later ones.
    latest : float, MJD TAI
        Newest time given so far.
    done : int
        About how many bytes of the streams have been read.
    """

    streams: Sequence[Stream]
    report: Report
    first: Sequence[float | None]
    at: Mapping[str, Any] | None = None
    sort_bytes: int = SORT_BYTES
    max_open: int = MAX_OPEN
    late: int = 0
    latest: float = -float("inf")
    done: int = 0
    _heap: list[tuple[float, int]] = field(default_factory=list)
    _open: dict[int, _Open] = field(default_factory=dict)
    _paused: dict[int, tuple[int, int]] = field(default_factory=dict)  # given, window
    _place: dict[int, int] = field(default_factory=dict)
    _begun: int = 0

    def __post_init__(self) -> None:
        known = [(time, i) for i, time in enumerate(self.first) if time is not None]
        if self.at:
            inside = {int(i): tuple(state) for i, state in self.at["inside"].items()}
            self._begun = self.at["begun"]
            self._paused |= inside
            self.latest = self.at["latest"]
            # Nothing that is left of them is needed before the time that was reached.
            known = [*((-float("inf"), i) for i in inside), *sorted(known)[self._begun :]]
        self._heap = known
        heapify(self._heap)

    def __iter__(self) -> Iterator[Record]:
        try:
            yield from self._records()
        finally:
            for i in list(self._open):
                self._pause(i)  # so that the position holds, whatever ended us

    @property
    def position(self) -> dict[str, Any]:
        """Where the record that was given last comes again, and all after it; plain values."""
        inside = self._paused | {i: (one.given, one.window) for i, one in self._open.items()}
        return {"begun": self._begun, "inside": inside, "latest": self.latest}

    def _records(self) -> Iterator[Record]:
        while self._heap:
            _, i = heappop(self._heap)
            stream = self._open.get(i) or self._start(i)
            record = stream.head
            if record is None:
                self._close(i)
                self.done += self.streams[i].size - self._place.pop(i, 0)
                continue
            if self._heap and (record.time, i) > self._heap[0]:
                heappush(self._heap, (record.time, i))  # another's turn comes first
                continue
            self.late += record.time < self.latest
            self.latest = max(self.latest, record.time)
            place = max(record.place, self._place.get(i, 0))
            self.done += place - self._place.get(i, 0)
            self._place[i] = place
            yield record
            stream.given += 1
            stream.head = next(stream.records, None)
            heappush(self._heap, (stream.head.time if stream.head else record.time, i))

    def _start(self, i: int) -> _Open:
        """Open a stream, for the first time or again; close others where there is no room."""
        if i not in self._paused:
            # Half of what is left, so that a long file has the most; a quarter is kept for others.
            # Paused streams count, so that it is the same in a run that goes on here.
            least = self.sort_bytes // (4 * self.max_open)
            taken = self._in_use() + sum(window for _, window in self._paused.values())
            window = max(least, (self.sort_bytes * 3 // 4 - taken) // 2)
            self._paused[i] = (0, window)
            self._begun += 1
        given, window = self._paused[i]
        while self._open and (
            len(self._open) >= self.max_open or self._in_use() + window > self.sort_bytes
        ):
            self._pause(max(self._open, key=self._head_time))
        records = self._read(i, given)
        if not self.streams[i].in_order:
            records = sorted_window(records, window)
        for _ in islice(records, given):
            pass
        stream = self._open[i] = _Open(records, window, given, next(records, None))
        del self._paused[i]
        return stream

    def _read(self, i: int, given: int) -> Iterator[Record]:
        # What was read before was reported then; the window reads ahead, so this is about right.
        return self.streams[i].read(self.report if not given else _silent)

    def _in_use(self) -> int:
        return sum(one.window for one in self._open.values())

    def _head_time(self, i: int) -> float:
        head = self._open[i].head
        return head.time if head else float("inf")

    def _pause(self, i: int) -> None:
        stream = self._open[i]
        self._paused[i] = (stream.given, stream.window)
        self._close(i)

    def _close(self, i: int) -> None:
        records = self._open.pop(i).records
        if hasattr(records, "close"):
            records.close()


def first_times(streams: Sequence[Stream], report: Report) -> list[float | None]:
    """When each stream begins, MJD TAI; None for one that has no record, which is reported.

    The streams are opened one after the other.
    """
    return [stream.begins(report) for stream in streams]


def sorted_window(records: Iterator[Record], limit: int) -> Iterator[Record]:
    """Put records in order of time, as far as a window reaches.

    Parameters
    ----------
    records : iterator of Record
    limit : int
        Bytes to hold; at least one record is held in any case. Records of one time stay in order.
    """
    held: list[tuple[float, int, Record]] = []
    size = 0
    for number, record in enumerate(records):
        heappush(held, (record.time, number, record))
        size += len(record.value) + RECORD_BYTES
        while size > limit and len(held) > 1:
            _, _, first = heappop(held)
            size -= len(first.value) + RECORD_BYTES
            yield first
    while held:
        yield heappop(held)[2]


def _silent(_: str) -> None:
    """Take a report that was given before."""
