"""What stands around an alert in a message, read by clients that are not ours."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from dataclasses import replace
from pathlib import Path

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter import read_alert
from broker_filter.alerts.codec import from_message, to_avro, to_json_dict, to_message
from broker_filter.alerts.framing import AlertFraming, Framing, unframe
from broker_filter.alerts.record import to_record
from broker_filter.errors import PoisonMessage
from broker_filter.schemas import known_versions, load_schema, schema_folder
from broker_filter.types import Headers, Message
from tests import build

SAMPLE = build.alert()
FRAMINGS = (Framing(), Framing("container"), Framing("confluent", 1234))


def received(framing: Framing, *, headers: bool = True) -> Message:
    sent = to_message(SAMPLE, "alerts", framing)
    kept: Headers = sent.headers if headers else ()
    return Message("alerts", 0, 0, sent.key, sent.value, headers=kept)


def container(value: bytes, **changes: object) -> bytes:
    """A container of one alert, written by fastavro, with changed parts."""
    stream = io.BytesIO()
    given = {"schema": load_schema("alert"), "records": [to_record(SAMPLE)], "codec": "null"}
    fastavro.writer(stream, **(given | changes))
    return stream.getvalue() + value


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda one: one.kind)
def test_a_subscriber_reads_every_framing(framing: Framing, headers: bool) -> None:
    assert to_avro(from_message(received(framing, headers=headers))) == to_avro(SAMPLE)


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda one: one.kind)
def test_a_saved_message_is_read(framing: Framing, tmp_path: Path) -> None:
    path = tmp_path / "message.avro"
    path.write_bytes(received(framing).value or b"")
    assert to_avro(read_alert(path)) == to_avro(SAMPLE)


def test_any_avro_reader_opens_a_container() -> None:
    message = received(Framing("container"))
    (record,) = fastavro.reader(io.BytesIO(message.value or b""))
    assert record["alertId"] == str(SAMPLE.alert_id)
    assert record["log10K"] == SAMPLE.log10_k
    assert dict(message.headers)["_format"] == b"avro"  # hop-client makes an AvroBlob of it


def test_another_avro_library_opens_a_container() -> None:
    avro = pytest.importorskip("avro.datafile")
    from avro.io import DatumReader

    with avro.DataFileReader(io.BytesIO(received(Framing("container")).value), DatumReader()) as it:
        (record,) = it
    assert record["eventId"] == str(SAMPLE.event_id)
    assert record["nEpochs"] == SAMPLE.n_epochs


def test_wire_format_is_a_zero_byte_and_the_number() -> None:
    value = received(Framing("confluent", 1234)).value or b""
    assert struct.unpack(">bI", value[:5]) == (0, 1234)
    assert value[5:] == to_avro(SAMPLE)


def test_the_same_alert_has_the_same_bytes() -> None:
    first, second = (received(Framing("container")).value for _ in range(2))
    assert first == second


@pytest.mark.parametrize("version", known_versions("alert"))
def test_a_container_of_an_older_version_is_read(version: str) -> None:
    raw = (schema_folder() / "alert" / version / "sample.avro").read_bytes()
    schema = load_schema("alert", version)
    record = fastavro.schemaless_reader(io.BytesIO(raw), schema, None)
    value = container(b"", schema=schema, records=[record])
    alert = from_message(Message("alerts", 0, 0, None, value))
    assert to_json_dict(alert)["alertId"] == record["alertId"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (container(b"", codec="deflate"), "unknown_codec"),
        (container(b"", records=[to_record(SAMPLE)] * 2), "undecodable"),
        (container(b"", records=[]), "truncated"),
        (container(b"more"), "trailing_bytes"),
        (container(b"")[:-20], "truncated"),
        (container(b"")[:-1] + b"?", "undecodable"),
        (container(b"", schema="long", records=[1]), "unknown_format"),
        (container(b"").replace(b"avro.schema", b"avro_schema"), "unknown_format"),
        (b"Obj\x01", "truncated"),
        (b"Obj\x01" + b"\xff" * 30, "truncated"),
        (b"\0", "truncated"),
        (b"\0\0\0\0\1junk", "truncated"),
    ],
    ids=range(12),
)
def test_what_holds_no_alert_is_refused_by_its_name(value: bytes, reason: str) -> None:
    with pytest.raises(PoisonMessage) as caught:
        from_message(Message("alerts", 0, 0, None, value))
    assert caught.value.reason == reason


@given(st.binary(max_size=300), st.sampled_from([b"", b"Obj\x01", b"\0", b"\0\0\0\0\1"]))
def test_junk_is_poison_and_nothing_else(junk: bytes, start: bytes) -> None:
    with contextlib.suppress(PoisonMessage):
        unframe(start + junk)


def test_every_framing_of_the_settings_is_known() -> None:
    kinds: tuple[AlertFraming, ...] = ("bare", "container", "confluent")
    assert tuple(one.kind for one in FRAMINGS) == kinds


def test_a_message_says_its_version_whatever_the_framing() -> None:
    old = replace(received(Framing("confluent", 7)), headers=(("schema", b"alert/9/9"),))
    with pytest.raises(PoisonMessage, match="alert/9/9"):
        from_message(old)


def test_the_schema_as_text_is_that_of_the_file() -> None:
    reader = fastavro.reader(io.BytesIO(received(Framing("container")).value or b""))
    filed = json.loads(reader.metadata["avro.schema"])
    assert [field["name"] for field in filed["fields"]] == [
        field["name"] for field in load_schema("alert")["fields"]
    ]
    assert filed["fields"][0]["doc"]
