"""Likelihood by source: integrals over f_s and baselines against brute force."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate
from scipy.optimize import least_squares

from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import StarEpochs

LOG_PRIOR = BoxPrior("log", (-2.0, 0.0, -1.3, -3.0, 0.005), (25.0, 1.5, 1.78, 1.0, 1.0), True)
FLAT_PRIOR = BoxPrior("flat", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))
LENS = (8.0, 0.3, 0.5, -1.5)

Floats = NDArray[np.float64]


def make_epochs(
    f_s: Sequence[float],
    error: Sequence[float],
    sigma: float,
    *,
    n: int = 120,
    seed: int = 1,
    lens: Sequence[float] | None = LENS,
) -> StarEpochs:
    """Epochs of sites that take turns, each off its baseline by its own error."""
    rng = np.random.default_rng(seed)
    t, source = np.sort(rng.uniform(0, 20, n)), rng.integers(0, len(f_s), n)
    e = np.zeros(n) if lens is None else excess_of(lens, t)
    g = 1 + np.array(error) * rng.normal(size=len(f_s))
    flux = g[source] * (1 + np.array(f_s)[source] * e) + sigma * rng.normal(size=n)
    return StarEpochs(
        tuple(("F146", f"site {i}") for i in range(len(f_s))),
        np.ones(len(f_s)),
        np.array(error, np.float64),
        60_000 + t,
        flux.astype(np.float32),
        np.full(n, sigma, np.float32),
        source.astype(np.int16),
    )


def excess_of(lens: Sequence[float], t: Floats) -> Floats:
    t0, u0, log10_tE, log10_rho = lens
    return excess(np.hypot(u0, (t - t0) / 10**log10_tE), 10**log10_rho)


def ln_normal(off: Floats, sigma: Floats, error: float, shape: Floats) -> float:
    """ln of the density of residuals with the covariance of epochs and of one common factor."""
    covariance = np.diag(sigma**2) + error**2 * np.outer(shape, shape)
    return -0.5 * float(off @ np.linalg.solve(covariance, off) + np.linalg.slogdet(covariance)[1])


def brute_force(epochs: StarEpochs, lens: Sequence[float], prior: BoxPrior) -> float:
    """ln of the ratio, by full covariances and a grid in f_s."""
    total = 0.0
    for k, error in enumerate(epochs.error.tolist()):
        mine = epochs.source == k
        e = excess_of(lens, epochs.mjd_tai[mine] - 60_000)
        flux, sigma = (c[mine].astype(np.float64) for c in (epochs.flux, epochs.sigma))
        nothing = ln_normal(flux - 1, sigma, error, np.ones(len(e)))

        def ln_ratio(
            x: float,
            flux: Floats = flux,
            sigma: Floats = sigma,
            error: float = error,
            e: Floats = e,
            nothing: float = nothing,
        ) -> float:
            shape = 1 + (math.exp(x) if prior.log_f_s else x) * e
            return ln_normal(flux - shape, sigma, error, shape) - nothing

        ends = [math.log(f) if prior.log_f_s else f for f in (prior.low[4], prior.high[4])]
        grid = np.linspace(*ends, 200)
        for _ in range(3):  # closer and closer to the maximum
            values = np.array([ln_ratio(x) for x in grid])
            near = np.flatnonzero(values > values.max() - 30)
            grid = np.linspace(
                grid[max(near[0] - 1, 0)], grid[min(near[-1] + 1, len(grid) - 1)], 200
            )
        values = np.array([ln_ratio(x) for x in grid])
        area = integrate.simpson(np.exp(values - values.max()), x=grid)
        total += values.max() + math.log(area / (ends[1] - ends[0]))
    return total


@pytest.mark.parametrize("prior", [LOG_PRIOR, FLAT_PRIOR], ids=["log-uniform", "uniform"])
@pytest.mark.parametrize(
    ("f_s", "error", "sigma"),
    [
        ([0.3], [0.01], 0.02),
        ([0.3], [0.0], 0.5),
        ([0.9, 0.02], [1e-4, 0.05], 0.01),
        ([0.7], [0.002], 0.001),
    ],
)
def test_shares_and_baselines_are_integrated_out(
    prior: BoxPrior, f_s: list[float], error: list[float], sigma: float
) -> None:
    epochs = make_epochs(f_s, error, sigma, n=60)
    likelihood = Likelihood(epochs, 60_000.0, prior)
    for shift in ((0.0, 0.0, 0.0, 0.0), (0.05, 0.02, -0.03, 0.2), (11.0, 0.5, -1.2, 0.0)):
        lens = [a + b for a, b in zip(LENS, shift, strict=True)]
        expected = brute_force(epochs, lens, prior)
        found = float(likelihood(torch.tensor([lens], dtype=torch.float64))[0])
        assert found == pytest.approx(expected, rel=1e-4, abs=0.01)


def test_sources_are_independent() -> None:
    """Two sites together are the product of each alone, whatever the order of their epochs."""
    epochs = make_epochs([0.3, 0.8], [1e-4, 0.01], 0.02)
    theta = torch.tensor([LENS], dtype=torch.float64)
    alone = 0.0
    for k in (0, 1):
        mine = epochs.source == k
        part = StarEpochs(
            epochs.sources[k : k + 1],
            epochs.level[k : k + 1],
            epochs.error[k : k + 1],
            *(c[mine] for c in (epochs.mjd_tai, epochs.flux, epochs.sigma)),
            np.zeros(mine.sum(), np.int16),
        )
        alone += float(Likelihood(part, 60_000.0, LOG_PRIOR)(theta)[0])
    together = Likelihood(epochs, 60_000.0, LOG_PRIOR)(theta)
    assert float(together[0]) == pytest.approx(alone, abs=1e-8)


def test_the_share_is_drawn_from_its_conditional() -> None:
    epochs = make_epochs([0.3], [0.01], 0.2)
    likelihood = Likelihood(epochs, 60_000.0, LOG_PRIOR)
    theta = torch.tensor([LENS], dtype=torch.float64)
    draws = likelihood.draw_f_s(theta.expand(20_000, 4), torch.Generator().manual_seed(1))
    grid = np.exp(np.linspace(math.log(0.005), 0, 2001))
    e = excess_of(LENS, epochs.mjd_tai - 60_000)
    flux, sigma = (c.astype(np.float64) for c in (epochs.flux, epochs.sigma))
    shapes = 1 + grid[:, None] * e
    log = np.array([ln_normal(flux - shape, sigma, 0.01, shape) for shape in shapes])
    cumulated = np.cumsum(np.exp(log - log.max()))
    for quantile in (0.1, 0.5, 0.9):
        expected = grid[np.searchsorted(cumulated, quantile * cumulated[-1])]
        assert float(draws.quantile(quantile)) == pytest.approx(expected, rel=0.04)


def test_the_best_curve_is_that_of_least_squares() -> None:
    """f_s and baseline against a fit by scipy; the baseline's error counts as a measurement."""
    epochs = make_epochs([0.4], [0.02], 0.01)
    likelihood = Likelihood(epochs, 60_000.0, FLAT_PRIOR)
    e = excess_of(LENS, epochs.mjd_tai - 60_000)

    def residuals(x: Floats) -> Floats:
        f, g = x
        return np.append((epochs.flux - g * (1 + f * e)) / 0.01, (g - 1) / 0.02)

    expected = least_squares(residuals, [0.5, 1.0], xtol=1e-12)
    curve = likelihood.best_curve(torch.tensor(LENS, dtype=torch.float64))
    assert [float(curve.f_s), float(curve.baseline)] == pytest.approx(expected.x, abs=2e-4)
    assert float(curve.residual.square().sum()) == pytest.approx(
        np.square(residuals(expected.x)[:-1]).sum(), rel=1e-3
    )


def test_a_large_offset_keeps_its_digits() -> None:
    """An event long past says nothing, however far the flux is from the baseline."""
    epochs = make_epochs([0.3], [0.02], 1e-4, lens=None)
    shifted = StarEpochs(
        *(epochs.sources, epochs.level, epochs.error, epochs.mjd_tai),
        (1.03 * epochs.flux).astype(np.float32),
        *(epochs.sigma, epochs.source),
    )
    past = torch.tensor([[-1e6, 1.0, -1.0, -1.0]], dtype=torch.float64)
    assert float(Likelihood(shifted, 60_000.0, LOG_PRIOR)(past)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("error", [[0.1], [0.003, 0.3], [0.1, 0.1]])
def test_the_mean_ratio_over_constant_stars_is_one(error: list[float]) -> None:
    """The law behind certified K, for sites whose baselines are off independently."""
    n, prior = 600, LOG_PRIOR
    theta = prior.sample(n, torch.Generator().manual_seed(1))[:, :4].double()
    none = [0.0] * len(error)
    ratio = [
        float(Likelihood(epochs, 60_000.0, prior)(theta[seed : seed + 1])[0])
        for seed in range(n)
        for epochs in [make_epochs(none, error, 3.0, n=40, seed=seed, lens=None)]
    ]
    k = np.exp(ratio)
    assert k.mean() == pytest.approx(1.0, abs=4 * k.std() / math.sqrt(n))
    assert k.std() / math.sqrt(n) < 0.1
