"""Epochs kept over an event: what windows forget stays, bounded, in the units of its start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from broker_filter.errors import StateError
from broker_filter.inference.magnification import excess
from broker_filter.pipeline.event_epochs import (
    epochs_from_columns,
    epochs_to_columns,
    extended,
)
from broker_filter.types import StarEpochs, WindowBatch

KEY = ("test", 7, "r")


def window(
    start: float,
    times: list[float],
    *,
    level: float = 1000.0,
    name: str = "a",
    band: str = "r",
    flux: npt.ArrayLike = 1.0,
) -> WindowBatch:
    """A window with epochs of one source at these times, MJD TAI."""
    n = len(times)
    return WindowBatch(
        slot=np.zeros(1, np.int64),
        star=[7],
        survey=["test"],
        band=[band],
        coordinates=[None],
        t_start=np.array([start]),
        mjd_tai=np.array([times]),
        flux=np.broadcast_to(np.float32(flux), (1, n)).copy(),
        sigma=np.full((1, n), 0.01, np.float32),
        n=np.array([n]),
        baseline=np.array([level]),
        baseline_err=np.array([1.0]),
        baseline_error=np.array([0.001]),
        relative=np.zeros(1, np.bool_),
        source=np.zeros((1, n), np.int16),
        sources=[((band, name),)],
        source_level=np.array([[level]]),
        source_error=np.array([[0.001]]),
        source_history=np.zeros((1, 1, 6)),
    )


def test_epochs_that_left_the_window_stay() -> None:
    known = extended(None, window(0, [1, 2, 6, 7]), 0)
    known = extended(known, window(5, [6, 7, 8]), 0)
    assert known.mjd_tai.tolist() == [1, 2, 6, 7, 8]


def test_a_window_decides_what_its_own_span_holds() -> None:
    known = extended(None, window(0, [1, 6, 7]), 0)
    known = extended(known, window(5, [6.5, 7, 8]), 0)
    assert known.mjd_tai.tolist() == [1, 6.5, 7, 8]


def test_flux_is_kept_in_units_of_the_baseline_at_the_start() -> None:
    known = extended(None, window(0, [1]), 0)
    # The running baseline took up a tenth of the event's light: 1.0 of it is 1.1 of the first.
    known = extended(known, window(5, [6], level=1100.0), 0)
    np.testing.assert_allclose(known.flux, [1.0, 1.1], rtol=1e-6)
    np.testing.assert_allclose(known.sigma, [0.01, 0.011], rtol=1e-6)
    assert known.level.tolist() == [1000.0]


def test_another_source_and_another_band_bring_their_own_baseline() -> None:
    known = extended(None, window(0, [1, 3]), 0)
    known = extended(known, window(0, [2], band="i", level=50.0), 0)
    known = extended(known, window(5, [6], name="b", level=300.0), 0)
    assert known.sources == (("r", "a"), ("i", "a"), ("r", "b"))
    assert known.level.tolist() == [1000.0, 50.0, 300.0]
    assert known.mjd_tai.tolist() == [1, 2, 3, 6]
    assert known.source.tolist() == [0, 1, 0, 2]
    np.testing.assert_allclose(known.flux, 1.0)


def test_the_other_bands_epochs_are_not_replaced() -> None:
    known = extended(None, window(0, [6]), 0)
    known = extended(known, window(5, [6.5], band="i"), 0)
    assert known.mjd_tai.tolist() == [6, 6.5]


def test_a_long_event_is_bounded_and_keeps_its_newest_epochs() -> None:
    rng = np.random.default_rng(3)
    known = None
    for start in range(0, 100, 5):
        times = np.sort(rng.uniform(start, start + 20, 300)).tolist()
        newest = window(start, times, flux=1.5)
        known = extended(known, newest, 0, limit=500)
        assert len(known) <= 500
        assert np.isin(times, known.mjd_tai).mean() > 0.9  # the others lie close to a neighbour
        assert (np.diff(known.mjd_tai) >= 0).all()
    assert known is not None
    assert known.mjd_tai[0] < 5


def test_merging_keeps_the_weight_and_the_weighted_sum_of_each_source() -> None:
    rng = np.random.default_rng(4)
    n = 400
    whole = StarEpochs(
        (("r", "a"), ("r", "b")),
        np.array([10.0, 20.0]),
        np.array([0.01, 0.01]),
        np.sort(rng.uniform(0, 4, n)),
        rng.normal(1, 0.1, n).astype(np.float32),
        rng.uniform(0.01, 0.1, n).astype(np.float32),
        rng.integers(0, 2, n).astype(np.int16),
    )
    thinned = extended(whole, window(5, [6.0], name="a", level=10.0), 0, limit=60)
    assert len(thinned) == 60
    for source in (0, 1):
        a = whole.source == source
        b = (thinned.source == source) & (thinned.mjd_tai < 5)
        for power in (0, 1):
            np.testing.assert_allclose(
                (thinned.flux[b] ** power / thinned.sigma[b] ** 2).sum(),
                (whole.flux[a] ** power / whole.sigma[a] ** 2).sum(),
                rtol=1e-4,
            )


def test_a_short_event_stays_whole_in_a_long_history() -> None:
    """As of a star that several sites observe every few minutes for months."""
    rng = np.random.default_rng(6)
    known, event = None, np.linspace(9.5, 9.8, 25)
    for start in range(0, 100, 5):
        times = np.sort(rng.uniform(start, start + 20, 480))
        flux = rng.normal(1, 0.01, 480)
        if start <= 9:
            times = np.sort(np.r_[times, event])
            flux = 1 + rng.normal(0, 0.01, 505)
        flux[np.isin(times, event)] = 2.0
        known = extended(known, window(start, times.tolist(), flux=flux), 0, limit=500)
        assert len(known) <= 500
        assert np.isin(event, known.mjd_tai).all()


def test_no_mean_is_taken_across_the_limb_of_the_source() -> None:
    """Of an event that is bright for months, so that pairs within its light have to go."""
    rng, n, sigma = np.random.default_rng(7), 3000, 0.002
    times = np.arange(n) * 0.02 + rng.normal(0, 0.002, n)

    def curve(t: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(1 + 0.7 * excess(np.hypot(0.005, (t - 12) / 30), 0.1))

    flux, known = curve(times) + sigma * rng.normal(size=n), None
    for start in range(0, 41, 5):
        inside = (times >= start) & (times < start + 20)
        newest = window(start, times[inside].tolist(), flux=flux[inside])
        newest.sigma[:] = sigma
        known = extended(known, newest, 0, limit=1040)
    assert known is not None
    off = (known.flux - curve(known.mjd_tai)) / known.sigma
    assert np.abs(off).max() < 5


def test_a_window_above_the_limit_is_thinned_itself() -> None:
    times = np.linspace(0, 19, 700).tolist()
    known = extended(None, window(0, times), 0, limit=100)
    assert len(known) == 100
    assert known.mjd_tai[-1] == times[-1]


def test_epochs_go_through_a_snapshot() -> None:
    first = extended(None, window(0, [1, 2, 3]), 0)
    second = extended(first, window(0, [2.5], band="i"), 0)
    keys = {KEY: first, ("test", "star", "i"): second}
    again = epochs_from_columns(epochs_to_columns(keys))
    assert list(again) == list(keys)
    for key, epochs in keys.items():
        for name in ("level", "error", "mjd_tai", "flux", "sigma", "source"):
            np.testing.assert_array_equal(getattr(again[key], name), getattr(epochs, name))
        assert again[key].sources == epochs.sources
    assert epochs_from_columns({}) == {}
    assert epochs_from_columns(epochs_to_columns({})) == {}


def test_damaged_columns_are_named() -> None:
    columns = epochs_to_columns({KEY: window(0, [1, 2]).epochs(0)})
    with pytest.raises(StateError, match="event epochs"):
        epochs_from_columns({**columns, "count": np.array([5])})
    with pytest.raises(StateError, match="event epochs"):
        epochs_from_columns({**columns, "source": np.array([0, 3], np.int16)})
    flux = columns["flux"]
    assert isinstance(flux, np.ndarray)
    with pytest.raises(StateError, match="event epochs"):
        epochs_from_columns({**columns, "flux": flux[:1]})


def test_a_source_without_a_baseline_begins_once_it_has_one() -> None:
    empty = replace(window(0, []), source_level=np.array([[np.nan]]))
    known = extended(extended(None, empty, 0), window(5, [6]), 0)
    assert known.level.tolist() == [1000.0]
    assert known.flux.tolist() == [1.0]
