"""Archives of messages: what a replay reads, one stream a file, in bounded memory.

A *stream* is one file (or one partition of a topic, or all light curves together) that can be read
from its beginning as often as needed. It gives `Record`: one message each, with the time at which
it happened. Streams are merged by time in `broker_filter.replay.merge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from broker_filter.types import Headers, Message

__all__ = ["SAMPLE", "EventTime", "Record", "Report", "Stream", "first_time"]

SAMPLE: Final = 100
"""Records of a stream that are read to learn when it begins."""

Report = Callable[[str], None]
"""Takes one line on something that had to be passed over."""

EventTime = Callable[[Message], float]
"""When a message happened, MJD TAI; raises PoisonMessage where that cannot be found."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message of an archive, ready to be published.

    Parameters
    ----------
    time : float, MJD TAI
        Of its newest epoch.
    value : bytes
        As it came.
    key : bytes or None
    headers : tuple of (str, bytes)
    epochs : int
        Epochs of a photometry message; 1 for a packet, whatever its history.
    place : int
        How much of its stream had been read by then, in the unit of the stream's ``size``.
    """

    time: float
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    epochs: int = 1
    place: int = 0


class Stream(Protocol):
    """One source of records."""

    @property
    def name(self) -> str:
        """What it is called in messages; no two streams of a replay have the same."""
        ...

    @property
    def size(self) -> int:
        """About how many bytes there are to read, for the remaining time."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether records come strictly by time, so that no sort window is needed."""
        ...

    def begins(self, report: Report) -> float | None:
        """About when the first record happened, MJD TAI; None (and reported) without any."""
        ...

    def read(self, report: Report) -> Iterator[Record]:
        """Read from the beginning, always the same records in the same order.

        The order should be about that of time. What cannot be read is reported, and passed over;
        BrokerFilterError is raised where the stream cannot go on.
        """
        ...


def first_time(stream: Stream, report: Report) -> float | None:
    """Find `Stream.begins` by reading: the earliest of the first records."""
    faults: list[str] = []
    records = islice(stream.read(faults.append), SAMPLE)
    first = min((record.time for record in records), default=None)
    if first is None:
        for fault in faults or [f"{stream.name}: no message"]:
            report(fault)
    return first
