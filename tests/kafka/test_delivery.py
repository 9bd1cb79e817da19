"""Parcels of messages and offsets, the order in which they go out, and how long one tries."""

from __future__ import annotations

import pytest

from broker_filter.errors import TransientError
from broker_filter.kafka.delivery import AtLeastOnce, MemoryTransactions, Outbox, Parcel
from broker_filter.kafka.memory import MemorySource
from broker_filter.kafka.sink import MemorySink
from broker_filter.types import Message, OutgoingMessage

PARTITION = ("t", 0)


def message(n: int) -> OutgoingMessage:
    return OutgoingMessage("out", None, b"%d" % n)


def ready_source(count: int = 5) -> MemorySource:
    source = MemorySource([Message(*PARTITION, n, None, b"") for n in range(count)])
    source.poll(count, 0)
    return source


def test_messages_and_the_offsets_that_they_settle_share_a_parcel() -> None:
    outbox = Outbox()
    assert outbox.empty()
    outbox.add([message(1), message(2)], {PARTITION: 3})
    outbox.add([message(3)], {PARTITION: 5, ("t", 1): 1})
    assert (len(outbox), outbox.nbytes) == (3, 3)
    parcel = outbox.seal()
    assert parcel.messages == (message(1), message(2), message(3))
    assert parcel.offsets == {PARTITION: 5, ("t", 1): 1}
    assert outbox.empty()
    assert outbox.seal().number != parcel.number
    assert parcel.emptied() == Parcel(parcel.number)


def test_offsets_alone_are_worth_a_parcel() -> None:
    outbox = Outbox()
    outbox.add([], {PARTITION: 1})
    assert not outbox.empty()
    outbox.clear()
    assert outbox.empty()


class TestAtLeastOnce:
    def test_offsets_follow_the_messages(self) -> None:
        sink, source = MemorySink(), ready_source()
        delivery = AtLeastOnce(sink)
        sink.failure = TransientError("slow")
        parcel = Parcel(1, (message(1),), {PARTITION: 2})
        with pytest.raises(TransientError):
            delivery.deliver(parcel, source)
        assert source.stored == {}
        sink.failure = None
        delivery.deliver(parcel, source)
        assert source.stored == {PARTITION: 2}
        assert sink.messages == [message(1)]  # what is queued is not queued again

    def test_a_commit_that_failed_is_made_up_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source = ready_source()
        delivery = AtLeastOnce(MemorySink())
        with monkeypatch.context() as patch:
            patch.setattr(source, "commit", lambda *_, **__: None)
            delivery.deliver(Parcel(1, (), {PARTITION: 2}), source)
        delivery.deliver(Parcel(2), source)
        assert source.stored == {PARTITION: 2}


class TestMemoryTransactions:
    def test_all_or_nothing(self) -> None:
        source, transactions = ready_source(), MemoryTransactions()
        parcel = Parcel(1, (message(1),), {PARTITION: 2})
        transactions.failures.append(TransientError("aborted"))
        with pytest.raises(TransientError):
            transactions.deliver(parcel, source)
        assert (transactions.messages, source.stored) == ([], {})
        transactions.deliver(parcel, source)
        assert (transactions.messages, source.stored) == ([message(1)], {PARTITION: 2})

    def test_who_is_no_member_publishes_nothing(self) -> None:
        source, transactions = ready_source(), MemoryTransactions()
        source.lose(PARTITION)
        with pytest.raises(TransientError, match="not a member"):
            transactions.deliver(Parcel(1, (message(1),), {PARTITION: 2}), source)
        assert transactions.messages == []
