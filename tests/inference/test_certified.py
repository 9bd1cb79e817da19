"""Certified K: the likelihood, the estimate, and what no proposal can break."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from broker_filter.inference.certified import Certifier, LikelihoodRatio
from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.magnification import magnification
from broker_filter.inference.posterior import build_estimator
from broker_filter.inference.prior import BoxPrior

PRIOR = BoxPrior("test", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))
DAYS, POINTS = 20.0, 60


def make_window(theta: list[float] | None, sigma: float, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, DAYS, POINTS, dtype=torch.float64)
    flux = torch.ones(POINTS, dtype=torch.float64)
    if theta is not None:
        flux += torch.from_numpy(signal(theta, t.numpy()))
    flux = scale * flux + sigma * torch.randn(POINTS, generator=generator, dtype=torch.float64)
    x = torch.full((128, 3), -2.0)
    x[:POINTS] = torch.stack([2 * t / DAYS - 1, flux, torch.full_like(t, sigma)], 1).float()
    return x


def signal(theta: list[float], t: np.ndarray) -> np.ndarray:
    t0, u0, log10_tE, log10_rho, f_s = theta
    u = np.hypot(u0, (t - t0) / 10**log10_tE)
    return f_s * (magnification(u, 10**log10_rho) - 1)


@pytest.fixture(scope="module")
def sampler() -> FlowSampler:
    """Of an untrained flow: a poor proposal, and no less right for that."""
    torch.manual_seed(1)
    encoder = build_encoder("compact", width=16, layers=1, heads=2, feed_forward=16)
    estimator = build_estimator(encoder, PRIOR, transforms=2, hidden=(16,), passes=2)
    return FlowSampler(estimator)


def test_an_event_long_past_says_nothing_however_far_the_flux_is_from_the_baseline() -> None:
    x = make_window(None, 1e-4, seed=5, scale=1.03)
    past = torch.tensor([[-1e6, 1.0, -1.0, -1.0, 0.5]])
    assert float(LikelihoodRatio(x, 0.02, DAYS)(past)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("baseline_error", [0.0, 0.002, 0.01])
def test_the_likelihood_ratio_is_that_of_the_full_covariance(baseline_error: float) -> None:
    theta = [9.0, 0.4, 0.3, -0.5, 0.6]
    x = make_window(theta, 0.01, seed=3, scale=1.004)
    t, flux = (x[:POINTS, 0].double().numpy() + 1) / 2 * DAYS, x[:POINTS, 1].double().numpy()

    def ln_likelihood(model: np.ndarray) -> float:
        covariance = 1e-4 * np.eye(POINTS) + baseline_error**2 * np.outer(model, model)
        off = flux - model
        return float(
            -0.5 * off @ np.linalg.solve(covariance, off) - 0.5 * np.linalg.slogdet(covariance)[1]
        )

    expected = ln_likelihood(1 + signal(theta, t)) - ln_likelihood(np.ones(POINTS))
    found = LikelihoodRatio(x, baseline_error, DAYS)(torch.tensor([theta]))
    assert float(found[0]) == pytest.approx(expected, rel=2e-3, abs=0.02)


@pytest.mark.parametrize(("theta", "sigma"), [(None, 0.05), ([8.0, 0.3, 0.2, -1.0, 0.7], 0.8)])
def test_the_estimate_is_the_mean_over_the_prior(
    sampler: FlowSampler, theta: list[float] | None, sigma: float
) -> None:
    x = make_window(theta, sigma, seed=5)
    draws = PRIOR.sample(200_000, torch.Generator().manual_seed(1))
    ratio = LikelihoodRatio(x, 0.01, DAYS)
    ln_k = torch.cat([ratio(part) for part in draws.split(20_000)])
    expected = (float(ln_k.logsumexp(0)) - math.log(len(ln_k))) / math.log(10)
    found = Certifier(sampler, PRIOR, DAYS, samples=4000)(x, 0.01, torch.zeros(1, 16), seed=2)
    assert found.log10_k == pytest.approx(expected, abs=4 * found.log10_k_error + 0.02)
    assert found.effective_sample_size > 20
    assert float(found.weight.sum()) == pytest.approx(1)


def test_noise_does_not_certify_whatever_the_network_proposes(sampler: FlowSampler) -> None:
    certifier = Certifier(sampler, PRIOR, DAYS, samples=300)
    log10_k = [
        certifier(make_window(None, 0.02, seed), 0.0, 5 * torch.ones(1, 16), seed).log10_k
        for seed in range(30)
    ]
    assert np.mean(10.0 ** np.array(log10_k)) < 1.0 + 3 / math.sqrt(30)
    assert max(log10_k) < math.log10(30 * 30)


def test_a_seed_gives_the_same_certificate_again(sampler: FlowSampler) -> None:
    certifier, x = Certifier(sampler, PRIOR, DAYS, samples=200), make_window(None, 0.02, 1)
    first, again, other = (certifier(x, 0.001, torch.zeros(1, 16), seed) for seed in (7, 7, 8))
    assert first.log10_k == again.log10_k
    assert first.log10_k != other.log10_k


def test_padding_changes_nothing(sampler: FlowSampler) -> None:
    certifier, x = Certifier(sampler, PRIOR, DAYS, samples=200), make_window(None, 0.02, 1)
    longer = torch.nn.functional.pad(x, (0, 0, 0, 100), value=-2.0)
    s = torch.zeros(1, 16)
    assert certifier(x, 0.0, s, 1).log10_k == certifier(longer, 0.0, s, 1).log10_k
