"""Read alerts from files, of which nothing is taken on trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Final

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_avro
from broker_filter.alerts.framing import unframe, version_of
from broker_filter.alerts.record import from_record
from broker_filter.decode.avro.container import MAGIC, stream_container
from broker_filter.errors import ConfigError, PoisonMessage
from broker_filter.observe.text import printable
from broker_filter.schemas import MAX_MESSAGE_BYTES, current_version, decode_block, known_versions

__all__ = ["MAX_BLOCK_BYTES", "read_alert", "read_records"]

MAX_BLOCK_BYTES: Final = 2 * MAX_MESSAGE_BYTES
"""Longest block of a container; writers begin a new one after some kB, and an alert fits one."""

# None of these begins an alert: its first byte is the length of its identifier.
_PACKED: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
}


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
    with _opened(Path(path)) as file:
        if not _is_container(file):
            return _from_message(file.read(MAX_MESSAGE_BYTES + 1))
        records = list(islice(_records(file), 2))
        if len(records) != 1:
            raise ValueError("it holds several records" if records else "it holds no record")
        return from_record(records[0])


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Read the alerts of an Avro container, one at a time, as records of the current schema.

    Parameters
    ----------
    path : Path
        Of any length, in any version of the schema that is known.

    Raises
    ------
    ConfigError
        As `read_alert`; after the records before it.
    """
    with _opened(path) as file:
        if not _is_container(file):
            raise ValueError("not an Avro container")
        yield from _records(file)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file, and say in one way what is wrong with it."""
    try:
        with path.open("rb") as file:
            _check_plain(file.peek(len(MAGIC)))
            yield file
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (PoisonMessage, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{path}: not an alert: {printable(error, 300)}; save alerts with"
            " `broker-filter subscribe --avro`"
        ) from None


def _check_plain(head: bytes) -> None:
    if not head:
        raise ValueError("the file is empty")
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            raise ValueError(f"the file is compressed ({name}): unpack it")


def _is_container(file: BufferedReader) -> bool:
    return file.peek(len(MAGIC)).startswith(MAGIC)


def _records(file: BufferedReader) -> Iterator[dict[str, Any]]:
    schema, blocks = stream_container(file, max_bytes=MAX_BLOCK_BYTES)
    version = version_of(schema)
    for count, block in blocks:
        yield from decode_block("alert", block, count, version, read_as=current_version("alert"))


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
