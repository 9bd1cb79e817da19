"""Read an alert from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_avro
from broker_filter.alerts.framing import unframe
from broker_filter.alerts.record import from_record
from broker_filter.decode.avro.container import MAGIC, read_container
from broker_filter.errors import ConfigError, PoisonMessage
from broker_filter.observe.text import printable
from broker_filter.schemas import known_versions, load_schema, read_record, read_whole

__all__ = ["read_alert"]

MAX_FILE_BYTES = 64 << 20


def read_alert(path: Path | str) -> Alert:
    """Read one alert, as ``broker-filter subscribe --avro DIR`` saves it.

    Parameters
    ----------
    path : Path or str
        An Avro container with one record, in any version of the schema that is known; or the bytes
        of a message as they were in the topic.

    Raises
    ------
    ConfigError
        The file cannot be read, or holds something else; the message names it.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_FILE_BYTES} bytes: is it one alert?")
    try:
        if content.startswith(MAGIC):
            return from_record(_only_record(content))
        return _from_message(content)
    except SchemaResolutionError:
        raise ConfigError(f"{path}: not an alert: its records are of another schema") from None
    except (PoisonMessage, ValueError, LookupError, EOFError, TypeError) as error:
        raise ConfigError(f"{path}: not an alert: {printable(error, 200)}") from None


def _only_record(content: bytes) -> dict[str, Any]:
    text, blocks = read_container(content, max_bytes=MAX_FILE_BYTES)
    records = sum(count for count, _ in blocks)
    if records != 1:
        raise ValueError("it holds several records" if records else "it holds no record")
    block = next(data for count, data in blocks if count)
    writer, current = _writer_schema(text), load_schema("alert")
    # Fields that an older version lacks hold the defaults of the current one.
    return read_whole(
        "alert", block, lambda whole: read_record(whole, writer, current), max_bytes=MAX_FILE_BYTES
    )


def _writer_schema(text: bytes) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = fastavro.parse_schema(json.loads(text))
    except (AttributeError, RecursionError, SchemaParseException) as error:
        raise ValueError(f"its schema cannot be read: {error}") from None
    return schema


def _from_message(content: bytes) -> Alert:
    """Read a record without its schema: it must fill the bytes exactly in one of the versions."""
    content, _ = unframe(content)
    newest, *older = reversed(known_versions("alert"))
    try:
        return from_avro(content, newest)
    except PoisonMessage as first:
        for version in older:
            try:
                return from_avro(content, version)
            except PoisonMessage:
                continue
        raise first
