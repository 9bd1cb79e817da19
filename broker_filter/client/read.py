"""Read an alert from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_avro
from broker_filter.alerts.framing import unframe
from broker_filter.alerts.record import from_record
from broker_filter.errors import ConfigError, PoisonMessage
from broker_filter.observe.text import printable
from broker_filter.schemas import known_versions, load_schema

__all__ = ["read_alert"]

_CONTAINER = b"Obj\x01"
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
        if content.startswith(_CONTAINER):
            return from_record(_only_record(path))
        return _from_message(content)
    except SchemaResolutionError:
        raise ConfigError(f"{path}: not an alert: its records are of another schema") from None
    except (PoisonMessage, ValueError, LookupError, EOFError, TypeError) as error:
        raise ConfigError(f"{path}: not an alert: {printable(error, 200)}") from None


def _only_record(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        # Fields that an older version lacks hold the defaults of the current one.
        records = fastavro.reader(file, load_schema("alert"))
        record, more = next(records, None), next(records, None)
    if not isinstance(record, dict) or more is not None:
        raise ValueError("it holds no record" if record is None else "it holds several records")
    return record


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
