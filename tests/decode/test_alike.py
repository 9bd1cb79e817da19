"""Messages read together: each gives what it gives alone, and one with a fault is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.decode.alike import FEWEST, MOST_KINDS, read_alike
from broker_filter.decode.native import decode_photometry, encode_photometry
from broker_filter.errors import PoisonMessage
from broker_filter.types import Photometry, StarId
from tests import build

NAN = float("nan")


def epochs_of(photometry: Photometry, row: int, n: int) -> Photometry:
    """The epochs of one message among those read together."""
    part = photometry.take(np.arange(row * n, (row + 1) * n))
    star = part.star[0]
    place = {star: photometry.coordinates[star]} if star in photometry.coordinates else {}
    return Photometry(
        **{f.name: getattr(part, f.name) for f in fields(part)} | {"coordinates": place}
    )


def assert_equal(one: Photometry, other: Photometry) -> None:
    for field in fields(Photometry):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))
        else:
            assert ours == theirs, field.name


def read(values: Sequence[bytes]) -> dict[int, Photometry]:
    """What is read of each of the values that are read together."""
    found: dict[int, Photometry] = {}
    for rows, photometry in read_alike(values):
        n = len(photometry) // len(rows)
        for row, i in enumerate(rows.tolist()):
            assert i not in found
            found[i] = epochs_of(photometry, row, n)
    return found


def written(star: StarId = 7, **changes: object) -> bytes:
    return encode_photometry(build.photometry(star=star, **changes))


@st.composite
def stream(draw: st.DrawFn) -> list[bytes]:
    """Messages of few kinds; some have damaged bytes."""
    values = []
    for _ in range(draw(st.integers(0, 25))):
        star = draw(
            st.one_of(st.integers(-70, 70), st.integers(-(2**63), 2**63 - 1), st.text("ab\0é"))
        )
        n = draw(st.integers(1, 2))
        place = {star: (draw(st.sampled_from([0.0, 360.0, 361.0, NAN])), draw(st.floats(-91, 91)))}
        try:
            value = encode_photometry(
                build.photometry(
                    draw(st.lists(st.floats(width=64), min_size=n, max_size=n)),
                    [star] * n,
                    band=draw(st.sampled_from(["r", "g"])),
                    flags=draw(st.sampled_from([0, 5])),
                    ref_flux=draw(st.sampled_from([NAN, 3.0])),
                    coordinates=draw(st.sampled_from([{}, place])),
                )
            )
        except Exception:  # noqa: BLE001  an id that cannot be written
            value = b""
        if draw(st.integers(0, 4)) == 0 and value:
            at = draw(st.integers(0, len(value) - 1))
            value = value[:at] + bytes([draw(st.integers(0, 255))]) + value[at + 1 :]
        values.append(value)
    return values


@given(stream())
def test_each_message_gives_what_it_gives_alone(values: list[bytes]) -> None:
    found = read(values)
    alone = {i: decode_photometry(values[i]) for i in found}
    for i, photometry in found.items():
        places = [one.coordinates.get(photometry.star[0]) for one in alone.values()]
        assert (
            photometry.coordinates.get(photometry.star[0]) in places
        )  # of its star's messages one
        assert_equal(photometry, replace(alone[i], coordinates=photometry.coordinates))


@pytest.mark.parametrize(
    "stars",
    [
        list(range(-64, 64)),
        list(range(10**12, 10**12 + 50)),
        [2**62 - 1 - i for i in range(9)],
        [f"OGLE-{i:04}" for i in range(50)],
    ],
    ids=["one byte", "six bytes", "nine bytes", "text"],
)
def test_all_of_one_kind_are_read_together(stars: list[StarId]) -> None:
    values = [written(star, flux=float(i)) for i, star in enumerate(stars)]
    ((rows, photometry),) = read_alike(values)
    assert rows.tolist() == list(range(len(stars)))
    assert photometry.star == stars
    assert photometry.flux.tolist() == [float(i) for i in range(len(stars))]


def test_kinds_of_one_length_are_kept_apart() -> None:
    values = [written(i, band="rg"[i % 2], flux=float(i)) for i in range(2 * FEWEST)]
    found = read(values)
    assert [found[i].band for i in range(len(values))] == ["r", "g"] * FEWEST


def test_ids_of_64_bits_are_left_to_the_reader_of_one() -> None:
    assert read([written(-(2**63) + i) for i in range(2 * FEWEST)]) == {}


def test_a_name_with_a_fault_costs_no_other_message() -> None:
    values = [written(f"star{i}") for i in range(FEWEST + 2)]
    values[2] = values[2].replace(b"star2", b"sta\0\0")
    values[3] = values[3].replace(b"star3", b"star\xff")
    assert sorted(read(values)) == [0, 1, 4, 5]
    with pytest.raises(PoisonMessage):
        decode_photometry(values[3])


def test_the_work_on_a_stream_without_a_pattern_is_bounded() -> None:
    kinds = [written(i % 2, band=f"{i:03}") for i in range(3 * MOST_KINDS)]
    assert len(read(kinds * FEWEST)) <= MOST_KINDS * FEWEST
