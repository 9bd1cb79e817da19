"""What networks read of a star's noise, from histories that the store keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from broker_filter.inference import scorer, zoo
from broker_filter.inference.scorer import Scorer
from broker_filter.inference.star_noise import star_noise
from broker_filter.types import SourceHistory, WindowBatch
from broker_filter.windows.store import WindowStore
from tests import build

A_NIGHT = 8


def history(scale: float, red_noise: float, nights: int = 100) -> SourceHistory:
    of_nights = red_noise**2 + scale**2 / A_NIGHT
    return SourceHistory(nights, 7 * nights, scale, of_nights, 1 / A_NIGHT)


QUIET, NOISY = history(1.0, 0.0), history(1.5, 0.5, nights=40)
NEW = SourceHistory(0, 0, 1.0, 0, 0)


def window_of(*stars: list[tuple[SourceHistory, int]]) -> WindowBatch:
    """Windows of stars: history and epochs of each of their sources."""
    length = max(sum(n for _, n in star) for star in stars)
    width = max(len(star) for star in stars)
    store = WindowStore()
    names = [f"star {i}" for i in range(len(stars))]
    slots = [store.insert(build.photometry(60_000 + 0.01 * np.arange(length), s)) for s in names]
    batch = store.read(np.concatenate(slots))
    source = np.zeros(batch.mjd_tai.shape, np.int16)
    history = np.zeros((len(stars), width, 6))
    for row, star in enumerate(stars):
        for d, (past, n) in enumerate(star):
            first = sum(m for _, m in star[:d])
            source[row, first : first + n] = d
            history[row, d] = [getattr(past, name) for name in past.__slots__]
    n = np.array([sum(n for _, n in star) for star in stars])
    return replace(batch, n=n, source=source, source_history=history)


def noise_of(*stars: list[tuple[SourceHistory, int]]) -> np.ndarray:
    return star_noise(window_of(*stars))


@pytest.mark.parametrize("night", [0.0, 0.3, 0.9])
def test_the_noise_of_a_star_is_what_its_nights_had(night: float) -> None:
    rng = np.random.default_rng(3)
    t = np.concatenate([60_000 + d + np.linspace(0, 0.2, A_NIGHT) for d in range(200)])
    offset = np.repeat(night * rng.standard_normal(200), A_NIGHT)
    flux = 1000 + 10 * (offset + rng.standard_normal(len(t)))
    store = WindowStore()
    slots = store.insert(build.photometry(t, flux=flux, flux_err=10.0))
    scale, red, nights = star_noise(store.read(slots))[0].tolist()
    # The store has made the errors larger for nights that scatter, and both are in these.
    assert red / scale == pytest.approx(night, rel=0.15, abs=0.1)
    assert np.hypot(scale, red) == pytest.approx(1, abs=0.1)
    assert 170 <= nights <= 200


def test_sources_count_by_their_epochs_in_the_window() -> None:
    scale, red, nights = noise_of([(QUIET, 30), (NOISY, 10)])[0]
    assert scale == pytest.approx(np.sqrt(0.75 + 0.25 * 2.25))
    assert red == pytest.approx(np.sqrt(0.25 * 0.25))
    assert nights == pytest.approx(0.75 * 100 + 0.25 * 40)


def test_nothing_is_known_where_more_than_a_tenth_of_the_epochs_has_a_new_source() -> None:
    of_few, of_many = noise_of([(QUIET, 27), (NEW, 3)], [(QUIET, 26), (NEW, 4)])
    np.testing.assert_array_equal(of_few, noise_of([(QUIET, 30)])[0])
    assert np.isnan(of_many).all()


@pytest.mark.parametrize("first", [4, 5, 9, 18, 22])
def test_a_tenth_of_the_epochs_is_one_however_many_sources_have_the_others(first: int) -> None:
    star = [(QUIET, first), (QUIET, 27 - first), (NEW, 3)]
    alone = noise_of([(QUIET, 30)])
    np.testing.assert_allclose(noise_of(star), alone)
    np.testing.assert_allclose(noise_of(star[::-1]), alone)


def test_of_an_empty_window_nothing_is_known_whatever_is_beside_it() -> None:
    for star in ([(QUIET, 0)], [(QUIET, 0), (NOISY, 0)]):
        assert np.isnan(noise_of(star, [(QUIET, 9)])[0]).all()


def test_nothing_is_known_from_three_nights_or_from_one_epoch_in_each() -> None:
    three, four = (replace(QUIET, nights=nights) for nights in (3, 4))
    single, double = (replace(QUIET, freedom=freedom) for freedom in (99, 100))
    found = noise_of(*[[(past, 30)] for past in (three, four, single, double)])
    assert np.isfinite(found).all(axis=1).tolist() == [False, True, False, True]


def test_noise_unlike_that_of_training_counts_as_unknown() -> None:
    noises = [(0.6, 0.0), (0.65, 0.0), (1.6, 1.4), (1.65, 0.0), (1.0, 1.6)]
    found = noise_of(*[[(history(*noise), 30)] for noise in noises])
    assert np.isfinite(found).all(axis=1).tolist() == [False, True, True, False, False]
    np.testing.assert_allclose(found[[1, 2], :2], [noises[1], noises[2]], atol=1e-6)


def test_more_nights_than_training_has_count_as_its_most() -> None:
    assert noise_of([(replace(QUIET, nights=4000, freedom=28_000), 30)])[0, 2] == 400


def test_a_window_has_the_noise_that_it_has_beside_others_of_more_sources() -> None:
    one = [(QUIET, 7), (NOISY, 13), (QUIET, 10)]
    beside = noise_of(one, [(QUIET, 1), (NOISY, 2)] * 10)
    np.testing.assert_array_equal(beside[0], noise_of(one)[0])


def test_the_noise_of_a_batch_is_found_once_and_for_networks_that_read_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = window_of(*[[(QUIET, 40)]] * 9)
    calls: list[int] = []

    def counted(batch: WindowBatch) -> Any:
        calls.append(len(batch))
        return star_noise(batch)

    monkeypatch.setattr(scorer, "star_noise", counted)
    for name, expected in (("fspl-roman-1.0.0", []), ("fspl-sparse-1.0.0", [9])):
        Scorer(zoo.verify(zoo.find(name)), chunk=4).score(batch)
        assert calls == expected


def test_what_is_known_of_the_noise_changes_k_of_a_network_that_reads_it() -> None:
    batch = window_of(*[[(past, 40)] for past in (NEW, QUIET, NOISY)])
    for name, reads in (("fspl-sparse-1.0.0", True), ("fspl-roman-1.0.0", False)):
        found = Scorer(zoo.verify(zoo.find(name)), chunk=4).score(batch).log10_k
        assert (len(np.unique(found)) == len(batch)) is reads
