"""From a message to photometry: find out how it is framed and written, then read it.

A *framing* tells which schema a message was written with and where its record lies: here, the
message header ``schema``. Other framings (a schema registry's id before the record, a container
file) are further functions in the same list. A *reader* turns the record into `Photometry`: one per
schema, in ``surveys/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from broker_filter.errors import PoisonMessage
from broker_filter.schema import MAX_MESSAGE_BYTES, SCHEMA_HEADER, schema_header
from broker_filter.surveys.native import decode_block, decode_photometry
from broker_filter.types import Message, Photometry

__all__ = ["FRAMINGS", "READERS", "Decoder", "Format", "Framing", "Reader", "from_header"]

Format = Literal["photometry", "photometry_block", "auto"]
"""How the messages of a topic are written; ``auto`` needs every message to say so itself."""

Framing = Callable[[Message], tuple[bytes, bytes] | None]
"""From a message with a value to (schema such as ``b"photometry/1/0"``, record), or None where the
message is not framed in this way."""


class Reader(Protocol):
    """Turns the record of one schema into photometry; raises PoisonMessage and nothing else."""

    def __call__(self, value: bytes, *, max_bytes: int) -> Photometry:
        """Read one record of at most ``max_bytes``."""


def _reader_key(name: str) -> bytes:
    return schema_header(name)[1]


READERS: Mapping[bytes, Reader] = {
    _reader_key("photometry"): decode_photometry,
    _reader_key("photometry_block"): decode_block,
}
"""The schemas that can be read, as the header names them."""


def from_header(message: Message) -> tuple[bytes, bytes] | None:
    """Take the schema from the message header ``schema``; the record is the whole value."""
    for name, content in message.headers:
        if name == SCHEMA_HEADER:
            return content or b"", message.value or b""
    return None


FRAMINGS: Sequence[Framing] = (from_header,)
"""Tried in turn; the first that knows the message wins."""


class Decoder:
    """Decodes the messages of all input topics.

    Parameters
    ----------
    default : "photometry", "photometry_block" or "auto"
        Format of messages that do not say themselves how they are written.
    topics : dict of str to format
        The same for single topics, before ``default``.
    max_bytes : int
        Longer messages are refused unread.
    framings : sequence of `Framing`
        Ways in which a message may say how it is written.
    """

    def __init__(
        self,
        default: Format = "auto",
        *,
        topics: Mapping[str, Format] | None = None,
        max_bytes: int = MAX_MESSAGE_BYTES,
        framings: Sequence[Framing] = FRAMINGS,
    ) -> None:
        self._default = default
        self._topics = dict(topics or {})
        self._max_bytes = max_bytes
        self._framings = tuple(framings)

    def decode(self, message: Message) -> Photometry:
        """Read one message.

        Raises
        ------
        PoisonMessage
            ``empty`` (no value), ``unknown_format`` (a schema that is not known, or none named
            where the topic's format is ``auto``), and whatever the schema's reader raises.
        """
        if not message.value:
            raise PoisonMessage("empty", "the message has no value")
        schema, record = self._unframe(message, message.value)
        reader = READERS.get(schema)
        if reader is None:
            known = ", ".join(key.decode() for key in READERS)
            raise PoisonMessage(
                "unknown_format", f"schema {_shown(schema)} is not known; known: {known}"
            )
        return reader(record, max_bytes=self._max_bytes)

    def _unframe(self, message: Message, value: bytes) -> tuple[bytes, bytes]:
        for framing in self._framings:
            if framed := framing(message):
                return framed
        expected = self._topics.get(message.topic, self._default)
        if expected == "auto":
            raise PoisonMessage(
                "unknown_format",
                f"no header {SCHEMA_HEADER!r} names the schema, and the format of topic "
                f"{message.topic} is auto; set it, or send the header",
            )
        return _reader_key(expected), value


def _shown(schema: bytes) -> str:
    return repr(schema[:80].decode(errors="replace"))
