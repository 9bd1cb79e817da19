"""Climbs: the maximum that a least-squares fit of all parameters finds, from a start aside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from broker_filter.inference.ascent import climb
from broker_filter.inference.lens_coordinates import LensBox
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import StarEpochs

PRIOR = BoxPrior("test", (-2.0, 0.0, -1.3, -3.0, 0.005), (25.0, 1.5, 1.78, 1.0, 1.0), True)
LENS, F_S, SIGMA, ERROR = np.array([8.0, 0.3, 0.3, -0.4]), 0.4, 0.004, 0.01

Floats = NDArray[np.float64]


def model(x: Floats, t: Floats) -> Floats:
    t0, u0, log10_tE, log10_rho, f_s, g = x
    e = excess(np.hypot(u0, (t - t0) / 10**log10_tE), 10**log10_rho)
    return np.asarray(g * (1 + f_s * e))


@pytest.fixture(scope="module")
def epochs() -> StarEpochs:
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 20, 300))
    flux = model(np.append(LENS, (F_S, 1.006)), t) + SIGMA * rng.normal(size=300)
    return StarEpochs(
        (("F146", "roman"),),
        np.ones(1),
        np.array([ERROR]),
        t,
        flux.astype(np.float32),
        np.full(300, SIGMA, np.float32),
        np.zeros(300, np.int16),
    )


def test_finds_the_fit_of_all_parameters(epochs: StarEpochs) -> None:
    def residuals(x: Floats) -> Floats:
        off = (epochs.flux - model(x, epochs.mjd_tai)) / SIGMA
        return np.append(off, (x[-1] - 1) / ERROR)

    expected = least_squares(residuals, np.append(LENS, (F_S, 1.0)), x_scale=0.1)
    likelihood, box = Likelihood(epochs, 0.0, PRIOR), LensBox(PRIOR)
    starts = torch.from_numpy(LENS + np.array([[0.2, -0.1, 0.2, 0.1], [-0.3, 0.2, -0.1, -0.2]]))
    found = climb(likelihood, box, box.z(starts), prior=1e-6, steps=30)
    gained = likelihood.profile(likelihood.sums(box.theta(found.z)))
    # Against a constant star whose baseline is free too.
    flat = least_squares(lambda g: residuals(np.append(LENS, (0.0, g[0]))), [1.0])
    assert float(gained.max()) == pytest.approx(flat.cost - expected.cost, abs=0.1)
    best = box.theta(found.z[found.height.argmax()]).numpy()
    np.testing.assert_allclose(best, expected.x[:4], atol=0.02)


def test_the_curvature_gives_the_scatter(epochs: StarEpochs) -> None:
    """The covariance against that of the linearised problem with f_s and g marginalised."""
    likelihood, box = Likelihood(epochs, 0.0, PRIOR), LensBox(PRIOR)
    found = climb(likelihood, box, box.z(torch.from_numpy(LENS[None])), steps=30)
    x = np.append(box.theta(found.z[0]).numpy(), (float(F_S), 1.0))
    curve = likelihood.best_curve(torch.from_numpy(x[:4]))
    x[4:] = float(curve.f_s), float(curve.baseline)
    slope = np.empty((300, 6))
    for i, step in enumerate(1e-4 * np.abs(np.append(LENS, (F_S, 1.0)))):
        aside = np.eye(6)[i] * step
        rise = model(x + aside, epochs.mjd_tai) - model(x - aside, epochs.mjd_tai)
        slope[:, i] = rise / (2 * step * SIGMA)
    to_z = np.append(box.slope(found.z[0]).numpy(), (1.0, 1.0))
    slope *= to_z
    normal = slope.T @ slope + np.diag([1, 1, 1, 1, 0, ERROR**-2])
    expected = np.linalg.inv(normal)[:4, :4]
    scatter = found.covariance[0].numpy()
    np.testing.assert_allclose(np.diag(scatter), np.diag(expected), rtol=0.1)


def test_starts_on_the_edge_and_stars_without_a_signal_stay_finite(epochs: StarEpochs) -> None:
    constant = StarEpochs(
        *(epochs.sources, epochs.level, epochs.error, epochs.mjd_tai),
        np.ones(300, np.float32),
        *(epochs.sigma, epochs.source),
    )
    starts = torch.tensor([[9.0, -9, 9, -9], [0, 0, 0, 0], [-9, 9, -9, 9]], dtype=torch.float64)
    for star in (epochs, constant):
        found = climb(Likelihood(star, 0.0, PRIOR), LensBox(PRIOR), starts)
        assert bool(torch.isfinite(found.z).all() & torch.isfinite(found.height).all())
        assert bool((torch.linalg.eigvalsh(found.covariance) > 0).all())
