"""How polls are cut into waves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker_filter.types import Photometry, StarId
from broker_filter.windows.waves import concatenate, waves
from tests import build


def message(stars: Sequence[StarId], mjd: float, source: str = "", band: str = "r") -> Photometry:
    coordinates = dict.fromkeys(stars, (1.0, 2.0))
    return build.photometry(
        60_000.0 + mjd, stars, source=source, band=band, coordinates=coordinates
    )


names = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3), max_size=25)


@given(names)
def test_no_star_occurs_in_two_messages_of_a_wave_and_its_order_is_kept(
    stars: list[list[str]],
) -> None:
    pieces = [message(names, i) for i, names in enumerate(stars)]
    split = waves([[piece] for piece in pieces])
    assert sorted(p.mjd_tai[0] for wave in split for p in wave) == [p.mjd_tai[0] for p in pieces]
    for wave in split:
        for one, two in itertools.combinations(wave, 2):
            assert set(one.star).isdisjoint(two.star)
    for name in "abcdef":
        times = [p.mjd_tai[0] for wave in split for p in wave if name in p.star]
        assert times == sorted(times)


def test_a_star_that_comes_often_makes_waves_of_its_own_messages_alone() -> None:
    packets = [[message(["often" if i % 2 else f"star {i}"], i)] for i in range(20)]
    split = waves(packets)
    assert [len(wave) for wave in split] == [11] + 9 * [1]


def test_parts_of_one_message_share_a_wave_and_messages_of_one_star_do_not() -> None:
    first = [message(["a"], 1, band="g"), message(["a"], 2, band="r")]
    packets = [first, [message(["b"], 3)], [message(["a"], 4, band="i")]]
    assert [[p.band for p in wave] for wave in waves(packets)] == [["g", "r", "r"], ["i"]]


def test_a_message_without_parts_is_no_wave() -> None:
    assert waves([[], []]) == []


def test_messages_without_an_epoch_do_not_stop_the_others() -> None:
    packets = [[message([], 0)], [message([], 1)], [message(["a"], 2)], [message(["a"], 3)]]
    found = [star for wave in waves(packets) for part in wave for star in part.star]
    assert found == ["a", "a"]


def test_concatenation_joins_what_belongs_together_and_keeps_order() -> None:
    pieces = [message(["a"], 1), message(["b"], 2, "x"), message(["c"], 3), message(["d"], 4, "x")]
    joined = concatenate(pieces)
    assert [piece.star for piece in joined] == [["a", "c"], ["b", "d"]]
    assert [piece.source for piece in joined] == ["", "x"]
    assert joined[0].mjd_tai.tolist() == [60_001.0, 60_003.0]
    assert joined[1].coordinates == {"b": (1.0, 2.0), "d": (1.0, 2.0)}


def test_concatenation_keeps_bands_apart() -> None:
    assert len(concatenate([message(["a"], 1, band="g"), message(["b"], 1, band="r")])) == 2
