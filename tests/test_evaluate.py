"""The figures of a card, on samples whose figures are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from broker_filter.network import Network
from broker_filter.posterior import PARAMETERS
from model_zoo.evaluate.suite import (
    BATCH,
    Sizes,
    detection,
    evaluate,
    noise_tail,
    posterior_figures,
)
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.prior import PAPER_PRIOR

SEED = 0


def test_an_event_counts_where_no_noise_curve_reaches() -> None:
    events = np.array([0.5, 1.0, 2.0, 3.0])
    noise = np.concatenate([np.full(5_000, -1.0), np.full(15_000, 0.9), np.full(5_000, 2.5)])
    theta = np.zeros((4, 5))
    theta[2:, 3] = np.log10(6)
    figures = detection(events, noise, theta)
    found = figures["tpr_zero_fp"]
    assert {size: (f["tpr"], f["tpr_rho_ge_5"], f["log10_k"]) for size, f in found.items()} == {
        "5000": (1.0, 1.0, -1.0),
        "20000": (0.75, 1.0, 0.9),
        "25000": (0.25, 0.5, 2.5),
    }
    assert figures["at_log10_k_0.8"] == {"tpr": 0.75, "fp_noise": 20_000}


def test_tail_of_noise_and_its_mean() -> None:
    figures = noise_tail(np.array([-3.0, 0.0, 1.0, 2.0]))
    assert [entry["observed"] for entry in figures["k_tail"]] == [0.75, 0.5, 0.25, 0, 0]
    assert [entry["bound"] for entry in figures["k_tail"]] == [1, 0.1, 0.01, 0.001, 0.0001]
    assert figures["mean_k_noise"] == pytest.approx((0.001 + 1 + 10 + 100) / 4)


def test_the_mean_of_an_enormous_k_is_finite() -> None:
    assert np.isfinite(noise_tail(np.array([1e4, 0.0]))["mean_k_noise"])


def test_exact_posteriors_cover_as_often_as_they_say() -> None:
    """Prior N(0, 1), data N(theta, 1): the posterior is N(d / 2, 1 / 2)."""
    rng = np.random.default_rng(SEED)
    theta = rng.standard_normal((4000, 5))
    data = theta + rng.standard_normal(theta.shape)
    exact = data[:, None] / 2 + np.sqrt(0.5) * rng.standard_normal((4000, 400, 5))
    figures = posterior_figures(exact, theta)
    for name in PARAMETERS:
        assert figures["coverage68"][name] == pytest.approx(0.68, abs=0.03)
        assert figures["coverage95"][name] == pytest.approx(0.95, abs=0.015)
        assert figures["rmse"][name] == pytest.approx(np.sqrt(0.5), abs=0.03)
        assert figures["median_abs_error"][name] == pytest.approx(0.477, abs=0.03)
        assert figures["bias"][name] == pytest.approx(0, abs=0.05)
        assert figures["r"][name] == pytest.approx(np.sqrt(0.5), abs=0.03)


def test_a_bias_and_too_narrow_an_interval_show() -> None:
    rng = np.random.default_rng(SEED)
    theta = rng.standard_normal((2000, 5))
    # As scattered as the truth, but told to be half as wide, and 0.3 too high.
    centre = theta + 0.3 + 0.2 * rng.standard_normal(theta.shape)
    figures = posterior_figures(centre[:, None] + 0.1 * rng.standard_normal((2000, 200, 5)), theta)
    assert figures["bias"]["t0"] == pytest.approx(0.3, abs=0.02)
    assert figures["coverage68"]["t0"] < 0.2


def make_network() -> Network:
    torch.manual_seed(1)
    encoder = {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32}
    prior = {"low": PAPER_PRIOR.low, "high": PAPER_PRIOR.high}
    flow = {"transforms": 1, "hidden": [16], "bins": 4}
    return Network({"encoder": encoder, "evidence": {}, "flow": flow, "prior": prior})


def test_the_suite_draws_the_same_curves_every_time_and_all_that_it_was_asked_for() -> None:
    sizes = Sizes(events=BATCH + 10, noise=BATCH + 20, posterior_events=60, samples=30)
    network, simulator = make_network(), Simulator(length=128)
    first, again = (evaluate(network, simulator, sizes, quiet=True) for _ in range(2))
    assert first == again
    assert (first["n_events"], first["n_noise"], first["n_posterior"]) == (260, 270, 60)
