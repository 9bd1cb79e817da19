"""Messages of topics that share their stars, in order of time.

Each partition is in order by itself; of several the windows need the order in which the epochs
were taken, as a night that is read after the next one comes too late to count. So a message waits
until none before it can come: every partition that shares its state has a message to compare, or
has been read to its end. Topics that share with nobody pass through.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from broker_filter.types import KeyOf, Message, Partition, StateKey, runs_of

__all__ = ["TimeOrder"]

AHEAD_BYTES: Final = 1 << 20
"""A partition with more than that to wait for others hands out no more for now."""


class TimeOrder:
    """Holds messages until their turn comes.

    Parameters
    ----------
    key_of : callable
        Says which partitions share their stars.
    """

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        self._waiting: defaultdict[StateKey, dict[Partition, deque[Message]]] = defaultdict(dict)
        self._bytes: dict[Partition, int] = {}

    def sort(
        self,
        messages: Sequence[Message],
        owned: Collection[Partition],
        ended: Collection[Partition],
        live_from: Mapping[Partition, int],
    ) -> list[Message]:
        """Take messages, and give those whose turn has come.

        Parameters
        ----------
        messages : sequence of Message
            In order of offset within each partition.
        owned : collection of Partition
            All that is ours.
        ended : collection of Partition
            Of these, the ones whose end was met behind the last message.
        live_from : mapping of Partition to int
            Messages before are silent. They come before all others, as they did when they counted.
        """
        passing: list[Message] = []
        for where, run in runs_of(messages):
            key = self._key_of(where)
            if key == where:
                passing += run
            else:
                size = sum(len(message.value or b"") for message in run)
                self._waiting[key].setdefault(where, deque()).extend(run)
                self._bytes[where] = self._bytes.get(where, 0) + size
        if self._waiting:
            sharing = defaultdict(set)
            for where in owned:
                sharing[self._key_of(where)].add(where)
            for key in list(self._waiting):
                passing += self._due(key, sharing[key].difference(ended), live_from)
        return passing

    def _due(
        self, key: StateKey, awaited: set[Partition], live_from: Mapping[Partition, int]
    ) -> Iterable[Message]:
        """Messages of one key in order, until a partition has none that is awaited to have one."""
        queues = self._waiting[key]
        heap = [(_rank(queue[0], live_from), where) for where, queue in queues.items()]
        heapq.heapify(heap)
        missing = awaited.difference(queues)
        while heap and not missing:
            _, where = heap[0]
            queue = queues[where]
            message = queue.popleft()
            self._bytes[where] -= len(message.value or b"")
            yield message
            if queue:
                heapq.heapreplace(heap, (_rank(queue[0], live_from), where))
                continue
            heapq.heappop(heap)
            self._forget(where)
            if where in awaited:
                missing.add(where)

    def _forget(self, partition: Partition) -> None:
        key = self._key_of(partition)
        self._bytes.pop(partition, None)
        self._waiting[key].pop(partition, None)
        if not self._waiting[key]:
            del self._waiting[key]

    def ahead(self) -> set[Partition]:
        """Partitions that have enough waiting here."""
        return {where for where, size in self._bytes.items() if size > AHEAD_BYTES}

    def waiting(self) -> set[Partition]:
        """Partitions that have messages here."""
        return set(self._bytes)

    def drop(self, gone: Iterable[Partition]) -> None:
        """Forget messages of partitions that went."""
        for partition in gone:
            self._forget(partition)

    def clear(self) -> None:
        """Forget all messages: they are read again."""
        self._waiting.clear()
        self._bytes.clear()


def _rank(message: Message, live_from: Mapping[Partition, int]) -> tuple[bool, int]:
    live = message.next_offset > live_from.get((message.topic, message.partition), 0)
    return live, message.timestamp_ms
