"""Every message becomes photometry or poison with a reason; nothing else comes out."""

from __future__ import annotations

import contextlib
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from broker_filter.decode.decoder import Decoder, Format
from broker_filter.decode.native import decode_block
from broker_filter.errors import PoisonMessage
from broker_filter.schemas import (
    MAX_MESSAGE_BYTES,
    decode_strict,
    encode,
    schema_folder,
    schema_header,
)
from broker_filter.service.dead_letters import KEPT_VALUE_BYTES, encode_dead_letter
from broker_filter.types import DeadLetter, Message, Photometry

FORMATS = ("photometry", "photometry_block")


def sample(name: str) -> bytes:
    return (schema_folder() / name / "1/0/sample.avro").read_bytes()


def message(value: bytes | None, schema: str | None = None) -> Message:
    headers = () if schema is None else (("trace", b"1"), schema_header(schema))
    return Message("epochs", 3, 41, b"key", value, 1_767_225_600_000, headers)


def read(decoder: Decoder, message: Message) -> Photometry:
    """The one photometry of a message in a format of ours."""
    packet = decoder.decode(message)
    assert not packet.rejected
    (photometry,) = packet.photometry
    return photometry


def reason(decoder: Decoder, bad: Message) -> str:
    with pytest.raises(PoisonMessage) as caught:
        decoder.decode(bad)
    assert caught.value.detail
    return caught.value.reason


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("default", [*FORMATS, "auto"])
def test_the_header_tells_the_format(name: str, default: Format) -> None:
    assert len(read(Decoder(default), message(sample(name), name))) in (3, 4)


@pytest.mark.parametrize("name", FORMATS)
def test_the_topic_tells_the_format_where_the_header_does_not(name: Format) -> None:
    other: Format = "photometry" if name == "photometry_block" else "photometry_block"
    assert read(Decoder(name), message(sample(name)))
    assert read(Decoder(other, topics={"epochs": name}), message(sample(name)))


def test_auto_without_header_is_refused() -> None:
    assert reason(Decoder(), message(sample("photometry"))) == "unknown_format"


@pytest.mark.parametrize("schema", [b"photometry/9/9", b"", b"\xff\xfe", b"x" * 10_000])
def test_a_schema_that_is_not_known_is_refused(schema: bytes) -> None:
    bad = replace(message(sample("photometry")), headers=(("schema", schema),))
    assert reason(Decoder("photometry"), bad) == "unknown_format"


def test_another_framing_can_be_added() -> None:
    def magic(message: Message) -> tuple[bytes, bytes] | None:
        value = message.value or b""
        return (b"photometry/1/0", value[5:]) if value[:1] == b"\0" else None

    decoder = Decoder(framings=(magic,))
    framed = message(b"\0\0\0\0\x07" + sample("photometry"))
    assert read(decoder, framed).survey == "roman"


@pytest.mark.parametrize("value", [None, b""])
def test_empty_messages(value: bytes | None) -> None:
    assert reason(Decoder("photometry"), message(value)) == "empty"


@pytest.mark.parametrize("name", FORMATS)
def test_a_message_cut_at_any_byte(name: str) -> None:
    whole = sample(name)
    for length in range(1, len(whole)):
        assert reason(Decoder(), message(whole[:length], name)) == "truncated", length


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tail", [b"\0", sample("photometry"), bytes(100_000)], ids=len)
def test_trailing_bytes(name: str, tail: bytes) -> None:
    assert reason(Decoder(), message(sample(name) + tail, name)) == "trailing_bytes"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "junk", [b'{"flux": 1.0, "star": "a"}', b"\x89PNG\r\n\x1a\n" * 9, b"\xff" * 500], ids=len
)
def test_messages_that_are_not_avro(name: str, junk: bytes) -> None:
    assert reason(Decoder(), message(junk, name)) in {"truncated", "undecodable"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("photometry", "photometry_block"),
        ("photometry_block", "photometry"),
        ("dead_letter", "photometry"),
        ("dead_letter", "photometry_block"),
    ],
)
def test_messages_of_another_schema(written: str, read: str) -> None:
    assert reason(Decoder(), message(sample(written), read)) in {"truncated", "undecodable"}


@pytest.mark.parametrize("name", FORMATS)
def test_ten_megabytes_are_refused_unread(name: str) -> None:
    assert reason(Decoder(), message(bytes(10_000_000), name)) == "too_large"
    assert reason(Decoder(max_bytes=100), message(sample(name), name)) == "too_large"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(5))
def test_damaged_messages_give_photometry_or_poison(name: str, seed: int) -> None:
    rng, decoder, outcomes = np.random.default_rng(seed), Decoder(), {True: 0, False: 0}
    for _ in range(1000):
        value = bytearray(sample(name))
        for _ in range(rng.integers(1, 5)):
            value[rng.integers(len(value))] = rng.integers(256)
        try:
            got = read(decoder, message(bytes(value), name))
        except PoisonMessage:
            outcomes[False] += 1
            continue
        outcomes[True] += 1
        check(got)
    assert min(outcomes.values()) > 50


@pytest.mark.parametrize("name", FORMATS)
def test_random_bytes_give_photometry_or_poison(name: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(3000):
        junk = rng.integers(256, size=rng.integers(1, 99), dtype=np.uint8)
        junk[rng.random(len(junk)) < 0.5] = rng.choice([0, 2, 255])  # plausible indices and lengths
        with contextlib.suppress(PoisonMessage):
            check(read(Decoder(), message(junk.tobytes(), name)))


def check(got: Photometry) -> None:
    """Photometry that keeps what its docstring promises."""
    n = len(got)
    assert n >= 1
    for column in (got.mjd_tai, got.flux, got.flux_err, got.ref_flux, got.ref_flux_err):
        assert column.shape == (n,)
        assert column.dtype == np.float64
    assert got.flags.shape == (n,)
    assert got.flags.dtype == np.uint32
    assert {type(star) for star in got.star} in ({int}, {str})
    assert all(isinstance(s, int) or 1 <= len(s.encode()) <= 64 for s in got.star)
    assert set(got.coordinates) <= set(got.star)


def test_a_small_message_cannot_ask_for_much_memory() -> None:
    record = decode_strict("photometry_block", sample("photometry_block"))
    claims = record | {"nStars": 2**60, "flags": None, "refFlux": None, "ra": None, "dec": None}
    tracemalloc.start()
    try:
        for value in (encoded(claims), b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(50)):
            for name in FORMATS:
                reason(Decoder(), message(value, name))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def encoded(record: dict[str, object]) -> bytes:
    return encode("photometry_block", record)


def test_the_largest_block_is_read_within_bounds() -> None:
    n = 600_000
    record = decode_strict("photometry_block", sample("photometry_block"))
    zeros = {"dtype": "<f4", "data": bytes(4 * n)}
    absent = dict.fromkeys(("flags", "refFlux", "refFluxErr", "ra", "dec"))
    ids = {"dtype": "|S1", "data": b"x" * n}
    value = encoded(record | absent | {"nStars": n, "flux": zeros, "fluxErr": zeros, "starId": ids})
    assert len(value) < MAX_MESSAGE_BYTES
    tracemalloc.start()
    try:
        assert len(decode_block(value)) == n
        assert tracemalloc.get_traced_memory()[1] < 20 * len(value)
    finally:
        tracemalloc.stop()


def test_readers_in_turn_do_not_disturb_each_other() -> None:
    decoder = Decoder()
    for _ in range(3):
        assert len(read(decoder, message(sample("photometry"), "photometry"))) == 3
        assert reason(decoder, message(b"\x01", "photometry")) == "undecodable"
        assert len(read(decoder, message(sample("photometry_block"), "photometry_block"))) == 4


# Dead letters


def letter(bad: Message, why: str = "truncated", detail: str = "ends at byte 3") -> DeadLetter:
    return DeadLetter(bad, why, detail)


def test_a_dead_letter_holds_the_message_and_the_reason() -> None:
    bad = message(b"\x01\x02\x03", "photometry")
    sent = encode_dead_letter(letter(bad), 1_767_225_601.5, topic="dlq")
    record = decode_strict("dead_letter", sent.value)
    assert (sent.topic, sent.key) == ("dlq", b"key")
    assert dict(sent.headers) == {
        "schema": b"dead_letter/1/0",
        "reason": b"truncated",
        "topic": b"epochs",
        "partition": b"3",
        "offset": b"41",
    }
    headers = tuple((h["name"], h["value"]) for h in record["headers"])
    again = Message(
        record["topic"],
        record["partition"],
        record["offset"],
        record["key"],
        record["value"],
        record["timestampMs"],
        headers,
    )
    assert again == bad
    assert (record["reason"], record["detail"]) == ("truncated", "ends at byte 3")
    assert record["failedAtMs"] == 1_767_225_601_500
    assert record["softwareVersion"]


@pytest.mark.parametrize("value", [None, b""])
def test_a_dead_letter_of_nothing(value: bytes | None) -> None:
    bad = replace(message(value), key=None)
    record = decode_strict("dead_letter", encode_dead_letter(letter(bad, "empty"), 0.0).value)
    assert (record["value"], record["key"], record["valueLength"]) == (value, None, 0)


def test_values_are_kept_whole_up_to_the_limit_and_known_again_beyond() -> None:
    # The digest is that of 900,001 bytes "a", from coreutils sha256sum.
    whole, cut = (
        decode_strict("dead_letter", encode_dead_letter(letter(message(b"a" * n)), 0.0).value)
        for n in (KEPT_VALUE_BYTES, KEPT_VALUE_BYTES + 1)
    )
    assert whole["value"] == cut["value"] == b"a" * KEPT_VALUE_BYTES
    assert (whole["valueLength"], cut["valueLength"]) == (900_000, 900_001)
    assert cut["valueSha256"] == "79d40e2f618bd216f7ae0ee0d87ad4dc8f2bdba22f07e59bc79ed6c446fb4e41"
    kept = encode_dead_letter(letter(message(b"a" * 50)), 0.0, kept_value_bytes=20)
    assert decode_strict("dead_letter", kept.value)["value"] == b"a" * 20


def test_the_worst_dead_letter_fits_a_producer_with_default_limits() -> None:
    headers = (("", b""),) * 100_000
    bad = Message("t" * 249, 3, 41, bytes(2_000_000), bytes(10_000_000), 0, headers)
    sent = encode_dead_letter(letter(bad, detail="\N{SNOWMAN}" * 10**6), 0.0)
    headers_size = sum(len(name) + len(content) for name, content in sent.headers)
    assert len(sent.value) + len(sent.key or b"") + headers_size < 1_000_000 - 4096


def test_text_that_is_not_utf_8_does_not_stop_a_dead_letter() -> None:
    sent = encode_dead_letter(letter(message(b"x"), detail="bad \udcff byte"), 0.0)
    assert decode_strict("dead_letter", sent.value)["detail"] == "bad ? byte"
