"""Figures of posteriors: exact ones pass, wrong ones show, and weights mean what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from broker_filter.types import PARAMETERS
from model_zoo.evaluate.draw.posteriors import plot_posteriors
from model_zoo.evaluate.measure.posteriors import (
    measure_posteriors,
    posterior_figures,
    ranks,
    resample,
    table,
    tarp_curve,
    weighted_quantiles,
)
from model_zoo.evaluate.sets import Sizes
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.prior import PAPER_PRIOR
from tests.model_zoo.networks import make_network

SEED = 0
Array = NDArray[np.float64]


def exact_posteriors(n: int = 2000, samples: int = 400) -> tuple[Array, Array]:
    """Prior N(m, 1), data N(theta, 1): the posterior is N((d + m) / 2, 1 / 2).

    The means keep u0 and f_s positive, as the axes of the paper's figures need.
    """
    rng = np.random.default_rng(SEED)
    mean = np.array([10.0, 10.0, 0.0, 0.0, 10.0])
    theta = mean + rng.standard_normal((n, 5))
    data = theta + rng.standard_normal(theta.shape)
    centre = (data + mean) / 2
    return centre[:, None] + np.sqrt(0.5) * rng.standard_normal((n, samples, 5)), theta


def test_exact_posteriors_pass_every_test() -> None:
    samples, theta = exact_posteriors()
    figures = posterior_figures(samples, theta)
    for name in PARAMETERS:
        assert figures["coverage68"][name] == pytest.approx(0.68, abs=0.03)
        assert figures["coverage95"][name] == pytest.approx(0.95, abs=0.015)
        assert figures["rmse"][name] == pytest.approx(np.sqrt(0.5), abs=0.04)
        assert figures["rmse_of_means"][name] <= figures["rmse"][name] + 0.01
        assert figures["median_abs_error"][name] == pytest.approx(0.477, abs=0.04)
        assert figures["bias"][name] == pytest.approx(0, abs=0.05)
        assert figures["r"][name] == pytest.approx(np.sqrt(0.5), abs=0.04)
        assert figures["ranks"][name]["ks_p"] > 1e-3
        assert figures["ranks"][name]["chi2_p"] > 1e-3
        assert sum(figures["ranks"][name]["counts"]) == len(theta)
    assert figures["tarp_max_deviation"] < figures["tarp"]["chance95"] * 1.3


@pytest.mark.parametrize(("width", "shift"), [(0.6, 0.0), (1.6, 0.0), (1.0, 0.6)])
def test_wrong_posteriors_fail_ranks_and_tarp(width: float, shift: float) -> None:
    samples, theta = exact_posteriors()
    centre = samples.mean(1, keepdims=True)
    figures = posterior_figures(centre + width * (samples - centre) + shift, theta)
    assert all(test["ks_p"] < 1e-6 for test in figures["ranks"].values())
    assert all(test["chi2_p"] < 1e-6 for test in figures["ranks"].values())
    assert figures["tarp_max_deviation"] > 2 * figures["tarp"]["chance95"]
    assert figures["bias"]["t0"] == pytest.approx(shift, abs=0.05)


def test_importance_weights_turn_wrong_samples_into_the_exact_posterior() -> None:
    """A proposal N(c + 0.4, 1) weighted by N(c, 1/2) over it, in one parameter at a time."""
    samples, theta = exact_posteriors(1500, 10)
    rng = np.random.default_rng(SEED + 1)
    centre = np.broadcast_to(samples.mean(1, keepdims=True), (1500, 800, 5)).copy()
    truth = centre[:, 0] + np.sqrt(0.5) * rng.standard_normal(theta.shape)
    wrong = centre + np.sqrt(0.5) * rng.standard_normal(centre.shape)
    wrong[:, :, 0] = centre[:, :, 0] + 0.4 + rng.standard_normal(centre.shape[:2])
    off = wrong[:, :, 0] - centre[:, :, 0]
    weights = 1e-9 * np.exp(-(off**2) + 0.5 * (off - 0.4) ** 2)
    plain, mended = (posterior_figures(wrong, truth, w) for w in (None, weights))
    assert plain["ranks"]["t0"]["ks_p"] < 1e-6 < 1e-3 < mended["ranks"]["t0"]["ks_p"]
    assert plain["bias"]["t0"] == pytest.approx(0.4, abs=0.06)
    assert mended["bias"]["t0"] == pytest.approx(0.0, abs=0.06)
    assert mended["coverage68"]["t0"] == pytest.approx(0.68, abs=0.04)
    assert mended["rmse_of_means"]["t0"] == pytest.approx(np.sqrt(0.5), abs=0.05)
    assert mended["tarp_max_deviation"] < 1.3 * mended["tarp"]["chance95"]


def test_equal_weights_change_nothing() -> None:
    samples, theta = exact_posteriors(60, 50)
    weights = np.full(samples.shape[:2], 7.0)
    plain, weighted = (posterior_figures(samples, theta, w) for w in (None, weights))
    for key in ("bias", "rmse", "rmse_of_means", "coverage68", "coverage95"):
        assert weighted[key] == pytest.approx(plain[key], abs=1e-4)
    for name in PARAMETERS:
        assert weighted["ranks"][name]["counts"] == plain["ranks"][name]["counts"]
    assert weighted["tarp"] == plain["tarp"]


def test_a_sample_of_no_weight_does_not_count() -> None:
    samples = np.array([[1.0, 2.0, 3.0, 1e9]])[..., None]
    weights = np.array([[1.0, 1.0, 1.0, 0.0]])
    assert weighted_quantiles(samples, weights, (0.5,)) == pytest.approx(2.0)
    assert ranks(samples, np.array([[5.0]]), weights) == pytest.approx(4.5 / 5)
    assert resample(samples, weights, seed=1).max() == 3.0


def test_resampling_repeats_each_sample_by_its_weight() -> None:
    samples = np.arange(8.0).reshape(1, 8, 1)
    weights = np.array([[0.0, 4.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0]])
    drawn = resample(samples, weights, seed=1)[0, :, 0]
    assert sorted(drawn) == [1, 1, 1, 1, 3, 3, 7, 7]


def test_tarp_is_seeded_and_leaves_the_global_generator_alone() -> None:
    samples, theta = exact_posteriors(200, 50)
    before = samples.copy()
    np.random.seed(5)  # noqa: NPY002
    first = tarp_curve(samples, theta)
    after = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert np.random.random() == after  # noqa: NPY002
    assert tarp_curve(samples, theta) == first
    assert tarp_curve(samples, theta, seed=1) != first
    assert np.array_equal(samples, before)


def test_the_error_of_the_rmse_is_its_scatter_over_test_sets() -> None:
    rng = np.random.default_rng(SEED)
    theta = np.zeros((400, 5))
    tables = []
    for _ in range(300):
        median = rng.standard_t(6, theta.shape)
        quantiles = median + np.array([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None, None]
        with np.errstate(invalid="ignore", divide="ignore"):  # the truth is constant: no r
            tables.append(table(quantiles, median, theta))
    scatter = np.std([one["rmse"]["t0"] for one in tables])
    assert scatter == pytest.approx(np.mean([one["rmse_error"]["t0"] for one in tables]), rel=0.15)


def test_t0_shows_where_the_disc_is_crossed_within_half_of_the_window() -> None:
    theta = np.tile([10.0, 0.5, 0.5, 0.0, 0.5], (20, 1))
    theta[:8, 3] = np.log10(5.0 / 10**0.5) + 0.01
    samples = theta[:, None] + np.zeros((20, 50, 5))
    with np.errstate(invalid="ignore", divide="ignore"):
        figures = posterior_figures(samples, theta + 1e-6 * np.arange(20)[:, None])
    assert figures["subsets"]["t0"]["n"] == 12


def test_subsets_are_where_the_parameter_shows() -> None:
    """Samples that know rho only where u0 < rho, and u0 only where u0 > rho."""
    rng = np.random.default_rng(SEED)
    low, high = np.array(PAPER_PRIOR.low), np.array(PAPER_PRIOR.high)
    theta = rng.uniform(low, high, (1000, 5))
    samples = rng.uniform(low, high, (1000, 300, 5))
    finite = theta[:, 1] < 10 ** theta[:, 3]
    noise = 0.01 * rng.standard_normal(samples.shape)
    samples[finite, :, 3] = theta[finite, None, 3] + noise[finite, :, 3]
    samples[~finite, :, 1] = theta[~finite, None, 1] + noise[~finite, :, 1]
    figures = posterior_figures(samples, theta)
    assert figures["subsets"]["u0"]["n"] == int((~finite).sum())
    assert figures["subsets"]["log10_rho"]["n"] == int(finite.sum())
    for name in ("u0", "log10_rho"):
        assert figures["subsets"][name]["rmse"] < 0.01 < 0.1 < figures["rmse"][name]
        assert figures["recovered"][name]["median"] == pytest.approx(
            figures["recovered"][name]["x"], abs=0.15
        )


def test_the_bias_is_found_on_its_axis() -> None:
    """f_s is off by 0.3 where the peak is faint, and right where it is bright."""
    samples, theta = exact_posteriors(1000, 100)
    rng = np.random.default_rng(SEED)
    theta[:, 1] = 10 ** rng.uniform(-2, 0.1, 1000)
    theta[:, 3] = rng.uniform(-2, -1.9, 1000)
    off = np.where(theta[:, 1] > 0.1, 0.3, 0.0)
    samples[..., 4] = theta[:, None, 4] + off[:, None] + 0.01 * rng.standard_normal((1000, 100))
    against = posterior_figures(samples, theta)["bias_against"]["f_s"]
    assert against["axis"] == "log10_peak_magnification"
    assert against["median"][0] == pytest.approx(0.3, abs=0.02)
    assert against["median"][-1] == pytest.approx(0.0, abs=0.02)
    # A point lens at u0 = 0.01 magnifies a hundred times.
    assert 1.7 < against["x"][-1] < 2.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, t, w: (s[:, :, :4], t, w), "expected"),
        (lambda s, t, w: (s, t[:-1], w), "expected"),
        (lambda s, t, w: (s, t, w[:, :-1]), "one a sample"),
        (lambda s, t, w: (s, t, np.where(np.arange(20)[:, None] == 3, 0, w)), "event 3"),
        (lambda s, t, w: (s, t, np.where(np.arange(20)[:, None] == 4, np.nan, w)), "event 4"),
        (lambda s, t, w: (s, t, np.where(np.arange(20)[:, None] == 5, -1, w)), "event 5"),
    ],
)
def test_shapes_and_weights_that_cannot_be_right_are_refused(change, message) -> None:
    samples, theta = exact_posteriors(20, 30)
    with pytest.raises(ValueError, match=message):
        posterior_figures(*change(samples, theta, np.ones((20, 30))))


def test_an_entry_is_measured_on_its_frozen_events_and_drawn(tmp_path: Path) -> None:
    sizes = Sizes(0, 0, 0, 0, 0, posterior_events=60, samples=30)
    network, simulator = make_network(), Simulator(length=128)
    first, again = (measure_posteriors(network, simulator, sizes, quiet=True) for _ in range(2))
    assert first == again
    assert first["n_posterior"] == 60
    assert json.loads(json.dumps(first)) == first
    for path in plot_posteriors(first, tmp_path):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 4
