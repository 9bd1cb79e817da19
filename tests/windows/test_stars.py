"""Slots of stars: each name and band has one, in whatever order and company it comes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.state.columns import arrays_of
from broker_filter.types import StarId
from broker_filter.windows.stars import Stars
from tests import build

SOME = st.one_of(
    st.lists(st.sampled_from([1, 2, 3, "1", "2", "3"]), min_size=1, max_size=6),
    st.integers(0, 6).map(lambda first: list(range(first, first + 4))),  # a field in its order
)


@given(st.lists(st.tuples(st.sampled_from("gr"), SOME), max_size=12))
def test_a_star_keeps_the_slot_that_it_got_first(
    messages: list[tuple[str, list[StarId]]],
) -> None:
    stars = Stars()
    slots: dict[tuple[str, StarId], int] = {}
    for band, names in messages:
        found = stars.slots(build.photometry(star=names, band=band)).tolist()
        for name in names:
            slots.setdefault((band, name), len(slots))
        assert found == [slots[band, name] for name in names]


def test_a_place_that_comes_later_is_taken_for_stars_in_the_order_that_is_known() -> None:
    stars = Stars()
    slots = stars.slots(build.photometry(star=[1, 2]))
    stars.slots(build.photometry(star=[1, 2], coordinates={2: (10.0, -5.0)}))
    assert stars.coordinates(slots) == [None, (10.0, -5.0)]


def test_bands_stay_apart_however_many_a_producer_makes_up() -> None:
    stars, names = Stars(), [f"band {i}" for i in range((1 << 16) + 1)]
    one = build.photometry(star=["star"])
    slots = [int(stars.slots(replace(one, band=name))[0]) for name in names]
    assert stars.series(np.array([slots[0], slots[-1]])) == [
        ("test", names[0]),
        ("test", names[-1]),
    ]
    again = Stars()
    again.restore(arrays_of(stars.state()))
    assert again.slots(replace(one, band=names[-1])).tolist() == slots[-1:]
