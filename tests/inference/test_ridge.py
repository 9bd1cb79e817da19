"""Ridges of the likelihood: they reach where a climb from the truth ends, and weigh all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from broker_filter.inference.ascent import Modes, climb
from broker_filter.inference.lens_coordinates import LensBox
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.ridge import ridges
from broker_filter.types import StarEpochs

PRIOR = BoxPrior("paper", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))
BOX = LensBox(PRIOR)


def likelihood_of(lens: Sequence[float], f_s: float, sigma: float) -> Likelihood:
    rng = np.random.default_rng(5)
    t = np.sort(rng.uniform(0, 20, 300))
    signal = f_s * excess(np.hypot(lens[1], (t - lens[0]) / 10 ** lens[2]), 10 ** lens[3])
    epochs = StarEpochs(
        (("F146", "roman"),),
        np.ones(1),
        np.zeros(1),
        t,
        (1 + signal + sigma * rng.normal(size=300)).astype(np.float32),
        np.full(300, sigma, np.float32),
        np.zeros(300, np.int16),
    )
    return Likelihood(epochs, 0.0, PRIOR)


def modes_of(likelihood: Likelihood, lens: Sequence[float]) -> Modes:
    return climb(likelihood, BOX, BOX.z(torch.tensor([lens], dtype=torch.float64)), steps=40)


def test_a_source_smaller_than_u0_has_any_size() -> None:
    """The likelihood is flat below rho = u0 / 2 or so; the ridge goes down to the prior's edge."""
    lens = (8.0, 0.5, 0.4, -1.0)
    likelihood = likelihood_of(lens, 0.6, 0.003)
    along, mass = ridges(likelihood, BOX, modes_of(likelihood, lens))
    log_rho = BOX.theta(along.z[mass > mass.max() - 5])[:, 3]
    assert float(log_rho.min()) < -1.9
    assert float(log_rho.max()) < 0
    assert bool((torch.linalg.eigvalsh(along.covariance) > 0).all())


@pytest.mark.parametrize("sigma", [0.02, 0.0005])
def test_a_blended_source_may_come_closer(sigma: float) -> None:
    """Several places, each about as likely as a long climb of the others can make its u0."""
    lens = (11.0, 0.12, 1.2, -0.28)
    likelihood = likelihood_of(lens, 0.67, sigma)
    along, mass = ridges(likelihood, BOX, modes_of(likelihood, lens))
    kept = mass > mass.max() - 3
    held = torch.ones(int(kept.sum()), dtype=torch.int64)
    ends = climb(likelihood, BOX, along.z[kept], steps=60, held=held)
    assert len(held) >= 6
    assert float((ends.height - along.height[kept]).max()) < 2.0


def test_the_mass_of_the_ridge_is_that_of_the_posterior() -> None:
    """Against the mean of the likelihood over draws of the prior, per ridge."""
    lens = (8.0, 0.5, 0.4, -1.0)
    likelihood = likelihood_of(lens, 0.6, 0.3)
    draws = PRIOR.sample(60_000, torch.Generator().manual_seed(1))[:, :4].double()
    sums = likelihood.sums(draws)
    profile = likelihood.profile(sums)
    expected = float(profile.logsumexp(0)) - np.log(len(draws))
    _, mass = ridges(likelihood, BOX, modes_of(likelihood, lens))
    # ln of the normal constants of three Gaussians, less those of the prior in four.
    found = float(mass.logsumexp(0)) - np.log(2) - 0.5 * np.log(2 * np.pi)
    assert found == pytest.approx(expected, abs=1.0)


def test_a_coordinate_that_is_held_stays() -> None:
    lens = (8.0, 0.5, 0.4, -1.0)
    likelihood = likelihood_of(lens, 0.6, 0.01)
    start = BOX.z(torch.tensor([[8.1, 0.7, 0.3, -0.5], [8.1, 0.7, 0.3, -0.5]]))
    found = climb(likelihood, BOX, start, held=torch.tensor([1, 3]))
    assert float(found.z[0, 1]) == float(start[0, 1])
    assert float(found.z[1, 3]) == float(start[1, 3])
    assert bool((found.z[:, 0] != start[:, 0]).all())
    assert found.covariance[0, 1].tolist() == [0.0, 1.0, 0.0, 0.0]
