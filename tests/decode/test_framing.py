"""A message says how it is framed by its first bytes, its topic or its key."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any

import cramjam
import fastavro
import pytest

from broker_filter.decode.avro.container import MAGIC, MAX_BLOCKS, read_container, stream_container
from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.avro.schema import WriterSchema, parse_document
from broker_filter.decode.framing import Framed, Unframer
from broker_filter.errors import PoisonMessage
from broker_filter.types import Message
from tests import build

SCHEMA = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "long"}]}
OTHER = {"type": "record", "name": "q", "fields": [{"name": "z", "type": "double"}]}
SYNC = bytes(range(16))
PACKERS: dict[str, Any] = {
    "null": lambda data: data,
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "snappy": lambda data: (
        bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big")
    ),
    "zstandard": lambda data: bytes(cramjam.zstd.compress(data)),
}


def message(value: bytes, key: bytes | None = None, topic: str = "alerts") -> Message:
    return build.message(value, topic=topic, key=key)


def unframer(**schemaless: WriterSchema) -> Unframer:
    return Unframer({1101: parse_document(SCHEMA)}.get, schemaless=schemaless, max_bytes=1_000_000)


def container(blocks: list[list[int]], codec: str = "null", text: bytes | None = None) -> bytes:
    packed = [(len(b), PACKERS[codec](b"".join(map(write_long, b)))) for b in blocks]
    return build.container(text or json.dumps(SCHEMA).encode(), *packed, codec=codec)


def framed(value: bytes, key: bytes | None = None, **schemaless: WriterSchema) -> Framed:
    found = unframer(**schemaless).unframe(message(value, key))
    assert isinstance(found, Framed)
    return found


def reason(value: bytes, key: bytes | None = None, **schemaless: WriterSchema) -> str:
    with pytest.raises(PoisonMessage) as caught:
        unframer(**schemaless).unframe(message(value, key))
    assert caught.value.detail
    return caught.value.reason


# Containers


@pytest.mark.parametrize("codec", PACKERS)
@pytest.mark.parametrize("blocks", [[], [[]], [[5]], [[1, 2, 3], [4]]], ids=str)
def test_a_container_of_any_codec_and_any_number_of_records(
    codec: str, blocks: list[list[int]]
) -> None:
    found = framed(container(blocks, codec))
    assert found.schema.name == "p"
    assert list(found.blocks) == [(len(b), b"".join(map(write_long, b))) for b in blocks]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_containers_that_fastavro_wrote(codec: str) -> None:
    stream = io.BytesIO()
    fastavro.writer(stream, SCHEMA, [{"x": 7}, {"x": -7}], codec=codec)
    assert list(framed(stream.getvalue()).blocks) == [(2, write_long(7) + write_long(-7))]


def test_a_schema_is_parsed_once_for_its_text() -> None:
    find = unframer()
    one, two = (find.unframe(message(container([[n]]))) for n in (1, 2))
    assert isinstance(one, Framed)
    assert isinstance(two, Framed)
    assert one.schema is two.schema


@pytest.mark.parametrize("codec", PACKERS)
def test_a_container_cut_anywhere(codec: str) -> None:
    whole = container([[1, 2, 3]], codec)
    head = len(container([], codec))
    for length in (*range(4, head), *range(head + 1, len(whole))):
        assert reason(whole[:length]) in {"truncated", "undecodable"}, length


@pytest.mark.parametrize("codec", PACKERS)
def test_a_container_with_a_damaged_byte_never_fails_otherwise(codec: str) -> None:
    whole, seen = container([[1, 2, 3]], codec), set()
    for i in range(4, len(whole)):
        for bit in (1, 0x80):
            damaged = whole[:i] + bytes([whole[i] ^ bit]) + whole[i + 1 :]
            try:
                read_container(damaged, max_bytes=10_000)
            except PoisonMessage as error:
                seen.add(error.reason)
    assert "undecodable" in seen
    assert seen <= {"truncated", "undecodable", "unknown_codec", "too_large", "trailing_bytes"}


@pytest.mark.parametrize("codec", PACKERS)
def test_what_comes_out_of_a_container_is_bounded(codec: str) -> None:
    bomb = container([[0] * 1_000_001], codec)
    assert reason(bomb) == "too_large"
    assert reason(container([[0] * 600_000] * 2, codec)) == "too_large"


@pytest.mark.parametrize("codec", PACKERS)
def test_a_container_of_very_many_empty_blocks(codec: str) -> None:
    assert reason(container([[]] * (MAX_BLOCKS + 1), codec)) == "too_many_items"
    assert len(framed(container([[]] * MAX_BLOCKS, codec)).blocks) == MAX_BLOCKS


def test_room_for_a_zstandard_block_follows_its_own_size() -> None:
    """The storm: a few bytes a block, for each of which room for the longest message was made."""
    storm = container([[]] * MAX_BLOCKS, "zstandard")
    tracemalloc.start()
    read_container(storm, max_bytes=64 << 20)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 500_000])
def test_a_zstandard_block_of_any_size(size: int) -> None:
    value = container([[0] * size], "zstandard")
    assert list(framed(value).blocks) == [(size, bytes(size))]
    if size:
        with pytest.raises(PoisonMessage, match="too_large"):
            read_container(value, max_bytes=size - 1)


def test_a_header_of_very_many_entries() -> None:
    entries = b"".join(write_long(2) + b"%02x" % i + b"\0" for i in range(101))
    assert reason(MAGIC + write_long(101) + entries + b"\0" + SYNC) == "undecodable"


def test_containers_that_contradict_themselves() -> None:
    assert reason(container([[1]], "null", b"no schema")) == "bad_schema"
    assert reason(container([[1]]).replace(b"avro.schema", b"avro.schemA")) == "undecodable"
    assert reason(container([[1]])[:-1] + b"\xff") == "undecodable"


@pytest.mark.parametrize(
    ("codec", "pack"), [("bzip2", bz2.compress), ("xz", lzma.compress), ("lz4", bytes)]
)
def test_a_codec_that_is_not_read_is_named_with_those_that_are(codec: str, pack: Any) -> None:
    packed = build.container(json.dumps(SCHEMA).encode(), (1, pack(b"\2")), codec=codec)
    said = f"codec '{codec}' is not read: write it with one of null, deflate, snappy, zstandard"
    with pytest.raises(PoisonMessage, match=said) as caught:
        unframer().unframe(message(packed))
    assert caught.value.reason == "unknown_codec"


@pytest.mark.parametrize(
    ("count", "data"), [(2**60, b""), (2**60, b"\2"), (-1, b"\2"), (3, b"\2\2")]
)
def test_a_block_that_cannot_hold_its_records(count: int, data: bytes) -> None:
    for fields in ([], SCHEMA["fields"]):
        schema = json.dumps(SCHEMA | {"fields": fields}).encode()
        assert reason(build.container(schema, (count, data))) == "undecodable"


def test_a_container_of_any_length_is_read_a_block_at_a_time() -> None:
    block = build.container(b"{}", (1, b"\2" * 1000))
    head = build.container(b"{}")
    endless = chain([head], repeat(block[len(head) :]))
    schema, blocks = stream_container(_Endless(endless), max_bytes=1000)
    assert (schema, next(blocks)) == (b"{}", (1, b"\2" * 1000))
    assert sum(1 for _ in islice(blocks, 10_000)) == 10_000
    with pytest.raises(PoisonMessage, match="too_large"):
        next(stream_container(io.BytesIO(block), max_bytes=999)[1])


class _Endless:
    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._left = parts, b""

    def read(self, size: int = -1, /) -> bytes:
        while len(self._left) < size:
            self._left += next(self._parts)
        found, self._left = self._left[:size], self._left[size:]
        return found


@pytest.mark.parametrize("length", [2**40, 2**62])
def test_a_length_is_held_against_the_bytes_that_are_there(length: int) -> None:
    head = build.container(json.dumps(SCHEMA).encode())
    assert reason(head + write_long(1) + write_long(length) + b"x") == "too_large"
    assert reason(MAGIC + write_long(1) + write_long(length) + b"x") == "too_large"


# The other framings


def test_wire_format() -> None:
    found = framed(b"\0\0\0\x04\x4d" + write_long(9))
    assert (found.schema.name, list(found.blocks)) == ("p", [(1, write_long(9))])


def test_a_number_that_is_not_known_is_told() -> None:
    assert reason(b"\0\0\0\0\x07" + write_long(9)) == "unknown_schema_id"
    assert reason(b"\0\0\0") == "truncated"


def test_a_topic_of_bare_records() -> None:
    other = parse_document(OTHER)
    for value in (bytes(8), b"{" + bytes(7), b"\0\0\0\0\x07abc"):
        found = framed(value, alerts=other)
        assert (found.schema, list(found.blocks)) == (other, [(1, value)])
    assert framed(container([[1]]), alerts=other).schema.name == "p"
    assert framed(b"\0\0\0\x04\x4d\x02", alerts=other).schema.name == "p"


@pytest.mark.parametrize("parsed", [False, True])
def test_a_schema_in_the_key(parsed: bool) -> None:
    schema = fastavro.parse_schema(OTHER, named_schemas={}) if parsed else OTHER
    key = json.dumps({**schema, "__named_schemas": {}} if parsed else schema).encode()
    value = bytes(8)
    found = framed(value, key)
    assert (found.schema.name, list(found.blocks)) == ("q", [(1, value)])
    assert reason(value, b'{"fields": [}') == "bad_schema"


def test_json() -> None:
    assert unframer().unframe(message(b' \n{"candid": 1, "x": NaN}'))
    assert reason(b'{"candid": 1') == "undecodable"
    assert reason(b'{"x": ' + b"[" * 100_000) == "undecodable"
    assert reason(b"{" + b"9" * 9) == "undecodable"


@pytest.mark.parametrize("junk", [b"PAR1", b"\x89PNG\r\n", b"\xff" * 99, b"[1, 2]", b"text"])
def test_what_is_none_of_these(junk: bytes) -> None:
    assert reason(junk, b"a star's name") == "unknown_format"


@pytest.mark.parametrize(
    "plain", [container([[1, 2]]), b"\0\0\0\x04\x4d\x02", b'{"candid": 1}'], ids=len
)
def test_gzip_around_any(plain: bytes) -> None:
    find = unframer()
    zipped, found = gzip.compress(plain), find.unframe(message(plain))
    again = find.unframe(message(zipped))
    assert again == found or (isinstance(again, Framed) and again.blocks == found.blocks)
    assert reason(zipped[:-1]) == "truncated"
    assert reason(zipped + b"\0") == "trailing_bytes"
    assert reason(zipped[:12] + b"\xff\xff" + zipped[14:]) in {"undecodable", "truncated"}


def test_gzip_is_bounded() -> None:
    assert reason(gzip.compress(bytes(2_000_000))) == "too_large"
    assert reason(bytes(1_000_001)) == "too_large"


def test_a_registry_schema_that_is_not_valid_is_poison() -> None:
    def broken(number: int) -> WriterSchema | None:
        return parse_document({"number": number})

    with pytest.raises(PoisonMessage) as caught:
        Unframer(broken).unframe(message(b"\0\0\0\0\x07"))
    assert caught.value.reason == "bad_schema"


def test_a_message_without_a_value() -> None:
    with pytest.raises(PoisonMessage) as caught:
        unframer().unframe(replace(message(b""), value=None))
    assert caught.value.reason == "unknown_format"
