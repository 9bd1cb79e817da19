"""The likelihood of five parameters against that of the full covariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from broker_filter.inference.five_parameters import LikelihoodRatio
from broker_filter.inference.magnification import magnification

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
