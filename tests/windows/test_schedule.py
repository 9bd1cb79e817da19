"""When windows are due, and how polls are cut into waves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_filter.types import Photometry, StarId
from broker_filter.windows.schedule import Schedule, concatenate, waves
from broker_filter.windows.store import WindowStore


def message(stars: Sequence[StarId], mjd: float, source: str = "", band: str = "r") -> Photometry:
    n = len(stars)
    return Photometry(
        survey="test",
        band=band,
        source=source,
        star=list(stars),
        mjd_tai=np.full(n, 60_000.0 + mjd),
        flux=np.full(n, 1000.0),
        flux_err=np.full(n, 10.0),
        flags=np.zeros(n, np.uint32),
        ref_flux=np.full(n, np.nan),
        ref_flux_err=np.full(n, np.nan),
        coordinates=dict.fromkeys(stars, (1.0, 2.0)),
    )


class Stream:
    """A store and its schedule; says which stars each message makes due."""

    def __init__(self, every_days: float, min_points: int = 1) -> None:
        self.store, self.schedule = WindowStore(), Schedule(every_days, min_points)

    def due(self, piece: Photometry) -> list[StarId]:
        slots = self.schedule.due(self.store, self.store.insert(piece))
        return [self.store.star[slot] for slot in slots.tolist()]


def test_every_new_newest_epoch_is_due_when_the_grid_is_zero() -> None:
    stream = Stream(0)
    assert [len(stream.due(message(["a"], mjd))) for mjd in (1.0, 1.001, 1.002)] == [1, 1, 1]


def test_older_epochs_and_duplicates_make_nothing_due() -> None:
    stream = Stream(0)
    stream.due(message(["a"], 5.0))
    assert stream.due(message(["a"], 4.0)) == []
    assert stream.due(message(["a"], 5.0)) == []


def test_a_window_is_due_once_a_cell() -> None:
    stream = Stream(1.0)
    due = [len(stream.due(message(["a"], mjd))) for mjd in np.arange(0, 10, 0.1)]
    assert sum(due[1:]) == 10
    gaps = np.diff(np.flatnonzero(due[1:]))
    assert set(gaps.tolist()) <= {9, 10, 11}


def test_too_few_points_are_not_due_and_do_not_use_up_the_cell() -> None:
    stream = Stream(1.0, min_points=3)
    assert [len(stream.due(message(["a"], mjd))) for mjd in (5.0, 5.0001, 5.0002)] == [0, 0, 1]


def test_stars_are_due_at_different_times() -> None:
    stream, stars = Stream(1.0), [f"star {i}" for i in range(1000)]
    stream.due(message(stars, 0.0))
    share = [len(stream.due(message(stars, mjd))) for mjd in np.arange(0.1, 1.05, 0.1)]
    assert sum(share) == 1000
    assert max(share) < 160


def test_integer_stars_are_scheduled_too() -> None:
    assert Stream(0).due(message([7, 2**40], 1.0)) == [7, 2**40]


def restored(stream: Stream, every_days: float) -> Stream:
    """A stream that goes on where another was, perhaps with cells of another width."""
    again = Stream(every_days)
    again.store.restore(stream.store.state())
    again.schedule.restore(again.store, stream.schedule.state())
    return again


def test_a_restored_schedule_makes_due_what_the_first_would_have() -> None:
    first, stars = Stream(1.0), [f"star {i}" for i in range(50)]
    for mjd in np.arange(0.0, 3.0, 0.3):
        first.due(message(stars, mjd))
    second = restored(first, 1.0)
    for mjd in np.arange(3.0, 6.0, 0.3):
        assert second.due(message(stars, mjd)) == first.due(message(stars, mjd))


@pytest.mark.parametrize("every_days", [0.0, 0.1, 3.0])
def test_cells_of_another_width_begin_at_the_newest_epoch(every_days: float) -> None:
    first, stars = Stream(1.0), [f"star {i}" for i in range(50)]
    first.due(message(stars, 5.0))
    second = restored(first, every_days)
    assert second.due(message(stars, 5.0)) == []
    due = [star for mjd in np.arange(5.05, 8.06, 0.05) for star in second.due(message(stars, mjd))]
    assert set(due) == set(stars)


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


def test_concatenation_joins_what_belongs_together_and_keeps_order() -> None:
    pieces = [message(["a"], 1), message(["b"], 2, "x"), message(["c"], 3), message(["d"], 4, "x")]
    joined = concatenate(pieces)
    assert [piece.star for piece in joined] == [["a", "c"], ["b", "d"]]
    assert [piece.source for piece in joined] == ["", "x"]
    assert joined[0].mjd_tai.tolist() == [60_001.0, 60_003.0]
    assert joined[1].coordinates == {"b": (1.0, 2.0), "d": (1.0, 2.0)}


def test_concatenation_keeps_bands_apart() -> None:
    assert len(concatenate([message(["a"], 1, band="g"), message(["b"], 1, band="r")])) == 2
