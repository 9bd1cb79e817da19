"""The toy problem: its closed form is right, and loss and head find Bayes factors from labels."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from model_zoo.evaluate.draw.posteriors import plot_toy
from model_zoo.evaluate.measure import toy
from model_zoo.evaluate.measure.toy import (
    LOSSES,
    QUICK_TOY,
    ToySizes,
    auc,
    draw_toy,
    exact_ln_k,
    measure_toy,
    toy_examples,
    train_toy,
)

SEED = 4


def test_the_closed_form_is_the_ratio_of_two_gaussian_densities() -> None:
    """With an event the flux is N(1 + mu g, s^2 + s_A^2 g g'), without one N(1, s^2)."""
    x, _ = draw_toy(6, torch.Generator().manual_seed(SEED))
    t = np.linspace(-10, 10, 200)
    g = np.exp(-0.5 * (t / 1.5) ** 2)
    g /= np.linalg.norm(g)
    event = stats.multivariate_normal(1 + 0.1 * g, 0.01 * np.eye(200) + 0.01 * np.outer(g, g))
    noise = stats.multivariate_normal(np.ones(200), 0.01 * np.eye(200))
    flux = x[..., 1].double().numpy()
    expected = event.logpdf(flux) - noise.logpdf(flux)
    assert exact_ln_k(x).numpy() == pytest.approx(expected, abs=1e-3)


def test_the_oracle_reaches_the_known_figures() -> None:
    """AUC 0.724 and true positive rates 0.173 and 0.324 for the amplitude's prior N(0.1, 0.1^2).

    The ahat of events is N(0.1, 0.02), that of noise N(0, 0.01), and ln K is a parabola in it with
    its lowest point at -0.1: K > k means ahat + 0.1 beyond +-c.
    """
    x, event = draw_toy(200_000, torch.Generator().manual_seed(SEED))
    figures = toy._detection(exact_ln_k(x).double().numpy(), event.numpy())
    assert figures["auc"] == pytest.approx(0.724, abs=0.004)
    assert figures["tpr"]["0.01"] == pytest.approx(0.173, abs=0.006)
    assert figures["tpr"]["0.05"] == pytest.approx(0.324, abs=0.006)


def test_the_mean_of_exact_k_over_noise_is_one() -> None:
    x, event = draw_toy(200_000, torch.Generator().manual_seed(SEED))
    k = exact_ln_k(x)[~event].double().exp()
    assert float(k.mean()) == pytest.approx(1.0, abs=5 * float(k.std()) / math.sqrt(len(k)))


def test_area_under_the_curve_counts_ties_half() -> None:
    event = np.array([True, True, False, False])
    assert auc(np.array([3.0, 1.0, 2.0, 0.0]), event) == 0.75
    assert auc(np.zeros(4), event) == 0.5


def test_paired_curves_share_their_noise_and_half_are_events() -> None:
    x, event = draw_toy(10, torch.Generator().manual_seed(SEED), paired=True)
    assert event.tolist() == [True] * 5 + [False] * 5
    bump = x[:5, :, 1] - x[5:, :, 1]
    height = bump[:, 100:101] / bump[0, 100] * bump[0]
    assert torch.allclose(bump, height, atol=1e-5)
    assert not torch.allclose(bump[0], torch.zeros(200), atol=1e-3)


@pytest.mark.slow
def test_loss_and_head_recover_bayes_factors_from_labels_alone() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network, _ = train_toy(replace(QUICK_TOY, steps=330), quiet=True)
    finally:
        torch.set_num_threads(threads)
    x, event = draw_toy(10_000, torch.Generator().manual_seed(SEED))
    with torch.inference_mode():
        ln_k = torch.cat([network(part) for part in x.split(2_000)]).double().numpy()
    exact = exact_ln_k(x).double().numpy()
    against = toy._against_exact(ln_k, exact)
    assert against["r"] > 0.95
    assert 0.8 < against["slope"] < 1.15
    assert abs(against["bias_dex"]) < 0.05
    assert against["scatter_dex"] < 0.18
    assert auc(ln_k, event.numpy()) > auc(exact, event.numpy()) - 0.01
    # A Bayes factor that is right says how often it is right, and is one on average over noise.
    calibration = toy._calibration(ln_k, event.numpy())
    off = np.subtract(calibration["predicted"], calibration["observed"])
    assert np.abs(off)[np.array(calibration["n"]) > 500].max() < 0.06
    assert np.exp(ln_k[~event.numpy()]).mean() == pytest.approx(1.0, abs=0.1)


def test_both_losses_are_measured_the_same_way_every_time(tmp_path: Path) -> None:
    sizes = ToySizes(2, 32, rate=1e-3, layers=1, inner=16, test=400)
    first, again = (measure_toy(sizes, quiet=True) for _ in range(2))
    for figures in (first, again):
        for name in LOSSES:
            assert figures[name].pop("seconds") >= 0
    assert first == again
    assert json.loads(json.dumps(first)) == first
    assert 0.65 < first["oracle"]["auc"] < 0.8
    assert sum(first["lpop"]["calibration"]["n"]) <= 800
    drawn = plot_toy(first, tmp_path)
    assert [path.name for path in drawn] == ["toy_examples.png", "toy.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_examples_are_of_noise_and_of_events_that_stand_out() -> None:
    noise, events = toy_examples(3)
    assert all((one.signal == 1).all() for one in noise)
    assert all(abs((one.flux - one.signal).std() - 0.1) < 0.02 for one in (*noise, *events))
    assert max(one.log10_k for one in noise) < min(one.log10_k for one in events)
    assert all(one.signal.max() > 1.03 for one in events)
