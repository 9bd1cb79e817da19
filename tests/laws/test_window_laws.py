"""Laws of the window store: what it holds is a function of the set of epochs alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from broker_filter.state.columns import arrays_of, unpacked
from broker_filter.types import Photometry
from broker_filter.windows.store import WindowStore
from broker_filter.windows.waves import concatenate, waves
from tests import build

START = 60_000.0  # on the anchor grid of a 20-day window


class Epoch(NamedTuple):
    star: str
    source: str
    mjd: float
    flux: float
    error: float


def message(epochs: Sequence[Epoch]) -> Photometry:
    return build.photometry(
        [e.mjd for e in epochs],
        [e.star for e in epochs],
        source=epochs[0].source,
        flux=[e.flux for e in epochs],
        flux_err=[e.error for e in epochs],
    )


def one_by_one(epochs: Iterable[Epoch]) -> WindowStore:
    store = WindowStore()
    for epoch in epochs:
        store.insert(message([epoch]))
    return store


def contents(store: WindowStore) -> dict[object, tuple[object, ...]]:
    """All that a reader sees of each window, bit for bit."""
    batch = store.read(np.arange(len(store)))
    return {
        star: (
            batch.t_start[i],
            *(c[i, : batch.n[i]].tobytes() for c in (batch.mjd_tai, batch.flux, batch.sigma)),
            *(batch.baseline[i], batch.baseline_err[i]),
        )
        for i, star in enumerate(batch.star)
    }


def epochs_over(days: float, size: int = 90) -> st.SearchStrategy[list[Epoch]]:
    """Few stars and sources, gaps over several anchors, repeated times and values that differ."""
    return st.lists(
        st.builds(
            Epoch,
            star=st.sampled_from(["a", "b", "c"]),
            source=st.sampled_from(["", "x"]),
            mjd=st.integers(0, int(days * 20)).map(lambda i: START + i / 20),
            flux=st.integers(900, 1100).map(float),
            error=st.sampled_from([5.0, 10.0]),
        ),
        min_size=1,
        max_size=size,
    )


def in_order(epochs: Iterable[Epoch]) -> list[Epoch]:
    return sorted(epochs, key=lambda e: (e.mjd, e.source, e.error, e.flux))


class PlainWindow:
    """The rules of one star's window in plain words; no array, no page."""

    def __init__(self) -> None:
        self.newest = -math.inf
        self.held: dict[tuple[float, str], tuple[float, float]] = {}
        self.left: dict[tuple[float, str], tuple[float, float]] = {}

    @property
    def start(self) -> float:
        return math.floor(self.newest / 5) * 5 - 15

    def insert(self, epoch: Epoch) -> str:
        if self.newest > -math.inf and epoch.mjd < self.start:
            return "late"
        self.newest = max(self.newest, epoch.mjd)
        for key in [key for key in self.held if key[0] < self.start]:
            self.left[key] = self.held.pop(key)
        key, value = (epoch.mjd, epoch.source), (epoch.error, epoch.flux)
        known = key in self.held
        self.held[key] = min(value, self.held.get(key, value))
        return "duplicate" if known else "inserted"


@given(epochs_over(90))
@settings(max_examples=60, deadline=None)
def test_the_store_holds_and_counts_what_the_plain_rules_say(epochs: list[Epoch]) -> None:
    store, plain = one_by_one(epochs), {e.star: PlainWindow() for e in epochs}
    outcomes = [plain[e.star].insert(e) for e in epochs]
    counts = store.take_counts()
    for outcome in ("inserted", "duplicate", "late"):
        assert counts.get(outcome, 0) == outcomes.count(outcome)
    batch = store.read(np.arange(len(store)))
    for i, star in enumerate(batch.star):
        window = plain[str(star)]
        held = sorted((mjd, f, e) for (mjd, _), (e, f) in window.held.items())
        assert batch.t_start[i] == window.start
        assert batch.mjd_tai[i, : batch.n[i]].tolist() == [mjd for mjd, _, _ in held]
        sources = {source for _, source in window.held}
        if len(sources) == 1:
            level = np.array([f for _, f, _ in held]) / batch.baseline[i]
            np.testing.assert_allclose(batch.flux[i, : batch.n[i]], level, rtol=1e-6)


@given(epochs_over(90), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_cutting_a_stream_into_messages_changes_nothing(epochs: list[Epoch], size: int) -> None:
    epochs = in_order(epochs)
    whole = WindowStore()
    for first in range(0, len(epochs), size):
        part = epochs[first : first + size]
        for source in sorted({e.source for e in part}):
            whole.insert(message([e for e in part if e.source == source]))
    # Sources within a part may overtake each other by an anchor; then the late one differs.
    assume(not whole.take_counts().get("late"))
    assert contents(whole) == contents(one_by_one(epochs))


@given(epochs_over(90), st.randoms(use_true_random=False), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_order_changes_nothing_unless_an_epoch_is_late(
    epochs: list[Epoch], rng: random.Random, reach: int
) -> None:
    clean = in_order(epochs)
    disturbed = sorted(clean, key=lambda e: e.mjd + rng.uniform(0, reach))
    store = one_by_one(disturbed)
    assume(not store.take_counts().get("late"))
    assert contents(store) == contents(one_by_one(clean))


@given(epochs_over(19), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_order_within_one_window_is_the_clean_stream(
    epochs: list[Epoch], rng: random.Random
) -> None:
    shuffled = rng.sample(epochs, len(epochs))
    assert contents(one_by_one(shuffled)) == contents(one_by_one(in_order(epochs)))


@given(epochs_over(90), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_sending_again_changes_nothing(epochs: list[Epoch], rng: random.Random) -> None:
    epochs = in_order(epochs)
    again = []
    for i, epoch in enumerate(epochs):
        again += [epoch, *rng.sample(epochs[: i + 1], min(i + 1, 2))]
    assert contents(one_by_one(again)) == contents(one_by_one(epochs))


@given(epochs_over(19), st.integers(0, 90))
@settings(max_examples=40, deadline=None)
def test_a_history_that_comes_again_adds_what_is_new_alone(epochs: list[Epoch], cut: int) -> None:
    epochs = in_order(epochs)
    store = one_by_one(epochs[:cut])
    first = store.take_counts().get("inserted", 0)
    for source in sorted({e.source for e in epochs}):
        store.insert(message([e for e in epochs if e.source == source]))
    counts, whole = store.take_counts(), one_by_one(epochs)
    assert contents(store) == contents(whole)
    assert first + counts.get("inserted", 0) == whole.take_counts()["inserted"]
    assert counts.get("inserted", 0) + counts.get("duplicate", 0) == len(epochs)


@given(epochs_over(60), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_where_polls_cut_the_stream_changes_nothing(
    epochs: list[Epoch], one: int, two: int
) -> None:
    messages = [message([e]) for e in in_order(epochs)]

    def polled(size: int) -> WindowStore:
        store = WindowStore()
        for first in range(0, len(messages), size):
            for wave in waves([[m] for m in messages[first : first + size]]):
                for piece in concatenate(wave):
                    store.insert(piece)
        return store

    assert contents(polled(one)) == contents(polled(two))


@given(epochs_over(60))
@settings(max_examples=25, deadline=None)
def test_a_window_is_read_alike_whatever_is_read_beside_it(epochs: list[Epoch]) -> None:
    store = one_by_one(in_order(epochs))
    together = contents(store)
    for slot in range(len(store)):
        batch = store.read(np.array([slot]))
        for name in ("mjd_tai", "flux", "sigma"):
            alone = getattr(batch, name)[0, : batch.n[0]].tobytes()
            assert alone in together[batch.star[0]]


@given(epochs_over(60), st.integers(0, 150))
@settings(max_examples=25, deadline=None)
def test_a_restored_store_goes_on_as_if_nothing_had_happened(epochs: list[Epoch], cut: int) -> None:
    epochs = in_order(epochs)
    store = WindowStore()
    store.restore(one_by_one(epochs[:cut]).state())
    for epoch in epochs[cut:]:
        store.insert(message([epoch]))
    assert contents(store) == contents(one_by_one(epochs))


MAX_POINTS = 24


def dense(days: float = 19) -> st.SearchStrategy[list[Epoch]]:
    """About four times as many epochs as windows of `MAX_POINTS` hold, each only once."""
    return st.integers(0, 2**32).map(lambda seed: many_epochs(seed, days))


def many_epochs(seed: int, days: float) -> list[Epoch]:
    """Of one star mostly, from two sources."""
    rng = random.Random(seed)  # noqa: S311  test data
    found = [
        Epoch(
            star=rng.choice("aaab"),
            source=rng.choice(["", "", "x"]),
            mjd=START + rng.randrange(int(days * 50)) / 50,
            flux=float(rng.randrange(900, 1100)),
            error=rng.choice([5.0, 10.0]),
        )
        for _ in range(int(6 * days))
    ]
    return list({(e.star, e.source, e.mjd): e for e in found}.values())


def thinned(epochs: Iterable[Epoch]) -> WindowStore:
    """A store of small windows that took epochs one by one."""
    store = WindowStore(max_points=MAX_POINTS)
    for epoch in epochs:
        store.insert(message([epoch]))
        assert store.count.max() <= MAX_POINTS
    return store


def points(store: WindowStore) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """Time, flux and error of the points of each star and source, as they are held."""
    columns = arrays_of(store.state())
    names = unpacked("sources", columns)
    stars = np.repeat(np.array(store.star), columns["count"])
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    rows = (columns[name].tolist() for name in ("source", "time", "flux", "error"))
    for star, code, *point in zip(stars.tolist(), *rows, strict=True):
        found.setdefault((star, names[code]), []).append(tuple(point))
    return found


def alike(one: WindowStore, two: WindowStore) -> None:
    """Both hold the same points up to the rounding of errors, which are the weights of means."""
    first, second = points(one), points(two)
    assert first.keys() == second.keys()
    for key, expected in first.items():
        (t, flux, error), (other_t, other_flux, other_error) = (
            np.array(found).T for found in (expected, second[key])
        )
        np.testing.assert_allclose(other_error, error, rtol=1e-2)
        assert (np.abs(other_flux - flux) <= 0.3 * error).all()  # fluxes scatter by 12 errors here
        np.testing.assert_allclose(other_t, t, rtol=0, atol=0.02)


@given(dense())
@settings(max_examples=12, deadline=None)
def test_a_full_window_holds_the_newest_epoch_of_each_source_as_it_came(
    epochs: list[Epoch],
) -> None:
    epochs = in_order(epochs)
    newest = {(e.star, e.source): (e.mjd, e.flux, e.error) for e in epochs}
    held = points(thinned(epochs))
    assert {key: found[-1] for key, found in held.items()} == newest


@given(dense(), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_thinning_keeps_the_weight_and_the_weighted_sums_of_what_was_taken(
    epochs: list[Epoch], rng: random.Random
) -> None:
    wide, narrow = WindowStore(max_points=10_000), WindowStore(max_points=MAX_POINTS)
    taken = {e: narrow_count(narrow, e) for e in rng.sample(epochs, len(epochs))}
    for epoch in in_order(e for e, outcome in taken.items() if outcome != "duplicate"):
        wide.insert(message([epoch]))
    assert points(wide).keys() == points(narrow).keys()
    for key, all_of_it in points(wide).items():
        np.testing.assert_allclose(sums(points(narrow)[key]), sums(all_of_it), rtol=2e-2)


def narrow_count(store: WindowStore, epoch: Epoch) -> str:
    """Insert one epoch; the one outcome that it has."""
    store.insert(message([epoch]))
    ((outcome, n),) = store.take_counts().items()
    assert n == 1
    return outcome


def sums(found: list[tuple[float, float, float]]) -> list[float]:
    weight = [error**-2 for _, _, error in found]
    return [
        sum(weight),
        sum(w * (t - START + 1) for w, (t, _, _) in zip(weight, found, strict=True)),
        sum(w * flux for w, (_, flux, _) in zip(weight, found, strict=True)),
    ]


@given(dense(60), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_what_was_merged_and_comes_again_is_a_duplicate(
    epochs: list[Epoch], rng: random.Random
) -> None:
    store = thinned(in_order(epochs))
    before, taken = contents(store), store.take_counts()
    assert sum(taken.values()) == len(epochs)
    assert set(taken) <= {"inserted", "thinned", "late"}
    for epoch in rng.sample(epochs, len(epochs)):
        store.insert(message([epoch]))
    assert set(store.take_counts()) <= {"duplicate", "late"}
    assert contents(store) == before


@given(dense(60), st.integers(1, 60))
@example(many_epochs(1833, 60), 49)  # neighbours on both sides of the anchor grid, two stars
@settings(max_examples=12, deadline=None)
def test_cutting_a_dense_stream_into_messages_changes_no_more_than_rounding(
    epochs: list[Epoch], size: int
) -> None:
    one_source = [replace_source(e) for e in in_order(epochs)]
    one_source = list({(e.star, e.mjd): e for e in one_source}.values())
    whole = WindowStore(max_points=MAX_POINTS)
    for first in range(0, len(one_source), size):
        whole.insert(message(one_source[first : first + size]))
    alone = thinned(one_source)
    alike(whole, alone)
    # History of a new star goes past its window, so it may be counted as inserted, not thinned.
    assert sum(whole.take_counts().values()) == sum(alone.take_counts().values())


def replace_source(epoch: Epoch) -> Epoch:
    return epoch._replace(source="")


@given(dense(), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_a_source_may_lag_behind_another_in_a_dense_window(
    epochs: list[Epoch], rng: random.Random
) -> None:
    clean = in_order(epochs)
    lag = {"": 0.0, "x": rng.uniform(0, 20)}
    alike(thinned(sorted(clean, key=lambda e: e.mjd + lag[e.source])), thinned(clean))


@given(dense(60), st.integers(0, 240))
@settings(max_examples=12, deadline=None)
def test_a_restored_dense_store_goes_on_as_if_nothing_had_happened(
    epochs: list[Epoch], cut: int
) -> None:
    epochs = in_order(epochs)
    store = WindowStore(max_points=MAX_POINTS)
    store.restore(thinned(epochs[:cut]).state())
    for epoch in epochs[cut:]:
        store.insert(message([epoch]))
    assert contents(store) == contents(thinned(epochs))


@given(dense(60))
@settings(max_examples=12, deadline=None)
def test_each_outcome_of_a_window_of_too_many_sources_is_counted_once(
    epochs: list[Epoch],
) -> None:
    store = WindowStore(max_points=3)
    many = [e._replace(source=str(i % 7)) for i, e in enumerate(in_order(epochs))]
    for epoch in many:
        store.insert(message([epoch]))
        assert store.count.max() <= 3
    assert sum(store.take_counts().values()) == len(many)
    newest = {e.star: e.mjd for e in many}
    assert {
        s: max(t for (x, _), f in points(store).items() if x == s for t, _, _ in f) for s in newest
    } == newest
