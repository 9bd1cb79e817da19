"""When windows are due."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from broker_filter.types import Photometry, StarId
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from tests import build


def message(stars: Sequence[StarId], mjd: float, source: str = "", band: str = "r") -> Photometry:
    return build.photometry(60_000.0 + mjd, stars, source=source, band=band)


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
