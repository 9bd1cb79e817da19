"""The window store against a plain list of epochs, and its laws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.types import Photometry, WindowBatch
from broker_filter.windows import tracks
from broker_filter.windows.histories import MIN_HISTORY
from broker_filter.windows.store import WindowStore
from tests import build

START = 60_000.0  # on the anchor grid of a 20-day window


@dataclass(frozen=True)
class Epoch:
    star: int
    mjd: float
    flux: float = 1000.0
    error: float = 10.0
    source: str = ""


def photometry(epochs: Sequence[Epoch], reference: float = 1000.0) -> Photometry:
    """One message; all of one source."""
    return build.photometry(
        [e.mjd for e in epochs],
        [e.star for e in epochs],
        source=epochs[0].source,
        flux=[e.flux for e in epochs],
        flux_err=[e.error for e in epochs],
        ref_flux=reference,
        ref_flux_err=0.001 * reference,
    )


def feed(store: WindowStore, epochs: Sequence[Epoch], size: int = 1) -> WindowStore:
    """Insert in the order given, in messages of up to ``size`` epochs of one source."""
    for _, run in itertools.groupby(epochs, key=lambda e: e.source):
        for part in chunks(list(run), size):
            store.insert(photometry(part))
    return store


def chunks(values: list[Epoch], size: int) -> list[list[Epoch]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def read(store: WindowStore) -> WindowBatch:
    return store.read(np.arange(len(store)))


def epochs_of(batch: WindowBatch, row: int) -> list[tuple[float, float]]:
    n = batch.n[row]
    return list(zip(batch.mjd_tai[row, :n].tolist(), batch.flux[row, :n].tolist(), strict=True))


def same(a: WindowStore, b: WindowStore) -> bool:
    one, two = read(a), read(b)
    by_star = {star: row for row, star in enumerate(two.star)}
    order = [by_star[star] for star in one.star]
    return (
        len(one) == len(two)
        and all(epochs_of(one, i) == epochs_of(two, j) for i, j in enumerate(order))
        and np.array_equal(one.t_start, two.t_start[order])
        and np.array_equal(one.baseline, two.baseline[order])
    )


stream = st.lists(
    st.builds(
        Epoch,
        star=st.integers(0, 3),
        mjd=st.floats(0, 70).map(lambda d: START + round(d, 3)),
        flux=st.floats(500, 1500).map(lambda f: float(np.float32(f))),
        error=st.sampled_from([5.0, 10.0, 20.0]),
    ),
    min_size=1,
    max_size=120,
)


@given(stream)
@settings(max_examples=80, deadline=None)
def test_window_is_what_a_plain_list_would_hold(epochs: list[Epoch]) -> None:
    epochs = sorted(epochs, key=lambda e: e.mjd)
    store = feed(WindowStore(), epochs)
    batch = read(store)
    for row, star in enumerate(batch.star):
        mine = [e for e in epochs if e.star == star]
        start = math.floor(mine[-1].mjd / 5) * 5 - 15
        best: dict[float, Epoch] = {}
        for e in mine:
            if e.mjd >= start:
                old = best.get(e.mjd)
                if old is None or (e.error, e.flux) < (old.error, old.flux):
                    best[e.mjd] = e
        assert batch.t_start[row] == start
        held = epochs_of(batch, row)
        assert [t for t, _ in held] == sorted(best)
        expected = [best[t].flux / batch.baseline[row] for t in sorted(best)]
        np.testing.assert_allclose([f for _, f in held], expected, rtol=1e-6)


@given(stream, st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_how_epochs_are_spread_over_messages_changes_nothing(
    epochs: list[Epoch], size: int
) -> None:
    epochs = sorted(epochs, key=lambda e: e.mjd)
    assert same(feed(WindowStore(), epochs), feed(WindowStore(), epochs, size))


@given(stream)
@settings(max_examples=60, deadline=None)
def test_duplicates_change_nothing(epochs: list[Epoch]) -> None:
    epochs = sorted(epochs, key=lambda e: e.mjd)
    doubled = [e for e in epochs for _ in range(2)]
    assert same(feed(WindowStore(), epochs), feed(WindowStore(), doubled, 7))


@given(stream, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_order_of_arrival_within_a_window_changes_nothing(epochs: list[Epoch], random) -> None:
    inside = [Epoch(e.star, START + (e.mjd - START) % 5, e.flux, e.error) for e in epochs]
    shuffled = inside.copy()
    random.shuffle(shuffled)
    assert same(feed(WindowStore(), inside), feed(WindowStore(), shuffled, 5))


def test_endless_duplicates_take_no_memory() -> None:
    store = WindowStore()
    message = photometry([Epoch(1, START + i / 100) for i in range(300)])
    store.insert(message)
    size = store.nbytes
    for _ in range(50):
        store.insert(message)
    assert store.nbytes == size
    assert store.take_counts() == {
        "inserted": 300,
        "duplicate": 15_000,
    }


def test_late_epochs_are_counted_and_dropped() -> None:
    store = feed(WindowStore(), [Epoch(1, START + 40), Epoch(1, START + 1)])
    assert store.take_counts()["late"] == 1
    assert read(store).n.tolist() == [1]


def test_a_full_window_is_thinned_and_keeps_its_newest_epoch() -> None:
    store = WindowStore(max_points=100)
    store.insert(photometry([Epoch(1, START + i / 100, 1000.0 + i) for i in range(150)]))
    assert store.take_counts() == {"inserted": 100, "thinned": 50}
    batch = read(store)
    assert 50 <= batch.n[0] <= 100
    assert epochs_of(batch, 0)[-1] == pytest.approx((START + 1.49, 1.149))


def test_a_window_of_more_sources_than_points_loses_its_oldest_epochs() -> None:
    store = WindowStore(max_points=3)
    feed(store, [Epoch(1, START + i / 100, source=str(i)) for i in range(5)])
    assert store.take_counts() == {"inserted": 3, "window_full": 2}
    assert read(store).mjd_tai[0].tolist() == [START + i / 100 for i in (2, 3, 4)]


def test_a_window_takes_so_many_sources_and_counts_what_is_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert np.iinfo(read(WindowStore(20.0, 64)).source.dtype).max >= tracks.MAX_TRACKS - 1
    monkeypatch.setattr(tracks, "MAX_TRACKS", 5)
    store = WindowStore(20.0, 64)
    for i in range(7):
        store.insert(photometry([Epoch(1, START + i, source=f"camera {i}")]))
    store.insert(photometry([Epoch(star, START + 8, source="camera 6") for star in (1, 2, 1)]))
    store.insert(photometry([Epoch(1, START + 9, source="camera 3")]))
    assert store.take_counts() == {"too_many_sources": 4, "inserted": 7}
    batch = read(store)
    assert batch.n.tolist() == [6, 1]
    cameras = {name for _, name in batch.sources[0]}
    assert cameras == {f"camera {i}" for i in range(5)}
    assert batch.sources[1] == (("r", "camera 6"),)


def test_a_window_whose_merged_points_have_left_holds_each_epoch_again() -> None:
    store = WindowStore(max_points=100)
    feed(store, [Epoch(1, START + i / 100) for i in range(150)], 10)
    feed(store, [Epoch(1, START + 20 + i / 10) for i in range(50)])
    store.take_counts()
    feed(store, [Epoch(1, START + 25 + i / 100) for i in range(40)], 10)
    assert store.take_counts() == {"inserted": 40}
    assert read(store).n.tolist() == [90]


def test_a_snapshot_from_before_thinning_restores_and_is_thinned() -> None:
    store = feed(WindowStore(), [Epoch(1, START + i / 100, 1000.0 + i) for i in range(150)])
    old = {k: v for k, v in store.state().items() if k != "level"}
    other = WindowStore(max_points=100)
    other.restore(old)
    expected = feed(
        WindowStore(max_points=100),
        [Epoch(1, START + i / 100, 1000.0 + i) for i in range(150)],
        150,
    )
    assert same(other, expected)


def test_a_sparse_star_pays_for_one_small_page() -> None:
    store = feed(WindowStore(), [Epoch(star, START) for star in range(1000)], 1000)
    assert store.room == 8 * 1000


def test_pages_of_moved_windows_are_used_again() -> None:
    store = WindowStore()
    for day in range(400):
        store.insert(photometry([Epoch(1, START + day + i / 200) for i in range(100)]))
    assert store.room < 2 * 2000 + 200


def constant_star(
    rng: np.random.Generator, days: float, sigma: float, scale: float = 1.0
) -> list[Epoch]:
    times = START + np.arange(0, days, 1 / 24)
    flux = 1000 * (1 + scale * sigma * rng.standard_normal(len(times)))
    return [Epoch(1, t, f, 1000 * sigma) for t, f in zip(times, flux, strict=True)]


def test_history_becomes_the_baseline_with_an_honest_error() -> None:
    pulls = []
    for seed in range(60):
        store = WindowStore()
        store.insert(photometry(constant_star(np.random.default_rng(seed), 60, 0.02), math.nan))
        batch = read(store)
        pulls.append(float((batch.baseline[0] - 1000) / batch.baseline_err[0]))
    assert abs(np.mean(pulls)) < 0.5
    assert 0.5 < np.std(pulls) < 1.5


def test_catalogue_flux_serves_until_there_is_history() -> None:
    store = WindowStore()
    store.insert(photometry([Epoch(1, START, 1500.0)], reference=1000.0))
    batch = read(store)
    assert batch.baseline.tolist() == [1000.0]
    assert batch.flux[0, 0] == pytest.approx(1.5)
    assert batch.baseline_err[0] == pytest.approx(1.0)


def test_underestimated_errors_are_scaled_from_history_and_from_the_window() -> None:
    for days in (4, 60):
        rng = np.random.default_rng(3)
        epochs = constant_star(rng, days, 0.02, scale=2.0)
        store = WindowStore()
        store.insert(photometry(epochs))
        assert len(epochs) > MIN_HISTORY
        batch = read(store)
        assert np.median(batch.sigma[0, : batch.n[0]]) == pytest.approx(0.04, rel=0.25)


def test_a_strong_event_does_not_widen_its_own_errors() -> None:
    rng = np.random.default_rng(4)
    epochs = [
        Epoch(1, e.mjd, e.flux + 3000 * math.exp(-(((e.mjd - START - 10) / 1.0) ** 2)), e.error)
        for e in constant_star(rng, 19.9, 0.01)
    ]
    store = WindowStore()
    store.insert(photometry(epochs))
    batch = read(store)
    sigma = batch.sigma[0, : batch.n[0]]
    assert np.median(sigma) < 1.06 * 0.01


def test_sources_of_a_star_share_the_window_and_keep_their_baselines() -> None:
    store = WindowStore()
    times = START + np.arange(100) / 50
    store.insert(photometry([Epoch(1, t, 1000.0, 10, "a") for t in times], 1000.0))
    store.insert(photometry([Epoch(1, t + 0.005, 3000.0, 30, "b") for t in times], 3000.0))
    batch = read(store)
    assert len(batch) == 1
    assert batch.n[0] == 200
    np.testing.assert_allclose(batch.flux[0, :200], 1.0, rtol=1e-6)
    np.testing.assert_allclose(batch.sigma[0, :200], 0.01, rtol=1e-6)
    assert (np.diff(batch.mjd_tai[0, :200]) > 0).all()


@pytest.mark.parametrize("first", ["a", "b"])
def test_each_point_names_its_source_whichever_came_first(first: str) -> None:
    store = WindowStore()
    times = START + np.arange(30) / 50
    of = {
        "a": photometry([Epoch(1, t, 1000.0, 10, "a") for t in times], 1000.0),
        "b": photometry([Epoch(1, t + 0.005, 3000.0, 30, "b") for t in times], 3000.0),
    }
    store.insert(of.pop(first))
    store.insert(of.popitem()[1])
    batch = read(store)
    names = [batch.sources[0][i] for i in batch.source[0]]
    assert names == [("r", "a"), ("r", "b")] * 30
    level = dict(zip(batch.sources[0], batch.source_level[0], strict=True))
    assert level == pytest.approx({("r", "a"): 1000.0, ("r", "b"): 3000.0}, rel=1e-6)
    np.testing.assert_allclose(batch.source_error[0], 0.001, rtol=0.5)


def test_windows_without_a_baseline_are_left_out_and_counted() -> None:
    store = WindowStore()
    store.insert(photometry([Epoch(1, START + i / 10, -50.0) for i in range(20)], math.nan))
    assert len(read(store)) == 0
    assert store.take_counts()["no_baseline"] == 1


@pytest.mark.parametrize(("flux", "error"), [(1e18, 1e16), (1e15, 1e7), (1000.0, 1e-5)])
def test_a_point_that_no_star_can_give_is_left_out_and_counted(flux: float, error: float) -> None:
    store = feed(WindowStore(), [Epoch(1, START + i / 10) for i in range(20)])
    store.insert(photometry([Epoch(1, START + 1.05, flux, error)]))
    batch = read(store)
    assert batch.n.tolist() == [20]
    assert store.take_counts()["not_finite"] == 1


def difference(epochs: Sequence[Epoch]) -> Photometry:
    """Difference flux without a reference."""
    return replace(photometry(epochs, math.nan), kind="difference")


def brightening(mjd: float) -> float:
    return 3000 * math.exp(-(((mjd - START - 30) / 1.0) ** 2))


class TestDifferenceFlux:
    """Stars of 5000 nJy whose difference flux is 700 nJy when they are quiet."""

    times = START + np.arange(15, 35, 0.1)
    event = tuple(Epoch(1, t, 700 + brightening(t), 10) for t in times)

    def test_alone_it_is_left_out_and_counted(self) -> None:
        store = WindowStore()
        assert store.insert(difference(self.event)).tolist() == [0]
        assert len(read(store)) == 0
        counts = store.take_counts()
        assert counts["difference_without_reference"] == 1
        assert "no_baseline" not in counts

    @pytest.mark.parametrize("reference", [5000.0, math.nan], ids=["reference", "history"])
    def test_it_is_read_as_total_flux_once_that_is_known(self, reference: float) -> None:
        store = WindowStore()
        past = [Epoch(1, START + i / 10, 5000, 10, "other") for i in range(100)]
        store.insert(photometry(past, reference))
        store.insert(difference(self.event))
        batch = read(store)
        n = batch.n[0]
        expected = [1 + brightening(t) / 5000 for t in batch.mjd_tai[0, :n].tolist()]
        np.testing.assert_allclose(batch.flux[0, :n], expected, atol=0.002)
        np.testing.assert_allclose(batch.sigma[0, :n], 10 / 5000, rtol=1e-5)
        assert batch.baseline[0] == pytest.approx(5000, rel=1e-3)
        assert 1e-4 < batch.baseline_error[0] < 2e-3
        assert "difference_without_reference" not in store.take_counts()

    def test_an_uncertain_reference_does_not_shift_the_quiet_light(self) -> None:
        store = WindowStore()
        reference = replace(
            photometry([Epoch(1, START, 5000, 10)], 5000.0), ref_flux_err=np.full(1, 500.0)
        )
        store.insert(reference)
        store.insert(difference(self.event))
        batch = read(store)
        assert batch.baseline_err[0] == pytest.approx(500)
        assert batch.baseline_error[0] < 2e-3

    def test_beside_total_flux_without_a_reference_it_is_refused(self) -> None:
        store = WindowStore()
        total = [Epoch(1, t + 0.05, 5000, 10) for t in self.times]
        store.insert(photometry(total[:20], math.nan))  # too few for a history
        store.insert(difference(self.event[:20]))
        batch = read(store)
        assert batch.n.tolist() == [20]
        np.testing.assert_allclose(batch.flux[0, :20], 1, rtol=1e-6)
        assert store.take_counts()["difference_without_reference"] == 1

    def test_in_units_of_the_baseline_it_needs_no_reference(self) -> None:
        store = WindowStore()
        small = [Epoch(1, e.mjd, e.flux / 5000, e.error / 5000) for e in self.event]
        store.insert(replace(difference(small), relative=True))
        batch = read(store)
        assert batch.flux[0].max() == pytest.approx(1.6, abs=0.01)
        assert batch.relative.tolist() == [True]

    def test_part_of_a_message_with_a_reference_becomes_total(self) -> None:
        message = difference([Epoch(1, START, 5.0), Epoch(2, START, 5.0)])
        reference = np.array([1000.0, math.nan])
        store = WindowStore()
        store.insert(replace(message, ref_flux=reference, ref_flux_err=0.01 * reference))
        batch = read(store)
        assert batch.star == [1]
        assert batch.flux[0, 0] == pytest.approx(1.005)

    def test_a_reference_that_comes_later_counts_from_then_on(self) -> None:
        first, later = WindowStore(), WindowStore()
        reference = photometry([Epoch(1, START + 20, 5000, 10)], 5000.0)
        for store, messages in (
            (first, (reference, difference(self.event))),
            (later, (difference(self.event[::-1]), reference, difference(self.event))),
        ):
            for message in messages:
                store.insert(message)
        assert same(first, later)

    def test_a_restored_store_reads_it_alike(self) -> None:
        store = WindowStore()
        store.insert(photometry([Epoch(1, START, 5000, 10)], 5000.0))
        store.insert(difference(self.event))
        other = WindowStore()
        other.restore(store.state())
        assert same(store, other)

    def test_a_snapshot_from_before_it_restores_as_total_flux(self) -> None:
        store = feed(WindowStore(), [Epoch(1, START + i / 10) for i in range(50)])
        old = {k: v for k, v in store.state().items() if k != "source_difference"}
        other = WindowStore()
        other.restore(old)
        assert same(store, other)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30).map(lambda i: START + i / 2),
            st.sampled_from(["total", "difference"]),
            st.sampled_from(["camera", "other"]),
            st.sampled_from([900.0, 1000.0, 1100.0]),
        ),
        max_size=60,
    )
)
@settings(max_examples=60, deadline=None)
def test_an_exposure_of_one_camera_is_held_once_and_as_total_flux_if_there_is(rows) -> None:
    store, expected = WindowStore(), {}
    for mjd, kind, source, flux in rows:
        one = photometry([Epoch(1, mjd, flux, 10.0, source)], math.nan)
        store.insert(replace(one, kind=kind))
        held = expected.setdefault((mjd, source), (kind, flux))
        expected[mjd, source] = max(
            held, (kind, flux), key=lambda value: (value[0] == "total", -value[1])
        )
    assert store.count.sum() == len(expected)
    counts = store.take_counts()
    assert counts.get("inserted", 0) == len(expected)
    assert counts.get("duplicate", 0) == len(rows) - len(expected)
    if expected:
        time, flux, _, code = store._points.columns(
            store._points.index(np.zeros(len(expected), np.int64), np.arange(len(expected)))
        )
        names = [name for name, *_ in store._instruments._code]
        got = {
            (t, names[c]): ("difference" if store._instruments.difference[c] else "total", f)
            for t, f, c in zip(time.tolist(), flux.tolist(), code.tolist(), strict=True)
        }
        assert got == expected


def test_times_of_one_exposure_may_differ_where_the_message_says_so() -> None:
    seconds = 1 / 86400
    for gap, left in ((20, 1), (40, 2)):
        store = WindowStore()
        for mjd in (START, START + gap * seconds, START):
            one = photometry([Epoch(1, mjd, 1000.0)])
            store.insert(replace(one, same_epoch_s=31.0))
        assert store.count.tolist() == [left]
    store = feed(WindowStore(), [Epoch(1, START), Epoch(1, START + 20 * seconds)])
    assert store.count.tolist() == [2]


def test_insert_names_the_windows_with_a_new_newest_epoch() -> None:
    store = WindowStore()
    assert store.insert(photometry([Epoch(1, START + 1), Epoch(2, START + 1)])).tolist() == [0, 1]
    assert store.insert(photometry([Epoch(1, START + 0.5), Epoch(2, START + 2)])).tolist() == [1]


def test_siblings_are_the_same_stars_in_other_bands_of_the_same_survey() -> None:
    store = WindowStore()
    stars = photometry([Epoch(star, START + 0.1) for star in (1, 2, 3)])
    only = photometry([Epoch(2, START + 0.2)])
    slots = store.insert(stars)
    store.insert(replace(only, band="i"))
    store.insert(replace(only, band="g"))
    store.insert(replace(stars, survey="another", band="g"))
    owner, sibling = store.siblings(slots)
    assert owner.tolist() == [1, 1]
    assert store.read(sibling).band == ["g", "i"]
    assert store.read(sibling).star == [2, 2]
    assert store.read(sibling).survey == ["test", "test"]


def test_reading_without_counting_leaves_the_counts_alone() -> None:
    store = WindowStore()
    slots = store.insert(photometry([Epoch(1, START, -50.0)], reference=math.nan))
    store.take_counts()
    assert len(store.read(slots, count=False)) == 0
    assert store.take_counts() == {}
