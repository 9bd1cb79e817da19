"""Proposals: coordinates in which the prior is normal, densities that belong to the samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from broker_filter.inference.lens_coordinates import (
    Bend,
    LensBox,
    log10_length,
    prior_log_density,
)
from broker_filter.inference.population import Mixture, effective, tempered
from broker_filter.inference.prior import BoxPrior

PRIOR = BoxPrior("test", (-2.0, 0.0, -1.3, -3.0, 0.005), (25.0, 1.5, 1.78, 1.0, 1.0), True)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_peaks() -> Mixture:
    centre = torch.tensor([[0.0, 0.0, 0.5, -0.5], [2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    root = torch.diag_embed(torch.tensor([[0.5, 0.2, 0.3, 0.6], [0.1, 0.4, 0.3, 0.2]]).double())
    root[0, 1, 0], root[1, 3, 2] = 0.3, -0.2
    share = torch.tensor([0.7, 0.3], dtype=torch.float64)
    return Mixture(share, centre, root, Bend(LensBox(PRIOR), 0.8))


def test_the_density_is_that_of_scipy() -> None:
    mixture, n = two_peaks(), 1000
    z = torch.randn(50, 4, generator=generator(), dtype=torch.float64)
    u0, rho = LensBox(PRIOR).theta(z)[:, 1], 10 ** LensBox(PRIOR).theta(z)[:, 3]
    w = z.numpy() + 0.8 * log10_length(u0, rho).numpy()[:, None] * np.array([0, 0, 1, 0])
    expected = 0.1 * np.exp(prior_log_density(z).numpy())
    for share, centre, root in zip(mixture.share, mixture.centre, mixture.cholesky, strict=True):
        covariance = (root @ root.T).numpy()
        for part, spread in ((1 - Mixture.WIDE_SHARE, 1.0), (Mixture.WIDE_SHARE, Mixture.WIDE)):
            normal = stats.multivariate_normal(centre.numpy(), spread**2 * covariance)
            expected = expected + 0.9 * float(share) * part * normal.pdf(w)
    np.testing.assert_allclose(mixture.log_density(z, n).exp().numpy(), expected, rtol=1e-9)


def test_weights_against_the_prior_have_mean_one() -> None:
    """The law behind certified K, for a proposal that has nothing to do with the data."""
    mixture, n = two_peaks(), 50_000
    z = mixture.sample(n, generator())
    weight = (prior_log_density(z) - mixture.log_density(z, n)).exp()
    assert float(weight.mean()) == pytest.approx(1.0, abs=4 * float(weight.std()) / math.sqrt(n))
    assert float(weight.max()) <= 10 + 1e-9  # bounded by the prior's share


def test_a_fit_finds_both_peaks() -> None:
    true, n = two_peaks(), 4000
    z = true.sample(n, generator())[400:]
    equal = torch.full((len(z),), 1 / len(z), dtype=torch.float64)
    found = Mixture.fit(z, equal, true.bend, generator(2))
    weight = (true.log_density(z, n) - found.log_density(z, n)).exp()
    assert float((weight - 1).abs().median()) < 0.4


def test_samples_move_a_mixture_towards_what_they_are_of() -> None:
    true, n = two_peaks(), 4000
    z = true.sample(n, generator())[400:]
    equal = torch.full((len(z),), 1 / len(z), dtype=torch.float64)
    start = Mixture(true.share, true.centre + 0.8, 1.5 * true.cholesky, true.bend)
    found = start.improved(true.bend.straight(z), equal)
    best, before, after = (float(m.log_density(z, n).mean()) for m in (true, start, found))
    assert best - after < 0.5 * (best - before)


def test_a_single_sample_moves_a_mixture_little_and_leaves_no_hole() -> None:
    start = two_peaks()
    z = start.sample(1000, generator())
    weight = torch.zeros(1000, dtype=torch.float64)
    weight[500] = 1.0
    found = start.improved(start.bend.straight(z), weight)
    ratio = start.log_density(z, 1000) - found.log_density(z, 1000)
    assert float(ratio.max()) < 3.0


def test_two_mixtures_are_joined_by_share() -> None:
    mixture = two_peaks()
    both = mixture.joined(
        Mixture(mixture.share, mixture.centre + 9, mixture.cholesky, mixture.bend), 0.25
    )
    assert float(both.share.sum()) == pytest.approx(1)
    assert float((both.sample(4000, generator())[400:, 0] > 5).double().mean()) == pytest.approx(
        0.25, abs=0.03
    )


def test_tempering_leaves_enough_samples_and_changes_no_more_than_it_must() -> None:
    log_weight = 30 * torch.randn(500, generator=generator(), dtype=torch.float64)
    assert effective(log_weight.softmax(0)) < 5
    assert effective(tempered(log_weight, 100.0)) == pytest.approx(100, rel=0.05)
    flat = 0.1 * log_weight / 30
    torch.testing.assert_close(tempered(flat, 100.0), flat.softmax(0))
