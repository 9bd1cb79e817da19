"""Laws of the window store: what it holds is a function of the set of epochs alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker_filter.types import Photometry
from broker_filter.windows.store import WindowStore
from broker_filter.windows.waves import concatenate, waves

START = 60_000.0  # on the anchor grid of a 20-day window


class Epoch(NamedTuple):
    star: str
    source: str
    mjd: float
    flux: float
    error: float


def message(epochs: Sequence[Epoch]) -> Photometry:
    n = len(epochs)
    return Photometry(
        survey="test",
        band="r",
        source=epochs[0].source,
        star=[e.star for e in epochs],
        mjd_tai=np.array([e.mjd for e in epochs]),
        flux=np.array([e.flux for e in epochs]),
        flux_err=np.array([e.error for e in epochs]),
        flags=np.zeros(n, np.uint32),
        ref_flux=np.full(n, np.nan),
        ref_flux_err=np.full(n, np.nan),
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
