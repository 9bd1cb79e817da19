"""Where messages come from: what a source guarantees, and what it keeps count of.

`broker_filter.kafka.consumer` reads from Kafka, `broker_filter.kafka.memory` from a list.

A source belongs to one thread. Offsets are committed only for partitions that it owns, and never
past what it has handed out since it got the partition: so neither a rebalance nor a late commit
can move another member's position, or skip a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broker_filter.types import Message, Partition

__all__ = ["Ledger", "Member", "OnChange", "Source"]

OnChange = Callable[[frozenset[Partition]], object]


@dataclass(frozen=True, slots=True)
class Member:
    """What a commit says of us.

    Parameters
    ----------
    token : bytes
        Proof of membership: a transaction that carries an old one is refused.
    partitions : mapping of str to int
        How many partitions each topic has.
    """

    token: bytes = b""
    partitions: Mapping[str, int] = field(default_factory=dict)


class Source(Protocol):
    """A stream of messages, shared out by partition among the members of a group.

    A source that was given ``on_assign`` holds new partitions back until `start` says where each
    of them begins; one without begins at the group's committed offsets.
    """

    def poll(self, max_messages: int, timeout_s: float) -> list[Message]:
        """Take the messages that are there, at most ``max_messages``, in order per partition.

        Blocks until a first message is there, at most ``timeout_s``; callbacks run inside it and
        add their own time. Must be called often (``kafka.max_poll_interval_ms``), also while
        paused. Raises ConfigError where no retry can help (unknown topic, refused login) and
        StateError where the member was shut out or a topic has got more partitions.
        """
        ...

    def start(self, partition: Partition, offset: int, committed: int) -> None:
        """Hand out a partition that was held back, from ``offset`` on. Does not block.

        ``committed`` is what the group has committed of it; commits before that are left out.
        """
        ...

    def hold(self, partitions: Iterable[Partition]) -> None:
        """Hold partitions back until `start`. Does not block."""
        ...

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool = False) -> None:
        """Commit the next offset to read of each partition; others' partitions are left out.

        Does not block, or with ``wait`` until the broker has answered (45 s at most while there is
        none), and does not raise where a rebalance or an outage gets in the way: the next commit
        makes up for it. What was committed before ``close`` is on the broker after it, as long as
        the broker can be reached.
        """
        ...

    def confirm(self, offsets: Mapping[Partition, int]) -> None:
        """Take note of offsets that were committed by other means, such as a transaction."""
        ...

    def member(self) -> Member:
        """Return what a transaction must know of us; TransientError while we are no member."""
        ...

    def committed(self, partition: Partition) -> int | None:
        """Next offset to read of a partition as the broker has acknowledged it; None if unknown."""
        ...

    def positions(self) -> dict[Partition, int]:
        """Next offset to hand out of the partitions that have begun. Does not block."""
        ...

    def pause(self) -> None:
        """Hand out nothing until ``resume``, in partitions to come too. Does not block."""
        ...

    def resume(self) -> None:
        """Hand out messages again. Does not block."""
        ...

    def rest(self, partitions: Collection[Partition]) -> None:
        """Hand out nothing of these partitions, and of no others, until the next call.

        Does not block. What is on its way may still come.
        """
        ...

    def at_end(self) -> set[Partition]:
        """Partitions whose end was met behind the last message that was handed out."""
        ...

    def lag(self) -> dict[Partition, int]:
        """Messages up to the end that are not committed yet, where known. Does not block.

        What was handed out counts until its offset is committed.
        """
        ...

    def reachable(self) -> bool:
        """Whether a broker answers, as far as known. Does not block."""
        ...

    def fetched_bytes(self) -> int:
        """Bytes that were fetched ahead, as far as known. Does not block."""
        ...

    def assigned(self) -> set[Partition]:
        """Partitions that we own now, those held back included. Does not block."""
        ...

    def close(self) -> None:
        """Leave the group; a second call does nothing. Blocks for seconds at most."""
        ...


class Ledger:
    """What we own, what was handed out of it since we got it, and what may be committed."""

    def __init__(self) -> None:
        self.owned: set[Partition] = set()
        self.held: set[Partition] = set()
        self.resting: set[Partition] = set()
        self.ended: set[Partition] = set()
        self.position: dict[Partition, int] = {}
        self.delivered: dict[Partition, int] = {}
        self.committed: dict[Partition, int] = {}

    def gain(self, partitions: Iterable[Partition], *, hold: bool) -> None:
        """Take partitions that come to us."""
        self.owned.update(partitions)
        if hold:
            self.held.update(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that went."""
        for partition in partitions:
            self.owned.discard(partition)
            self.held.discard(partition)
            self.resting.discard(partition)
            self.ended.discard(partition)
            for table in (self.position, self.delivered, self.committed):
                table.pop(partition, None)

    def hold(self, partitions: Iterable[Partition]) -> set[Partition]:
        """Hold partitions back that were not; gives those."""
        new = self.owned.intersection(partitions) - self.held
        self.held |= new
        self.ended -= new
        return new

    def rest(self, partitions: Iterable[Partition]) -> tuple[set[Partition], set[Partition]]:
        """See `Source.rest`; gives those that begin to rest, and those that no longer do."""
        wanted = self.owned.intersection(partitions)
        begin, end = wanted - self.resting, self.resting - wanted
        self.resting = wanted
        return begin - self.held, end - self.held

    def start(self, partition: Partition, offset: int, committed: int) -> None:
        """Open a partition: see `Source.start`."""
        self.held.discard(partition)
        self.ended.discard(partition)
        self.position[partition] = offset
        self.delivered.pop(partition, None)
        self.committed[partition] = committed

    def open(self) -> set[Partition]:
        """Partitions that messages are handed out of, those that rest included."""
        return self.owned - self.held

    def awake(self) -> set[Partition]:
        """Those that do not rest."""
        return self.open() - self.resting

    def deliver(self, partition: Partition, offset: int) -> None:
        """Take note that the messages of a partition before an offset were handed out."""
        self.ended.discard(partition)
        self.delivered[partition] = offset
        # The end of a partition may have been met past the last message: a commit marker.
        self.position[partition] = max(self.position.get(partition, 0), offset)

    def decided(self, partition: Partition) -> int:
        """The offset before which all is done: the position, unless messages are on their way."""
        position, committed = self.position[partition], self.committed.get(partition, 0)
        on_the_way = self.delivered.get(partition, 0) > committed
        return min(position, committed) if on_the_way else position

    def committable(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Pick the offsets that are ours, were handed out, and lie past the last commit."""
        return {
            partition: offset
            for partition, offset in offsets.items()
            if self.committed.get(partition, -1) < offset <= self.delivered.get(partition, -1)
        }

    def confirm(self, offsets: Mapping[Partition, int]) -> None:
        """Take note of offsets that the broker has acknowledged."""
        for partition, offset in offsets.items():
            if partition in self.owned:
                last = self.committed.get(partition, -1)
                self.committed[partition] = max(last, offset)
