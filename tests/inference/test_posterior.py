"""The flow and its samples."""

from __future__ import annotations

import pytest
import torch

from broker_filter.inference.coordinates import COORDINATES
from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.posterior import build_estimator, coordinates_of, flow_loss
from broker_filter.inference.prior import BoxPrior

PRIOR = BoxPrior("box-1", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))


BOTH = pytest.mark.parametrize("coordinates", COORDINATES)


def make_estimator(coordinates: str = "logit") -> torch.nn.Module:
    torch.manual_seed(1)
    encoder = build_encoder("compact", width=16, layers=1, heads=2, feed_forward=16)
    return build_estimator(encoder, PRIOR, transforms=2, hidden=(16,), coordinates=coordinates)


def sample(estimator: torch.nn.Module, s: torch.Tensor, n: int, seeds: list[int]) -> torch.Tensor:
    return FlowSampler(estimator)(s, n, seeds)[0]


@BOTH
def test_no_sample_leaves_the_prior_however_odd_the_summary(coordinates: str) -> None:
    theta = sample(make_estimator(coordinates), 100 * torch.randn(3, 16), 2000, [1, 2, 3])
    assert theta.shape == (3, 2000, 5)
    assert (theta >= torch.tensor(PRIOR.low)).all()
    assert (theta <= torch.tensor(PRIOR.high)).all()


def test_samples_of_a_window_do_not_depend_on_its_batch_mates() -> None:
    estimator, s = make_estimator(), torch.randn(3, 16)
    together = sample(estimator, s, 100, [1, 2, 3])
    alone = sample(estimator, s[1:2], 100, [2])
    torch.testing.assert_close(together[1], alone[0])


def test_a_seed_gives_the_same_samples_again() -> None:
    estimator, s = make_estimator(), torch.randn(1, 16)
    assert torch.equal(sample(estimator, s, 50, [7]), sample(estimator, s, 50, [7]))
    assert not torch.equal(sample(estimator, s, 50, [7]), sample(estimator, s, 50, [8]))


@BOTH
def test_samples_follow_the_density(coordinates: str) -> None:
    """Draws of the prior, weighted by the density, have the mean that the samples have."""
    estimator, s = make_estimator(coordinates), torch.zeros(1, 16)
    low, high = torch.tensor(PRIOR.low), torch.tensor(PRIOR.high)
    draws = low + (high - low) * torch.rand(50_000, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        weight = (-flow_loss(estimator, draws, s.expand(len(draws), -1))).exp()
        weight *= (high - low).prod()
        theta = sample(estimator, s, 20_000, [3])[0]
    assert torch.isclose(weight.mean(), torch.tensor(1.0), atol=0.03)
    expected = (weight[:, None] * draws).mean(0)
    assert ((theta.mean(0) - expected).abs() < 0.03 * (high - low)).all()


def test_loss_through_sbi_is_the_loss_from_the_summary() -> None:
    estimator = make_estimator()
    x = torch.full((4, 64, 3), -2.0)
    x[:, :50, 0], x[:, :50, 1], x[:, :50, 2] = torch.linspace(-1, 1, 50), 1.0, 0.01
    theta = torch.tensor([[10.0, 0.5, 0.0, 0.0, 0.5]]).expand(4, -1)
    expected = estimator.loss(theta, x)
    torch.testing.assert_close(flow_loss(estimator, theta, estimator.embedding_net(x)), expected)


def test_an_estimator_works_in_logit_coordinates_unless_it_is_asked_for_others() -> None:
    encoder = build_encoder("compact", width=16, layers=1, heads=2, feed_forward=16)
    assert coordinates_of(build_estimator(encoder, PRIOR, transforms=1, hidden=(8,))) == "logit"


def test_other_coordinates_are_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'polar' are not among \('logit', 'probit'\)"):
        make_estimator("polar")
