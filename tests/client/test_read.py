"""Reading a saved alert, and what is said of a file that is none."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import fastavro
import numpy as np
import pytest

from broker_filter import ConfigError, read_alert
from broker_filter.alerts.codec import from_avro, to_avro
from broker_filter.alerts.record import to_record
from broker_filter.client.read import MAX_FILE_BYTES
from broker_filter.client.save import avro_files
from broker_filter.schemas import known_versions, load_schema, schema_folder, schema_id

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
    elif kind == "another":
        with path.open("wb") as file:
            fastavro.writer(file, "string", ["x"])
    elif kind == "bomb":
        with path.open("wb") as file:
            fastavro.writer(file, "bytes", [bytes(MAX_FILE_BYTES)], codec="deflate")
    elif kind == "image":
        shutil.copy(schema_folder().parent / "deploy" / "alert.png", path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("absent", "No such file"),
        ("folder", "directory"),
        ("empty", "not an alert"),
        ("text", "not an alert"),
        ("cut", "not an alert"),
        ("several", "it holds several records"),
        ("none", "it holds no record"),
        ("another", "of another schema"),
        ("bomb", "too_large"),
        ("image", "not an alert"),
    ],
)
def test_a_file_that_holds_no_alert_is_named(kind: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    wrong_file(kind, path)
    with pytest.raises(ConfigError, match=f"x.avro: .*{said}"):
        read_alert(path)


def test_a_damaged_byte_gives_an_alert_or_the_one_error(tmp_path: Path) -> None:
    avro_files(tmp_path)(SAMPLE)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for index in [*range(0, 20_000, 97), *range(20_000, len(content), 19)]:
        damaged = bytearray(content)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        with suppress(ConfigError):
            read_alert(path)
