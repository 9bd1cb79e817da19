"""Nights: what they tell of the noise, whatever one of them is off by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker_filter.types import HISTORY, SourceHistory
from broker_filter.windows.nights import NightSums, night_sums
from broker_filter.windows.store import WindowStore
from tests import build

DAYS, A_NIGHT = 200, 8
NONE = NightSums(*np.zeros((5, 1)))


def history(
    seed: int, *, scale: float = 1.0, night: float = 0.0, bad: int = 0, size: float = 0.0
) -> SourceHistory:
    """Of a star of 1 % errors: their factor, the scatter of nights, and bad nights among them."""
    rng = np.random.default_rng(seed)
    t = np.concatenate([60_000 + d + np.sort(rng.uniform(0, 0.25, A_NIGHT)) for d in range(DAYS)])
    offset = 0.01 * night * rng.standard_normal(DAYS)
    offset[rng.choice(DAYS - 20, bad, replace=False)] += size
    noise = 0.01 * scale * rng.standard_normal(len(t))
    flux = 1000 * (1 + np.repeat(offset, A_NIGHT) + noise)
    store = WindowStore()
    slots = store.insert(build.photometry(t, flux=flux, flux_err=10.0))
    batch = store.read(slots)
    return batch.epochs(0).history[0]


def red_noise(of: SourceHistory) -> float:
    square = of.night_squares - of.error_scale**2 * of.night_expected
    return float(np.sqrt(max(square, 0)))


def test_white_noise_of_right_errors_has_no_scatter_of_nights() -> None:
    found = history(1)
    assert found.nights == pytest.approx(DAYS - 18, abs=3)
    assert found.freedom == pytest.approx(found.nights * (A_NIGHT - 1), rel=0.02)
    assert found.error_scale == pytest.approx(1, abs=0.06)
    assert found.night_expected == pytest.approx(1 / A_NIGHT, rel=0.05)
    assert red_noise(found) < 0.2


def test_nights_that_scatter_are_seen_apart_from_epochs_that_do() -> None:
    found = history(2, night=0.8)
    # Both are in units of errors that the window scales up by the scatter of all epochs.
    assert found.error_scale < 0.9
    assert red_noise(found) / found.error_scale == pytest.approx(0.8, rel=0.2)


def test_errors_that_are_too_large_are_seen() -> None:
    assert history(3, scale=0.6).error_scale == pytest.approx(0.6, abs=0.06)


def test_a_few_nights_far_below_hardly_count() -> None:
    found = history(4, night=0.5, bad=6, size=-0.2)
    assert red_noise(found) / found.error_scale == pytest.approx(0.5, rel=0.4)


def test_days_without_a_gap_are_a_night_each() -> None:
    t = np.arange(0, 5, 0.01)
    ones = np.ones(len(t))
    one = np.zeros(len(t), np.int64)
    found = night_sums(one, t, 0 * t, ones, ones, np.ones(1), NONE)
    assert found.nights[0] == 5
    assert found.freedom[0] == len(t) - 5
    assert found.within[0] == 0


def test_a_night_that_is_far_off_counts_no_more_than_thrice_the_scatter_so_far() -> None:
    known = NightSums(*np.array([[98.0], [98.0], [10.0], [0.0], [0.0]]))
    t, ones = np.zeros(1), np.ones(1)
    found = night_sums(np.zeros(1, np.int64), t, 1e3 * ones, ones, ones, ones, known)
    assert found.squares[0] == pytest.approx(9)


def test_a_snapshot_from_before_there_were_nights_is_read() -> None:
    rng = np.random.default_rng(5)
    t = 60_000 + np.arange(0, 60, 0.1)
    flux = 1000 + 10 * rng.standard_normal(len(t))
    store = WindowStore()
    slots = store.insert(build.photometry(t, flux=flux, flux_err=10.0))
    columns = store.state()
    old = {
        name: column
        for name, column in columns.items()
        if not name.startswith(("track.night", "track.within", "track.freedom"))
    }
    again, whole = WindowStore(), WindowStore()
    again.restore(old)
    whole.restore(columns)
    assert again.read(slots).epochs(0).history[0].nights == 0
    assert whole.read(slots).epochs(0).history == store.read(slots).epochs(0).history
    np.testing.assert_array_equal(again.read(slots).flux, store.read(slots).flux)
    assert store.read(slots).source_history.shape == (1, 1, len(HISTORY))


def test_a_baseline_of_a_catalogue_is_known_without_nights() -> None:
    store, t = WindowStore(), 60_000 + np.arange(8.0)
    given, none = build.photometry(t), build.photometry(t, star=["other"] * len(t))
    given = replace(given, ref_flux=np.full(8, 1000.0), ref_flux_err=np.full(8, 1.0))
    none = replace(none, ref_flux=np.full(8, np.nan), ref_flux_err=np.full(8, np.nan))
    for part, catalogue in ((given, 1.0), (none, 0.0)):
        (past,) = store.read(store.insert(part)).epochs(0).history
        assert (past.nights, past.catalogue) == (0, catalogue)
