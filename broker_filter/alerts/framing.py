"""What stands around the record of an alert in a message.

``bare``
    Nothing: the header ``schema`` names the schema.
``container``
    An Avro object container of one record, which any Avro reader opens without further knowledge.
    The header ``_format`` says so to hop-client.
``confluent``
    Confluent's wire format: a zero byte and the schema's number in a registry, 4 bytes.

A record begins with the length of its alertId, which is neither a zero byte nor the container's
first letter, so that a reader tells the three apart by their first bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from typing import Any, Final, Literal

import fastavro
from fastavro.schema import to_parsing_canonical_form

from broker_filter.errors import PoisonMessage
from broker_filter.schemas import (
    MAX_MESSAGE_BYTES,
    known_versions,
    load_schema,
    read_whole,
)
from broker_filter.types import Headers

__all__ = ["BARE", "AlertFraming", "Framing", "unframe", "version_of"]

AlertFraming = Literal["bare", "container", "confluent"]

_MAGIC: Final = b"Obj\x01"
_WIRE: Final = b"\0"
_ID_BYTES: Final = 4

# A container of one record is itself a record: its header, and one block.
_CONTAINER: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Container",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
            {"name": "records", "type": "long"},
            {"name": "block", "type": "bytes"},
            {"name": "end", "type": "Sync"},
        ],
    }
)


@dataclass(frozen=True, slots=True)
class Framing:
    """How alerts are framed.

    Parameters
    ----------
    kind : "bare", "container" or "confluent"
    schema_id : int or None
        Number of the current schema, for ``confluent``.
    """

    kind: AlertFraming = "bare"
    schema_id: int | None = None

    @property
    def headers(self) -> Headers:
        """What the headers of a message say of the framing beside the schema."""
        return (("_format", b"avro"),) if self.kind == "container" else ()

    def frame(self, record: bytes) -> bytes:
        """Put the frame around a record of the current schema."""
        if self.kind == "container":
            return _container(record)
        if self.kind == "confluent":
            number = 0 if self.schema_id is None else self.schema_id
            return _WIRE + number.to_bytes(_ID_BYTES, "big") + record
        return record


BARE: Final = Framing()


def _container(record: bytes) -> bytes:
    stream = BytesIO()
    meta, sync = _header()
    whole = {"magic": _MAGIC, "meta": meta, "sync": sync, "records": 1, "block": record}
    fastavro.schemaless_writer(stream, _CONTAINER, whole | {"end": sync})
    return stream.getvalue()


@cache
def _header() -> tuple[dict[str, bytes], bytes]:
    """Schema and mark of containers; always the same, so that the same alert has the same bytes."""
    text = schema_text().encode()
    return {"avro.schema": text, "avro.codec": b"null"}, hashlib.sha256(text).digest()[:16]


def schema_text() -> str:
    """The current schema as JSON, as containers and registries hold it."""
    schema = load_schema("alert")
    return json.dumps({key: part for key, part in schema.items() if not key.startswith("__")})


def unframe(value: bytes) -> tuple[bytes, str | None]:
    """Take the frame off the record of an alert.

    Returns
    -------
    record : bytes
    version : str or None
        Of the schema, where the frame says it.

    Raises
    ------
    PoisonMessage
        ``truncated``, ``trailing_bytes`` or ``undecodable`` of a container; ``unknown_codec`` and
        ``unknown_format`` of one that is compressed or holds something else.
    """
    if value.startswith(_MAGIC):
        return _from_container(value)
    if value.startswith(_WIRE):
        return value[len(_WIRE) + _ID_BYTES :], None
    return value, None


def _from_container(value: bytes) -> tuple[bytes, str]:
    whole = read_whole("container", value, _read_container, max_bytes=MAX_MESSAGE_BYTES)
    codec = whole["meta"].get("avro.codec", b"null")
    if codec != b"null":
        raise PoisonMessage(
            "unknown_codec",
            f"codec {codec[:40].decode(errors='replace')!r} is not read: the container of an alert"
            " is not compressed",
        )
    if whole["records"] != 1 or whole["end"] != whole["sync"]:
        raise PoisonMessage("undecodable", "the container does not hold one alert")
    return whole["block"], version_of(whole["meta"].get("avro.schema", b""))


def _read_container(value: bytes) -> tuple[dict[str, Any], int]:
    stream = BytesIO(value)
    try:
        return fastavro.schemaless_reader(stream, _CONTAINER, None), stream.tell()
    except EOFError:
        raise IndexError from None
    except OverflowError as error:
        raise ValueError(str(error)) from error


@lru_cache(maxsize=16)
def version_of(schema: bytes) -> str:
    """The filed version that the schema of a container is, whatever its docs and defaults.

    Parameters
    ----------
    schema : bytes
        JSON.

    Raises
    ------
    PoisonMessage
        ``unknown_format``: it is none of them. A schema that is ours bounds what its records take;
        one of unknown origin need not.
    """
    form = _canonical_form(schema)
    newest_first = reversed(known_versions("alert"))
    version = next((known for known in newest_first if form == _canonical(known)), None)
    if version is None:
        known = ", ".join(f"alert/{known}" for known in known_versions("alert"))
        raise PoisonMessage("unknown_format", f"the container's schema is none of {known}")
    return version


def _canonical_form(schema: bytes) -> str | None:
    """None for what is no schema."""
    try:
        return str(to_parsing_canonical_form(fastavro.parse_schema(json.loads(schema))))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        fastavro.schema.SchemaParseException,
    ):
        return None


@cache
def _canonical(version: str) -> str:
    return str(to_parsing_canonical_form(load_schema("alert", version)))
