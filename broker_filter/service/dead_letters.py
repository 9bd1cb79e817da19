"""What becomes of messages that cannot be used: dead letters, and a stop where they are too many.

One bad message never stops the filter; a stream that is bad as a whole does.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from broker_filter.errors import StateError
from broker_filter.schemas import encode, schema_header, software_version
from broker_filter.types import DeadLetter, Message, OutgoingMessage

__all__ = ["KEPT_VALUE_BYTES", "MEMORY", "StreamGuard", "encode_dead_letter"]

KEPT_VALUE_BYTES = 900_000
"""Longest value kept whole: with all that goes with it, a dead letter stays below the 1,000,000
bytes that a producer sends by default, so that an over-long message cannot stop the consumer on its
way out."""

MEMORY = 10_000
"""Messages over which the share of unusable ones is taken: a bad hour is seen after a good month,
and forgotten in time."""

_LEAST = 1_000  # a share of fewer would say little

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
        Longer values are cut to so many bytes; their full length and SHA-256 are always given.
        Above the default, the producer's ``message.max.bytes`` and the topic's
        ``max.message.bytes`` must grow too.

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


class StreamGuard:
    """Counts unusable messages among the newest, and in a row.

    Parameters
    ----------
    max_ratio : float
        Largest share of unusable messages among the newest `MEMORY`.
    max_consecutive : int
        So many unusable messages in a row are too many.
    """

    def __init__(self, max_ratio: float, max_consecutive: int) -> None:
        self._max_ratio, self._max_consecutive = max_ratio, max_consecutive
        self._polls: deque[tuple[int, int]] = deque()
        self._messages = self._dead = self._row = 0

    def count(self, messages: Sequence[Message], dead: Sequence[DeadLetter]) -> None:
        """Take note of some messages, in order, and which of them could not be used.

        Raises
        ------
        StateError
            Past one of the limits, naming the last reason.
        """
        self._remember(len(messages), len(dead))
        longest = self._longest_row(messages, dead)
        too_many = self._dead > self._max_ratio * max(self._messages, _LEAST)
        if longest >= self._max_consecutive or (dead and too_many):
            raise StateError(
                f"{self._dead} of {self._messages} messages could not be used, the last because"
                f" {dead[-1].reason}: {dead[-1].detail}. Check input.format and the topic, or raise"
                " dead_letters.max_ratio and dead_letters.max_consecutive"
            )

    def _remember(self, messages: int, dead: int) -> None:
        self._polls.append((messages, dead))
        self._messages += messages
        self._dead += dead
        while self._messages - self._polls[0][0] >= MEMORY:
            old_messages, old_dead = self._polls.popleft()
            self._messages -= old_messages
            self._dead -= old_dead

    def _longest_row(self, messages: Sequence[Message], dead: Sequence[DeadLetter]) -> int:
        """Most unusable messages in a row, those of the calls before included."""
        if not dead:
            self._row = 0
            return 0
        longest, letters = 0, {id(letter.message) for letter in dead}
        for message in messages:
            self._row = self._row + 1 if id(message) in letters else 0
            longest = max(longest, self._row)
        return longest
