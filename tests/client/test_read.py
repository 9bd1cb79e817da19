"""Reading a saved alert, and what is said of a file that is none."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import shutil
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from broker_filter import ConfigError, read_alert
from broker_filter.alerts.codec import from_avro, to_avro
from broker_filter.alerts.record import to_record
from broker_filter.client.read import MAX_BLOCK_BYTES, read_records
from broker_filter.client.save import avro_files
from broker_filter.decode.avro.primitives import write_long
from broker_filter.schemas import known_versions, load_schema, schema_folder, schema_id
from tests import build

RAW = schema_folder() / schema_id("alert") / "sample.avro"
SAMPLE = from_avro(RAW.read_bytes())


def test_a_saved_alert_is_read_as_it_was(tmp_path: Path) -> None:
    avro_files(tmp_path)(SAMPLE)
    (path,) = tmp_path.iterdir()
    for alert in (read_alert(path), read_alert(str(path))):
        assert to_avro(alert) == to_avro(SAMPLE)
        np.testing.assert_array_equal(alert.samples, SAMPLE.samples)


@pytest.mark.parametrize("version", known_versions("alert"))
def test_every_known_version_is_read(version: str, tmp_path: Path) -> None:
    raw = schema_folder() / "alert" / version / "sample.avro"
    expected = from_avro(raw.read_bytes(), version)
    assert to_avro(read_alert(raw)) == to_avro(expected)
    saved = tmp_path / "saved.avro"
    schema = load_schema("alert", version)
    names = {field["name"] for field in schema["fields"]}
    record = {key: value for key, value in to_record(expected).items() if key in names}
    with saved.open("wb") as file:
        fastavro.writer(file, schema, [record])
    assert to_avro(read_alert(saved)) == to_avro(expected)


def wrong_file(kind: str, path: Path) -> None:
    avro_files(path.parent)(SAMPLE)
    whole = next(path.parent.glob("*-*.avro"))
    content = whole.read_bytes()
    if kind == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "text":
        path.write_text("not an alert")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "several":
        with path.open("wb") as file:
            fastavro.writer(file, load_schema("alert"), [to_record(SAMPLE)] * 2)
    elif kind == "none":
        with path.open("wb") as file:
            fastavro.writer(file, load_schema("alert"), [])
    elif kind == "image":
        shutil.copy(schema_folder().parent / "deploy" / "alert.png", path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("absent", "No such file"),
        ("folder", "directory"),
        ("empty", "the file is empty; save alerts with `broker-filter subscribe --avro`"),
        ("text", "not an alert"),
        ("cut", "not an alert"),
        ("several", "it holds several records"),
        ("none", "it holds no record"),
        ("image", "not an alert"),
    ],
)
def test_a_file_that_holds_no_alert_is_named(kind: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    wrong_file(kind, path)
    with pytest.raises(ConfigError, match=f"x.avro: .*{said}"):
        read_alert(path)


def test_many_alerts_of_a_container_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "many.avro"
    old = schema_folder() / "alert/1/0/sample.avro"
    record = to_record(from_avro(old.read_bytes(), "1/0"))
    for version, codec in (("1/2", "deflate"), ("1/0", "null"), ("1/1", "snappy")):
        schema = load_schema("alert", version)
        names = [field["name"] for field in schema["fields"]]
        many = [{name: record[name] for name in names} | {"starId": str(i)} for i in range(100)]
        with path.open("wb") as file:
            fastavro.writer(file, schema, many, codec=codec, sync_interval=50_000)
        assert list(read_records(path)) == [record | {"starId": str(i)} for i in range(100)]


def alert_schema(**added: Any) -> bytes:
    """The schema of alerts, with other fields behind its own."""
    schema = {key: part for key, part in load_schema("alert").items() if key[:2] != "__"}
    more = [{"name": name, "type": kind} for name, kind in added.items()]
    return json.dumps(schema | {"fields": [*schema["fields"], *more]}).encode()


def deflated_zeros(size: int) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


RECORD = RAW.read_bytes()
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
NOT_OURS = "the container's schema is none of alert/1/0, alert/1/1, alert/1/2"
CLAIM = f"a block of {len(RECORD)} bytes is said to hold {2**60} records"
HOSTILE = {
    "truncated": (build.container(alert_schema(), (1, RECORD))[:-9], "truncated"),
    "header cut": (build.container(alert_schema())[:9_000], "truncated"),
    "2^60 records": (build.container(alert_schema(), (2**60, RECORD)), CLAIM),
    "2^60 empty records": (build.container(b'"null"', (2**60, b"")), NOT_OURS),
    "more records than there are": (build.container(alert_schema(), (2, RECORD)), "truncated"),
    "fewer records": (build.container(alert_schema(), (1, RECORD + b"\0")), "trailing_bytes"),
    "text of 2^40 bytes": (build.container(alert_schema(), (1, write_long(2**40))), "truncated"),
    "block of 2^40 bytes": (
        build.container(alert_schema()) + write_long(1) + write_long(2**40),
        f"too_large: a part of {2**40} bytes; up to {MAX_BLOCK_BYTES} are read",
    ),
    # Each of these two hung or crashed a reader that trusted the file's own schema.
    "2^60 items of no bytes": (
        build.container(
            alert_schema(junk={"type": "array", "items": "null"}),
            (1, RECORD + write_long(2**60) + b"\0"),
        ),
        NOT_OURS,
    ),
    "nested a million times": (
        build.container(alert_schema(junk=NODE), (1, RECORD + b"\2" * 1_000_000 + b"\0")),
        NOT_OURS,
    ),
    "schema nested too deep": (
        build.container(b'{"type":"array","items":' * 5000 + b'"int"' + b"}" * 5000),
        NOT_OURS,
    ),
    "another schema": (build.container(b'"string"', (1, b"\2x")), NOT_OURS),
    "bomb": (
        build.container(alert_schema(), (1, deflated_zeros(4 * MAX_BLOCK_BYTES)), codec="deflate"),
        f"too_large: more than {MAX_BLOCK_BYTES} bytes come out of the compressed data",
    ),
    "bzip2": (
        build.container(alert_schema(), (1, bz2.compress(RECORD)), codec="bzip2"),
        "codec 'bzip2' is not read: write it with one of null, deflate, snappy, zstandard",
    ),
    "xz": (build.container(alert_schema(), (1, lzma.compress(RECORD)), codec="xz"), "codec 'xz'"),
}


@pytest.mark.parametrize(
    ("name", "pack"), [("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)]
)
def test_a_file_that_is_compressed_as_a_whole_is_to_be_unpacked(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "x.avro"
    for content in (RECORD, build.container(alert_schema(), (1, RECORD))):
        path.write_bytes(pack(content))
        for read in (read_alert, lambda path: list(read_records(path))):
            with pytest.raises(ConfigError, match=rf"compressed \({name}\): unpack it"):
                read(path)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_container_is_refused_in_bounded_memory(kind: str, tmp_path: Path) -> None:
    content, said = HOSTILE[kind]
    path = tmp_path / "x.avro"
    path.write_bytes(content)
    for read in (read_alert, lambda path: list(read_records(path))):
        tracemalloc.start()
        with pytest.raises(ConfigError, match="x.avro: not an alert: .*" + re.escape(said)):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BLOCK_BYTES
        tracemalloc.stop()


def test_a_damaged_byte_gives_an_alert_or_the_one_error(tmp_path: Path) -> None:
    avro_files(tmp_path)(SAMPLE)
    (path,) = tmp_path.iterdir()
    content, said = path.read_bytes(), []
    for index in [*range(0, 20_000, 97), *range(20_000, len(content), 19)]:
        damaged = bytearray(content)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        try:
            read_alert(path)
        except ConfigError as error:
            said.append(str(error))
    assert len(said) > 50
    assert all(line.startswith(f"{path}: not an alert: ") for line in said)
