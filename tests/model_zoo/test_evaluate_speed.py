"""Speed: the chains that are timed sample the right posterior, and the figures are whole."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from broker_filter.inference.five_parameters import LikelihoodRatio
from broker_filter.inference.magnification import magnification
from broker_filter.inference.network_input import split_padding
from model_zoo.evaluate.measure import speed
from model_zoo.evaluate.measure.speed import LoopLikelihood, SpeedSizes, measure_speed, run_emcee
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.prior import PAPER_PRIOR
from tests.model_zoo.networks import ENCODER, make_network


def test_both_likelihoods_tell_the_same() -> None:
    """For an exact baseline, up to the constant that is the likelihood of no event.

    The table's A - 1 is within 5e-4 of the exact one, which moves ln L by as much as follows.
    """
    generator = torch.Generator().manual_seed(3)
    x = Simulator(length=128).events(1, generator).x[0]
    theta = PAPER_PRIOR.sample(30, generator).double()
    ratio = LikelihoodRatio(x, 0.0, 20.0)(theta).numpy()
    loop = LoopLikelihood(x, 20.0)
    looped = np.array([loop(row) for row in theta.numpy()])
    flat = loop(np.array([-1e4, 1.0, -1.0, -1.0, 0.5]))  # an event that is long over
    rows, valid = split_padding(x)
    t_norm, flux, sigma = rows[valid].double().numpy().T
    t0, u0, log_tE, log_rho, f_s = theta.numpy().T[:, :, None]
    u = np.hypot(u0, ((t_norm + 1) * 10 - t0) / 10**log_tE)
    signal = f_s * (magnification(u, 10**log_rho) - 1)
    slack = 5e-4 * (np.abs(flux - 1 - signal) * signal / sigma**2).sum(axis=1)
    assert (np.abs(looped - flat - ratio) <= slack + 0.05).all()


@pytest.mark.parametrize("vectorize", [True, False])
def test_the_chain_samples_likelihood_times_prior(vectorize: bool) -> None:
    """A Gaussian in t0 at the edge of the prior leaves half of it; the rest stays uniform."""

    def log_likelihood(theta):
        return -0.5 * (theta[..., 0] / 0.5) ** 2

    sampler, _ = run_emcee(log_likelihood, PAPER_PRIOR, 600, seed=1, vectorize=vectorize)
    chain = sampler.get_chain(discard=200, flat=True)
    assert chain.min(0) == pytest.approx(PAPER_PRIOR.low, abs=0.1)
    assert (chain >= PAPER_PRIOR.low).all()
    assert (chain <= PAPER_PRIOR.high).all()
    assert chain[:, 0].mean() == pytest.approx(0.5 * math.sqrt(2 / math.pi), abs=0.05)
    assert chain[:, 4].mean() == pytest.approx(0.55, abs=0.06)


def test_the_chain_is_the_same_for_the_same_seed() -> None:
    def log_likelihood(theta):
        return -0.5 * theta[..., 1] ** 2

    one, again, other = (
        run_emcee(log_likelihood, PAPER_PRIOR, 5, seed=seed)[0].get_chain() for seed in (1, 1, 2)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_every_case_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "BURN_IN", 20)
    monkeypatch.setattr(speed, "RETAINED", 320)
    sizes = SpeedSizes(100, 3, 10, mcmc_events=2, loop_steps=1, windows=4, paper_windows=1)
    figures = measure_speed(make_network(), Simulator(length=128), ENCODER, sizes, quiet=True)
    assert json.loads(json.dumps(figures)) == figures
    npe, mcmc = figures["npe"], figures["emcee"]
    assert npe["samples_per_second_1_event"] == pytest.approx(1e5 / npe["event_ms"], rel=0.01)
    assert npe["samples_per_second_many_events"] > 0
    assert mcmc["looped"]["extrapolated_from_steps"] == 1
    # The loop calls for each walker what the vectorised likelihood does for all at once.
    assert mcmc["looped"]["median_s"] > mcmc["vectorised"]["median_s"]
    assert mcmc["vectorised"]["over_npe"] == pytest.approx(
        1000 * mcmc["vectorised"]["median_s"] / npe["event_ms"], rel=0.1
    )
    rates = figures["windows_per_second"]
    for name in ("entry", "entry_bfloat16", "paper"):
        assert list(rates[name]) == ["128", "256", "512", "1000"]
    assert rates["entry"]["1000"] > rates["paper"]["1000"]
    assert rates["paper"]["128"] > rates["paper"]["1000"]
