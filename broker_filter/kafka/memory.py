"""A stream of messages in memory: the twin of Kafka's, for tests and small replays."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from broker_filter.errors import TransientError
from broker_filter.kafka.source import Ledger, Member, OnChange
from broker_filter.types import Message, Partition, runs_of

__all__ = ["MemorySource"]


class MemorySource:
    """Messages from memory; keeps the contract of `Source`, and plays rebalances on demand.

    All partitions that occur are assigned at the first poll, unless `assign` came before. `poll`
    never waits.

    Attributes
    ----------
    stored : dict
        Next offset to read of each partition, as the broker would hold it.
    log : list of Message
        All that the topics hold.
    """

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_lost: OnChange | None = None,
    ) -> None:
        self.stored: dict[Partition, int] = {}
        self.log = list(messages)
        self._ledger = Ledger()
        self._queue: deque[Message] = deque()
        self._callbacks = (on_assign, on_revoke, on_lost)
        self._fresh = True
        self._paused = False

    def push(self, *messages: Message) -> None:
        """Append messages, as a producer would."""
        self.log += messages
        self._queue += [m for m in messages if (m.topic, m.partition) in self._ledger.open()]

    def assign(self, *partitions: Partition) -> None:
        """Give us partitions: from the committed offset, or held back for ``on_assign``."""
        self._fresh = False
        self._ledger.gain(partitions, hold=True)
        if self._callbacks[0]:
            self._callbacks[0](frozenset(partitions))
        else:
            for partition in partitions:
                offset = self.stored.get(partition, 0)
                self.start(partition, offset, offset)

    def revoke(self, *partitions: Partition) -> None:
        """Take partitions from us, after ``on_revoke``."""
        if self._callbacks[1]:
            self._callbacks[1](frozenset(partitions))
        self._drop(partitions)

    def lose(self, *partitions: Partition) -> None:
        """Take partitions from us without notice; then ``on_lost``."""
        self._drop(partitions)
        if self._callbacks[2]:
            self._callbacks[2](frozenset(partitions))

    def poll(self, max_messages: int, timeout_s: float) -> list[Message]:  # noqa: ARG002
        """See `Source.poll`."""
        if self._fresh:
            self.assign(*dict.fromkeys((m.topic, m.partition) for m in self.log))
        awake = set() if self._paused else self._ledger.awake()
        ready = (m for m in self._queue if (m.topic, m.partition) in awake)
        messages = list(islice(ready, max_messages))
        taken = set(map(id, messages))
        self._queue = deque(m for m in self._queue if id(m) not in taken)
        for where, run in runs_of(messages):
            self._ledger.deliver(where, run[-1].next_offset)
        return messages

    def start(self, partition: Partition, offset: int, committed: int) -> None:
        """See `Source.start`."""
        if partition in self._ledger.owned:
            self._unqueue([partition])
            self._ledger.start(partition, offset, committed)
            self._queue += [
                m for m in self.log if (m.topic, m.partition) == partition and m.offset >= offset
            ]

    def hold(self, partitions: Iterable[Partition]) -> None:
        """See `Source.hold`."""
        self._unqueue(self._ledger.hold(partitions))

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool = False) -> None:  # noqa: ARG002
        """See `Source.commit`."""
        self.confirm(self._ledger.committable(offsets))

    def confirm(self, offsets: Mapping[Partition, int]) -> None:
        """See `Source.confirm`."""
        self._ledger.confirm(offsets)
        self.stored |= {p: o for p, o in offsets.items() if p in self._ledger.owned}

    def member(self) -> Member:
        """See `Source.member`."""
        if not self._ledger.owned:
            raise TransientError("not a member of the group for now")
        return Member()

    def committed(self, partition: Partition) -> int | None:
        """See `Source.committed`."""
        return self._ledger.committed.get(partition)

    def positions(self) -> dict[Partition, int]:
        """See `Source.positions`."""
        return dict(self._ledger.position)

    def pause(self) -> None:
        """See `Source.pause`."""
        self._paused = True

    def resume(self) -> None:
        """See `Source.resume`."""
        self._paused = False

    def rest(self, partitions: Collection[Partition]) -> None:
        """See `Source.rest`."""
        self._ledger.rest(partitions)

    def at_end(self) -> set[Partition]:
        """See `Source.at_end`."""
        queued = {(m.topic, m.partition) for m in self._queue}
        return self._ledger.open() - queued

    def lag(self) -> dict[Partition, int]:
        """See `Source.lag`."""
        ends = {(m.topic, m.partition): m.next_offset for m in self.log}
        return {
            where: max(0, ends.get(where, 0) - self._ledger.decided(where))
            for where in self._ledger.position
        }

    def reachable(self) -> bool:
        """See `Source.reachable`."""
        return True

    def fetched_bytes(self) -> int:
        """See `Source.fetched_bytes`."""
        return 0

    def assigned(self) -> set[Partition]:
        """See `Source.assigned`."""
        return set(self._ledger.owned)

    def close(self) -> None:
        """Give everything back, after ``on_revoke``."""
        if self._ledger.owned:
            self.revoke(*self._ledger.owned)

    def _drop(self, partitions: Iterable[Partition]) -> None:
        self._ledger.drop(partitions)
        self._unqueue(partitions)

    def _unqueue(self, partitions: Iterable[Partition]) -> None:
        gone = set(partitions)
        self._queue = deque(m for m in self._queue if (m.topic, m.partition) not in gone)
