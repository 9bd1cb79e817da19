"""The Avro schemas of this package: load them, write with them, and read strictly.

Schemas are filed ``<name>/<MAJOR>/<MINOR>/<name>.avsc``. Every message of ours says which one it
was written with in the header ``schema`` (such as ``photometry/1/0``), because Avro bytes alone do
not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import fastavro

from broker_filter.errors import PoisonMessage, SchemaError

__all__ = [
    "MAX_MESSAGE_BYTES",
    "SCHEMA_HEADER",
    "current_version",
    "decode_block",
    "decode_strict",
    "encode",
    "known_versions",
    "load_schema",
    "read_whole",
    "schema_folder",
    "schema_header",
    "schema_id",
    "software_version",
]

T = TypeVar("T")

CURRENT_VERSION = {"alert": "1/2"}
"""Version in which a schema is written, where that is not 1/0; the only place that says so."""

MAX_MESSAGE_BYTES = 8 << 20
"""Longest message that is looked into, bytes: decoding never needs more than a few times this."""

SCHEMA_HEADER = "schema"
"""Name of the message header that names the schema."""


def schema_folder() -> Path:
    """Folder of all schemas: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "_schemas"
    return installed if installed.is_dir() else package.parent / "schemas"


def current_version(name: str) -> str:
    """Version ``MAJOR/MINOR`` in which records of a schema are written."""
    return CURRENT_VERSION.get(name, "1/0")


def schema_id(name: str) -> str:
    """Name and current version of a schema, such as ``alert/1/2``: what headers and labels hold."""
    return f"{name}/{current_version(name)}"


def known_versions(name: str) -> tuple[str, ...]:
    """Versions of a schema that can be read, oldest first: all that are filed of its major one."""
    major = current_version(name).split("/")[0]
    minors = (path.parent.name for path in schema_folder().glob(f"{name}/{major}/*/{name}.avsc"))
    return tuple(f"{major}/{minor}" for minor in sorted(map(int, minors)))


@lru_cache
def load_schema(name: str, version: str | None = None) -> dict[str, Any]:
    """Read and parse one schema, once per process.

    Parameters
    ----------
    name : str
        Such as ``"photometry"``.
    version : str, optional
        ``"MAJOR/MINOR"``; here and below the current one if left out.

    Returns
    -------
    dict
        Parsed by fastavro, to be handed to its readers and writers; not to be changed.

    Raises
    ------
    SchemaError
        There is no such schema, or it is not valid Avro.
    """
    version = version or current_version(name)
    path = schema_folder() / name / version / f"{name}.avsc"
    try:
        parsed: dict[str, Any] = fastavro.parse_schema(json.loads(path.read_bytes()))
    except FileNotFoundError:
        known = sorted(
            p.parent.relative_to(schema_folder()) for p in schema_folder().rglob("*.avsc")
        )
        raise SchemaError(
            f"no schema {name}/{version} at {path}; known: {', '.join(map(str, known)) or 'none'}"
        ) from None
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise SchemaError(f"{path} is not an Avro schema: {error}") from error
    return parsed


def schema_header(name: str) -> tuple[str, bytes]:
    """Name and value of the message header that names the current schema."""
    return SCHEMA_HEADER, schema_id(name).encode()


def encode(name: str, record: dict[str, Any], version: str | None = None) -> bytes:
    """Write one record without a container, strictly.

    Parameters
    ----------
    name, version
        The schema.
    record : dict
        One entry a field. Fields with a default may be left out, others may not, and more than the
        schema's are refused.

    Raises
    ------
    SchemaError
        The record does not fit the schema.
    """
    version = version or current_version(name)
    stream = BytesIO()
    try:
        fastavro.schemaless_writer(
            stream, load_schema(name, version), record, strict_allow_default=True
        )
    except (ValueError, TypeError, AttributeError, OverflowError, KeyError) as error:
        raise SchemaError(f"record does not fit schema {name}/{version}: {error}") from error
    return stream.getvalue()


def decode_strict(
    name: str,
    value: bytes,
    version: str | None = None,
    *,
    read_as: str | None = None,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> dict[str, Any]:
    """Read one record that must fill its bytes exactly.

    Parameters
    ----------
    name, version
        The schema with which the record was written.
    value : bytes
        The record without a container or framing.
    read_as : str, optional
        Version ``"MAJOR/MINOR"`` in which the record is returned: fields that its own version does
        not have yet hold their defaults, and those that ``read_as`` does not have are left out.
    max_bytes : int
        Longer values are refused unread.

    Raises
    ------
    PoisonMessage
        ``too_large``, ``truncated``, ``trailing_bytes``, or ``undecodable``.
    """
    version = version or current_version(name)
    read = _record_reader(name, version, read_as)
    return read_whole(f"{name}/{version}", value, read, max_bytes=max_bytes)


def decode_block(
    name: str, value: bytes, count: int, version: str | None = None, *, read_as: str | None = None
) -> Iterator[dict[str, Any]]:
    """Read so many records, one behind the other, that must fill their bytes exactly.

    Parameters
    ----------
    name, version, read_as
        As `decode_strict`.
    value : bytes
    count : int

    Raises
    ------
    PoisonMessage
        ``truncated``, ``trailing_bytes``, or ``undecodable``; after the records before it.
    """
    version = version or current_version(name)
    read, end = _record_reader(name, version, read_as), 0
    for _ in range(count):
        record, end = _read_one(f"{name}/{version}", value, partial(read, begin=end))
        yield record
    _check_end(f"{name}/{version}", value, end)


def _record_reader(name: str, version: str, read_as: str | None) -> Callable[..., tuple[Any, int]]:
    """What reads a record that begins at a byte, and finds where it ends, as `read_whole` asks."""
    reader = None if read_as in (None, version) else load_schema(name, read_as)
    return partial(_read_record, schema=load_schema(name, version), reader=reader)


def _read_record(
    value: bytes, *, schema: dict[str, Any], reader: dict[str, Any] | None, begin: int = 0
) -> tuple[dict[str, Any], int]:
    stream = BytesIO(value)
    stream.seek(begin)
    try:
        return fastavro.schemaless_reader(stream, schema, reader), stream.tell()
    except EOFError:
        raise IndexError from None
    except (ValueError, IndexError, OverflowError) as error:
        # Where an integer is cut short, fastavro says IndexError, as it does for a bad union index.
        if isinstance(error, IndexError) and stream.tell() == len(value):
            raise
        raise ValueError(f"near byte {stream.tell()}: {error}") from error


def read_whole(
    name: str, value: bytes, read: Callable[[bytes], tuple[T, int]], *, max_bytes: int
) -> T:
    """Read one record that must fill its bytes exactly, and say in one way what is wrong with it.

    Parameters
    ----------
    name : str
        Of the record's schema, for messages.
    value : bytes
        Longer values than ``max_bytes`` are refused unread.
    read : callable
        From the bytes to the record and the byte at which it ends. Raises IndexError or
        struct.error where the bytes end before the record does, ValueError or KeyError where they
        are no such record.
    max_bytes : int

    Raises
    ------
    PoisonMessage
        ``too_large``, ``truncated``, ``trailing_bytes``, or ``undecodable``.
    """
    if len(value) > max_bytes:
        raise PoisonMessage("too_large", f"{len(value)} bytes, more than {max_bytes}")
    record, end = _read_one(name, value, read)
    _check_end(name, value, end)
    return record


def _read_one(name: str, value: bytes, read: Callable[[bytes], tuple[T, int]]) -> tuple[T, int]:
    try:
        return read(value)
    except (IndexError, struct.error):
        raise PoisonMessage(
            "truncated", f"{name} record ends before its last field ({len(value)} bytes)"
        ) from None
    except (ValueError, KeyError) as error:
        raise PoisonMessage("undecodable", f"not a {name} record: {error}") from error


def _check_end(name: str, value: bytes, end: int) -> None:
    if end != len(value):
        raise PoisonMessage("trailing_bytes", f"{name} record ends at byte {end} of {len(value)}")


@cache
def software_version() -> str:
    """Version of this package, for alerts and dead letters; "unknown" where it is not installed."""
    try:
        return metadata.version("broker-filter")
    except metadata.PackageNotFoundError:
        return "unknown"
