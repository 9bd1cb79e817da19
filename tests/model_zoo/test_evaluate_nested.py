"""Nested sampling and chains: both are right on a known integral, and set beside the fit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.network import Network
from model_zoo.evaluate.draw.fits import draw_nested
from model_zoo.evaluate.measure import nested
from model_zoo.evaluate.measure.certified import star_of
from model_zoo.evaluate.measure.chains import measure_chains, run_ladder, run_lens_chain
from model_zoo.evaluate.measure.fits import of_all_kinds
from model_zoo.evaluate.measure.nested import measure_nested, nested_sampling
from model_zoo.evaluate.measure.reach import measure_reach
from model_zoo.evaluate.report.fits import at_equal_error, nested_tables, reach_tables
from model_zoo.evaluate.sets import SEEDS, curves
from model_zoo.simulate.prior import PAPER_PRIOR
from tests.model_zoo.test_evaluate_fits import CONFIG, SIMULATOR


def gaussian(u: np.ndarray) -> np.ndarray:
    """Of width 0.02 around the middle of the cube."""
    density: np.ndarray = -0.5 * np.square((u - 0.5) / 0.02).sum(1)
    return density


def test_nested_sampling_integrates_a_gaussian() -> None:
    ln_z, error, samples, calls = nested_sampling(gaussian, 3, seed=1, live=150)
    exact = 3 * math.log(0.02 * math.sqrt(2 * math.pi))
    assert abs(ln_z - exact) < 4 * error
    assert 0.1 < error < 0.6
    assert samples.mean(0) == pytest.approx(0.5, abs=0.005)
    assert samples.std(0) == pytest.approx(0.02, rel=0.15)
    assert calls > 10_000


def test_nested_sampling_weighs_two_modes() -> None:
    """One has twice the mass of the other."""

    def two(u: np.ndarray) -> np.ndarray:
        left, right = (-0.5 * np.square((u - c) / 0.03).sum(1) for c in (0.25, 0.75))
        return np.logaddexp(left + math.log(2), right)

    _, _, samples, _ = nested_sampling(two, 2, seed=2, live=200)
    assert (samples[:, 0] < 0.5).mean() == pytest.approx(2 / 3, abs=0.1)


def test_nested_sampling_is_the_same_for_the_same_seed() -> None:
    one, again, other = (nested_sampling(gaussian, 2, seed=s, live=60)[0] for s in (1, 1, 2))
    assert one == again != other


@pytest.fixture(scope="module")
def network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Network(CONFIG)


def test_a_fit_agrees_with_nested_sampling(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nested, "of_all_kinds", lambda *_: faint_event())
    measured = measure_nested(network, CONFIG, SIMULATOR, 1, live=50, quiet=True)
    assert json.loads(json.dumps(measured)) == measured
    assert measured["n"] == measured["within_3"] == 1
    assert measured["largest"] < 3
    (event,) = measured["events"]
    assert abs(event["lnz_fit"] - event["lnz_nested"]) < 2
    assert 0.5 < measured["width_ratio"]["t0"] < 2
    assert draw_nested(measured, tmp_path)[0].stat().st_size > 5_000
    assert any(line.startswith(f"| {event['event']} | ") for line in nested_tables(measured))


def faint_event() -> NDArray[np.int64]:
    return of_all_kinds(SIMULATOR, 12)[1:2]


def test_an_error_half_as_large_takes_nested_sampling_four_times_as_long() -> None:
    times = {"nested_seconds": 6.0, "fit_seconds": 0.3}
    rows = [{**times, "error_nested": 0.2, "error_fit": 0.1}]
    assert at_equal_error({"events": rows}) == pytest.approx(80)


def test_chains_of_four_parameters_stay_in_the_prior_and_find_the_peak() -> None:
    place = int(faint_event()[0])
    events = curves(SIMULATOR.events, place + 1, SEEDS["events"], "events", quiet=True)
    likelihood = Likelihood(star_of(events.x[place], 0.0, 20.0), 0.0, PAPER_PRIOR)
    chain, _ = run_lens_chain(likelihood, PAPER_PRIOR, 150, seed=1)
    samples = chain.get_chain(discard=75, flat=True)
    assert samples.shape[1] == 4
    assert (samples >= PAPER_PRIOR.low[:4]).all()
    assert (samples <= PAPER_PRIOR.high[:4]).all()
    heights = chain.get_log_prob()
    assert heights[-1].max() > heights[0].mean()


def test_a_ladder_of_chains_finds_a_known_k() -> None:
    low, high = (
        torch.tensor(edge[:4], dtype=torch.float64) for edge in (PAPER_PRIOR.low, PAPER_PRIOR.high)
    )

    def peak(theta: Tensor) -> Tensor:
        u = (theta - low) / (high - low)
        return torch.from_numpy(gaussian(u.numpy()))

    ln_k, seconds = run_ladder(peak, PAPER_PRIOR, 400, 200, seed=1, rungs=10)
    assert ln_k == pytest.approx(4 * math.log(0.02 * math.sqrt(2 * math.pi)), abs=0.5)
    assert seconds > 0


def test_chains_are_set_beside_the_fit_at_equal_accuracy(network: Network) -> None:
    measured = measure_chains(network, CONFIG, SIMULATOR, 2, burn_in=40, retained=640, quiet=True)
    assert json.loads(json.dumps(measured)) == measured
    assert measured["n"] == 2
    moved = [event for event in measured["events"] if event["ratio"] is not None]
    assert len(moved) == 2 - measured["never_moved"] > 0
    for event in moved:
        steps = 40 + event["effective_samples"] * event["autocorrelation_steps"] / 32
        assert event["chain_seconds"] == pytest.approx(steps * event["step_ms"] / 1e3, rel=0.02)
        assert event["ratio"] == pytest.approx(
            event["chain_seconds"] / event["fit_seconds"], rel=0.02, abs=0.06
        )


def test_fit_and_nested_sampling_err_alike_on_the_same_events(network: Network) -> None:
    measured = measure_reach(network, CONFIG, SIMULATOR, 2, live=40, quiet=True)
    assert json.loads(json.dumps(measured)) == measured
    assert measured["n"] == 2
    for name in ("t0", "log10_tE"):
        assert measured["rmse_ratio"][name] == pytest.approx(1, abs=0.5)
        for key in ("rmse", "median_error"):
            assert 0 < measured["nested"][key][name] < 1
    assert any(line.startswith("| f_s | ") for line in reach_tables(measured))
