"""How a survey's message says which schema it was written with: found out by its first bytes.

In this order: an Avro object container, which carries its schema; Confluent's wire format, a zero
byte and the schema's number; records without anything, of topics whose schema is configured; the
schema as JSON in the message's key, as Fink sends it; JSON. Any of them may be gzipped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from broker_filter.decode.avro.container import MAGIC, inflate, read_container
from broker_filter.decode.avro.schema import WriterSchema, parse_json
from broker_filter.decode.registry import SchemaLookup
from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.schemas import MAX_MESSAGE_BYTES
from broker_filter.types import Message

__all__ = ["MAX_SCHEMAS", "Framed", "Unframer"]

MAX_SCHEMAS: Final = 64
"""Most schemas that are remembered by their text."""

_GZIP: Final = b"\x1f\x8b"
_WIRE_BYTES: Final = 5


@dataclass(frozen=True, slots=True)
class Framed:
    """Avro records of one schema, still to be read.

    Parameters
    ----------
    schema : WriterSchema
    blocks : sequence of (int, bytes)
        Numbers of records, and the bytes that these take, one behind the other.
    """

    schema: WriterSchema
    blocks: Sequence[tuple[int, bytes]]


class Unframer:
    """Finds out how messages are framed.

    Parameters
    ----------
    source : SchemaLookup, optional
        Knows the schemas of the wire format by number.
    schemaless : mapping of str to WriterSchema, optional
        Topics whose messages are bare records, and their schema.
    max_bytes : int
        Most bytes that a message may have, also after it is no longer compressed.
    """

    def __init__(
        self,
        source: SchemaLookup = lambda _: None,
        *,
        schemaless: Mapping[str, WriterSchema] | None = None,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._source, self._schemaless = source, dict(schemaless or {})
        self._max_bytes = max_bytes
        self._parsed = lru_cache(MAX_SCHEMAS)(parse_json)
        self._latest: tuple[bytes, WriterSchema] | None = None

    def unframe(self, message: Message) -> Framed | dict[str, Any]:
        """Find the schema and the records of a message with a value, or a record that is JSON.

        Raises
        ------
        PoisonMessage
            ``unknown_format``; ``unknown_schema_id`` and ``bad_schema``; ``too_large``,
            ``truncated``, ``trailing_bytes`` or ``unknown_codec`` of what is compressed;
            ``undecodable``.
        TransientError
            The schema registry cannot be reached.
        """
        value = message.value or b""
        if len(value) > self._max_bytes:
            raise PoisonMessage("too_large", f"{len(value)} bytes, more than {self._max_bytes}")
        if value.startswith(_GZIP):
            value = self._gunzipped(value)
        if value.startswith(MAGIC):
            schema, blocks = read_container(value, max_bytes=self._max_bytes)
            return Framed(self._schema(schema), blocks)
        known = self._schemaless.get(message.topic) or self._of_key(message.key)
        if value.startswith(b"\0"):
            wire = self._wire(value, may_be_other=known is not None)
            if wire is not None:
                return wire
        if known is not None:
            return Framed(known, [(1, value)])
        if value.lstrip().startswith(b"{"):
            return _from_json(value)
        raise PoisonMessage(
            "unknown_format",
            f"no header names the schema, and what begins with {value[:8]!r} is neither a"
            f" container, nor wire format, nor JSON; the format of topic {message.topic} may be set"
            " in input.format, or its schema in input.topic_schemas",
        )

    def _gunzipped(self, value: bytes) -> bytes:
        try:
            return inflate(value, self._max_bytes, 16 + zlib.MAX_WBITS)
        except zlib.error as error:
            raise PoisonMessage("undecodable", f"damaged gzip: {error}") from error

    def _wire(self, value: bytes, *, may_be_other: bool) -> Framed | None:
        """Records of Confluent's wire format; a bare record may begin with a zero byte too."""
        number = int.from_bytes(value[1:_WIRE_BYTES], "big")
        try:
            schema = self._source(number) if len(value) >= _WIRE_BYTES else None
        except SchemaError as error:
            raise PoisonMessage("bad_schema", f"schema number {number}: {error}") from error
        if schema is not None:
            return Framed(schema, [(1, value[_WIRE_BYTES:])])
        if may_be_other:
            return None
        if len(value) < _WIRE_BYTES:
            raise PoisonMessage("truncated", f"{len(value)} bytes; wire format begins with 5")
        raise PoisonMessage(
            "unknown_schema_id",
            f"no schema of number {number} is known: input.schema_folder, input.schema_ids or"
            " input.schema_registry can name it",
        )

    def _of_key(self, key: bytes | None) -> WriterSchema | None:
        """The schema that Fink sends as the key."""
        if key is None or not key.startswith(b"{") or b'"fields"' not in key:
            return None
        return self._schema(key)

    def _schema(self, text: bytes) -> WriterSchema:
        """Parse a schema; mostly it is the one before, which is faster seen than hashed."""
        if self._latest is None or self._latest[0] != text:
            try:
                self._latest = text, self._parsed(text)
            except SchemaError as error:
                raise PoisonMessage("bad_schema", str(error)) from error
        return self._latest[1]


def _from_json(value: bytes) -> dict[str, Any]:
    try:
        record = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise PoisonMessage("undecodable", f"not JSON: {error}") from error
    return dict(record)
