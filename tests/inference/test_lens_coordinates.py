"""Coordinates in which the prior is normal, and events that last as long lie straight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from broker_filter.inference.lens_coordinates import Bend, LensBox, log10_length
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import StarEpochs

PRIOR = BoxPrior("test", (-2.0, 0.0, -1.3, -3.0, 0.005), (25.0, 1.5, 1.78, 1.0, 1.0), True)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_prior_is_normal_in_z() -> None:
    z = LensBox(PRIOR).z(PRIOR.sample(4000, generator())[:, :4])
    for column in z.numpy().T:
        assert stats.kstest(column, "norm").pvalue > 1e-3


def test_z_is_the_inverse_and_ends_inside_the_box() -> None:
    box, theta = LensBox(PRIOR), PRIOR.sample(100, generator())[:, :4].double()
    torch.testing.assert_close(box.theta(box.z(theta)), theta)
    far = box.z(torch.tensor([[-9.0, 0.0, 99.0, 1.0]]))
    assert bool(torch.isfinite(far).all())
    z = torch.tensor([[0.3, -1.0, 2.0, 0.0]], dtype=torch.float64)
    step = (box.theta(z + 1e-6) - box.theta(z - 1e-6)) / 2e-6
    torch.testing.assert_close(box.slope(z), step, rtol=1e-6, atol=1e-9)


def test_bending_is_undone_and_turns_covariances() -> None:
    bend = Bend(LensBox(PRIOR), 0.8)
    z = 0.3 * torch.randn(20, 4, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(bend.bent(bend.straight(z)), z)
    small = 1e-3 * torch.randn(50_000, 4, generator=generator(), dtype=torch.float64)
    turned = bend.straight_covariance(z[:1], 1e-6 * torch.eye(4, dtype=z.dtype)[None])[0]
    drawn = torch.cov(bend.straight(z[0] + small).T)
    torch.testing.assert_close(turned, drawn, rtol=0.05, atol=3e-8)


@pytest.mark.parametrize("places", [(0.0, 1.0, 0.7, -0.3), (0.0, -1.0, 0.2, 0.6)])
def test_bending_turns_covariances_beside_the_disc_and_on_it(places: tuple[float, ...]) -> None:
    bend, z = Bend(LensBox(PRIOR), 0.8), torch.tensor([places], dtype=torch.float64)
    one = torch.eye(4, dtype=z.dtype)
    by_each = (bend.straight(z + 1e-6 * one) - bend.straight(z - 1e-6 * one)) / 2e-6
    turned = bend.straight_covariance(z, one[None])[0]
    torch.testing.assert_close(turned, by_each.T @ by_each, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("u0", "log10_rho", "others"),
    [
        (0.4, -2.0, [(0.4, -0.8), (0.4, -0.6), (0.4, -0.5)]),
        (0.9, -2.0, [(0.9, -0.6), (0.9, -0.3), (0.9, -0.15)]),
        (0.5, 0.0, [(0.01, 0.0), (0.3, 0.0), (0.7, 0.0)]),
    ],
)
def test_lenses_that_fit_an_event_as_well_as_they_can_last_as_long(
    u0: float, log10_rho: float, others: list[tuple[float, float]]
) -> None:
    """Where u0 and rho are held the best tE is the same in straight coordinates, within 0.006."""
    t, tE = np.linspace(0, 20, 400), 10**0.6
    flux = 1 + 0.5 * excess(np.hypot(u0, (t - 10) / tE), 10**log10_rho)
    epochs = StarEpochs(
        (("F146", "a"),),
        np.ones(1),
        np.full(1, 1e-4),
        t,
        flux.astype(np.float32),
        np.full(len(t), 0.002, np.float32),
        np.zeros(len(t), np.int16),
    )
    likelihood, log10_tE = Likelihood(epochs, 0.0, PRIOR), torch.linspace(0.4, 0.8, 801).double()
    lengths = []
    for one, log10_size in [(u0, log10_rho), *others]:
        held = torch.tensor([10.0, one, 0.0, log10_size]).double().repeat(len(log10_tE), 1)
        held[:, 2] = log10_tE
        best = log10_tE[likelihood.profile(likelihood.sums(held)).argmax()]
        lengths.append(float(best + log10_length(held[0, 1], 10 ** held[0, 3])))
    assert lengths == pytest.approx([lengths[0]] * len(lengths), abs=0.006)
