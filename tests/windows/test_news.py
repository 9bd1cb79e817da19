"""Windows whose new epochs can have raised their significance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.config.window import ScheduleSettings
from broker_filter.inference.scan import significance
from broker_filter.types import FloatArray, Photometry
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from tests.pages import LOOKS

START, CADENCE, RISE = 60000.0, 15 / 1440, 9.0


def store_of(flux: FloatArray, rise: float = RISE, source: str = "") -> WindowStore:
    """A store with one star of 100 +- 1, to which these epochs came."""
    store = WindowStore(rise=rise)
    store.insert(epochs(flux, 0, source))
    return store


def epochs(flux: FloatArray, first: int, source: str = "") -> Photometry:
    n = len(flux)
    return Photometry(
        *("test", "W146", source, [1] * n),
        START + CADENCE * (first + np.arange(n)),
        *(np.array(flux, np.float64), np.ones(n), np.zeros(n, np.uint32)),
        *(np.full(n, 100.0), np.full(n, 1e-6)),
    )


def test_a_window_is_news_once_new_epochs_can_have_raised_s2_by_so_much() -> None:
    store, star = store_of(np.full(50, 100.0)), np.zeros(1, np.int64)
    store.insert(epochs([109.0], 50))
    assert not store.is_news(star)[0]  # never read
    store.read(star)
    store.insert(epochs([102.0, 90.0, 102.0], 51))  # 4 + 0 + 4
    assert not store.is_news(star)[0]
    store.insert(epochs([101.5], 54))
    assert store.is_news(star)[0]
    store.read(star)
    assert not store.is_news(star)[0]


def test_epochs_that_are_known_or_older_are_no_news() -> None:
    store, star = store_of(np.full(50, 100.0)), np.zeros(1, np.int64)
    store.read(star)
    store.insert(epochs([110.0] * 10, 40))
    store.insert(epochs([110.0], -1))
    assert not store.is_news(star)[0]


def test_a_star_far_from_quiet_is_news_when_it_has_changed_by_a_share_of_that() -> None:
    store, star = store_of(np.full(50, 110.0)), np.zeros(1, np.int64)
    store.read(star)  # S^2 of 5000
    store.insert(epochs([110.0] * 4, 50))
    assert not store.is_news(star)[0]
    store.insert(epochs([110.0] * 2, 54))
    assert store.is_news(star)[0]


def test_a_source_that_was_not_read_is_no_news() -> None:
    store, star = store_of(np.full(50, 100.0)), np.zeros(1, np.int64)
    store.read(star)
    store.insert(epochs([110.0], 50, "another"))
    assert not store.is_news(star)[0]


def test_what_is_left_survives_a_snapshot_and_older_ones_know_of_none() -> None:
    store, star = store_of(np.full(50, 100.0)), np.zeros(1, np.int64)
    store.read(star)
    store.insert(epochs([102.0], 50))
    state = store.state()
    older = {name: column for name, column in state.items() if name not in ADDED}
    for columns, news in ((state, True), (older, False)):
        other = WindowStore(rise=RISE)
        other.restore(columns)
        other.insert(epochs([102.5], 51))
        assert other.is_news(star)[0] == news


ADDED = ("news_left", "track.quiet", "track.unit")


def test_a_star_is_due_when_it_is_news() -> None:
    store, star = store_of(np.full(50, 100.0)), np.zeros(1, np.int64)
    schedule = Schedule(20, 10)
    assert schedule.due(store, star).tolist() == [0]
    store.read(star)
    for first, flux, due in ((50, 100.0, []), (51, 103.0, [0])):
        moved = store.insert(epochs([flux], first))
        assert schedule.due(store, moved).tolist() == due


def test_constant_stars_are_looked_at_as_often_as_the_sheet_of_sizes_assumes() -> None:
    rng, n, exposures = np.random.default_rng(5), 200, int(10 / CADENCE)
    defaults = ScheduleSettings()
    store = WindowStore(rise=defaults.rise)
    schedule = Schedule(defaults.every_days, defaults.min_points)
    looks = 0
    for i in range(exposures):
        columns = (rng.normal(100, 1, n), np.ones(n), np.zeros(n, np.uint32))
        reference = (np.full(n, 100.0), np.full(n, 1e-6))
        times = np.full(n, START + i * CADENCE)
        exposure = Photometry("test", "W146", "", list(range(n)), times, *columns, *reference)
        due = schedule.due(store, store.insert(exposure))
        if len(due):
            store.read(due)
        looks += len(due)
    assert looks / (n * exposures) == pytest.approx(LOOKS, rel=0.1)


@given(st.integers(0, 1000), st.floats(0.0, 6.0), st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_significance_rises_by_no_more_than_was_counted(seed: int, height: float, n: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=400 + n)
    noise[400:] += height
    store, star = store_of(100 + noise[:400], rise=1e6), np.zeros(1, np.int64)
    before = significance(store.read(star), 20.0)[0] ** 2
    left = float(store._news.left[0])
    store.insert(epochs(100 + noise[400:], 400))
    counted = left - float(store._news.left[0])
    after = significance(store.read(star, count=False), 20.0)[0] ** 2
    assert after <= before + 1.001 * counted + 0.2
