"""The bound of windows in memory: which go, that it is the same again, and what memory is shown."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.decode.decoder import Decoder
from broker_filter.decode.native import encode_photometry
from broker_filter.observe.metrics import Metrics
from broker_filter.photometry.usable import Limits
from broker_filter.pipeline.batcher import Batcher
from broker_filter.pipeline.intake import Intake
from broker_filter.schemas import schema_header
from broker_filter.state.columns import arrays_of
from broker_filter.types import Message, Photometry
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.shedding import quietest
from broker_filter.windows.store import WindowStore

START = 60_000.0
WHERE = ("epochs", 0)
LIMIT = 8


class Epoch(NamedTuple):
    star: int
    mjd: float
    band: str = "r"


def photometry(epochs: Sequence[Epoch]) -> Photometry:
    n = len(epochs)
    return Photometry(
        survey="test",
        band=epochs[0].band,
        source="",
        star=[e.star for e in epochs],
        mjd_tai=np.array([e.mjd for e in epochs]),
        flux=np.array([1000.0 + e.star for e in epochs]),
        flux_err=np.full(n, 10.0),
        flags=np.zeros(n, np.uint32),
        ref_flux=np.full(n, np.nan),
        ref_flux_err=np.full(n, np.nan),
    )


def contents(store: WindowStore) -> dict[tuple[object, ...], tuple[object, ...]]:
    """What a reader sees of each window, bit for bit."""
    batch = store.read(np.arange(len(store)), count=False)
    return {
        (star, batch.band[i]): (
            batch.t_start[i],
            batch.baseline[i],
            *(c[i, : batch.n[i]].tobytes() for c in (batch.mjd_tai, batch.flux, batch.sigma)),
        )
        for i, star in enumerate(batch.star)
    }


def filled(stars: int, limit: int | None = LIMIT, epochs: int = 70) -> WindowStore:
    """A store whose star ``i`` has a history, many epochs, and its newest on day ``i``."""
    store = WindowStore(max_stars=limit)
    for star in range(stars):
        days = np.linspace(star - 30, star, epochs)
        store.insert(photometry([Epoch(star, START + day) for day in days]))
    return store


def test_the_quietest_go_and_the_others_stay_as_they_were() -> None:
    store, whole = filled(12), filled(12, limit=None)
    shed = store.shed()
    assert shed is not None
    assert shed.kept.tolist() == list(range(5, 12))
    assert (shed.quiet, shed.observed) == (0, 5)
    expected = {key: value for key, value in contents(whole).items() if key[0] in range(5, 12)}
    assert contents(store) == expected
    assert store.shed() is None


def test_a_store_that_has_shed_goes_on_as_if_the_others_had_never_been() -> None:
    store = filled(12)
    store.shed()
    other = WindowStore()
    for star in range(5, 12):
        days = np.linspace(star - 30, star, 70)
        other.insert(photometry([Epoch(star, START + day) for day in days]))
    for day in np.arange(12, 40, 0.7):
        block = photometry([Epoch(star, START + day) for star in range(3, 14)])
        assert store.insert(block).tolist() == other.insert(block).tolist()
    assert contents(store) == contents(other)
    assert store.room == other.room


def test_windows_without_an_epoch_for_their_length_are_counted_apart() -> None:
    store = WindowStore(max_stars=LIMIT)
    store.insert(photometry([Epoch(star, START + (50 if star > 3 else 0)) for star in range(9)]))
    shed = store.shed()
    assert shed is not None
    assert (shed.quiet, shed.observed) == (2, 0)


def test_of_windows_of_equal_times_the_names_decide() -> None:
    names = ["d", "b", "a", "c"]
    found = quietest(np.array([1.0, 1.0, 2.0, 1.0]), 2, lambda slot: (names[slot],))
    assert [names[slot] for slot in found.tolist()] == ["b", "c"]


def test_without_a_bound_nothing_goes() -> None:
    store = filled(12, limit=None)
    assert store.has_room(10**9)
    assert store.shed() is None


def make_intake(metrics: Metrics) -> Intake:
    return Intake(
        Decoder("photometry"),
        Limits(),
        Batcher(),
        lambda: WindowStore(max_stars=LIMIT),
        lambda: Schedule(0.5, 2),
        metrics,
    )


def held(intake: Intake) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Windows of the partition, and when each was last due."""
    work = intake.flush([WHERE])
    assert work is not None
    state = work.captured[WHERE]
    store = WindowStore()
    store.restore(state.part("window"))
    last = arrays_of(state.part("schedule"))["last"].tolist()
    labels = [store._stars.label(slot) for slot in range(len(store))]
    due = dict(zip(((int(star), band) for _, star, _, band in labels), last, strict=True))
    return {key: (*value, due[key]) for key, value in contents(store).items()}


def many_messages(seed: int) -> list[list[Epoch]]:
    """Of up to three epochs of one star and band each; of twice as many stars as may be held."""
    rng = random.Random(seed)  # noqa: S311  test data
    found = []
    for day in range(60):
        star, band = rng.randrange(2 * LIMIT), rng.choice("rri")
        days = rng.sample(range(max(0, day - 6), day + 7), rng.randint(1, 3))
        found.append([Epoch(star, START + each / 2, band) for each in days])
    return found


def encoded(found: Sequence[Sequence[Epoch]]) -> list[Message]:
    header = (schema_header("photometry"),)
    return [
        Message(*WHERE, i, None, encode_photometry(photometry(epochs)), 0, header)
        for i, epochs in enumerate(found)
    ]


@given(st.integers(0, 2**32).map(many_messages), st.integers(1, 20), st.integers(0, 60))
@settings(max_examples=20, deadline=None)
def test_polls_and_restarts_do_not_change_which_stars_go(
    found: list[list[Epoch]], poll: int, cut: int
) -> None:
    stream, metrics = encoded(found), Metrics()
    one_by_one, restarted = make_intake(metrics), make_intake(Metrics())
    for message in stream:
        one_by_one.take([message], 0.0)
        one_by_one.report()
        assert metrics.value("windows") <= LIMIT
    for first in range(0, len(stream[:cut]), poll):
        restarted.take(stream[:cut][first : first + poll], 0.0)
    if stream[:cut]:
        work = restarted.flush([WHERE])
        assert work is not None
        restarted = make_intake(Metrics())
        state = work.captured[WHERE]
        restarted.restore(WHERE, state, state.offsets, {WHERE: 0})
    for first in range(cut, len(stream), poll):
        restarted.take(stream[first : first + poll], 0.0)
    assert held(restarted) == held(one_by_one)


def test_what_goes_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    intake = make_intake(metrics)
    for message in encoded([[Epoch(star, START + 10 * star)] for star in range(30)]):
        intake.take([message], 0.0)
    intake.report()
    dropped = metrics.total("windows_dropped_total")
    assert dropped + metrics.value("windows") == 30
    assert metrics.value("windows_dropped_total", kind="quiet") == dropped
    assert [r.event for r in caplog.records if hasattr(r, "event")] == ["windows_dropped"]


MEASURE = """
import gc, tracemalloc
import numpy as np
from tests.windows.test_shedding import START, Epoch, photometry
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore

def fill(n):
    store, schedule = WindowStore(), Schedule(0.25, 5)
    for first in range(0, n, 1000):
        block = photometry([Epoch(star, START) for star in range(first, first + 1000)])
        block.star[:] = [f"star {star}" for star in block.star]
        schedule.due(store, store.insert(block))
    return store, schedule

fill(1000)
gc.collect()
tracemalloc.start()
held = fill(200_000)
gc.collect()
print(sum(part.nbytes for part in held), tracemalloc.get_traced_memory()[0])
"""


def test_memory_is_what_the_gauge_says_to_a_tenth() -> None:
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown, used = map(int, done.stdout.split())
    assert shown == pytest.approx(used, rel=0.1)
    assert used < 700 * 200_000
