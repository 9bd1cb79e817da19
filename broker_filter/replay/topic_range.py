"""A range of a Kafka topic as streams of records, one a partition, read beside any live group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from broker_filter.errors import ConfigError, PoisonMessage
from broker_filter.kafka.ranges import SCHEME, Offsets, TopicRange, messages_of, offsets_of
from broker_filter.photometry.times import SECONDS_PER_DAY, TIME_SYSTEMS, to_mjd_tai
from broker_filter.replay.stream import EventTime, Record, Report, first_time
from broker_filter.types import Message

__all__ = ["SCHEME", "PartitionStream", "TopicRange", "parse_range", "streams_of"]

MJD_1970: Final = 40587.0
MESSAGE_BYTES: Final = 1000  # taken for one in the estimate of the remaining time


def parse_range(text: str) -> TopicRange:
    """Read ``kafka://HOST:PORT[,HOST:PORT]/TOPIC[?offsets=A:B][&time=FROM/TO][&partitions=0,3]``.

    Times are ISO 8601, UTC where they name no zone; either end may be left out.

    Raises
    ------
    ConfigError
        The text is not of this form.
    """
    try:
        url = urlsplit(text)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        topic = url.path.strip("/")
        if not url.netloc or not topic or query.keys() - {"offsets", "time", "partitions"}:
            raise ValueError("expected host, topic, and nothing but offsets, time or partitions")
        first, colon, last = query.get("offsets", ":").partition(":")
        begin, slash, end = query.get("time", "/").partition("/")
        if not colon or not slash or ("offsets" in query and "time" in query):
            raise ValueError("expected offsets=FIRST:LAST or time=FROM/TO")
        return TopicRange(
            servers=url.netloc,
            topic=topic,
            offsets=(_offset(first), _offset(last)),
            times_ms=(_time_ms(begin), _time_ms(end)),
            partitions=frozenset(map(int, filter(None, query.get("partitions", "").split(",")))),
        )
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{text}: {error}; such as kafka://localhost:9092/alerts?offsets=1000:2000, or "
            "kafka://localhost:9092/alerts?time=2026-03-10T00:00/2026-03-11T00:00"
        ) from None


def _offset(text: str) -> int | None:
    if text and int(text) < 0:
        raise ValueError(f"offset {text} is below 0")
    return int(text) if text else None


def _time_ms(text: str) -> int | None:
    if not text:
        return None
    when = datetime.fromisoformat(text)
    return int(1000 * (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


@dataclass(frozen=True, slots=True)
class PartitionStream:
    """Messages of one partition, from one offset up to another, as a stream.

    Parameters
    ----------
    offsets : Offsets
    event_time : EventTime
    config : mapping
        Further librdkafka properties.
    """

    offsets: Offsets
    event_time: EventTime
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As a source on the command line."""
        return self.offsets.name

    @property
    def size(self) -> int:
        """Messages, taken as `MESSAGE_BYTES` each."""
        return MESSAGE_BYTES * (self.offsets.end - self.offsets.begin)

    @property
    def in_order(self) -> bool:
        """No: producers send at about the time of events."""
        return False

    def begins(self, report: Report) -> float | None:
        """See `broker_filter.replay.stream.Stream`."""
        return first_time(self, report)

    def read(self, report: Report) -> Iterator[Record]:
        """See `broker_filter.replay.stream.Stream`.

        A message whose time is unknown goes out all the same, with the time of the one before
        it (or its timestamp, at the beginning): a damaged message is part of what happened.

        Raises
        ------
        TransientError, ConfigError
            As `messages_of`.
        """
        part = self.offsets
        time, untimed = None, 0
        for message in messages_of(part, self.config):
            try:
                time = self.event_time(message)
            except PoisonMessage as error:
                untimed += 1
                if untimed == 1:
                    at = f"{part.topic}[{part.partition}] offset {message.offset}"
                    report(f"{at}: {error}; goes out at the time of the message before it")
                time = _timestamp_mjd(message) if time is None else time
            yield Record(
                time=time,
                value=message.value or b"",
                key=message.key,
                headers=message.headers,
                place=MESSAGE_BYTES * (message.next_offset - part.begin),
            )


def streams_of(
    part: TopicRange, event_time: EventTime, config: Mapping[str, Any] | None = None
) -> list[PartitionStream]:
    """Resolve a range now, as one stream a partition; see `offsets_of`, also for what it raises."""
    return [PartitionStream(one, event_time, config or {}) for one in offsets_of(part, config)]


def _timestamp_mjd(message: Message) -> float:
    utc = MJD_1970 + message.timestamp_ms / 1000 / SECONDS_PER_DAY
    return float(to_mjd_tai(np.array([utc]), TIME_SYSTEMS["MJD"])[0])
