"""Read the topic of messages that a filter could not use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broker_filter.errors import PoisonMessage
from broker_filter.kafka.ranges import TopicRange, messages_of, offsets_of
from broker_filter.schemas import SCHEMA_HEADER, decode_strict, known_versions
from broker_filter.types import DEAD_LETTER_TOPIC, Message

__all__ = ["StoredLetter", "read_dead_letters"]

_KIND = "dead_letter/"


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """What a dead letter says of its message, without the message itself.

    Parameters
    ----------
    reason, detail : str
        A short stable word, and one sentence.
    topic, partition, offset
        Where the message stood.
    key : bytes or None
    timestamp_ms, failed_ms : int, ms since 1970 UTC
        Of the message (0 where it had none), and when it was set aside.
    value_length : int
        Bytes of the message.
    value_sha256, software_version : str
    """

    reason: str
    detail: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    timestamp_ms: int
    failed_ms: int
    value_length: int
    value_sha256: str
    software_version: str


def read_dead_letters(
    bootstrap_servers: str,
    topic: str = DEAD_LETTER_TOPIC,
    since_ms: int | None = None,
    config: Mapping[str, str | int | float | bool] | None = None,
) -> Iterator[StoredLetter | PoisonMessage]:
    """Read all that the topic holds at this moment, partition by partition.

    Parameters
    ----------
    bootstrap_servers, topic : str
    since_ms : int, optional
        Only letters that were sent at or after this time, ms since 1970 UTC.
    config : mapping, optional
        Further librdkafka properties, such as those for SASL and TLS.

    Yields
    ------
    StoredLetter or PoisonMessage
        The latter for a message that is no dead letter.

    Raises
    ------
    ConfigError, TransientError
        As `offsets_of` and `messages_of`.
    """
    everything = TopicRange(bootstrap_servers, topic, times_ms=(since_ms, None))
    for part in offsets_of(everything, config):
        for message in messages_of(part, config):
            try:
                yield _letter(message)
            except PoisonMessage as error:
                yield error


def _letter(message: Message) -> StoredLetter:
    schema = dict(message.headers).get(SCHEMA_HEADER, b"").decode(errors="replace")
    version = schema.removeprefix(_KIND) or None
    if version is not None and version not in known_versions("dead_letter"):
        raise PoisonMessage("unknown_format", f"schema {schema[:80]!r} is not known")
    record: Mapping[str, Any] = decode_strict("dead_letter", message.value or b"", version)
    return StoredLetter(
        reason=record["reason"],
        detail=record["detail"],
        topic=record["topic"],
        partition=record["partition"],
        offset=record["offset"],
        key=record["key"],
        timestamp_ms=record["timestampMs"],
        failed_ms=record["failedAtMs"],
        value_length=record["valueLength"],
        value_sha256=record["valueSha256"],
        software_version=record["softwareVersion"],
    )
