"""Exactly once: messages and the offsets of their input in one Kafka transaction (KIP-447).

Beside ``source`` and ``sink`` this talks to Kafka. One transactional producer per process; the
group's coordinator checks in each transaction that we still are the member that read the input, so
a process that was thought dead cannot publish.

A producer that is beyond use (some answers of a coordinator that moved or restarted leave it so) is
replaced by one of the same name, whose first act is to abort what the old one left open. That is no
way where the old one was shut out by a newer one of its name, which must win, nor where a
commit had no answer: then the process ends, and the next start reads the group's offsets.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import confluent_kafka as ck

from broker_filter.backoff import Backoff
from broker_filter.config import Kafka
from broker_filter.errors import BrokerFilterError, ConfigError, StateError, TransientError
from broker_filter.kafka.client import MOCK_CLUSTER
from broker_filter.kafka.consumer import offset_handles
from broker_filter.kafka.delivery import ATTEMPT_S, AtLeastOnce, Delivery, Parcel
from broker_filter.kafka.errors import ShutOutError, client_error
from broker_filter.kafka.sink import KafkaSink, refusal
from broker_filter.kafka.source import Source
from broker_filter.observe.metrics import Metrics

__all__ = ["KafkaTransactions", "open_delivery", "transactional_id"]

_log = logging.getLogger(__name__)

CLOSE_S = INIT_S = 5.0
GRACE_S = 2.0
"""For librdkafka to keep a time limit, before it is left to itself."""

_UNSUPPORTED = {
    ck.KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001
    ck.KafkaError.UNSUPPORTED_VERSION,
}
_FENCED = {
    ck.KafkaError._FENCED,  # noqa: SLF001
    ck.KafkaError.PRODUCER_FENCED,
    ck.KafkaError.INVALID_PRODUCER_EPOCH,
}


def open_delivery(kafka: Kafka, metrics: Metrics) -> Delivery:
    """Open the way out that ``kafka.delivery`` names; ``auto`` takes the best that there is.

    Raises
    ------
    ConfigError
        No broker is reached, the login is refused, a topic to publish to is missing, or
        ``exactly_once`` cannot be had there.
    StateError
        The producer is refused for good.
    """
    if kafka.delivery != "at_least_once":
        try:
            transactions = KafkaTransactions(kafka, metrics)
            transactions.require(output_topics(kafka))
            return transactions
        except _UnsupportedError as error:
            if kafka.delivery == "exactly_once":
                raise ConfigError(
                    f"{kafka.bootstrap_servers} offers no transactions ({error}): set"
                    " kafka.delivery to at_least_once"
                ) from None
    sink = KafkaSink(kafka)
    sink.require(output_topics(kafka))
    _log.info("delivery", extra={"event": "delivery", "kind": "at_least_once"})
    return AtLeastOnce(sink)


def output_topics(kafka: Kafka) -> dict[str, str]:
    """The topics that are published to, and the settings that name them."""
    return {
        kafka.alert_topic: "kafka.alert_topic",
        kafka.dead_letter_topic: "kafka.dead_letter_topic",
    }


def transactional_id(kafka: Kafka) -> str:
    """Name of the producer: the member's where it has one, so that a restart ends what it left."""
    return f"{kafka.group_id}-{kafka.group_instance_id or uuid.uuid4().hex}"


def _properties(kafka: Kafka) -> dict[str, Any]:
    timeout_s = kafka.transaction_timeout_s
    return {
        "transactional.id": transactional_id(kafka),
        "transaction.timeout.ms": int(1000 * timeout_s),
        # A message must be given up before its transaction is.
        "message.timeout.ms": int(1000 * min(kafka.delivery_timeout_s, timeout_s * 2 / 3)),
        "linger.ms": 0,  # a parcel is complete when it is sent
    }


class _UnsupportedError(Exception):
    """The brokers have no transactions."""


class _Phase(Enum):
    NEW = "new"  # to fence off what a producer of our name left behind, and end its transaction
    IDLE = "idle"
    OPEN = "open"  # to be aborted before anything else
    COMMITTING = "committing"  # may be done on the broker: to be resumed, not aborted
    BROKEN = "broken"  # to be replaced by a new producer


class KafkaTransactions:
    """One transaction a parcel; keeps the contract of `Delivery`.

    Parameters
    ----------
    kafka : Kafka
        Settings.
    metrics : Metrics

    Raises
    ------
    ConfigError
        No broker or no coordinator is reached in time, or the login is refused.
    """

    def __init__(self, kafka: Kafka, metrics: Metrics) -> None:
        self._kafka, self._metrics = kafka, metrics
        self._properties = _properties(kafka)  # once: a new producer must have the same name
        self._phase, self._number = _Phase.NEW, 0
        self._open(KafkaSink(kafka, self._properties))
        self._begin()
        _log.info("delivery", extra={"event": "delivery", "kind": "exactly_once"})

    def deliver(self, parcel: Parcel, source: Source, *, last: bool = False) -> None:  # noqa: ARG002
        """See `Delivery.deliver`."""
        end = time.monotonic() + ATTEMPT_S
        try:
            if not self._resume(parcel, end) and (parcel.messages or parcel.offsets):
                self._transact(parcel, source, end)
        except ShutOutError:
            raise
        except StateError as error:
            if self._phase is _Phase.COMMITTING:
                raise
            self._phase = _Phase.BROKEN
            raise TransientError(f"a new producer is needed: {error}") from None
        source.confirm(parcel.offsets or {})

    def require(self, topics: Mapping[str, str]) -> None:
        """See `KafkaSink.require`."""
        self._sink.require(topics)

    def close(self) -> None:
        """See `Delivery.close`; aborts what was not committed, so that nobody waits for it."""
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.IDLE
            with suppress(ck.KafkaException):  # the broker aborts it in time
                self._producer.abort_transaction(CLOSE_S)

    def _open(self, sink: KafkaSink) -> None:
        self._sink, self._producer = sink, sink.producer
        self._phase = _Phase.NEW

    def _begin(self) -> None:
        """Wait for a coordinator."""
        if (self._producer.cluster_id(INIT_S) or "").startswith(MOCK_CLUSTER):
            raise _UnsupportedError("it is librdkafka's mock cluster")
        backoff = Backoff(self._kafka.connect_timeout_s)
        while True:
            try:
                return self._init(INIT_S)
            except TransientError as error:
                absent = ConfigError(
                    f"no transaction coordinator at {self._kafka.bootstrap_servers} within"
                    f" {self._kafka.connect_timeout_s:g} s: {error}. Is it up? Or set"
                    " kafka.delivery to at_least_once"
                )
            time.sleep(backoff.failed(absent))

    def _init(self, timeout_s: float) -> None:
        """Fence off what a producer of our name left behind, and end its transaction."""
        self._call(self._producer.init_transactions, timeout_s)
        self._phase = _Phase.IDLE

    def _resume(self, parcel: Parcel, end: float) -> bool:
        """End what an earlier attempt left; true where that delivered this parcel after all."""
        if self._phase is _Phase.BROKEN:
            self._open(KafkaSink(self._kafka, self._properties, wait=False))
        if self._phase is _Phase.NEW:
            self._init(_left(end))
            self._ended("aborted")
        committing = self._phase is _Phase.COMMITTING
        if committing:
            self._call(self._producer.commit_transaction, _left(end))
            self._ended("committed")
        elif self._phase is _Phase.OPEN:
            self._call(self._producer.abort_transaction, _left(end))
            self._ended("aborted")
        return committing and parcel.number == self._number

    def _transact(self, parcel: Parcel, source: Source, end: float) -> None:
        member = source.member()
        self._number = parcel.number
        self._sink.failures()  # those of earlier attempts
        self._call(self._producer.begin_transaction)
        self._phase = _Phase.OPEN
        for message in parcel.messages:
            self._sink.produce(message.topic, message.key, message.value, message.headers)
        if parcel.offsets:
            handles = offset_handles(parcel.offsets, member.partitions)
            send = partial(self._producer.send_offsets_to_transaction, handles, member.token)
            try:
                self._call(_within, send, _left(end))
            except TransientError:
                self._flush(time.monotonic())  # a refused message is the better reason
                raise
        self._flush(end)
        self._phase = _Phase.COMMITTING
        self._call(self._producer.commit_transaction, _left(end))
        self._ended("committed")

    def _ended(self, outcome: str) -> None:
        self._phase = _Phase.IDLE
        self._metrics.inc("transactions_total", outcome=outcome)

    def _flush(self, end: float) -> None:
        """Have all messages acknowledged, so that a refused one ends with its reason."""
        self._call(self._sink.errors.call, self._producer.flush, _left(end))
        for where, error in self._sink.failures():
            reason = f"message to {where} not taken: {error.str()}"
            raise refusal(error, self._kafka, where) or TransientError(reason)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401
        try:
            function(*arguments)
        except ck.KafkaException as failure:
            raise self._error(failure.args[0]) from None

    def _error(self, error: Any) -> BrokerFilterError | _UnsupportedError:  # noqa: ANN401
        """Return what a failed call means; notes where the transaction is to be aborted."""
        if error.code() in _UNSUPPORTED and self._phase is _Phase.NEW:
            return _UnsupportedError(error.str())
        # The topic of an offset is gone: the consumer is about to lose its partitions.
        gone = error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART and not error.fatal()
        if error.txn_requires_abort() or gone:
            self._phase = _Phase.OPEN
        elif not error.retriable():
            return self._end(error)
        return TransientError(f"transaction not committed: {error.str()} ({error.name()})")

    def _end(self, error: Any) -> BrokerFilterError:  # noqa: ANN401
        if error.code() in _FENCED:
            return _fenced(self._kafka, error.str())
        return client_error(error, self._kafka) or StateError(
            f"transactions cannot go on: {error.str()} ({error.name()}): restart"
        )


def _fenced(kafka: Kafka, text: str) -> ShutOutError:
    """The error to end with where the brokers take nothing more of our producer."""
    reason = (
        f"it did not answer within kafka.transaction_timeout_s = {kafka.transaction_timeout_s:g},"
        " so its transaction was aborted"
    )
    if kafka.group_instance_id:
        twin = f"another filter has started as kafka.group_instance_id = {kafka.group_instance_id}"
        reason = f"{twin}, or {reason}"
    return ShutOutError(f"this filter was shut out: {reason} ({text}): restart it")


def _within(function: Callable[[float], object], limit_s: float) -> None:
    """Call a function with its time limit, and see to it that it keeps it.

    librdkafka waits for a group's coordinator without any limit where the connection to it was
    lost before (its issue 5456). Then the call is left behind in its thread, with a producer that
    is of no use any more.
    """
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            function(limit_s)
        except BaseException as error:  # noqa: BLE001  raised below
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, name="send offsets", daemon=True).start()
    try:
        error = outcome.get(timeout=limit_s + GRACE_S)
    except queue.Empty:
        raise StateError(f"offsets not sent in {limit_s:.0f} s, and no answer") from None
    if error is not None:
        raise error


def _left(end: float) -> float:
    return max(0.1, end - time.monotonic())
