"""A member of a Kafka consumer group: the `Source` of the service."""

from __future__ import annotations

import difflib
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any

import confluent_kafka as ck

from broker_filter.config import Kafka
from broker_filter.errors import BrokerFilterError, ConfigError, StateError, TransientError
from broker_filter.kafka.client import connect, consumer_config, messages_of, open_client
from broker_filter.kafka.errors import ClientErrors, ShutOutError, partitions_changed
from broker_filter.kafka.sharing import require_alike, require_matched, whole
from broker_filter.kafka.source import Ledger, Member, OnChange
from broker_filter.types import Message, Partition, runs_of

__all__ = ["KafkaSource", "offset_handles"]

_log = logging.getLogger(__name__)

_GONE = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    ck.KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}

CHECK_S = 5.0
"""Between two checks of the topics, while partitions wait for others."""
REJOIN_S = 600.0
"""A member that is shut out twice within this time has a living twin, and does not come back."""


class KafkaSource:
    """A member of a Kafka consumer group; keeps the contract of `Source`.

    Parameters
    ----------
    kafka : Kafka
        Settings.
    on_assign : callable, optional
        Called with partitions that come to us; they are held back until `start`.
    on_revoke : callable, optional
        Called with partitions that are about to go; commits made in it still count.
    on_lost : callable, optional
        Called with partitions that went without notice; they can no longer be committed.

    Raises
    ------
    ConfigError
        Where no broker can be reached within ``kafka.connect_timeout_s``, the login is refused,
        or a topic is missing.
    """

    def __init__(
        self,
        kafka: Kafka,
        *,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_lost: OnChange | None = None,
    ) -> None:
        self._kafka = kafka
        self._ledger = Ledger()
        self._named = set(kafka.input_topics) - set(kafka.patterns)
        self._callbacks = (on_assign, on_revoke, on_lost)
        self._cooperative = kafka.strategy == "cooperative-sticky"
        self._starts: dict[Partition, int] = {}
        self._paused = False
        self._closed = False
        self._fetched_bytes = 0
        self._parted: set[Partition] = set()
        self._next_check, self._warned = 0.0, False
        self._reachable = True  # `connect` waits for a broker
        self._shut_out: float | None = None
        self._open()
        try:
            _require_topics(kafka, connect(self._consumer, kafka, self._errors))
            self._counts = self._count_partitions()
            require_alike(kafka, self._counts)
        except BrokerFilterError:
            self.close()
            raise
        self._subscribe()

    def poll(self, max_messages: int, timeout_s: float) -> list[Message]:
        """See `Source.poll`."""
        try:
            return self._poll(max_messages, timeout_s)
        except ShutOutError as error:
            self._rejoin(error)
            return []

    def _poll(self, max_messages: int, timeout_s: float) -> list[Message]:
        self._begin()
        if self._parted and time.monotonic() > self._next_check:
            self._hand_over()
        first = self._errors.call(self._consumer.poll, timeout_s)
        raws = [] if first is None else [first]  # an empty message counts as false
        if raws and max_messages > 1:
            # One call for all of them would wait for the last.
            raws += self._errors.call(self._consumer.consume, max_messages - 1, 0)
        messages = self._taken(raws)
        self._errors.check()
        return messages

    def start(self, partition: Partition, offset: int, committed: int) -> None:
        """See `Source.start`."""
        if partition in self._ledger.owned:
            self._ledger.hold([partition])
            self._starts[partition] = offset
            self._ledger.committed[partition] = committed

    def hold(self, partitions: Iterable[Partition]) -> None:
        """See `Source.hold`."""
        for partition in (new := self._ledger.hold(partitions)):
            self._starts.pop(partition, None)
        if new and not self._paused:
            self._consumer.pause(_handles(new))

    def commit(self, offsets: Mapping[Partition, int], *, wait: bool = False) -> None:
        """See `Source.commit`."""
        wanted = self._ledger.committable(offsets)
        if not wanted:
            return
        handles = offset_handles(wanted, self._counts)
        try:
            done = self._consumer.commit(offsets=handles, asynchronous=not wait)
        except ck.KafkaException as error:
            if error.args[0].code() in _GONE and self._kafka.patterns:
                _log.warning("commit_failed", extra={"detail": error.args[0].str()})
            else:
                self._errors.note(error.args[0])
        else:
            if wait:
                self._on_commit(None, done)

    def confirm(self, offsets: Mapping[Partition, int]) -> None:
        """See `Source.confirm`."""
        self._ledger.confirm(offsets)

    def member(self) -> Member:
        """See `Source.member`."""
        token = self._consumer.consumer_group_metadata()
        # A member that was shut out has no generation, and the broker would take its transactions
        # for those of an old client and let them pass.
        if _generation(token) < 0:
            raise TransientError("not a member of the group for now")
        return Member(token, self._counts)

    def committed(self, partition: Partition) -> int | None:
        """See `Source.committed`."""
        return self._ledger.committed.get(partition)

    def positions(self) -> dict[Partition, int]:
        """See `Source.positions`."""
        return dict(self._ledger.position)

    def pause(self) -> None:
        """See `Source.pause`."""
        # Pausing throws away what was fetched ahead, so never twice.
        if not self._paused:
            self._paused = True
            self._consumer.pause(_handles(self._ledger.awake()))

    def resume(self) -> None:
        """See `Source.resume`."""
        if self._paused:
            self._paused = False
            self._consumer.resume(_handles(self._ledger.awake()))

    def rest(self, partitions: Collection[Partition]) -> None:
        """See `Source.rest`."""
        begin, end = self._ledger.rest(partitions)
        if not self._paused:
            self._consumer.pause(_handles(begin))
            self._consumer.resume(_handles(end))

    def at_end(self) -> set[Partition]:
        """See `Source.at_end`."""
        return set(self._ledger.ended)

    def lag(self) -> dict[Partition, int]:
        """See `Source.lag`."""
        return {
            where: max(0, end - self._ledger.decided(where))
            for where in self._ledger.position
            if (end := self._end_of(where)) >= 0
        }

    def reachable(self) -> bool:
        """See `Source.reachable`."""
        return self._reachable

    def fetched_bytes(self) -> int:
        """See `Source.fetched_bytes`."""
        return self._fetched_bytes

    def assigned(self) -> set[Partition]:
        """See `Source.assigned`."""
        return set(self._ledger.owned)

    def close(self) -> None:
        """See `Source.close`."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _open(self) -> None:
        self._errors = ClientErrors(self._kafka)
        config = consumer_config(self._kafka) | {
            "enable.partition.eof": True,
            "error_cb": self._errors.note,
            "on_commit": self._on_commit,
            "stats_cb": self._on_statistics,
            "statistics.interval.ms": 5_000,
        }
        if self._callbacks[0]:
            # `start` says where; this is for what retention takes from under our feet.
            config["auto.offset.reset"] = "earliest"
        self._consumer = open_client(ck.Consumer, config)

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            list(self._kafka.input_topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _rejoin(self, error: ShutOutError) -> None:
        """Join anew after we were shut out; raises the error where that has just happened before.

        A coordinator that fails just when it lets a static member in takes that member for a twin
        of itself later. Where there is a twin indeed, both come back once: then the one that came
        first is shut out for the second time.
        """
        now = time.monotonic()
        if self._shut_out is not None and now - self._shut_out < REJOIN_S:
            raise error
        self._shut_out = now
        _log.warning("shut out of the group: joining anew", extra={"event": "shut_out"})
        self._consumer.close()
        self._on_lost(None, _handles(self._ledger.owned))
        self._open()
        self._subscribe()

    def _end_of(self, where: Partition) -> int:
        marks = self._consumer.get_watermark_offsets(ck.TopicPartition(*where), cached=True)
        return int(marks[1]) if marks else -1

    def _begin(self) -> None:
        """Seek where `start` said; a partition that is not fetched yet waits for the next poll."""
        for where, offset in list(self._starts.items()):
            try:
                self._consumer.seek(ck.TopicPartition(*where, offset))
            except ck.KafkaException as error:
                if error.args[0].code() == ck.KafkaError._STATE:  # noqa: SLF001
                    continue
                raise StateError(
                    f"{where[0]}[{where[1]}] cannot begin at offset {offset}: {error.args[0].str()}"
                ) from None
            del self._starts[where]
            self._ledger.start(where, offset, self._ledger.committed[where])
            if not self._paused and where not in self._ledger.resting:
                self._consumer.resume(_handles([where]))

    def _taken(self, raws: list[Any]) -> list[Message]:
        """The messages of partitions that are open, among what was polled."""
        messages: list[Message] = []
        for is_message, some in groupby(raws, lambda raw: raw.error() is None):
            if is_message:
                messages += self._opened(messages_of(some))
            else:
                for raw in some:
                    self._take_note(raw)
        return messages

    def _opened(self, messages: list[Message]) -> list[Message]:
        # What was fetched before a revocation or a hold may come after it; it is read again.
        open_ = self._ledger.open()
        taken: list[Message] = []
        for where, run in runs_of(messages):
            if where in open_:
                self._ledger.deliver(where, run[-1].next_offset)
                taken += run
        return taken

    def _take_note(self, raw: Any) -> None:  # noqa: ANN401
        """Take note of what the client hands out between messages: ends and errors."""
        where = raw.topic(), raw.partition()
        if raw.error().code() == ck.KafkaError._PARTITION_EOF:  # noqa: SLF001
            if where in self._ledger.open():
                self._ledger.position[where] = raw.offset()
                self._ledger.ended.add(where)
        elif raw.error().code() in _GONE and self._by_pattern(raw.topic()):
            self._lose_topic(raw.topic())
        else:
            self._errors.note(raw.error())

    def _by_pattern(self, topic: str | None) -> bool:
        """Whether a topic came to us by a pattern alone: such topics may go at any time."""
        return topic is not None and bool(self._kafka.patterns) and topic not in self._named

    def _lose_topic(self, topic: str) -> None:
        """Read on without a topic that was deleted."""
        gone = [where for where in self._ledger.owned if where[0] == topic]
        if gone:
            extra = {"event": "topic_gone", "topic": topic}
            _log.warning("topic %s is gone: reading on without it", topic, extra=extra)
            self._on_lost(None, _handles(gone))

    def _count_partitions(self) -> dict[str, int]:
        try:
            found = self._consumer.list_topics(timeout=10).topics
        except ck.KafkaException as error:
            raise TransientError(f"topics not listed: {error.args[0].str()}") from None
        return {name: len(about.partitions) for name, about in found.items() if about.partitions}

    def _on_assign(self, consumer: Any, handles: list[Any]) -> None:  # noqa: ANN401
        gained, on_assign = _partitions(handles), self._callbacks[0]
        self._ledger.gain(gained, hold=on_assign is not None)
        for handle in handles:
            self._require_count(handle.topic, handle.partition)
            if on_assign:
                handle.offset = 0  # held back, so nothing is read of it
        (consumer.incremental_assign if self._cooperative else consumer.assign)(handles)
        if handles and (self._paused or on_assign):
            consumer.pause(handles)
        if self._kafka.patterns:
            self._parted |= gained
            # Later: the client must not be called within its callback.
            self._next_check, self._warned = 0.0, False
        elif on_assign and gained:
            on_assign(gained)
        _log.info("partitions_assigned", extra={"count": len(gained)})

    def _hand_over(self) -> None:
        """Pass new partitions on whose stars are all ours; the others wait for the rest of them.

        The topics of a pattern are looked at for that, and refused where they cannot share.
        """
        self._next_check = time.monotonic() + CHECK_S
        try:
            there = self._count_partitions()
            require_matched(self._kafka, {topic for topic, _ in self._parted})
            require_alike(self._kafka, there)
        except TransientError as error:
            _log.warning("%s; trying again", error, extra={"event": "topics_not_listed"})
            return
        self._counts = {**there, **self._counts}
        for where in self._parted:
            self._require_count(*where)
        self._errors.check()
        ready = self._parted & whole(self._kafka, self._ledger.owned, there)
        self._parted -= ready
        if self._parted and not self._warned:
            self._warned = True
            _log.warning(
                "%d partitions wait, as others of their number are not ours: the members of group"
                " %s do not know the same topics yet",
                len(self._parted),
                self._kafka.group_id,
                extra={"event": "partitions_parted", "count": len(self._parted)},
            )
        if self._callbacks[0] and ready:
            self._callbacks[0](frozenset(ready))

    def _require_count(self, topic: str, partition: int) -> None:
        known = self._counts.get(topic, partition + 1)  # one may have come to match a pattern
        if partition >= known:
            self._errors.end(partitions_changed(topic, known, partition + 1))

    def _on_revoke(self, _: Any, handles: list[Any]) -> None:  # noqa: ANN401
        gone = _partitions(handles) & self._ledger.owned
        try:
            if self._callbacks[1] and gone:
                self._callbacks[1](gone)
        finally:
            self._drop(gone)
        _log.info("partitions_revoked", extra={"count": len(gone)})

    def _on_lost(self, _: Any, handles: list[Any]) -> None:  # noqa: ANN401
        gone = _partitions(handles) & self._ledger.owned
        self._drop(gone)
        if self._callbacks[2]:
            self._callbacks[2](gone)
        _log.warning("partitions_lost", extra={"count": len(gone)})

    def _drop(self, gone: Iterable[Partition]) -> None:
        self._ledger.drop(gone)
        self._parted.difference_update(gone)
        for partition in gone:
            self._starts.pop(partition, None)

    def _on_commit(self, error: Any, handles: list[Any]) -> None:  # noqa: ANN401
        if error is not None:
            # Moved partitions or an outage: the offset stays open for the next commit.
            _log.warning("commit_failed", extra={"reason": error.name(), "detail": error.str()})
            return
        good = [handle for handle in handles if handle.error is None]
        self._ledger.confirm({(h.topic, h.partition): h.offset for h in good})

    def _on_statistics(self, text: str) -> None:
        statistics = json.loads(text)
        brokers = statistics.get("brokers", {}).values()
        self._reachable = any(broker.get("state") == "UP" for broker in brokers)
        topics = statistics.get("topics", {}).values()
        parts = [part for topic in topics for part in topic["partitions"].values()]
        self._fetched_bytes = sum(part.get("fetchq_size", 0) for part in parts)


def _generation(token: bytes) -> int:
    """Generation of a member, from librdkafka's own form of the group's metadata."""
    return int.from_bytes(token[7:11], "little", signed=True) if token[:7] == b"CGMDv2:" else 0


def offset_handles(offsets: Mapping[Partition, int], counts: Mapping[str, int]) -> list[Any]:
    """Offsets as Kafka's client takes them; each with the number of partitions of its topic."""
    return [
        ck.TopicPartition(*where, offset, metadata=str(counts.get(where[0], "")))
        for where, offset in offsets.items()
    ]


def _require_topics(kafka: Kafka, there: set[str]) -> None:
    for topic in kafka.input_topics:
        if topic not in there and not topic.startswith("^"):
            near = difflib.get_close_matches(topic, there, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(
                f"kafka.input_topics: there is no topic {topic!r} at {kafka.bootstrap_servers}, or"
                f" the login lacks the rights Describe and Read on it{hint}"
            )


def _partitions(handles: Iterable[Any]) -> frozenset[Partition]:
    return frozenset((handle.topic, handle.partition) for handle in handles)


def _handles(partitions: Iterable[Partition]) -> list[Any]:
    return [ck.TopicPartition(*partition) for partition in partitions]
