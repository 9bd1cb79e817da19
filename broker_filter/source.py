"""Where messages come from: Kafka, or a list in memory, behind one Protocol.

A source belongs to one thread. Offsets are committed only for partitions that it owns, and never
past what it has handed out since it got the partition: so neither a rebalance nor a late commit
can move another member's position, or skip a message.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import confluent_kafka as ck

from broker_filter.config import Kafka, client_config
from broker_filter.errors import BrokerFilterError, ConfigError, StateError, TransientError
from broker_filter.types import Message, Partition

__all__ = [
    "ClientErrors",
    "GroupProgress",
    "KafkaSource",
    "MemorySource",
    "OnAssign",
    "OnDrop",
    "Partition",
    "Source",
    "connect",
    "consumer_config",
    "message_of",
    "open_client",
]

OnAssign = Callable[[frozenset[Partition]], Mapping[Partition, int] | None]
OnDrop = Callable[[frozenset[Partition]], object]

_log = logging.getLogger(__name__)
_client_log = logging.getLogger("broker_filter.librdkafka")


class Source(Protocol):
    """A stream of messages, shared out by partition among the members of a group."""

    def poll(self, max_messages: int, timeout_s: float) -> list[Message]:
        """Take the messages that are there, at most ``max_messages``, in order per partition.

        Blocks until a first message is there, at most ``timeout_s``; callbacks run inside it and
        add their own time. Must be called often (``kafka.max_poll_interval_ms``), also while
        paused. Raises ConfigError where no retry can help (unknown topic, refused login) and
        StateError where the member was shut out.
        """
        ...

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit the next offset to read of each partition; others' partitions are left out.

        Does not block, and does not raise where a rebalance or an outage gets in the way: the
        next commit makes up for it. What was committed before ``close`` is on the broker after it,
        as long as the broker can be reached.
        """
        ...

    def pause(self) -> None:
        """Hand out nothing until ``resume``, in partitions to come too. Does not block."""
        ...

    def resume(self) -> None:
        """Hand out messages again. Does not block."""
        ...

    def lag(self) -> dict[Partition, int]:
        """Messages between our position and the end, where both are known. Does not block."""
        ...

    def assigned(self) -> set[Partition]:
        """Partitions that we own now. Does not block."""
        ...

    def close(self) -> None:
        """Leave the group; a second call does nothing. Blocks for seconds at most."""
        ...


class _Ledger:
    """What we own, what was handed out of it since we got it, and what may be committed."""

    def __init__(self) -> None:
        self.owned: set[Partition] = set()
        self.delivered: dict[Partition, int] = {}
        self.committed: dict[Partition, int] = {}

    def gain(self, partitions: Iterable[Partition]) -> None:
        self.owned.update(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.owned.discard(partition)
            self.delivered.pop(partition, None)
            self.committed.pop(partition, None)

    def deliver(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.delivered[message.topic, message.partition] = message.next_offset

    def committable(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Pick the offsets that are ours, were handed out, and lie past the last commit."""
        return {
            partition: offset
            for partition, offset in offsets.items()
            if self.committed.get(partition, -1) < offset <= self.delivered.get(partition, -1)
        }


class ClientErrors:
    """What a Kafka client reported on its own: kept until its owner asks.

    Callbacks run deep inside the client, so they only take note here.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._end: BrokerFilterError | None = None
        self.last = ""

    def note(self, error: Any) -> None:  # noqa: ANN401  the client has no types for mypy
        """Take note of a KafkaError: one that no retry can mend is raised by `check`."""
        self.last = error.str()
        self._end = self._end or client_error(error, self._kafka)
        if self._end is None:
            _log.warning("kafka_error", extra={"reason": error.name(), "detail": error.str()})

    def check(self) -> None:
        """Raise what ended the client, if anything did."""
        if self._end is not None:
            raise self._end


def client_error(error: Any, kafka: Kafka) -> BrokerFilterError | None:  # noqa: ANN401
    """Return the error to end with, or None for what librdkafka mends by itself."""
    code, text = error.code(), error.str()
    if code in (ck.KafkaError._AUTHENTICATION, ck.KafkaError.SASL_AUTHENTICATION_FAILED):  # noqa: SLF001
        return ConfigError(
            f"login to kafka.bootstrap_servers = {kafka.bootstrap_servers} as"
            f" {kafka.security.username!r} was refused: check kafka.security ({error.name()})"
        )
    if code == ck.KafkaError._SSL:  # noqa: SLF001
        return ConfigError(f"TLS with {kafka.bootstrap_servers} failed: {text}: kafka.security")
    if code == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
        return ConfigError(
            f"topic not found at {kafka.bootstrap_servers}: {text}:"
            " create it, or mend kafka.input_topics"
        )
    if code in (
        ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
        ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    ):
        return ConfigError(
            f"user {kafka.security.username!r} may not do this at {kafka.bootstrap_servers}:"
            f" {text}: grant it on the broker, or mend kafka.group_id and the topics"
        )
    if code in (ck.KafkaError.FENCED_INSTANCE_ID, ck.KafkaError._FENCED):  # noqa: SLF001
        return StateError(f"another member runs as this one: {text}: kafka.group_instance_id")
    if error.fatal():
        return StateError(f"the Kafka client cannot go on: {text}: restart")
    return None


def consumer_config(kafka: Kafka) -> dict[str, Any]:
    """Properties of a consumer of the group, with the login; it holds the password in clear."""
    ours = {
        "group.id": kafka.group_id,
        "group.instance.id": kafka.group_instance_id,
        "auto.offset.reset": kafka.auto_offset_reset,
        "partition.assignment.strategy": kafka.assignment_strategy,
        "session.timeout.ms": kafka.session_timeout_ms,
        "max.poll.interval.ms": kafka.max_poll_interval_ms,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
    }
    limits = {
        # A backlog would otherwise fill 64 MB per client, and far more with many partitions.
        "queued.max.messages.kbytes": 16_384,
        "queued.min.messages": 10_000,
        # By default a full queue stops fetching for a second: 16 MB/s at most.
        "fetch.queue.backoff.ms": 50,
    }
    given = {key: value for key, value in ours.items() if value is not None}
    return {**limits, **client_config(kafka), **given}


def open_client(factory: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:  # noqa: ANN401
    """Make a Kafka client that logs to ``broker_filter.librdkafka``.

    Raises
    ------
    ConfigError
        Where librdkafka refuses a property.
    """
    try:
        return factory({"logger": _client_log, **config})
    except ck.KafkaException as error:
        raise ConfigError(
            f"librdkafka refuses the settings: {error.args[0].str()}: check kafka.options"
        ) from None


def connect(client: Any, kafka: Kafka, errors: ClientErrors) -> set[str]:  # noqa: ANN401
    """Wait until a broker answers, and return the topics that it has.

    Blocks for at most ``kafka.connect_timeout_s``.

    Raises
    ------
    ConfigError
        Where none answers in time, or refuses the login.
    """
    end = time.monotonic() + kafka.connect_timeout_s
    while True:
        left = end - time.monotonic()
        try:
            return set(client.list_topics(timeout=max(0.01, min(0.5, left))).topics)
        except ck.KafkaException as error:
            client.poll(0)  # lets the error callback speak
            errors.check()
            if left <= 0.5:
                detail = errors.last or error.args[0].str()
                raise ConfigError(
                    f"no broker reached at kafka.bootstrap_servers = {kafka.bootstrap_servers}"
                    f" within {kafka.connect_timeout_s:g} s: {detail}. Does it run there, and does"
                    f" it speak kafka.security.protocol = {kafka.security.protocol}?"
                ) from None


class KafkaSource:
    """A member of a Kafka consumer group; keeps the contract of `Source`.

    Parameters
    ----------
    kafka : Kafka
        Settings.
    on_assign : callable, optional
        Called with partitions that come to us. May return the offsets to start at, of some or all
        of them; the others start at the group's committed offset.
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
        on_assign: OnAssign | None = None,
        on_revoke: OnDrop | None = None,
        on_lost: OnDrop | None = None,
    ) -> None:
        self._ledger = _Ledger()
        self._errors = ClientErrors(kafka)
        self._callbacks = (on_assign, on_revoke, on_lost)
        self._cooperative = kafka.assignment_strategy == "cooperative-sticky"
        self._paused = False
        self._closed = False
        config = consumer_config(kafka)
        config |= {"error_cb": self._errors.note, "on_commit": self._on_commit}
        self._consumer = open_client(ck.Consumer, config)
        try:
            _require_topics(kafka, connect(self._consumer, kafka, self._errors))
        except BrokerFilterError:
            self.close()
            raise
        self._consumer.subscribe(
            list(kafka.input_topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def poll(self, max_messages: int, timeout_s: float) -> list[Message]:
        """See `Source.poll`."""
        first = self._consumer.poll(timeout_s)
        raws = [] if first is None else [first]  # an empty message counts as false
        if raws and max_messages > 1:
            # One call for all of them would wait for the last.
            raws += self._consumer.consume(max_messages - 1, 0)
        messages = [message_of(raw) for raw in raws if self._usable(raw)]
        self._ledger.deliver(messages)
        self._errors.check()
        return messages

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """See `Source.commit`."""
        wanted = self._ledger.committable(offsets)
        if not wanted:
            return
        try:
            self._consumer.commit(
                offsets=[ck.TopicPartition(*where, offset) for where, offset in wanted.items()],
                asynchronous=True,
            )
        except ck.KafkaException as error:
            self._errors.note(error.args[0])

    def pause(self) -> None:
        """See `Source.pause`."""
        # Pausing throws away what was fetched ahead, so never twice.
        if not self._paused:
            self._paused = True
            self._consumer.pause(_handles(self._ledger.owned))

    def resume(self) -> None:
        """See `Source.resume`."""
        if self._paused:
            self._paused = False
            self._consumer.resume(_handles(self._ledger.owned))

    def lag(self) -> dict[Partition, int]:
        """See `Source.lag`."""
        return {
            where: max(0, end - offset)
            for where, offset in self._ledger.delivered.items()
            if (end := self._end_of(where)) >= 0
        }

    def assigned(self) -> set[Partition]:
        """See `Source.assigned`."""
        return set(self._ledger.owned)

    def close(self) -> None:
        """See `Source.close`."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _end_of(self, where: Partition) -> int:
        marks = self._consumer.get_watermark_offsets(ck.TopicPartition(*where), cached=True)
        return int(marks[1]) if marks else -1

    def _usable(self, raw: Any) -> bool:  # noqa: ANN401
        if raw.error() is not None:
            self._errors.note(raw.error())
            return False
        # Fetched before a revocation, handed out after it: the new owner reads it too.
        return (raw.topic(), raw.partition()) in self._ledger.owned

    def _on_assign(self, consumer: Any, handles: list[Any]) -> None:  # noqa: ANN401
        gained = _partitions(handles)
        self._ledger.gain(gained)
        starts = (self._callbacks[0](gained) if self._callbacks[0] else None) or {}
        for handle in handles:
            handle.offset = starts.get((handle.topic, handle.partition), handle.offset)
        (consumer.incremental_assign if self._cooperative else consumer.assign)(handles)
        if self._paused and handles:
            consumer.pause(handles)
        _log.info("partitions_assigned", extra={"count": len(gained)})

    def _on_revoke(self, _: Any, handles: list[Any]) -> None:  # noqa: ANN401
        gone = _partitions(handles)
        try:
            if self._callbacks[1]:
                self._callbacks[1](gone)
        finally:
            self._ledger.drop(gone)
        _log.info("partitions_revoked", extra={"count": len(gone)})

    def _on_lost(self, _: Any, handles: list[Any]) -> None:  # noqa: ANN401
        gone = _partitions(handles)
        self._ledger.drop(gone)
        if self._callbacks[2]:
            self._callbacks[2](gone)
        _log.warning("partitions_lost", extra={"count": len(gone)})

    def _on_commit(self, error: Any, handles: list[Any]) -> None:  # noqa: ANN401
        if error is not None:
            # Moved partitions or an outage: the offset stays open for the next commit.
            _log.warning("commit_failed", extra={"reason": error.name(), "detail": error.str()})
            return
        for handle in handles:
            where = (handle.topic, handle.partition)
            if handle.error is None and where in self._ledger.owned:
                last = self._ledger.committed.get(where, -1)
                self._ledger.committed[where] = max(last, handle.offset)


def _require_topics(kafka: Kafka, there: set[str]) -> None:
    for topic in kafka.input_topics:
        if topic not in there and not topic.startswith("^"):
            near = difflib.get_close_matches(topic, there, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(
                f"kafka.input_topics: there is no topic {topic!r} at {kafka.bootstrap_servers}, or"
                f" this user may not see it{hint}"
            )


def _partitions(handles: Iterable[Any]) -> frozenset[Partition]:
    return frozenset((handle.topic, handle.partition) for handle in handles)


def _handles(partitions: Iterable[Partition]) -> list[Any]:
    return [ck.TopicPartition(*partition) for partition in partitions]


def message_of(raw: Any) -> Message:  # noqa: ANN401
    """Our own type for a message of the Kafka client."""
    headers = tuple((name, value or b"") for name, value in raw.headers() or ())
    return Message(
        topic=raw.topic(),
        partition=raw.partition(),
        offset=raw.offset(),
        key=raw.key(),
        value=raw.value(),
        timestamp_ms=max(0, raw.timestamp()[1]),
        headers=headers,
    )


class MemorySource:
    """Messages from memory; keeps the contract of `Source`, and plays rebalances on demand.

    All partitions that occur are assigned at the first poll, unless `assign` came before. `poll`
    never waits.

    Attributes
    ----------
    committed : dict
        Next offset to read of each partition, as the broker would hold it.
    """

    def __init__(
        self,
        messages: Iterable[Message] = (),
        *,
        on_assign: OnAssign | None = None,
        on_revoke: OnDrop | None = None,
        on_lost: OnDrop | None = None,
    ) -> None:
        self.committed: dict[Partition, int] = {}
        self._ledger = _Ledger()
        self._log = list(messages)
        self._queue: deque[Message] = deque()
        self._callbacks = (on_assign, on_revoke, on_lost)
        self._fresh = True
        self._paused = False

    def push(self, *messages: Message) -> None:
        """Append messages, as a producer would."""
        self._log += messages
        self._queue += [m for m in messages if (m.topic, m.partition) in self._ledger.owned]

    def assign(self, *partitions: Partition) -> None:
        """Give us partitions, each from its committed offset or where ``on_assign`` says."""
        self._fresh = False
        gained = frozenset(partitions)
        self._ledger.gain(gained)
        starts = (self._callbacks[0](gained) if self._callbacks[0] else None) or {}
        starts = {**{where: self.committed.get(where, 0) for where in gained}, **starts}
        self._queue += [
            m for m in self._log if m.offset >= starts.get((m.topic, m.partition), m.next_offset)
        ]

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
            self.assign(*dict.fromkeys((m.topic, m.partition) for m in self._log))
        count = 0 if self._paused else min(max_messages, len(self._queue))
        messages = [self._queue.popleft() for _ in range(count)]
        self._ledger.deliver(messages)
        return messages

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """See `Source.commit`."""
        wanted = self._ledger.committable(offsets)
        self._ledger.committed |= wanted
        self.committed |= wanted

    def pause(self) -> None:
        """See `Source.pause`."""
        self._paused = True

    def resume(self) -> None:
        """See `Source.resume`."""
        self._paused = False

    def lag(self) -> dict[Partition, int]:
        """See `Source.lag`."""
        waiting = [(m.topic, m.partition) for m in self._queue]
        return {where: waiting.count(where) for where in self._ledger.delivered}

    def assigned(self) -> set[Partition]:
        """See `Source.assigned`."""
        return set(self._ledger.owned)

    def close(self) -> None:
        """Give everything back, after ``on_revoke``."""
        if self._ledger.owned:
            self.revoke(*self._ledger.owned)

    def _drop(self, partitions: Iterable[Partition]) -> None:
        gone = set(partitions)
        self._ledger.drop(gone)
        self._queue = deque(m for m in self._queue if (m.topic, m.partition) not in gone)


class GroupProgress:
    """How far a consumer group has come, asked of the broker without joining the group.

    Parameters
    ----------
    kafka : Kafka
        Settings; ``group_id`` names the group.
    """

    def __init__(self, kafka: Kafka) -> None:
        # A member's fixed name must not be borrowed by an observer.
        self._kafka = kafka.model_copy(update={"group_instance_id": None})
        self._consumer = open_client(ck.Consumer, consumer_config(self._kafka))

    def __call__(self, partition: Partition) -> int:
        """Next offset that the group will read of a partition; 0 before its first commit.

        Blocks for a round trip, some seconds at most while the broker answers.

        Raises
        ------
        TransientError
            Where the broker does not answer.
        """
        try:
            handles = self._consumer.committed([ck.TopicPartition(*partition)], timeout=5)
        except ck.KafkaException as error:
            raise TransientError(
                f"committed offset of {partition[0]}[{partition[1]}] not known:"
                f" {error.args[0].str()}"
            ) from None
        return max(0, int(handles[0].offset))

    def close(self) -> None:
        """Let the connection go."""
        self._consumer.close()
