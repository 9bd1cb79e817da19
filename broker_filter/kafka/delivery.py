"""Alerts and dead letters out, together with the offsets of the input they came from.

What the pipeline gives is gathered in an `Outbox` and goes out as a `Parcel`: messages and offsets
that belong together. `Delivery` has two guarantees:

- `AtLeastOnce`: the messages first, then the offsets. A crash in between sends them again.
- exactly once (`broker_filter.kafka.transaction`): both in one Kafka transaction, or none.

A parcel is made, sent and committed in one go, so no transaction stays open between two passes of
the main loop: a process that dies or freezes there leaves nothing behind, and partitions that are
lost only cost a parcel that was not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from broker_filter.errors import BrokerFilterError
from broker_filter.kafka.sink import Sink
from broker_filter.kafka.source import Source
from broker_filter.types import OutgoingMessage, Partition

__all__ = ["AtLeastOnce", "Delivery", "MemoryTransactions", "Outbox", "Parcel"]

ATTEMPT_S = 10.0
"""Longest time that one attempt at a delivery may hold up the main loop."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Messages to publish, and the next offsets to read once they are out.

    ``number`` identifies a parcel: a delivery that is tried again carries the number it had.
    """

    number: int
    messages: tuple[OutgoingMessage, ...] = ()
    offsets: Mapping[Partition, int] | None = None

    def emptied(self) -> Parcel:
        """The same parcel without its content: what began under its number is to be ended."""
        return Parcel(self.number)


class Outbox:
    """Gathers what is to go out, in order, until it is sealed as a parcel."""

    def __init__(self) -> None:
        self._messages: list[OutgoingMessage] = []
        self._offsets: dict[Partition, int] = {}
        self._bytes = self._number = 0

    def add(self, messages: Iterable[OutgoingMessage], offsets: Mapping[Partition, int]) -> None:
        """Take messages, and the offsets that they settle: both go into the same parcel."""
        for message in messages:
            self._messages.append(message)
            self._bytes += len(message.value)
        self._offsets |= offsets

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def nbytes(self) -> int:
        """Bytes of the messages' values."""
        return self._bytes

    def empty(self) -> bool:
        """Whether there is neither message nor offset."""
        return not self._messages and not self._offsets

    def seal(self) -> Parcel:
        """Hand over all of it."""
        self._number += 1
        parcel = Parcel(self._number, tuple(self._messages), self._offsets)
        self.clear()
        return parcel

    def clear(self) -> None:
        """Forget what was gathered: its input will be read again."""
        self._messages, self._offsets, self._bytes = [], {}, 0


class Delivery(Protocol):
    """A way out for parcels."""

    def deliver(self, parcel: Parcel, source: Source, *, last: bool = False) -> None:
        """Publish the messages and commit the offsets.

        Blocks for some `ATTEMPT_S` at most. With ``last`` the commit is on the broker on return,
        for partitions that are about to go.

        Raises
        ------
        TransientError
            Not delivered yet: call again with the same parcel, or emptied, before any other.
        ConfigError, StateError
            Whatever no further attempt can mend.
        """
        ...

    def close(self) -> None:
        """Let go; a second call does nothing."""
        ...


class AtLeastOnce:
    """Messages first, then the offsets; keeps the contract of `Delivery`.

    Parameters
    ----------
    sink : Sink
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._queued = 0
        self._offsets: dict[Partition, int] = {}  # the source leaves out what is committed

    def deliver(self, parcel: Parcel, source: Source, *, last: bool = False) -> None:
        """See `Delivery.deliver`."""
        if parcel.number != self._queued:
            for message in parcel.messages:
                self._sink.produce(message.topic, message.key, message.value, message.headers)
            self._queued = parcel.number
        self._sink.flush(ATTEMPT_S)
        self._offsets |= parcel.offsets or {}
        source.commit(self._offsets, wait=last)

    def close(self) -> None:
        """See `Delivery.close`."""
        self._sink.close()


class MemoryTransactions:
    """Exactly once, in memory: the twin of Kafka's transactions; keeps the contract of `Delivery`.

    Attributes
    ----------
    messages : list of OutgoingMessage
        What a reader of committed messages sees.
    aborted : list of OutgoingMessage
        What was sent in transactions that came to nothing.
    failures : list of BrokerFilterError
        Raised by the next deliveries, one each; a `TransientError` aborts the transaction.
    """

    def __init__(self) -> None:
        self.messages: list[OutgoingMessage] = []
        self.aborted: list[OutgoingMessage] = []
        self.failures: list[BrokerFilterError] = []

    def deliver(self, parcel: Parcel, source: Source, *, last: bool = False) -> None:  # noqa: ARG002
        """See `Delivery.deliver`."""
        if self.failures:
            self.aborted += parcel.messages
            raise self.failures.pop(0)
        if parcel.offsets:
            source.member()
            source.confirm(parcel.offsets)
        self.messages += parcel.messages

    def close(self) -> None:
        """See `Delivery.close`."""
