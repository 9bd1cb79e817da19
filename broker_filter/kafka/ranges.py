"""A range of a topic, read beside any live group: offsets of a range, messages of a partition.

Partitions are assigned by hand and nothing is committed, so no group is joined or touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import confluent_kafka as ck

from broker_filter.errors import ConfigError, TransientError
from broker_filter.kafka.client import client_logger, message_of
from broker_filter.kafka.errors import refused
from broker_filter.types import Message

__all__ = ["SCHEME", "Offsets", "TopicRange", "messages_of", "offsets_of"]

SCHEME: Final = "kafka://"
ANSWER_S: Final = 15.0
ASK_S: Final = 5
GONE_S: Final = 60

_log = logging.getLogger(__name__)
_GONE = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    ck.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}
_LOST = {ck.KafkaError.OFFSET_OUT_OF_RANGE, ck.KafkaError._AUTO_OFFSET_RESET}  # noqa: SLF001


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

    @property
    def name(self) -> str:
        """As a source on the command line."""
        return f"{SCHEME}{self.servers}/{self.topic}"


@dataclass(frozen=True, slots=True)
class Offsets:
    """The part of one partition that a range covers.

    Parameters
    ----------
    servers, topic : str
    partition : int
    begin, end : int
        First offset, and the one after the last.
    """

    servers: str
    topic: str
    partition: int
    begin: int
    end: int

    @property
    def name(self) -> str:
        """As a source on the command line."""
        return f"{SCHEME}{self.servers}/{self.topic}[{self.partition}] {self.begin}:{self.end}"


def offsets_of(part: TopicRange, config: Mapping[str, Any] | None = None) -> list[Offsets]:
    """Resolve a range now: its end is where the topic ends at this moment, at the latest.

    Parameters
    ----------
    part : TopicRange
    config : mapping, optional
        Further librdkafka properties, such as those for SASL and TLS.

    Raises
    ------
    ConfigError
        There is no such topic or partition, the range is not kept, or reading is refused.
    TransientError
        No broker answers.
    """
    with closing(_consumer(part.servers, config or {}, client_logger())) as consumer:
        try:
            ends = _ends(consumer, part)
        except ck.KafkaException as failure:
            consumer.poll(0)
            error = failure.args[0]
            raise refused(error, part.name, grouped=False) or TransientError(
                f"{part.name}: no answer within {ANSWER_S:g} s: is the address right, and the"
                f" broker up? ({error.str()})"
            ) from None
    return [
        Offsets(part.servers, part.topic, number, begin, end)
        for number, (begin, end) in ends.items()
        if begin < end
    ]


def messages_of(part: Offsets, config: Mapping[str, Any] | None = None) -> Iterator[Message]:
    """The messages of a partition, from its first offset to its last.

    Raises
    ------
    TransientError
        The topic is gone or does not answer for a minute.
    ConfigError
        The range is no longer kept, or reading it is refused.
    """
    logger = client_logger()
    logger.disabled = False
    with closing(_consumer(part.servers, config or {}, logger)) as consumer:
        consumer.assign([ck.TopicPartition(part.topic, part.partition, part.begin)])
        silent = 0
        while silent < GONE_S:
            raw = consumer.poll(1.0)
            if raw is None:
                silent += 1
                if silent % ASK_S == 0:
                    _ask(consumer, part)
                continue
            silent = 0
            if (error := raw.error()) is not None:
                if error.code() == ck.KafkaError._PARTITION_EOF:  # noqa: SLF001
                    return
                _check(error, part)
                continue
            if raw.offset() >= part.end:
                return
            yield message_of(raw)
            if raw.offset() + 1 >= part.end:
                return
        raise TransientError(f"{part.name}: no message for {GONE_S} s: does the broker run?")


def _ask(consumer: Any, part: Offsets) -> None:  # noqa: ANN401
    """Ask whether the topic still exists: the client keeps silent about one that went."""
    try:
        topic = consumer.list_topics(part.topic, ASK_S).topics[part.topic]
    except ck.KafkaException as failure:
        _check(failure.args[0], part)
    else:
        if topic.error is not None:
            _check(topic.error, part)


def _check(error: Any, part: Offsets) -> None:  # noqa: ANN401  the client has no types
    if error.code() in _GONE:
        raise TransientError(
            f"{part.name}: the topic is gone: it was deleted while it was replayed ({error.str()})"
        )
    if error.code() in _LOST:
        raise ConfigError(
            f"{part.name}: offsets of the range are no longer kept ({error.str()}): begin later"
        )
    if refusal := refused(error, part.name, grouped=False):
        raise refusal
    _log.warning("%s: %s", part.name, error.str())


def _ends(consumer: Any, part: TopicRange) -> dict[int, tuple[int, int]]:  # noqa: ANN401
    """First offset of each partition, and the one after the last."""
    topic = consumer.list_topics(part.topic, ANSWER_S).topics[part.topic]
    known = set(topic.partitions)
    if topic.error is not None or not known or part.partitions - known:
        raise ConfigError(
            f"{part.name}: there is no such topic or partition "
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
                f"{part.name}[{number}]: offset {begin} is no longer kept; the first is {low}"
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
    times = [ck.TopicPartition(part.topic, number, time_ms) for number in numbers]
    return {one.partition: one.offset for one in consumer.offsets_for_times(times, ANSWER_S)}


def _consumer(servers: str, config: Mapping[str, Any], logger: logging.Logger) -> Any:  # noqa: ANN401
    properties = {
        "bootstrap.servers": servers,
        # librdkafka needs a name even where nobody joins the group.
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
        return ck.Consumer(properties, logger=logger)
    except ck.KafkaException as failure:
        raise ConfigError(f"Kafka client settings: {failure.args[0].str()}") from None
