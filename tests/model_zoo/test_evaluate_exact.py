"""Exact evidence: against brute force over the prior, and what is said of the network."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from broker_filter.inference.five_parameters import LikelihoodRatio
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import network_input, split_padding
from broker_filter.inference.prior import BoxPrior
from model_zoo.evaluate.draw.calibration import draw_exact
from model_zoo.evaluate.measure.cuts import as_pattern
from model_zoo.evaluate.measure.exact import (
    LOW_SNR,
    compare,
    low_snr_curves,
    measure_exact,
)
from model_zoo.evaluate.measure.exact_evidence import ExactEvidence
from model_zoo.evaluate.sets import QUICK
from model_zoo.simulate.curves import Simulator, signal_of
from model_zoo.simulate.pattern import GRID, Pattern
from model_zoo.simulate.prior import PAPER_GATE, PAPER_PRIOR

SEED, DAYS, SIGMA = 3, 20.0, 0.2
NARROW = BoxPrior("narrow", (8.0, 0.1, -0.5, -1.5, 0.1), (12.0, 0.9, 0.5, 0.3, 1.0))
WIDE_WINGS = BoxPrior("wings", (-1.0, 0.1, 0.0, -3.0, 0.01), (22.0, 1.2, 1.0, 0.5, 1.0), True)
GATE = replace(PAPER_GATE, near=1.0, min_near=4, far=2.0, min_far=20, min_snr=5.0)


def a_curve(theta: list[float] | None, baseline_error: float = 0.0, n: int = 30) -> torch.Tensor:
    """``n`` epochs on the simulator's grid, most of them near the middle; shape (1000, 3)."""
    rng = np.random.default_rng(SEED)
    dense = rng.choice(np.arange(800, 1120), n // 2, replace=False)
    i = np.unique(np.r_[dense, rng.choice(GRID, n - n // 2, replace=False)])
    t = torch.from_numpy(i * DAYS / (GRID - 1))[None]
    one = torch.ones(1)
    pattern = Pattern.of(t.float(), SIGMA * torch.ones(1, len(i)), one.long() * len(i), SIGMA * one)
    signal = 0 if theta is None else signal_of(torch.tensor([theta]), pattern)
    noise = SIGMA * torch.from_numpy(rng.standard_normal((1, len(i)))).float()
    flux = (1 + signal) * (1 + baseline_error) + noise
    return network_input(t, flux, pattern.sigma, pattern.n, days=DAYS, length=1000)[0]


def brute_force(
    simulator: Simulator, x: torch.Tensor, baseline_error: float
) -> tuple[float, float]:
    """log10 K and its error as a plain mean of the likelihood ratio over the truncated prior."""
    draw, n = torch.Generator().manual_seed(SEED), 200_000
    theta, pattern = simulator.prior.sample(n, draw), as_pattern(x[None], days=DAYS)
    if simulator.gate is not None:
        passed = simulator.gate.passes(theta[None], pattern.t, pattern.n, pattern.level)[0]
        theta = theta[passed]
    ln_ratio = torch.cat([LikelihoodRatio(x, baseline_error, DAYS)(p) for p in theta.split(20_000)])
    weight = (ln_ratio - ln_ratio.max()).exp()
    error = float(weight.std() / weight.mean()) / math.sqrt(len(weight)) / math.log(10)
    return float(weight.mean().log() + ln_ratio.max()) / math.log(10), error


CASES = {
    "event": (NARROW, None, 0.0, [10.0, 0.4, 0.0, -1.0, 0.5]),
    "noise": (NARROW, None, 0.0, None),
    "gate": (NARROW, GATE, 0.0, [10.0, 0.4, 0.0, -1.0, 0.3]),
    "gate, noise": (NARROW, GATE, 0.0, None),
    "blended gate": (
        NARROW,
        replace(GATE, blended=True, min_snr=2.0),
        0.0,
        [10.0, 0.4, 0.0, -1.0, 0.5],
    ),
    "wrong baseline": (NARROW, None, 0.1, [10.0, 0.4, 0.0, -1.0, 0.5]),
    "long, wrong baseline": (WIDE_WINGS, None, 0.1, [6.0, 0.5, 0.9, -2.0, 0.3]),
    "peaks outside": (WIDE_WINGS, None, 0.0, [21.5, 0.3, 0.5, -2.5, 0.9]),
}


@pytest.mark.parametrize("case", CASES)
def test_evidence_is_that_of_brute_force_over_the_prior(case: str) -> None:
    prior, gate, baseline_error, theta = CASES[case]
    simulator = Simulator(prior, gate)
    x = a_curve(theta, baseline_error)
    exact = ExactEvidence(simulator, target=0.01)(x, baseline_error)
    expected, error = brute_force(simulator, x, baseline_error)
    assert error < 0.05
    assert exact.error < 0.03
    assert exact.log10_k == pytest.approx(expected, abs=3 * math.hypot(error, exact.error) + 0.003)


def test_estimates_from_other_templates_scatter_as_their_errors_say() -> None:
    x = a_curve([10.0, 0.4, -0.3, -1.0, 0.5])
    found = [ExactEvidence(Simulator(NARROW, None), seed=seed)(x, 0.0) for seed in range(6)]
    values, errors = np.array([e.log10_k for e in found]), np.array([e.error for e in found])
    assert values.std(ddof=1) < 3 * errors.mean()
    assert (errors < 0.05).all()


def test_a_curve_without_data_says_nothing() -> None:
    """Errors as large as the universe: K is one, whatever the gate."""
    x = a_curve(None)
    valid = x[:, 2] > 0
    x[valid, 1:] = torch.tensor([1.0, 1e4])
    exact = ExactEvidence(Simulator(NARROW, None), target=0.01)(x, 0.0)
    assert exact.log10_k == pytest.approx(0.0, abs=1e-3)


def test_the_same_curve_gives_the_same_evidence_again() -> None:
    x = a_curve([10.0, 0.4, -0.3, -1.0, 0.5])
    integrate = ExactEvidence(Simulator(NARROW, GATE), templates=64)
    assert integrate(x, 0.0) == integrate(x, 0.0)


def test_thinned_curves_are_refused() -> None:
    x = a_curve(None)
    x[3, 0] += 0.5 / GRID
    with pytest.raises(ValueError, match="unthinned"):
        ExactEvidence(Simulator(NARROW, None))(x, 0.0)


def test_curves_of_low_signal_to_noise_are_frozen_and_not_thinned() -> None:
    simulator = Simulator(gate=None)
    events, noise = low_snr_curves(simulator, 5)
    again, _ = low_snr_curves(simulator, 3)
    assert len(events) == len(noise) == 5
    assert torch.equal(again.x, events.x[:3])
    assert float(events.snr.max()) < LOW_SNR
    for curves in (events, noise):
        assert int(split_padding(curves.x)[1].sum(1).max()) < simulator.length


def test_bias_and_scatter_are_found_where_they_are() -> None:
    rng = np.random.default_rng(SEED)
    exact = np.r_[rng.uniform(-3, 3, 1000), rng.uniform(3, 20, 500), rng.uniform(-9, -3, 300)]
    off = np.where(np.abs(exact) < 3, 0.05, np.where(exact > 0, -1.0, 0.5))
    network = exact + off + 0.2 * rng.standard_normal(len(exact))
    zero, event = np.zeros(len(exact)), exact > 0
    result = compare(network, exact, zero, zero + 5.5, event)
    assert result["small_k"]["bias"] == pytest.approx(0.05, abs=0.02)
    assert result["small_k"]["scatter"] == pytest.approx(0.2, abs=0.02)
    assert result["large_k"]["bias"] == pytest.approx(-1.0, abs=0.05)
    assert result["negative_k"]["bias"] == pytest.approx(0.5, abs=0.05)
    assert [row["n"] for row in result["by_snr"]] == [0, int(event.sum()), 0, 0, 0, 0]
    assert result["holds"]
    assert not compare(network + 0.1, exact, zero, zero, event)["holds"]


def test_without_curves_near_zero_nothing_is_claimed() -> None:
    one = np.array([7.0])
    assert compare(one, one, one, one, one > 0)["holds"] is None


def test_an_entry_is_compared_and_drawn(tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder = {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32}
    prior = PAPER_PRIOR.to_config()
    flow = {"transforms": 1, "hidden": [16], "bins": 8}
    network = Network({"encoder": encoder, "evidence": {}, "flow": flow, "prior": prior}).eval()
    result = measure_exact(network, Simulator(NARROW, None), replace(QUICK, exact=2), quiet=True)
    assert result["n_events"] + result["n_noise"] + result["not_converged"] == 4
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    for path in draw_exact(result, tmp_path):
        assert path.read_bytes().startswith(b"\x89PNG")
