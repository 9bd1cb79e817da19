"""Avro object containers: the schema in front, then blocks of records, each maybe compressed.

Surveys send each packet as a file of its own, with 20 kB of schema before it. The schema's text is
handed on as it stands, so that it need be parsed only when it is new.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam

from broker_filter.decode.avro.primitives import forward, read_bytes, read_long
from broker_filter.decode.avro.skip import block_head
from broker_filter.errors import PoisonMessage

__all__ = ["MAGIC", "MAX_BLOCKS", "inflate", "read_container"]

MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_CRC_BYTES: Final = 4

MAX_BLOCKS: Final = 1000
"""Most blocks of a container; surveys send one."""

_MAX_META: Final = 100
_ROOM: Final = 1 << 12

Codec = Callable[[bytes, int], bytes]
"""From compressed bytes and the most that may come of them to what comes."""


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
    try:
        meta, at = _metadata(value)
        schema, codec = meta[b"avro.schema"], meta.get(b"avro.codec", b"null")
        if codec not in _CODECS:
            known = b", ".join(_CODECS).decode()
            raise PoisonMessage("unknown_codec", f"codec {codec[:40]!r}; known: {known}")
        return schema, list(_blocks(value, at, _CODECS[codec], max_bytes, max_blocks))
    except IndexError:
        raise PoisonMessage(
            "truncated", f"the container ends before its last block does ({len(value)} bytes)"
        ) from None
    except KeyError:
        raise PoisonMessage("undecodable", "the container names no schema") from None
    except (ValueError, zlib.error, cramjam.DecompressionError) as error:
        raise PoisonMessage("undecodable", f"not an Avro container: {error}") from error


def _metadata(value: bytes) -> tuple[dict[bytes, bytes], int]:
    meta: dict[bytes, bytes] = {}
    at, entries = len(MAGIC), 0
    while True:
        count, at, _ = block_head(value, at)
        if not count:
            return meta, at
        for _ in range(count):
            key, at = read_bytes(value, at)
            meta[key], at = read_bytes(value, at)
            entries += 1
            if entries > _MAX_META:
                raise ValueError(f"more than {_MAX_META} entries before its blocks")


def _blocks(
    value: bytes, at: int, codec: Codec, max_bytes: int, max_blocks: int
) -> Iterator[tuple[int, bytes]]:
    sync = value[at : forward(value, at, _SYNC_BYTES)]
    at += _SYNC_BYTES
    blocks = 0
    while at < len(value):
        blocks += 1
        if blocks > max_blocks:
            raise PoisonMessage("too_many_items", f"more than {max_blocks} blocks in a container")
        count, at = read_long(value, at)
        data, at = read_bytes(value, at)
        end = forward(value, at, _SYNC_BYTES)
        if count < 0 or value[at:end] != sync:
            raise ValueError(f"no sync marker behind the block that ends at byte {at}")
        at = end
        records = codec(data, max_bytes)
        max_bytes -= len(records)
        yield count, records


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
