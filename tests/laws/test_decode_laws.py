"""Laws of decoding: whatever a message holds, it becomes photometry or an error of two kinds.

Messages are made of real-looking packets and of our own samples, and then spoilt: their schema,
their bytes, the blocks and the header around them, what stands before and in the key. Work is
bounded by the number of calls, which is the same on every machine.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cramjam
import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.avro.schema import WriterSchema, parse_document
from broker_filter.decode.decoder import Decoder
from broker_filter.decode.framing import Unframer
from broker_filter.errors import PoisonMessage, TransientError
from broker_filter.schemas import schema_folder
from broker_filter.types import Message

pytestmark = pytest.mark.usefixtures("compiled_reader")

REASONS = {
    *("empty", "too_large", "truncated", "trailing_bytes", "undecodable", "too_many_items"),
    *("unknown_format", "unknown_survey", "unknown_schema_id", "unknown_codec", "bad_schema"),
    *("no_epochs", "column_length", "bad_dtype", "bad_star_id", "bad_name"),
}
MOST_CALLS = 300_000
"""Of functions, in Python and in C, while one message is decoded; a packet takes thousands."""

MOST_PLACES = 50_000
"""In a document that grows: three times 6000-fold, it would take all memory there is."""

Draw = Callable[[Any], Any]


# Packets as surveys write them, with few fields


def nullable(*names: str, kind: str = "double") -> list[dict[str, Any]]:
    return [{"name": name, "type": ["null", kind]} for name in names]


def record(name: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, avro_type: Any) -> dict[str, Any]:
    return {"name": name, "type": avro_type}


def lists(*names: str, of: Any) -> list[dict[str, Any]]:
    return [field(name, ["null", {"type": "array", "items": of}]) for name in names]


LSST_POINT = record(
    "diaSource",
    field("diaObjectId", ["null", "long"]),
    field("visit", "long"),
    field("detector", "int"),
    field("midpointMjdTai", "double"),
    *nullable("psfFlux", "psfFluxErr", "scienceFlux", "scienceFluxErr", kind="float"),
    *nullable("pixelFlags_bad", "pixelFlags_cr", kind="boolean"),
    field("band", ["null", "string"]),
    *nullable("ra", "dec"),
)
LSST = record(
    "lsst.v11_1.alert",
    field("diaSourceId", "long"),
    field("diaSource", LSST_POINT),
    *lists("prvDiaSources", of="diaSource"),
    field("cutout", ["null", "bytes"]),
)
ZTF_POINT = record(
    "candidate",
    field("jd", "double"),
    field("fid", "int"),
    field("field", ["null", "int"]),
    field("rcid", ["null", "int"]),
    *nullable(
        "magpsf", "sigmapsf", "magnr", "sigmagnr", "distnr", "chinr", "sharpnr", kind="float"
    ),
    field("isdiffpos", ["null", "string"]),
    *nullable("ra", "dec", "exptime"),
)
ZTF_FORCED = record(
    "fp_hist",
    field("jd", "double"),
    field("fid", "int"),
    *nullable("forcediffimflux", "forcediffimfluxunc", "magzpsci", "exptime", kind="float"),
    field("procstatus", "string"),
)
ZTF = record(
    "ztf.alert",
    field("objectId", "string"),
    field("candidate", ZTF_POINT),
    *lists("prv_candidates", of="candidate"),
    *lists("fp_hists", of=ZTF_FORCED),
    field("survey", {"type": "enum", "name": "survey", "symbols": ["ZTF", "LSST"]}),
    field("hash", {"type": "fixed", "name": "hash", "size": 3}),
    field("notes", {"type": "map", "values": "string"}),
)
LSST_ROW = {
    "diaObjectId": 7, "visit": 5, "detector": 3, "midpointMjdTai": 61000.0, "psfFlux": 10.0,
    "psfFluxErr": 1.0, "scienceFlux": 500.0, "scienceFluxErr": 1.0, "pixelFlags_bad": False,
    "pixelFlags_cr": None, "band": "r", "ra": 10.0, "dec": -3.0,
}  # fmt: skip
ZTF_ROW = {
    "jd": 2460736.6, "fid": 2, "field": 410, "rcid": 28, "magpsf": 19.4, "sigmapsf": 0.1,
    "magnr": 18.0, "sigmagnr": 0.02, "distnr": 0.3, "chinr": 1.0, "sharpnr": 0.0,
    "isdiffpos": "t", "ra": 97.9, "dec": -2.8, "exptime": 30.0,
}  # fmt: skip
FORCED_ROW = {
    "jd": 2460730.6, "fid": 2, "forcediffimflux": 100.0, "forcediffimfluxunc": 10.0,
    "magzpsci": 26.4, "exptime": 30.0, "procstatus": "0",
}  # fmt: skip
PACKETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lsst": (
        LSST,
        {
            "diaSourceId": 1,
            "diaSource": LSST_ROW,
            "prvDiaSources": [
                {**LSST_ROW, "midpointMjdTai": 61000.0 - n, "visit": n} for n in range(1, 9)
            ],
            "cutout": bytes(40),
        },
    ),
    "ztf": (
        ZTF,
        {
            "objectId": "ZTF18aaaaaaa",
            "candidate": ZTF_ROW,
            "prv_candidates": [{**ZTF_ROW, "jd": ZTF_ROW["jd"] - n} for n in range(1, 5)],
            "fp_hists": [FORCED_ROW] * 3,
            "survey": "ZTF",
            "hash": b"abc",
            "notes": {"a": "b"},
        },
    ),
}
NUMBERS = {1101: "lsst", 402: "ztf"}


def written(name: str) -> bytes:
    schema, packet = PACKETS[name]
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, named_schemas={}), packet)
    return stream.getvalue()


def sample(name: str) -> bytes:
    return (schema_folder() / name / "1/0/sample.avro").read_bytes()


RECORDS = {name: written(name) for name in PACKETS}
SCHEMAS: dict[int, WriterSchema] = {n: parse_document(PACKETS[k][0]) for n, k in NUMBERS.items()}
NATIVE = {name: sample(name) for name in ("photometry", "photometry_block")}


def number_of(number: int) -> WriterSchema | None:
    """A registry that is away for some numbers."""
    if number % 5 == 3:
        raise TransientError(f"schema {number} cannot be had now")
    return SCHEMAS.get(number)


# What a message may be spoilt by

ODD: tuple[Any, ...] = (
    *(None, 0, -1, 2**62, 1.5, True, "", "int", "null", "record", "alert", [], {}, [[]], [None]),
    *(["null", "null"], ["int"], {"type": "fixed", "name": "f", "size": 0}, {"type": []}),
    *({"type": "array", "items": "null"}, {"type": "map", "values": []}, {"logicalType": 5}),
    *({"type": "record", "name": "e", "fields": []}, {"type": "long", "logicalType": "date"}),
    *("candidate", "diaSource", "\ud800", "x" * 300),
)


def odd(draw: Draw) -> Any:
    return copy.deepcopy(ODD[draw(st.integers(0, len(ODD) - 1))])


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, key) within a document."""
    inside = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, part in list(inside):
        yield node, key
        yield from places(part)


def spoilt_document(draw: Draw, document: Any) -> Any:
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 3))):
        found = list(places(document))
        holder, key = found[draw(st.integers(0, len(found) - 1))]
        way = draw(st.sampled_from(["odd", "odd", "drop", "swap", "grow"]))
        if way == "odd":
            holder[key] = odd(draw)
        elif way == "drop":
            del holder[key]
        elif way == "swap":
            other, name = found[draw(st.integers(0, len(found) - 1))]
            holder[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else odd(draw))
        else:
            inside = sum(1 for _ in places([holder[key]]))
            times = min(draw(st.sampled_from([2, 70, 6000])), MOST_PLACES // inside + 1)
            # Copies: what is there many times over would grow at all of its places at once.
            holder[key] = [copy.deepcopy(holder[key]) for _ in range(times)]
    return document


def spoilt_bytes(draw: Draw, value: bytes) -> bytes:
    value = bytearray(value)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(value)))
        way = draw(st.sampled_from(["flip", "flip", "cut", "insert", "number", "repeat"]))
        if way == "flip" and at < len(value):
            value[at] = draw(st.integers(0, 255))
        elif way == "cut":
            del value[at : at + draw(st.integers(1, 99))]
        elif way == "insert":
            value[at:at] = draw(st.binary(max_size=9))
        elif way == "number":
            value[at : at + 1] = write_long(draw(st.sampled_from([2**62, -(2**62), 10**6, -1, 99])))
        else:
            value[at:at] = value[at : at + 50] * draw(st.sampled_from([2, 500]))
    return bytes(value)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "snappy": lambda data: (
        bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big")
    ),
    "zstandard": lambda data: bytes(cramjam.zstd.compress(data)),
}


def sized(data: bytes) -> bytes:
    return write_long(len(data)) + data


def draw_container(draw: Draw, schema: bytes, record: bytes) -> bytes:
    codec = draw(st.sampled_from(sorted(PACKERS)))
    meta = {b"avro.schema": schema, b"avro.codec": codec.encode()}
    if draw(st.booleans()):
        meta[draw(st.binary(max_size=5))] = draw(st.binary(max_size=5))
    head = write_long(len(meta)) + b"".join(sized(key) + sized(text) for key, text in meta.items())
    sync = bytes(range(16))
    value = b"Obj\x01" + head + b"\0" + sync
    for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2, 1500]))):
        n = draw(st.sampled_from([1, 1, 1, 0, 2, 1001, 2**40])) if len(value) < 1 << 16 else 1
        data = PACKERS[codec](record * min(n, 3))
        value += write_long(n) + sized(data) + sync
        if len(value) > 1 << 18:
            break
    return value


def as_json(packet: Any) -> bytes:
    return json.dumps(packet, default=lambda value: value.decode("latin-1")).encode()


@st.composite
def messages(draw: Any) -> Message:
    name = draw(st.sampled_from(sorted(PACKETS)))
    schema, packet = PACKETS[name]
    value, key, headers = RECORDS[name], None, []
    framing = draw(st.sampled_from(["container", "container", "wire", "json", "key", "native"]))
    if draw(st.booleans()):
        value = spoilt_bytes(draw, value)
    if framing in ("container", "key"):
        text = json.dumps(spoilt_document(draw, schema)).encode()
        if framing == "key":
            key = text
        else:
            value = draw_container(draw, text, value)
    elif framing == "wire":
        number = draw(st.sampled_from([*NUMBERS, 0, 3, 2**31]))
        value = b"\0" + number.to_bytes(4, "big") + value
    elif framing == "json":
        value = as_json(spoilt_document(draw, packet))
    else:
        native = draw(st.sampled_from(sorted(NATIVE)))
        value = NATIVE[native]
        headers = [("schema", draw(st.sampled_from([f"{native}/1/0".encode(), b"", b"\xff"])))]
    if draw(st.integers(0, 3)) == 0:
        value = spoilt_bytes(draw, value)
    if draw(st.integers(0, 9)) == 0:
        value = gzip.compress(value)
    if draw(st.integers(0, 9)) == 0:
        headers.append((draw(st.text(max_size=9)), draw(st.binary(max_size=9))))
    return Message("alerts", 0, 0, key, value, 0, tuple(headers))


class TooMuchWork(BaseException):
    """More calls than a message may take."""


@contextmanager
def counted_calls(most: int) -> Iterator[Counter[str]]:
    calls: Counter[str] = Counter()

    def note(_frame: Any, event: str, _arg: Any) -> None:
        if event in ("call", "c_call"):
            calls["all"] += 1
            if calls["all"] > most:
                raise TooMuchWork

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def outcome(message: Message) -> str:
    decoder = Decoder(unframer=Unframer(number_of, max_bytes=4 << 20), max_bytes=4 << 20)
    with counted_calls(MOST_CALLS):
        try:
            packet = decoder.decode(message, lambda *_: {"r": 60_995.0})
        except PoisonMessage as error:
            return error.reason if len(error.detail) < 2000 else "long_winded"
        except TransientError:
            return "transient"
    for part in packet.photometry:
        columns = (part.star, part.flux, part.flux_err, part.flags, part.ref_flux)
        assert all(len(column) == len(part.mjd_tai) for column in columns)
    return "read"


@given(messages())
@settings(
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_message_is_photometry_poison_or_asked_for_again(message: Message) -> None:
    assert outcome(message) in REASONS | {"read", "transient"}


@pytest.mark.parametrize("name", PACKETS)
def test_the_packets_that_are_spoilt_are_read_whole(name: str) -> None:
    schema, packet = PACKETS[name]
    number = next(n for n, key in NUMBERS.items() if key == name)
    sync = bytes(16)
    text = json.dumps(schema).encode()
    container = b"Obj\x01\x02" + sized(b"avro.schema") + sized(text) + b"\0" + sync
    container += b"\x02" + sized(RECORDS[name]) + sync
    for value, key in (
        (container, None),
        (b"\0" + number.to_bytes(4, "big") + RECORDS[name], None),
        (RECORDS[name], text),
        (as_json(packet), None),
    ):
        assert outcome(Message("alerts", 0, 0, key, value)) == "read"
