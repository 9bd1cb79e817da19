"""Messages that could not be used, written down so that they can be understood and sent again."""

from __future__ import annotations

import hashlib
from typing import Any

from broker_filter.schemas import encode, schema_header, software_version
from broker_filter.types import DeadLetter, Message, OutgoingMessage

__all__ = ["KEPT_VALUE_BYTES", "encode_dead_letter"]

KEPT_VALUE_BYTES = 900_000
"""Longest value kept whole: with all that goes with it, a dead letter stays below the 1,000,000
bytes that a producer sends by default, so that an over-long message cannot stop the consumer on its
way out."""

_KEPT_KEY_BYTES = 4096
_KEPT_HEADER_BYTES = 16_384
_HEADER_COST_BYTES = 8  # what even an empty header takes, so that their number is bounded too
_KEPT_CHARACTERS = 2000


def encode_dead_letter(
    letter: DeadLetter,
    now: float,
    *,
    topic: str = "dead_letter",
    kept_value_bytes: int = KEPT_VALUE_BYTES,
) -> OutgoingMessage:
    """Write one dead letter.

    Parameters
    ----------
    letter : DeadLetter
        The message and what was wrong with it.
    now : float, seconds
        Unix time at which it was set aside.
    topic : str
        Topic that receives dead letters.
    kept_value_bytes : int
        Longer values are cut to so many bytes; their full length and SHA-256 are always told. Above
        the default, the producer's ``message.max.bytes`` and the topic's ``max.message.bytes`` must
        grow too.

    Returns
    -------
    OutgoingMessage
        With the original key (its first 4096 bytes) and the headers schema, reason, topic,
        partition and offset.
    """
    message = letter.message
    reason, source = _text(letter.reason), _text(message.topic)
    record = _origin(message) | {
        "value": None if message.value is None else message.value[:kept_value_bytes],
        "valueLength": len(message.value or b""),
        "valueSha256": hashlib.sha256(message.value or b"").hexdigest(),
        "reason": reason,
        "detail": _text(letter.detail),
        "softwareVersion": software_version(),
        "failedAtMs": round(now * 1000),
    }
    headers = (
        schema_header("dead_letter"),
        ("reason", reason.encode()),
        ("topic", source.encode()),
        ("partition", str(message.partition).encode()),
        ("offset", str(message.offset).encode()),
    )
    return OutgoingMessage(topic, record["key"], encode("dead_letter", record), headers)


def _origin(message: Message) -> dict[str, Any]:
    return {
        "topic": _text(message.topic),
        "partition": message.partition,
        "offset": message.offset,
        "timestampMs": message.timestamp_ms,
        "key": None if message.key is None else message.key[:_KEPT_KEY_BYTES],
        "headers": _headers(message),
    }


def _headers(message: Message) -> list[dict[str, Any]]:
    """Headers from the first on, as long as they fit."""
    kept, room = [], _KEPT_HEADER_BYTES
    for name, content in message.headers:
        room -= _HEADER_COST_BYTES + len(name.encode(errors="replace")) + len(content or b"")
        if room < 0:
            break
        kept.append({"name": _text(name), "value": content})
    return kept


def _text(text: str) -> str:
    """Cut to a bounded length, and free of what UTF-8 cannot say."""
    return text[:_KEPT_CHARACTERS].encode(errors="replace").decode()
