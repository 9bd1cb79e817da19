"""A range of a Kafka topic as streams of records, one a partition, read beside any live group.

Partitions are assigned by hand and nothing is committed, so no group is joined or touched.

Beside ``source``, ``sink`` and ``reader`` it imports confluent_kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import confluent_kafka as ck
import numpy as np

from broker_filter.errors import BrokerFilterError, ConfigError, PoisonMessage, TransientError
from broker_filter.kafka.source import message_of
from broker_filter.photometry.times import SECONDS_PER_DAY, TIME_SYSTEMS, to_mjd_tai
from broker_filter.replay.stream import EventTime, Record, Report, first_time
from broker_filter.types import Message

__all__ = ["SCHEME", "PartitionRange", "TopicRange", "parse_range", "partitions_of"]

SCHEME: Final = "kafka://"
MJD_1970: Final = 40587.0
ANSWER_S: Final = 15.0
ASK_S: Final = 5
GONE_S: Final = 60
MESSAGE_BYTES: Final = 1000  # taken for one in the estimate of the remaining time

_log = logging.getLogger(__name__)
_GONE = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    ck.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}
_LOST = {ck.KafkaError.OFFSET_OUT_OF_RANGE, ck.KafkaError._AUTO_OFFSET_RESET}  # noqa: SLF001
_REFUSED = {
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError.SASL_AUTHENTICATION_FAILED,
    ck.KafkaError._AUTHENTICATION,  # noqa: SLF001
    ck.KafkaError._SSL,  # noqa: SLF001
}


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Part of a topic: by offset in each partition, or by the messages' timestamps.

    Parameters
    ----------
    servers, topic : str
    offsets : tuple of (int or None)
        First, and the one after the last; None for an end of the topic.
    times_ms : tuple of (int or None), ms since 1970 UTC
        The same in timestamps.
    partitions : frozenset of int
        Empty for all.
    """

    servers: str
    topic: str
    offsets: tuple[int | None, int | None] = (None, None)
    times_ms: tuple[int | None, int | None] = (None, None)
    partitions: frozenset[int] = frozenset()


def parse_range(text: str) -> TopicRange:
    """Read ``kafka://HOST:PORT[,HOST:PORT]/TOPIC[?offsets=A:B][&time=FROM/TO][&partitions=0,3]``.

    Times are ISO 8601, UTC where they name no zone; either end may be left out.

    Raises
    ------
    ConfigError
        The text is not of this form.
    """
    url = urlsplit(text)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    topic = url.path.strip("/")
    try:
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
    except ValueError as error:
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
class PartitionRange:
    """Messages of one partition, from one offset up to another, as a stream.

    Parameters
    ----------
    servers, topic : str
    partition : int
    begin, end : int
        First offset, and the one after the last.
    event_time : EventTime
    config : mapping
        Further librdkafka properties.
    """

    servers: str
    topic: str
    partition: int
    begin: int
    end: int
    event_time: EventTime
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As a source on the command line."""
        return f"{SCHEME}{self.servers}/{self.topic}[{self.partition}] {self.begin}:{self.end}"

    @property
    def size(self) -> int:
        """Messages, taken as `MESSAGE_BYTES` each."""
        return MESSAGE_BYTES * (self.end - self.begin)

    @property
    def in_order(self) -> bool:
        """No: producers send at about the time of events."""
        return False

    def begins(self, report: Report) -> float | None:
        """See `broker_filter.replay.stream.Stream`."""
        return first_time(self, report)

    def read(self, report: Report) -> Iterator[Record]:
        """See `broker_filter.replay.stream.Stream`.

        A message whose time cannot be told goes out all the same, with the time of the one before
        it (or its timestamp, at the beginning): a damaged message is part of what happened.

        Raises
        ------
        TransientError
            The topic is gone or does not answer for a minute.
        ConfigError
            The range is no longer kept, or reading it is refused.
        """
        time, untimed = None, 0
        for message in self._messages():
            try:
                time = self.event_time(message)
            except PoisonMessage as error:
                untimed += 1
                if untimed == 1:
                    at = f"{self.topic}[{self.partition}] offset {message.offset}"
                    report(f"{at}: {error}; goes out at the time of the message before it")
                time = _timestamp_mjd(message) if time is None else time
            yield Record(
                time=time,
                value=message.value or b"",
                key=message.key,
                headers=message.headers,
                place=MESSAGE_BYTES * (message.next_offset - self.begin),
            )

    def _messages(self) -> Iterator[Message]:
        with closing(_consumer(self.servers, self.config)) as consumer:
            consumer.assign([ck.TopicPartition(self.topic, self.partition, self.begin)])
            silent = 0
            while silent < GONE_S:
                raw = consumer.poll(1.0)
                if raw is None:
                    silent += 1
                    if silent % ASK_S == 0:
                        self._ask(consumer)
                    continue
                silent = 0
                if (error := raw.error()) is not None:
                    if error.code() == ck.KafkaError._PARTITION_EOF:  # noqa: SLF001
                        return
                    self._check(error)
                    continue
                if raw.offset() >= self.end:
                    return
                yield message_of(raw)
                if raw.offset() + 1 >= self.end:
                    return
            raise TransientError(f"{self.name}: no message for {GONE_S} s: does the broker run?")

    def _ask(self, consumer: Any) -> None:  # noqa: ANN401
        """Ask whether the topic still exists: the client keeps silent about one that went."""
        try:
            topic = consumer.list_topics(self.topic, ASK_S).topics[self.topic]
        except ck.KafkaException as failure:
            self._check(failure.args[0])
        else:
            if topic.error is not None:
                self._check(topic.error)

    def _check(self, error: Any) -> None:  # noqa: ANN401  the client has no types
        if error.code() in _GONE:
            raise TransientError(
                f"{self.name}: the topic is gone: it was deleted while it was replayed"
                f" ({error.str()})"
            )
        if error.code() in _LOST:
            raise ConfigError(
                f"{self.name}: offsets of the range are no longer kept ({error.str()}): begin later"
            )
        if refusal := _refusal(self.name, error):
            raise refusal
        _log.warning("%s: %s", self.name, error.str())


def partitions_of(
    part: TopicRange, event_time: EventTime, config: Mapping[str, Any] | None = None
) -> list[PartitionRange]:
    """Resolve a range now: its end is where the topic ends at this moment, at the latest.

    Raises
    ------
    ConfigError
        There is no such topic or partition, the range is not kept, or reading is refused.
    TransientError
        No broker answers.
    """
    config = config or {}
    with closing(_consumer(part.servers, config)) as consumer:
        try:
            ends = _ends(consumer, part)
        except ck.KafkaException as failure:
            consumer.poll(0)
            error = failure.args[0]
            raise _refusal(f"{SCHEME}{part.servers}/{part.topic}", error) or TransientError(
                f"{SCHEME}{part.servers}/{part.topic}: no answer within {ANSWER_S:g} s: is the "
                f"address right, and the broker up? ({error.str()})"
            ) from None
    return [
        PartitionRange(part.servers, part.topic, number, begin, end, event_time, config)
        for number, (begin, end) in ends.items()
        if begin < end
    ]


def _ends(consumer: Any, part: TopicRange) -> dict[int, tuple[int, int]]:  # noqa: ANN401
    """First offset of each partition, and the one after the last."""
    topic = consumer.list_topics(part.topic, ANSWER_S).topics[part.topic]
    known = set(topic.partitions)
    if topic.error is not None or not known or part.partitions - known:
        raise ConfigError(
            f"{SCHEME}{part.servers}/{part.topic}: there is no such topic or partition "
            f"(partitions: {sorted(known) or 'none'})"
        )
    numbers = sorted(part.partitions or known)
    firsts = _offsets_at(consumer, part, numbers, part.times_ms[0])
    lasts = _offsets_at(consumer, part, numbers, part.times_ms[1])
    ends = {}
    for number in numbers:
        low, high = consumer.get_watermark_offsets(
            ck.TopicPartition(part.topic, number), timeout=ANSWER_S
        )
        begin = firsts.get(number, part.offsets[0])
        end = lasts.get(number, part.offsets[1])
        if begin is not None and begin < low and part.offsets[0] is not None:
            raise ConfigError(
                f"{SCHEME}{part.servers}/{part.topic}[{number}]: offset {begin} is no longer kept; "
                f"the first is {low}"
            )
        ends[number] = (
            low if begin is None else high if begin < 0 else begin,
            high if end is None or end < 0 else min(end, high),
        )
    return ends


def _offsets_at(
    consumer: Any,  # noqa: ANN401
    part: TopicRange,
    numbers: list[int],
    time_ms: int | None,
) -> dict[int, int]:
    """Offset of the first message of each partition at or after a time; -1 where there is none."""
    if time_ms is None:
        return {}
    asked = [ck.TopicPartition(part.topic, number, time_ms) for number in numbers]
    return {one.partition: one.offset for one in consumer.offsets_for_times(asked, ANSWER_S)}


def _consumer(servers: str, config: Mapping[str, Any]) -> Any:  # noqa: ANN401
    properties = {
        "bootstrap.servers": servers,
        # librdkafka wants a name even where nobody joins the group.
        "group.id": "broker-filter-replay",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 5_000,  # so that a deleted topic is noticed
        "queued.max.messages.kbytes": 4_096,
        "fetch.max.bytes": 16 << 20,
        "max.partition.fetch.bytes": 4 << 20,
        "fetch.queue.backoff.ms": 50,
        **config,
    }
    try:
        return ck.Consumer(properties, logger=_log)
    except ck.KafkaException as failure:
        raise ConfigError(f"Kafka client settings: {failure.args[0].str()}") from None


def _refusal(name: str, error: Any) -> BrokerFilterError | None:  # noqa: ANN401
    if error.code() not in _REFUSED:
        return None
    return ConfigError(
        f"{name}: Kafka refuses to read it: {error.str()}; check the security settings "
        "(security.protocol, sasl.*, ssl.*) and the user's rights"
    )


def _timestamp_mjd(message: Message) -> float:
    utc = MJD_1970 + message.timestamp_ms / 1000 / SECONDS_PER_DAY
    return float(to_mjd_tai(np.array([utc]), TIME_SYSTEMS["MJD"])[0])
