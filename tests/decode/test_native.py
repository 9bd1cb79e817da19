"""The two native formats: what is written is read back, and what contradicts itself is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from broker_filter.decode.native import (
    decode_block,
    decode_photometry,
    encode_block,
    encode_photometry,
)
from broker_filter.decode.native_reader import read_photometry
from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.schemas import decode_strict, encode, schema_folder
from broker_filter.types import Photometry, StarId
from tests import build

DOUBLES = st.floats(width=64)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)
TEXT_IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16).filter(
    lambda text: text[-1] != "\0"
)
INT_IDS = st.integers(-(2**63), 2**63 - 1)
PLACES = st.tuples(st.floats(0, 360), st.floats(-90, 90))


def columns(n: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, n, elements=DOUBLES)


@st.composite
def photometry(draw: st.DrawFn, *, one_star: bool) -> Photometry:
    n = draw(st.integers(1, 5))
    ids = draw(st.sampled_from([TEXT_IDS, INT_IDS]))
    star: list[StarId] = [draw(ids)] * n if one_star else [draw(ids) for _ in range(n)]

    def reference() -> np.ndarray:
        return np.full(n, draw(DOUBLES)) if one_star else draw(columns(n))

    return Photometry(
        survey=draw(NAMES),
        band=draw(NAMES),
        source=draw(st.one_of(st.just(""), NAMES)),
        star=star,
        mjd_tai=draw(columns(n)),
        flux=draw(columns(n)),
        flux_err=draw(columns(n)),
        flags=draw(arrays(np.uint32, n)),
        ref_flux=reference(),
        ref_flux_err=reference(),
        kind=draw(st.sampled_from(["total", "difference"])),
        relative=draw(st.booleans()),
        coordinates=draw(st.dictionaries(st.sampled_from(star), PLACES)),
    )


def rounded(sent: Photometry) -> Photometry:
    """What a reader is to find: flux and error as float32, beyond its range infinite."""
    with np.errstate(over="ignore"):
        flux, flux_err = (c.astype("f4").astype(float) for c in (sent.flux, sent.flux_err))
    return replace(sent, flux=flux, flux_err=flux_err)


def assert_same(a: Photometry, b: Photometry) -> None:
    for field in fields(Photometry):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        else:
            assert left == right, field.name


def small(**changes: Any) -> Photometry:
    """Three stars at one time."""
    flux, error = [1.0, 2.0, 4.0], [0.5, 0.25, 0.125]
    whole = build.photometry(
        61500.25, [7, 8, 9], survey="roman", band="F146", flux=flux, flux_err=error
    )
    return replace(whole, **changes)


def block(**changes: Any) -> bytes:
    return encode(
        "photometry_block", decode_strict("photometry_block", encode_block(small())) | changes
    )


def single(**changes: Any) -> bytes:
    message = encode_photometry(small(star=[7, 7, 7]))
    return encode("photometry", decode_strict("photometry", message) | changes)


def column(dtype: str, *values: Any) -> dict[str, Any]:
    return {"dtype": dtype, "data": np.array(values, dtype).tobytes()}


def reason(decode: Any, value: bytes) -> str:
    with pytest.raises(PoisonMessage) as caught:
        decode(value)
    assert caught.value.detail
    return caught.value.reason


@given(photometry(one_star=True))
def test_one_star_comes_back_as_it_was_sent(sent: Photometry) -> None:
    assert_same(decode_photometry(encode_photometry(sent)), rounded(sent))


@given(photometry(one_star=False))
def test_a_block_comes_back_as_it_was_sent(sent: Photometry) -> None:
    assert_same(decode_block(encode_block(sent)), rounded(sent))


@given(photometry(one_star=True))
def test_both_formats_carry_the_same_numbers(sent: Photometry) -> None:
    assert_same(decode_block(encode_block(sent)), decode_photometry(encode_photometry(sent)))


@given(arrays(np.float64, 20, elements=st.floats(1e-30, 1e30)))
def test_flux_is_rounded_to_24_bits(flux: np.ndarray) -> None:
    sent = small(
        star=list(range(20)),
        flux=flux,
        **{k: np.ones(20) for k in ("mjd_tai", "flux_err", "ref_flux", "ref_flux_err")},
        flags=np.zeros(20, np.uint32),
    )
    received = decode_block(encode_block(sent)).flux
    np.testing.assert_allclose(received, flux, rtol=2.0**-24)


def test_one_time_for_all_stars_is_sent_once() -> None:
    assert decode_strict("photometry_block", encode_block(small()))["mjdTai"] == 61500.25
    own = small(mjd_tai=np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(decode_block(encode_block(own)).mjd_tai, own.mjd_tai)


def test_block_columns_are_little_endian_arrays() -> None:
    record = decode_strict("photometry_block", encode_block(small()))
    assert record["starId"] == {
        "dtype": "<i8",
        "data": b"".join(bytes([i, *[0] * 7]) for i in (7, 8, 9)),
    }
    assert record["flux"]["data"] == bytes.fromhex("0000803f 00000040 00008040")
    assert record["flags"] is record["refFlux"] is record["ra"] is None


def test_samples_read_as_photometry() -> None:
    one = decode_photometry((schema_folder() / "photometry/1/0/sample.avro").read_bytes())
    many = decode_block((schema_folder() / "photometry_block/1/0/sample.avro").read_bytes())
    assert one.star == ["RGES-0000123"] * 3
    assert one.flags.tolist() == [0, 0, 4]
    assert many.star == [1234567890123 + i for i in range(4)]
    assert many.coordinates[1234567890124] == (268.1044, -29.2107)
    np.testing.assert_array_equal(many.ref_flux, [15200.0, 821.0, 99800.0, np.nan])


@pytest.mark.parametrize("flux", ["<f4", "<f8"])
def test_blocks_may_send_either_float(flux: str) -> None:
    got = decode_block(block(flux=column(flux, 1, 2, 4), fluxErr=column(flux, 1, 1, 1)))
    assert got.flux.dtype == np.float64
    assert got.flux.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.0, 1e300])
def test_bad_values_inside_an_epoch_are_not_poison(bad: float) -> None:
    sent = small(flux=np.full(3, bad), flux_err=np.full(3, bad), mjd_tai=np.full(3, bad))
    assert_same(decode_block(encode_block(sent)), rounded(sent))


@pytest.mark.parametrize("n", [1, 3])
def test_a_signalling_nan_is_a_nan_without_a_warning(n: int) -> None:
    signalling = bytes.fromhex("0100a07f") * n
    good = np.ones(n, "<f4").tobytes()
    got = decode_photometry(single(mjdTai=bytes(8 * n), flux=signalling, fluxErr=good))
    assert np.isnan(got.flux).all()
    many = block(flux={"dtype": "<f4", "data": bytes.fromhex("0100a07f") * 3})
    assert np.isnan(decode_block(many).flux).all()


@pytest.mark.parametrize(("ra", "dec"), [(np.nan, 0.0), (10.0, 91.0), (-1.0, 0.0), (361.0, 0.0)])
def test_places_off_the_sky_count_as_unknown(ra: float, dec: float) -> None:
    assert decode_photometry(single(ra=ra, dec=dec)).coordinates == {}
    many = block(ra=column("<f8", 10, ra, 30), dec=column("<f8", 1, dec, 3))
    assert decode_block(many).coordinates == {7: (10.0, 1.0), 9: (30.0, 3.0)}


# Messages that contradict themselves


@pytest.mark.parametrize(
    "change",
    [
        {"nStars": 2},
        {"nStars": 4},
        {"nStars": 2**62},
        {"flux": column("<f4", 1, 2)},
        {"fluxErr": column("<f4", 1, 2, 3, 4)},
        {"flux": {"dtype": "<f4", "data": bytes(11)}},
        {"starId": column("<i8", 1, 2)},
        {"mjdTai": column("<f8", 1, 2)},
        {"flags": column("<u4", 1)},
        {"refFlux": column("<f8", 1)},
        {"refFluxErr": column("<f8")},
        {"ra": column("<f8", 1), "dec": column("<f8", 1, 2, 3)},
    ],
    ids=lambda change: "-".join(change),
)
def test_block_columns_that_disagree_in_length(change: dict[str, Any]) -> None:
    assert reason(decode_block, block(**change)) == "column_length"


@pytest.mark.parametrize("name", ["mjdTai", "flux", "fluxErr", "flags"])
@pytest.mark.parametrize("length", [0, 1, 4, 8, 25, 32])
def test_columns_of_one_star_that_disagree_in_length(name: str, length: int) -> None:
    expected = "no_epochs" if name == "mjdTai" and not length else "column_length"
    assert reason(decode_photometry, single(**{name: bytes(length)})) == expected


@pytest.mark.parametrize("n", [0, -1])
def test_a_message_without_epochs(n: int) -> None:
    assert reason(decode_block, block(nStars=n)) == "no_epochs"
    assert reason(decode_photometry, single(mjdTai=b"", flux=b"", fluxErr=b"")) == "no_epochs"


@pytest.mark.parametrize("name", ["mjdTai", "starId", "flux", "fluxErr", "flags", "refFlux", "ra"])
@pytest.mark.parametrize("dtype", ["", ">f8", "<f2", "object", "|O", "<U4", "x" * 10_000])
def test_unknown_dtypes(name: str, dtype: str) -> None:
    value = block(**{name: {"dtype": dtype, "data": bytes(24)}})
    assert reason(decode_block, value) == "bad_dtype"


def test_times_must_not_be_float32() -> None:
    assert reason(decode_block, block(mjdTai=column("<f4", 1, 2, 3))) == "bad_dtype"


@pytest.mark.parametrize("length", [1, 2, 63, 64])
def test_star_ids_of_1_to_64_bytes(length: int) -> None:
    star = "é" * (length // 2) + "x" * (length % 2)
    assert decode_photometry(single(starId=star)).star == [star] * 3
    stars = [star, "b", "c"]
    assert decode_block(encode_block(small(star=stars))).star == stars


@pytest.mark.parametrize("star", ["", "x" * 65, "é" * 33, "x" * 100_000, "x\0"], ids=len)
def test_star_ids_beyond_are_refused_when_read_and_when_written(star: str) -> None:
    assert reason(decode_photometry, single(starId=star)) == "bad_star_id"
    with pytest.raises(SchemaError, match="star id"):
        encode_photometry(small(star=[star] * 3))
    with pytest.raises(SchemaError, match="star id"):
        encode_block(small(star=["a", star, "c"]))


@pytest.mark.parametrize(
    "stars",
    [
        {"dtype": "|S0", "data": b""},
        {"dtype": "|S65", "data": b"x" * 195},
        {"dtype": "|S9999999999", "data": b"x"},
        {"dtype": "|S", "data": b"x"},
        {"dtype": "|S2", "data": b"a\0\0\0c\0"},
        {"dtype": "|S2", "data": b"aa\xff\xffcc"},
        {"dtype": "|S1", "data": "é".encode() + b"a"},
    ],
    ids=lambda stars: f"{stars['dtype']}-{stars['data'][:6].hex()}",
)
def test_star_columns_that_hold_no_ids(stars: dict[str, Any]) -> None:
    assert reason(decode_block, block(starId=stars)) == "bad_star_id"


@pytest.mark.parametrize("change", [{"survey": ""}, {"band": ""}, {"source": "x" * 65}], ids=str)
def test_names_are_bounded(change: dict[str, str]) -> None:
    assert reason(decode_block, block(**change)) == "bad_name"
    assert reason(decode_photometry, single(**change)) == "bad_name"


@pytest.mark.parametrize(
    "sent",
    [
        small(),
        small(star=[7, 7, 7], ref_flux=np.array([1.0, 2.0, 1.0])),
        small(star=[]),
    ],
    ids=["three stars", "two references", "none"],
)
def test_what_is_not_one_star_is_not_written_as_one(sent: Photometry) -> None:
    with pytest.raises(SchemaError, match="holds one"):
        encode_photometry(sent)


@pytest.mark.parametrize("star", [[1, "a", 2], [1, 2, 2**63], []], ids=str)
def test_blocks_that_cannot_be_written(star: list[StarId]) -> None:
    with pytest.raises(SchemaError):
        encode_block(small(star=star))


# The hand-written reader against the general one


@given(photometry(one_star=True))
def test_the_fast_reader_reads_what_the_general_one_reads(sent: Photometry) -> None:
    value = encode_photometry(sent)
    np.testing.assert_equal(read_photometry(value), decode_strict("photometry", value))


@given(photometry(one_star=True), st.data())
def test_the_fast_reader_agrees_on_damaged_records(sent: Photometry, data: st.DataObject) -> None:
    value = bytearray(encode_photometry(sent))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        record = read_photometry(bytes(value))
    except PoisonMessage:
        assume(False)
    np.testing.assert_equal(record, decode_strict("photometry", bytes(value)))


@given(photometry(one_star=True), st.data())
def test_the_fast_reader_refuses_what_the_general_one_refuses(
    sent: Photometry, data: st.DataObject
) -> None:
    whole = encode_photometry(sent)
    length = data.draw(st.integers(0, len(whole) - 1))
    assert reason(read_photometry, whole[:length]) == "truncated"
    assert reason(read_photometry, whole + b"\0") == "trailing_bytes"


@pytest.mark.parametrize("junk", [b"\xff" * 100, b"\x80" * 10_000, b"\x01"], ids=len)
def test_the_fast_reader_takes_no_absurd_lengths(junk: bytes) -> None:
    assert reason(read_photometry, junk) == "undecodable"


def test_the_fast_reader_takes_no_index_from_the_end() -> None:
    value = single()
    at = value.index(b"\x08F146\x00") + 6  # kind follows band and the empty source
    assert value[at] == 0
    damaged = value[:at] + b"\x01" + value[at + 1 :]
    assert reason(read_photometry, damaged) == "undecodable"
