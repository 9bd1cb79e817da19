"""Packets in files: single ones, Avro containers, JSON lines, Parquet, tar, and gzip around them.

The kind of a file is recognised by its first bytes. A packet goes out byte for byte as it came.
Only a container of several records is parted: each record becomes a container of its own with the
same schema, its bytes unchanged. A row of Parquet has no bytes of its own, so it becomes such a
container, too.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from broker_filter.decode.avro.container import (
    MAGIC,
    Readable,
    read_container,
    stream_container,
)
from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.avro.schema import parse_json
from broker_filter.decode.framing import MAX_SCHEMAS
from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.replay.event_time import selection, time_of, time_reader
from broker_filter.replay.hidden import is_hidden
from broker_filter.replay.parquet import first_row, rows
from broker_filter.replay.stream import EventTime, Record, Report, first_time
from broker_filter.schemas import MAX_MESSAGE_BYTES
from broker_filter.types import Message

__all__ = ["PACKET_SUFFIXES", "PacketFile", "is_packets"]

PACKET_SUFFIXES: Final = frozenset(
    {".avro", ".gz", ".json", ".jsonl", ".ndjson", ".parquet", ".tar", ".tgz"}
)
MAX_DEPTH: Final = 3
MAX_READ_BYTES: Final = 64 << 20
CHUNK: Final = 1 << 20
TAR_BLOCK: Final = 512
SYNC_BYTES: Final = 16
_PARQUET, _WIRE, _GZIP = b"PAR1", b"\0", b"\x1f\x8b"
# What the readers raise for bytes that are not what they seemed.
_BROKEN: Final = (
    *(ValueError, EOFError, IndexError, OverflowError, KeyError, OSError),
    *(zlib.error, tarfile.TarError, PoisonMessage, SchemaError),
)


_Found = tuple[str, bytes, Mapping[str, Any] | None]
"""Name and bytes of a packet, and the fields of its time where it had to be decoded anyway."""


@dataclass(frozen=True, slots=True)
class PacketFile:
    """The packets of one file, as a stream.

    Parameters
    ----------
    path : Path
    event_time : EventTime
    """

    path: Path
    event_time: EventTime

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    @property
    def in_order(self) -> bool:
        """No: the order is unknown before the file has been read."""
        return False

    def begins(self, report: Report) -> float | None:
        """See `broker_filter.replay.stream.Stream`."""
        if self._is_parquet():
            with suppress(SchemaError):  # reported when the rows are read
                return first_row(self.path)
        return first_time(self, report)

    def read(self, report: Report) -> Iterator[Record]:
        """See `broker_filter.replay.stream.Stream`; damage is reported and passed over."""
        try:
            with self.path.open("rb") as file:
                found = rows(self.path, report) if self._is_parquet() else None
                packets = found or _packets(file, self.name, report)
                yield from self._timed(packets, report, file)
        except SchemaError as error:  # of Parquet: names the file
            report(str(error))
        except _BROKEN as error:
            report(f"{self.name}: {_why(error)}; the rest is passed over")

    def _is_parquet(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(_PARQUET)) == _PARQUET

    def _timed(self, packets: Iterator[_Found], report: Report, file: BinaryIO) -> Iterator[Record]:
        for name, value, record in packets:
            try:
                if len(value) > MAX_MESSAGE_BYTES:
                    raise PoisonMessage("too_large", f"{len(value)} bytes")
                time = self._time(value) if record is None else time_of(record)
            except PoisonMessage as error:
                report(f"{name}: {error}; passed over")
                continue
            yield Record(time, value, place=file.tell())

    def _time(self, value: bytes) -> float:
        return self.event_time(Message("", 0, 0, None, value))


def is_packets(path: Path) -> bool:
    """Whether the first bytes of a file are those of packets; False for an unreadable file."""
    try:
        with path.open("rb") as file:
            head = file.read(TAR_BLOCK)
    except OSError:
        return False
    return head.startswith((MAGIC, _PARQUET, _GZIP, _WIRE, b"{")) or _is_tar(head)


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _packets(file: Readable, name: str, report: Report, depth: int = 0) -> Iterator[_Found]:
    """Name and bytes of each packet in a file that is not Parquet."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} archives inside each other")
    start = file.read(TAR_BLOCK)
    if _is_tar(start):
        yield from _members(_Chained(start, file), name, report, depth)
        return
    head = start + file.read(MAX_MESSAGE_BYTES + 1 - len(start))
    rest = _Chained(head, file)
    if head[:1] == b"{" and name.endswith((".jsonl", ".ndjson")):
        packets = _lines(rest, name)
    elif head[:2] == _GZIP:
        inner = gzip.GzipFile(fileobj=rest)  # type: ignore[call-overload]
        start = inner.read(TAR_BLOCK)
        packets = _packets(_Chained(start, inner), name, report, depth + 1)
        if not _is_tar(start):
            packets = _whole_or_parts(head, packets, name)
    elif head[:4] == MAGIC:
        packets = _whole_or_parts(head, _container(head, rest, name), name)
    else:
        packets = iter([(name, head, None)])
    del head, rest, start  # not to be kept in memory until the end of a long file
    yield from packets


def _whole_or_parts(head: bytes, parts: Iterator[_Found], name: str) -> Iterator[_Found]:
    """Give a file that holds a single packet as it came, byte for byte; else its packets."""
    first, second = next(parts, None), next(parts, None)
    if second is None and len(head) <= MAX_MESSAGE_BYTES:
        return iter([(name, head, first[2])] if first else [])
    return chain([part for part in (first, second) if part], parts)


def _lines(file: Readable, name: str) -> Iterator[_Found]:
    number, rest = 0, b""
    while chunk := file.read(CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_MESSAGE_BYTES:
            raise ValueError(f"line {number + len(lines) + 1} is longer than {MAX_MESSAGE_BYTES}")
        for number, line in enumerate(lines, number + 1):  # noqa: B020
            yield f"{name}:{number}", line, None
    if rest.strip():
        yield f"{name}:{number + 1}", rest, None


def _members(file: Readable, name: str, report: Report, depth: int) -> Iterator[_Found]:
    """Packets of the members of a tar, read as a stream: a broken one is reported, and skipped."""
    end = hidden = 0
    # Without ignore_zeros, tarfile takes a broken header for the end of the archive.
    with tarfile.open(fileobj=file, mode="r|", ignore_zeros=True) as tar:  # type: ignore[call-overload]
        for member in tar:
            tar.members.clear()  # it would keep all of them
            if member.offset > end:
                report(
                    f"{name}: bytes {end} to {member.offset} are no member of the tar (a broken"
                    " header, or the end of one archive before the next); passed over"
                )
            end = member.offset_data + -(-member.size // TAR_BLOCK) * TAR_BLOCK
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            if is_hidden(member.name):
                hidden += 1
                continue
            inner = f"{name}/{member.name}"
            try:
                yield from _packets(content, inner, report, depth + 1)
            except _BROKEN as error:
                report(f"{inner}: {_why(error)}; passed over")
    if hidden:
        report(f"{name}: {hidden} hidden members (as .git, ._name, __MACOSX) passed over")


def _container(head: bytes, file: Readable, name: str) -> Iterator[_Found]:
    """Packets of a container; one of a single record is not read beyond its time."""
    if len(head) <= MAX_MESSAGE_BYTES:
        schema, blocks = read_container(head, max_bytes=MAX_READ_BYTES, max_blocks=len(head))
        if [count for count, _ in blocks if count] == [1]:
            block = next(block for count, block in blocks if count)
            return iter([(name, head, _time_reader(schema).read_from(block, 0)[0])])
        return _split(schema, blocks, name)
    return _split(*stream_container(file, max_bytes=MAX_READ_BYTES), name)


def _split(schema: bytes, blocks: Iterable[tuple[int, bytes]], name: str) -> Iterator[_Found]:
    """Make a container of each record."""
    reader, head = _reader(schema), _container_head(schema)
    number = 0
    for count, data in blocks:
        at = 0
        for _ in range(count):
            record, end = reader.read_from(data, at)
            value = b"".join(
                (head, write_long(1), write_long(end - at), data[at:end], head[-SYNC_BYTES:])
            )
            yield f"{name}#{number}", value, record
            at, number = end, number + 1
        if at != len(data):
            raise PoisonMessage("trailing_bytes", f"a block ends at byte {at} of {len(data)}")


@lru_cache(MAX_SCHEMAS)
def _time_reader(schema: bytes) -> RecordReader:
    with _as_damage():
        return time_reader(parse_json(schema))


@lru_cache(MAX_SCHEMAS)
def _reader(schema: bytes) -> RecordReader:
    with _as_damage():
        return RecordReader(parse_json(schema), selection())


@contextmanager
def _as_damage() -> Iterator[None]:
    """Errors of a schema as damage of the file that holds it, which they do not name."""
    try:
        yield
    except SchemaError as error:
        raise PoisonMessage("bad_schema", str(error)) from error


@lru_cache(MAX_SCHEMAS)
def _container_head(schema: bytes) -> bytes:
    """Head of an Avro container without compression; its last 16 bytes mark the end of a block."""
    items = {b"avro.schema": schema, b"avro.codec": b"null"}.items()
    meta = b"".join(write_long(len(part)) + part for item in items for part in item)
    return MAGIC + write_long(len(items)) + meta + write_long(0) + md5(schema).digest()  # noqa: S324


class _Chained:
    """Bytes that were read already, and the file that they came from, as one file to read."""

    def __init__(self, head: bytes, file: Readable) -> None:
        self._head: io.BytesIO | None = io.BytesIO(head)
        self._file = file
        self._place = 0

    def read(self, size: int = -1, /) -> bytes:
        """Read so many bytes; fewer only at the end."""
        data = self._head.read(size) if self._head else b""
        if size < 0 or len(data) < size:
            self._head = None
            data += self._file.read(size if size < 0 else size - len(data))
        self._place += len(data)
        return data

    def tell(self) -> int:
        """Bytes that were read."""
        return self._place


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
