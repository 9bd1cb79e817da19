"""How far a consumer group has come and what its topics hold, read without joining the group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import confluent_kafka as ck

from broker_filter.config import Kafka
from broker_filter.errors import TransientError
from broker_filter.kafka.client import consumer_config, open_client
from broker_filter.kafka.errors import partitions_changed
from broker_filter.kafka.memory import MemorySource
from broker_filter.kafka.topic_ids import TopicIds
from broker_filter.types import Message, Partition

__all__ = ["GroupProgress", "MemoryProgress", "Progress", "newest_of"]

DAY_MS = 86_400_000
ANSWER_S = 5.0
SAMPLE = 32
"""Messages by whose timestamps the newest is judged."""


class Progress(Protocol):
    """Positions of a group and of its topics. All calls block for a round trip or two.

    They raise TransientError where the broker does not answer.
    """

    def committed(self, partition: Partition) -> int | None:
        """Next offset that the group will read; None before its first commit.

        Raises StateError where the topic has more partitions than at the group's last commit.
        """
        ...

    def topic_id(self, topic: str) -> str:
        """Id of a topic; empty where it has none."""
        ...

    def span(self, partition: Partition) -> tuple[int, int]:
        """First offset that the topic still holds, and the offset after its last message."""
        ...

    def before(self, offsets: Mapping[Partition, int], days: float) -> dict[Partition, int]:
        """First offsets at most so many days older than the newest message before ``offsets``.

        By the timestamps of the topics; their first offsets where there are none. Timestamps far
        ahead of the others, or of the clock, do not count: see `newest_of`.
        """
        ...


class GroupProgress:
    """Reads it from a Kafka broker; keeps the contract of `Progress`. For one thread at a time.

    Parameters
    ----------
    kafka : Kafka
        Settings; ``group_id`` names the group.
    """

    def __init__(self, kafka: Kafka) -> None:
        # A member's fixed name must not be borrowed by an observer.
        self._kafka = kafka.model_copy(update={"group_instance_id": None})
        config = consumer_config(self._kafka) | {"enable.partition.eof": True}
        self._consumer = open_client(ck.Consumer, config)
        self._topic_ids = TopicIds(kafka)

    def __call__(self, partition: Partition) -> int:
        """Next offset that the group will read of a partition; 0 before its first commit."""
        (handle,) = self._ask(partition, self._consumer.committed, [ck.TopicPartition(*partition)])
        return max(0, int(handle.offset))

    def committed(self, partition: Partition) -> int | None:
        """See `Progress.committed`; waits for a transaction in flight to end."""
        topic, number = partition
        about = self._ask(partition, self._consumer.list_topics, topic).topics[topic]
        if number not in about.partitions:
            raise _unknown(partition, "the topic is not there")
        handles = self._ask(
            partition,
            self._consumer.committed,
            [ck.TopicPartition(topic, n) for n in sorted(about.partitions)],
        )
        for handle in handles:
            if (text := handle.metadata or "").isdigit() and int(text) < len(handles):
                raise partitions_changed(topic, int(text), len(handles))
        offset = int(handles[number].offset)
        return offset if offset >= 0 else None

    def topic_id(self, topic: str) -> str:
        """See `Progress.topic_id`."""
        return self._topic_ids([topic]).get(topic, "")

    def span(self, partition: Partition) -> tuple[int, int]:
        """See `Progress.span`."""
        marks = self._ask(
            partition, self._consumer.get_watermark_offsets, ck.TopicPartition(*partition)
        )
        if marks is None:
            raise _unknown(partition, "no answer")
        return int(marks[0]), int(marks[1])

    def before(self, offsets: Mapping[Partition, int], days: float) -> dict[Partition, int]:
        """See `Progress.before`."""
        newest = max(self._newest(where, offset, days) for where, offset in offsets.items())
        oldest = max(0, newest - round(days * DAY_MS))
        return {
            where: self._since(where, offset, oldest) if newest > 0 else self.span(where)[0]
            for where, offset in offsets.items()
        }

    def _newest(self, partition: Partition, offset: int, days: float) -> int:
        low, high = self.span(partition)
        first = max(low, offset - SAMPLE)
        stamps = self._timestamps(partition, first, max(first + 1, offset)) if high > low else []
        return newest_of(stamps, days, time.time())

    def _since(self, partition: Partition, offset: int, oldest: int) -> int:
        """First offset of a time, ms since 1970, or ``offset`` where that is later."""
        low, high = self.span(partition)
        wanted = ck.TopicPartition(*partition, oldest)
        (handle,) = self._ask(partition, self._consumer.offsets_for_times, [wanted])
        return max(low, min(offset, handle.offset if handle.offset >= 0 else high))

    def close(self) -> None:
        """Let the connection go."""
        self._consumer.close()

    def _timestamps(self, partition: Partition, first: int, end: int) -> list[int]:
        """Timestamps of the messages of some offsets, ms since 1970; ends early at the topic's."""
        self._consumer.assign([ck.TopicPartition(*partition, first)])
        stamps: list[int] = []
        try:
            limit = time.monotonic() + ANSWER_S
            while time.monotonic() < limit:
                message = self._consumer.poll(0.2)
                if message is None:
                    continue
                if message.error() is not None:
                    return stamps
                if message.offset() < end or not stamps:
                    stamps.append(message.timestamp()[1])
                if message.offset() + 1 >= end:
                    return stamps
            raise _unknown(partition, f"no message at offset {first}")
        finally:
            self._consumer.unassign()

    def _ask(self, partition: Partition, question: Any, *about: Any) -> Any:  # noqa: ANN401
        try:
            answer = question(*about, timeout=ANSWER_S)
        except ck.KafkaException as error:
            raise _unknown(partition, error.args[0].str()) from None
        for handle in answer if isinstance(answer, list) else ():
            if handle.error is not None:
                raise _unknown(partition, handle.error.str())
        return answer


def newest_of(stamps: Iterable[int], days: float, now: float) -> int:
    """The newest of some plausible timestamps, ms since 1970; 0 where there is none.

    A sender's clock may be years ahead: what lies more than a day in the future does not count, nor
    what is more than ``days`` later than all others. To leave out a good one costs nothing but a
    longer replay.

    Parameters
    ----------
    stamps : iterable of int
        Timestamps, ms since 1970 UTC; 0 and below for none.
    days : float, days
    now : float, seconds
        Unix time.
    """
    now_ms = round(1000 * now)
    known = sorted(stamp for stamp in stamps if stamp > 0)
    past = [stamp for stamp in known if stamp <= now_ms + DAY_MS]
    while len(past) > 1 and past[-1] - past[-2] > days * DAY_MS:
        past.pop()
    return past[-1] if past else min([now_ms, *known[:1]]) if known else 0


def _unknown(partition: Partition, why: str) -> TransientError:
    return TransientError(f"offsets of {partition[0]}[{partition[1]}] not known: {why}")


class MemoryProgress:
    """Reads it from a source in memory; keeps the contract of `Progress`.

    Parameters
    ----------
    source : MemorySource

    Attributes
    ----------
    topic_ids : dict
        Topic to its id.
    """

    def __init__(self, source: MemorySource) -> None:
        self._source = source
        self.topic_ids: dict[str, str] = {}

    def committed(self, partition: Partition) -> int | None:
        """See `Progress.committed`."""
        return self._source.stored.get(partition)

    def topic_id(self, topic: str) -> str:
        """See `Progress.topic_id`."""
        return self.topic_ids.get(topic, "")

    def span(self, partition: Partition) -> tuple[int, int]:
        """See `Progress.span`."""
        messages = self._messages(partition)
        return (messages[0].offset, messages[-1].next_offset) if messages else (0, 0)

    def before(self, offsets: Mapping[Partition, int], days: float) -> dict[Partition, int]:
        """See `Progress.before`."""
        newest = 0
        for where, offset in offsets.items():
            known = [m.timestamp_ms for m in self._messages(where) if m.offset < offset]
            newest = max(newest, newest_of(known[-SAMPLE:], days, time.time()))
        oldest = newest - days * DAY_MS
        return {
            where: next(
                (m.offset for m in self._messages(where) if m.timestamp_ms >= oldest), offset
            )
            for where, offset in offsets.items()
        }

    def _messages(self, partition: Partition) -> list[Message]:
        return [m for m in self._source.log if (m.topic, m.partition) == partition]
