"""Read a topic for people: from now or from its beginning, with or without a consumer group.

The service has its own consumer, whose offsets go with its alerts; this one is for subscribers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage

from broker_filter.errors import BrokerFilterError, ConfigError, TransientError
from broker_filter.kafka.client import client_logger, message_of
from broker_filter.kafka.errors import refused
from broker_filter.types import Message

__all__ = ["CONNECT_S", "TopicReader"]

_log = logging.getLogger(__name__)

CONNECT_S = 10.0


class TopicReader:
    """All partitions of one topic, message by message.

    Without a group nothing is committed, and a message that is sent once the reader exists is not
    missed. A topic that does not exist yet is waited for.

    With a group the partitions are shared with its other members, and reading goes on where the
    group stopped: a message counts as done when the next is requested (or by `mark_done`), so that
    one whose handling fails comes again.

    Parameters
    ----------
    bootstrap_servers : str
        ``host:port[,host:port...]``.
    topic : str
    group_id : str or None
    from_beginning : bool
        Start at the oldest message rather than now (with a group: only where it has no place yet).
    config : mapping or None
        Further librdkafka properties, such as those for SASL and TLS; they win over those set here.
    positions : mapping of int to int, optional
        Without a group: the offset to begin with, by partition, in place of what ``from_beginning``
        says; where it is no longer in the topic, the oldest message.

    Raises
    ------
    ConfigError
        librdkafka refuses a property, or the brokers refuse the credentials.
    TransientError
        No broker answers.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        group_id: str | None = None,
        from_beginning: bool = False,
        config: Mapping[str, str | int | float | bool] | None = None,
        positions: Mapping[int, int] | None = None,
    ) -> None:
        self._positions = positions or {}
        self._servers = bootstrap_servers
        self._topic = topic
        self._grouped = group_id is not None
        self._logger = client_logger()
        self._last = ""
        self._pending: KafkaMessage | None = None
        self._end: BrokerFilterError | None = None
        self._consumer = self._connect(bootstrap_servers, group_id, from_beginning, config or {})
        try:
            partitions = self._partitions(CONNECT_S)
            self._assigned = self._start(partitions, from_beginning, CONNECT_S)
        except KafkaException as failure:
            self._consumer.close()
            raise self._no_answer(failure, CONNECT_S) from None
        except BaseException:
            self._consumer.close()
            raise
        self._logger.disabled = False

    def poll(self, timeout: float) -> Message | None:
        """Return the next message, or None after ``timeout`` seconds.

        Blocks no longer than that, but up to 10 s more while a topic that does not exist yet is
        asked for and no broker answers.

        Raises
        ------
        ConfigError
            The brokers refuse the credentials or the topic.
        TransientError
            The client cannot go on; a new reader may.
        """
        self.mark_done()
        if not self._assigned:
            self._await_topic(timeout)
            return None
        message = self._consumer.poll(timeout)
        self._check()
        if message is None:
            return None
        if (error := message.error()) is not None:
            self._note(error)
            self._check()
            return None
        self._pending = message
        return message_of(message)

    def mark_done(self) -> None:
        """Count the last message as handled, so that its group does not get it again."""
        if self._grouped and self._pending is not None:
            try:
                self._consumer.store_offsets(message=self._pending)
            except KafkaException as failure:  # the partition has gone to another member
                _log.warning("%s; its next reader gets the message again", failure.args[0].str())
        self._pending = None

    def close(self) -> None:
        """Leave, committing what is done in the group; may block for a few seconds."""
        self._consumer.close()

    def _connect(
        self,
        bootstrap_servers: str,
        group_id: str | None,
        from_beginning: bool,
        config: Mapping[str, str | int | float | bool],
    ) -> Consumer:
        properties = {
            "bootstrap.servers": bootstrap_servers,
            # librdkafka needs a name even where nobody joins the group.
            "group.id": group_id or "broker-filter-subscribe",
            "enable.auto.commit": group_id is not None,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest" if from_beginning or not group_id else "latest",
            "reconnect.backoff.ms": 500,
            "error_cb": self._note,
            **config,
        }
        try:
            return Consumer(properties, logger=self._logger)
        except KafkaException as failure:
            raise ConfigError(f"Kafka client settings: {failure.args[0].str()}") from None

    def _note(self, error: KafkaError) -> None:
        """Keep an error that must stop the reader; log one that librdkafka rides out."""
        self._last = error.str()
        self._end = self._end or self._refused(error)
        if self._end is None and error.fatal():
            self._end = TransientError(f"reading topic {self._topic} stopped: {error.str()}")
        if self._end is None:
            self._logger.warning("reading topic %s: %s", self._topic, error.str())

    def _refused(self, error: KafkaError) -> ConfigError | None:
        return refused(error, f"topic {self._topic}", grouped=self._grouped)

    def _check(self) -> None:
        if self._end is not None:
            raise self._end

    def _partitions(self, timeout: float) -> list[TopicPartition]:
        """Ask a broker for the topic's partitions: none for a topic that does not exist."""
        try:
            topic = self._consumer.list_topics(self._topic, timeout).topics[self._topic]
        except KafkaException as failure:
            self._end = self._end or self._refused(failure.args[0])
            self._consumer.poll(0)  # hands over what the connection's thread met
            self._check()
            raise self._no_answer(failure, timeout) from None
        if topic.error is not None and (error := self._refused(topic.error)):
            raise error
        return [TopicPartition(self._topic, partition) for partition in topic.partitions]

    def _no_answer(self, failure: KafkaException, timeout: float) -> TransientError:
        reason = self._last or failure.args[0].str()
        return TransientError(
            f"no Kafka broker answers at {self._servers} within {timeout:g} s: {reason}. Does it"
            " run there? Give another address with --bootstrap-servers, and login and encryption"
            " with --client-config"
        )

    def _start(
        self, partitions: list[TopicPartition], from_beginning: bool, timeout: float
    ) -> bool:
        if self._grouped:
            self._consumer.subscribe([self._topic])
            return True
        for partition in partitions:
            # The end is fetched now: "latest" would be resolved only later, and what is sent in
            # between would be missed.
            if partition.partition in self._positions:
                partition.offset = self._positions[partition.partition]
            elif from_beginning:
                partition.offset = OFFSET_BEGINNING
            else:
                partition.offset = self._consumer.get_watermark_offsets(partition, timeout=timeout)[
                    1
                ]
        if partitions:
            self._consumer.assign(partitions)
        else:
            _log.warning("topic %s does not exist yet; waiting for it", self._topic)
        return bool(partitions)

    def _await_topic(self, timeout: float) -> None:
        # Serves librdkafka's callbacks, and keeps the promise not to return at once.
        self._consumer.poll(timeout)
        partitions = self._partitions(CONNECT_S)
        if partitions:
            # All in a topic that is younger than the reader is news to it.
            self._assigned = self._start(partitions, True, CONNECT_S)
