"""Avro object containers: the schema in front, then blocks of records, each maybe compressed.

Surveys send each packet as a file of its own, with 20 kB of schema before it. The schema's text is
handed on as it stands, so that it need be parsed only when it is new.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Final, Protocol

import cramjam

from broker_filter.decode.avro.primitives import read_long
from broker_filter.errors import PoisonMessage

__all__ = ["MAGIC", "MAX_BLOCKS", "Readable", "inflate", "read_container", "stream_container"]

MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_CRC_BYTES: Final = 4
_LONG_BYTES: Final = 10  # of the longest integer

MAX_BLOCKS: Final = 1000
"""Most blocks of a container; surveys send one."""

_MAX_META: Final = 100
_MAX_META_BYTES: Final = 4 << 20
_ROOM: Final = 1 << 12

Codec = Callable[[bytes, int], bytes]
"""From compressed bytes and the most that may come of them to what comes."""


class Readable(Protocol):
    """A file that is read once, from its beginning on."""

    def read(self, size: int = -1, /) -> bytes:
        """Read so many bytes; fewer only at the end."""


def read_container(
    value: bytes, *, max_bytes: int, max_blocks: int = MAX_BLOCKS
) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Take a container apart.

    Parameters
    ----------
    value : bytes
        Begins with `MAGIC`.
    max_bytes : int
        Most bytes that its blocks may have together, once they are no longer compressed.
    max_blocks : int
        Most blocks.

    Returns
    -------
    bytes
        The schema, JSON.
    list of (int, bytes)
        Of each block, how many records it should hold, and these.

    Raises
    ------
    PoisonMessage
        ``truncated``; ``undecodable`` where it contradicts itself; ``unknown_codec``;
        ``too_large``; ``too_many_items`` where it has more blocks.
    """
    schema, blocks = stream_container(BytesIO(value), max_bytes=max_bytes)
    found, left = [], max_bytes
    for count, records in blocks:
        left -= len(records)
        if left < 0:
            raise _too_large(max_bytes)
        found.append((count, records))
        if len(found) > max_blocks:
            raise PoisonMessage("too_many_items", f"more than {max_blocks} blocks in a container")
    return schema, found


def stream_container(
    file: Readable, *, max_bytes: int
) -> tuple[bytes, Iterator[tuple[int, bytes]]]:
    """Take a container of any length apart, one block at a time.

    Parameters
    ----------
    file : Readable
        At the container's first byte.
    max_bytes : int
        Most bytes that a block may have, compressed or not.

    Returns
    -------
    bytes
        The schema, JSON.
    iterator of (int, bytes)
        As `read_container`; it raises what is wrong with a block.

    Raises
    ------
    PoisonMessage
        As `read_container`, except for the number of blocks.
    """
    with _one_error():
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it begins with other bytes")
        meta = _metadata(file)
        codec = meta.get(b"avro.codec", b"null")
        if codec not in _CODECS:
            raise _unknown_codec(codec)
        return meta[b"avro.schema"], _blocks(file, _CODECS[codec], max_bytes)


@contextmanager
def _one_error() -> Iterator[None]:
    """Say in one way what is wrong with a container."""
    try:
        yield
    except IndexError:
        raise PoisonMessage("truncated", "the container ends before its last block does") from None
    except KeyError:
        raise PoisonMessage("undecodable", "the container names no schema") from None
    except (ValueError, zlib.error, cramjam.DecompressionError) as error:
        raise PoisonMessage("undecodable", f"not an Avro container: {error}") from error


def _unknown_codec(codec: bytes) -> PoisonMessage:
    known = ", ".join(name.decode() for name in _CODECS)
    return PoisonMessage(
        "unknown_codec",
        f"codec {codec[:40].decode(errors='replace')!r} is not read: write it with one of {known}",
    )


def _metadata(file: Readable) -> dict[bytes, bytes]:
    meta: dict[bytes, bytes] = {}
    entries = 0
    while count := _long(file):
        if count < 0:
            _long(file)  # bytes that the entries take
        for _ in range(abs(count)):
            entries += 1
            if entries > _MAX_META:
                raise ValueError(f"more than {_MAX_META} entries before its blocks")
            key = _behind_length(file, _MAX_META_BYTES)
            meta[key] = _behind_length(file, _MAX_META_BYTES)
    return meta


def _blocks(file: Readable, codec: Codec, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    with _one_error():
        sync = _exactly(file, _SYNC_BYTES)
        while first := file.read(1):
            count = _long(file, first)
            data = _behind_length(file, max_bytes)
            if _exactly(file, _SYNC_BYTES) != sync:
                raise ValueError("no sync marker behind a block")
            records = codec(data, max_bytes)
            # Records without a byte each hold nothing, and could be any number.
            if not 0 <= count <= len(records):
                raise ValueError(f"a block of {len(records)} bytes is said to hold {count} records")
            yield count, records


def _long(file: Readable, first: bytes = b"") -> int:
    raw = first or file.read(1)
    while raw[-1:] > b"\x7f" and len(raw) < _LONG_BYTES and (byte := file.read(1)):
        raw += byte
    return read_long(raw, 0)[0]


def _behind_length(file: Readable, max_bytes: int) -> bytes:
    """Read what follows its own length."""
    length = _long(file)
    if length < 0:
        raise ValueError(f"a length of {length}")
    if length > max_bytes:
        raise PoisonMessage("too_large", f"a part of {length} bytes; up to {max_bytes} are read")
    return _exactly(file, length)


def _exactly(file: Readable, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise IndexError
    return data


def inflate(data: bytes, max_bytes: int, window_bits: int, *, may_trail: bool = False) -> bytes:
    """Decompress a gzip or raw deflate stream of at most ``max_bytes``; see `zlib`.

    Whether bytes may follow it is for the caller to say.

    Raises
    ------
    PoisonMessage
        ``too_large``, ``truncated``, or ``trailing_bytes``.
    zlib.error
        The data are damaged.
    """
    stream = zlib.decompressobj(window_bits)
    plain = stream.decompress(data, max_bytes + 1)
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    if not stream.eof:
        raise PoisonMessage("truncated", "the compressed data end too early")
    if stream.unused_data and not may_trail:
        raise PoisonMessage(
            "trailing_bytes", f"{len(stream.unused_data)} bytes behind the compressed data"
        )
    return plain


def _too_large(max_bytes: int) -> PoisonMessage:
    return PoisonMessage(
        "too_large", f"more than {max_bytes} bytes come out of the compressed data"
    )


def _plain(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _deflate(data: bytes, max_bytes: int) -> bytes:
    # Writers leave the checksum of zlib behind the data; the block has a length of its own.
    return inflate(data, max_bytes, -zlib.MAX_WBITS, may_trail=True)


def _snappy(data: bytes, max_bytes: int) -> bytes:
    packed, checksum = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if cramjam.snappy.decompress_raw_len(packed) > max_bytes:
        raise _too_large(max_bytes)
    plain = bytes(cramjam.snappy.decompress_raw(packed))
    if zlib.crc32(plain).to_bytes(_CRC_BYTES, "big") != checksum:
        raise ValueError("the checksum of a block is wrong")
    return plain


def _zstandard(data: bytes, max_bytes: int) -> bytes:
    # Frames need not state their size, and room is not free: it is doubled until all fits.
    room = min(max(_ROOM, 8 * len(data)) if data else 0, max_bytes)
    while True:
        plain = _zstandard_within(data, room)
        if plain is not None:
            return plain
        if room == max_bytes:
            raise _too_large(max_bytes)
        room = min(4 * room, max_bytes)


def _zstandard_within(data: bytes, size: int) -> bytes | None:
    """Decompress if no more than ``size`` bytes come out."""
    room = bytearray(size + 1)
    try:
        written = cramjam.zstd.decompress_into(data, room)
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            return None
        raise
    return bytes(room[:written]) if written <= size else None


_CODECS: Final[dict[bytes, Codec]] = {
    b"null": _plain,
    b"deflate": _deflate,
    b"snappy": _snappy,
    b"zstandard": _zstandard,
}
