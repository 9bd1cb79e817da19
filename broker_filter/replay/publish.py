"""Publish archives as if they happened now: records in the order of event time, at the sky's pace.

The pace is that of the sky, times ``speed``; at infinite speed it is that of the broker, or of
``rate``. What is read is an `Archive`: streams of records that are merged by time
(`broker_filter.replay.merge`). Messages go out byte for byte as they came, with the time offset in
a header. Only where photometry of our own formats is repeated, its times are moved on; packets
of surveys keep theirs, so their epochs are known to the filter the second time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from broker_filter.decode.decoder import READERS
from broker_filter.decode.native import encode_block, encode_photometry
from broker_filter.errors import ConfigError
from broker_filter.kafka.sink import Sink
from broker_filter.photometry.times import SECONDS_PER_DAY
from broker_filter.replay.lightcurves.stream import Baseline, LightCurves, with_median
from broker_filter.replay.merge import SORT_BYTES, Merge, first_times
from broker_filter.replay.position import Position
from broker_filter.replay.stream import Record, Report, Stream
from broker_filter.schemas import SCHEMA_HEADER
from broker_filter.types import Headers, Photometry

__all__ = [
    "OFFSET_HEADER",
    "Archive",
    "Edit",
    "Pace",
    "ReplayReport",
    "native_photometry",
    "publish",
    "replay",
    "unchanged",
    "with_photometry",
]

OFFSET_HEADER: Final = "event_offset_s"
"""Message header: seconds from the first epoch of the replay to the last one of the message."""

SAVE_S: Final = 5.0

Edit = Callable[[Record], Sequence[Record]]
"""Gives the records to publish in place of one."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay published.

    Parameters
    ----------
    epochs, messages : int
        A packet of a survey counts as one epoch.
    first_mjd, last_mjd : float, MJD TAI
        NaN where there was no epoch.
    seconds : float
        Wall time from the first message to the last acknowledgement.
    late : int
        Messages that came after later ones, because a file is not sorted.
    """

    epochs: int
    messages: int
    first_mjd: float
    last_mjd: float
    seconds: float
    late: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast messages go out.

    Parameters
    ----------
    speed : float
        Event seconds per second of the clock; infinite for no pacing. A message is due when its
        last epoch is.
    rate : float
        Messages a second at most.

    Raises
    ------
    ConfigError
        One is not larger than 0.
    """

    speed: float = math.inf
    rate: float = math.inf

    def __post_init__(self) -> None:
        for name in ("speed", "rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be larger than 0 (is {getattr(self, name):g})")


@dataclass(slots=True)
class Archive:
    """All that is to be replayed: streams merged by time, cut, and repeated.

    Parameters
    ----------
    streams : sequence of Stream
    report : Report
        Takes a line on each thing that was passed over.
    start, stop : float, MJD TAI
        Only records with start <= time < stop.
    turns : int or None
        How often all is replayed; None for ever.
    position : Position
        Where to begin; moves on as records are taken.
    """

    streams: Sequence[Stream]
    report: Report
    start: float = -math.inf
    stop: float = math.inf
    turns: int | None = 1
    position: Position = field(default_factory=Position)
    _merge: Merge | None = None

    def __iter__(self) -> Iterator[Record]:
        first = first_times(self.streams, self.report)
        at = self.position
        for turn in count(at.turn) if self.turns is None else range(at.turn, self.turns):
            self._merge = Merge(
                self.streams, _once(self.report, turn), first, at.streams, SORT_BYTES
            )
            at.turn = turn
            empty = True
            for record in self._cut(self._merge):
                empty = False
                yield moved(record, turn * at.period)
            at.late += self._merge.late
            at.streams = self._merge = None
            if empty:
                return
            # Whole days, so that nights follow on nights.
            at.period = at.period or max(1.0, math.ceil(at.last - at.first))

    @property
    def done(self) -> int:
        """About how many bytes of the present pass have been read."""
        return self._merge.done if self._merge else 0

    def mark(self) -> Position:
        """Where the record that was taken last comes again, and all after it."""
        if self._merge is None:
            return self.position
        late = self.position.late + self._merge.late
        return replace(self.position, late=late, streams=self._merge.position)

    def _cut(self, records: Merge) -> Iterator[Record]:
        for record in records:
            if record.time >= self.stop:
                return
            if record.time >= self.start:
                yield record


def _once(report: Report, turn: int) -> Report:
    return report if turn == 0 else lambda _: None


def unchanged(record: Record) -> Sequence[Record]:
    """Publish a record as it is."""
    return (record,)


def publish(
    archive: Archive,
    sink: Sink,
    topic: str,
    pace: Pace | None = None,
    *,
    edit: Edit = unchanged,
    save: Callable[[Position], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[Record], object] | None = None,
) -> ReplayReport:
    """Publish the records of an archive in their order.

    Parameters
    ----------
    archive : Archive
    sink : Sink
        Flushed before each pause of more than a second, before each ``save``, and at the end;
        stays open.
    topic : str
    pace : Pace, optional
        As fast as the sink takes them, by default.
    edit : Edit
    save : callable, optional
        Gets the position every few seconds, when all before it has been acknowledged, and also
        where the replay is interrupted.
    clock, sleep : callable
    progress : callable, optional
        Gets each record that was sent.

    Raises
    ------
    TransientError
        As from the sink or the streams.
    ConfigError
        A message is too large.
    """
    pace = pace or Pace()
    at = archive.position
    began = saved = math.nan
    offset_began, sent = math.nan, at.messages
    try:
        for record in archive:
            if math.isnan(began):
                began = saved = clock()
            if save and clock() - saved > SAVE_S:
                sink.flush()
                save(archive.mark())
                saved = clock()
            at.first = record.time if math.isnan(at.first) else at.first
            offset_s = (record.time - at.first) * SECONDS_PER_DAY
            offset_began = offset_s if math.isnan(offset_began) else offset_began
            due = max((offset_s - offset_began) / pace.speed, (at.messages - sent) / pace.rate)
            _wait(began + due, sink, clock, sleep)
            for out in edit(record):
                sink.produce(topic, out.key, out.value, _headers(out, offset_s))
                at.messages, at.epochs = at.messages + 1, at.epochs + out.epochs
                if progress:
                    progress(out)
            at.last = record.time if math.isnan(at.last) else max(at.last, record.time)
    except KeyboardInterrupt:
        if save:
            sink.flush()
            save(archive.mark())
        raise
    sink.flush()
    seconds = 0.0 if math.isnan(began) else clock() - began
    return ReplayReport(at.epochs, at.messages, at.first, at.last, seconds, at.late)


def replay(
    parts: Sequence[Photometry],
    sink: Sink,
    topic: str,
    *,
    speed: float = math.inf,
    start: float = -math.inf,
    stop: float = math.inf,
    epochs_per_message: int = 1,
    baseline: Baseline = "history",
    encode: Callable[[Photometry], bytes] = encode_photometry,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ReplayReport:
    """Publish light curves, epochs in the order in which they happened.

    Parameters
    ----------
    parts : sequence of Photometry
        Each of one star; their times may overlap.
    sink, topic, speed, clock, sleep
        See `publish`.
    start, stop, epochs_per_message, encode
        See `LightCurves`.
    baseline : "history" or "median"
        Whether messages leave the reference flux open, or give the median of the part with its
        error. The median is of the whole file: it spares a short file the time to build a history.

    Raises
    ------
    ConfigError, TransientError
        As `publish` and `LightCurves`.
    """
    if baseline == "median":
        parts = [with_median(part) for part in parts]
    curves = LightCurves(parts, start, stop, epochs_per_message, encode)
    archive = Archive([curves], lambda _: None)
    return publish(archive, sink, topic, Pace(speed), clock=clock, sleep=sleep)


def _headers(record: Record, offset_s: float) -> Headers:
    kept = (header for header in record.headers if header[0] != OFFSET_HEADER)
    return (*kept, (OFFSET_HEADER, f"{offset_s:.3f}".encode()))


def _wait(
    due: float, sink: Sink, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    if due - clock() > 1.0:
        sink.flush()  # what is sent must not linger, nor its failure stay unnoticed
    if (rest := due - clock()) > 0:
        sleep(rest)


def native_photometry(record: Record) -> Photometry | None:
    """Read a record of one of our own formats; None for a survey's packet."""
    reader = READERS.get(dict(record.headers).get(SCHEMA_HEADER, b""))
    return reader(record.value, max_bytes=len(record.value)) if reader else None


def with_photometry(record: Record, photometry: Photometry) -> Record:
    """Put other photometry into a record of one of our own formats."""
    block = b"block" in dict(record.headers)[SCHEMA_HEADER]
    return replace(record, value=(encode_block if block else encode_photometry)(photometry))


def moved(record: Record, days: float) -> Record:
    """Move a record on in time; a packet of a survey keeps its bytes."""
    if not days:
        return record
    record = replace(record, time=record.time + days)
    photometry = native_photometry(record)
    if photometry is None:
        return record
    return with_photometry(record, replace(photometry, mjd_tai=photometry.mjd_tai + days))
