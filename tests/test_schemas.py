"""The schemas: filed, documented, sampled; written strictly and read strictly."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.schemas import decode_strict, encode, load_schema, schema_folder, schema_header

NATIVE = ("photometry", "photometry_block", "dead_letter")


def sample(name: str) -> bytes:
    return (schema_folder() / name / "1/0/sample.avro").read_bytes()


def fields(schema: Any) -> Iterator[dict[str, Any]]:
    """All fields of a schema, those of nested records too."""
    if isinstance(schema, dict):
        yield from schema.get("fields", ())
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from fields(inner)


@pytest.mark.parametrize("name", NATIVE)
def test_every_field_says_what_it_holds(name: str) -> None:
    raw = json.loads((schema_folder() / name / "1/0" / f"{name}.avsc").read_text())
    assert raw["namespace"] == "broker_filter.v1_0"
    assert raw["doc"]
    documented = list(fields(raw))
    assert len(documented) >= 13
    assert [f["name"] for f in documented if len(f.get("doc", "")) < 15] == []


def test_fields_of_nested_records_are_checked_too() -> None:
    raw = json.loads((schema_folder() / "dead_letter/1/0/dead_letter.avsc").read_text())
    assert {"value", "name"} <= {f["name"] for f in fields(raw)}


@pytest.mark.parametrize("name", ["photometry", "photometry_block"])
@pytest.mark.parametrize("quantity", ["mjdTai", "flux", "fluxErr", "refFlux", "refFluxErr"])
def test_docs_of_quantities_name_their_unit(name: str, quantity: str) -> None:
    doc = {f["name"]: f["doc"] for f in load_schema(name)["fields"]}[quantity]
    assert "days" in doc if quantity == "mjdTai" else "in unit" in doc


@pytest.mark.parametrize("name", NATIVE)
def test_samples_hold_the_same_record_as_json_and_as_avro(name: str) -> None:
    text = (schema_folder() / name / "1/0/sample.json").read_text()
    line = io.StringIO(json.dumps(json.loads(text)))
    (record,) = fastavro.json_reader(line, load_schema(name))
    assert decode_strict(name, sample(name)) == record
    assert encode(name, record) == sample(name)


def test_a_schema_is_parsed_once() -> None:
    assert load_schema("photometry") is load_schema("photometry")


def test_an_unknown_schema_is_named_with_what_there_is() -> None:
    with pytest.raises(SchemaError, match=r"photometry/9/9.*known.*photometry_block/1/0"):
        load_schema("photometry", "9/9")


def test_a_broken_schema_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broken/1/0/broken.avsc"
    path.parent.mkdir(parents=True)
    path.write_text('{"type": "record"}')
    monkeypatch.setattr("broker_filter.schemas.schema_folder", lambda: tmp_path)
    with pytest.raises(SchemaError, match=r"broken\.avsc is not an Avro schema"):
        load_schema("broken")


def test_header_names_schema_and_version() -> None:
    assert schema_header("photometry") == ("schema", b"photometry/1/0")


@pytest.mark.parametrize(
    "change",
    [{"nStars": "many"}, {"typo": 1}, {"flux": None}, {"kind": "relative"}, {"nStars": 2**70}],
    ids=str,
)
def test_a_record_that_does_not_fit_is_not_written(change: dict[str, Any]) -> None:
    record = decode_strict("photometry_block", sample("photometry_block"))
    with pytest.raises(SchemaError, match="photometry_block/1/0"):
        encode("photometry_block", record | change)


def test_a_record_that_lacks_a_field_is_not_written() -> None:
    record = decode_strict("photometry", sample("photometry"))
    del record["flux"]
    with pytest.raises(SchemaError, match="flux"):
        encode("photometry", record)


def test_fields_with_a_default_may_be_left_out() -> None:
    record = decode_strict("photometry", sample("photometry"))
    del record["flags"]
    assert decode_strict("photometry", encode("photometry", record))["flags"] is None


@pytest.mark.parametrize("name", NATIVE)
def test_a_record_cut_at_any_byte_is_truncated(name: str) -> None:
    whole = sample(name)
    for length in range(len(whole)):
        with pytest.raises(PoisonMessage) as caught:
            decode_strict(name, whole[:length])
        assert caught.value.reason == "truncated", length


@pytest.mark.parametrize("name", NATIVE)
def test_trailing_bytes_are_refused(name: str) -> None:
    with pytest.raises(PoisonMessage, match=f"ends at byte {len(sample(name))}") as caught:
        decode_strict(name, sample(name) + b"\0")
    assert caught.value.reason == "trailing_bytes"


def test_length_is_checked_before_anything_is_read() -> None:
    value = sample("photometry")
    assert decode_strict("photometry", value, max_bytes=len(value))
    with pytest.raises(PoisonMessage) as caught:
        decode_strict("photometry", value, max_bytes=len(value) - 1)
    assert caught.value.reason == "too_large"


def test_schemas_read_in_turn_do_not_mix_their_named_types() -> None:
    for _ in range(3):
        for name in NATIVE:
            assert encode(name, decode_strict(name, sample(name))) == sample(name)
