"""The flow and its samples."""

from __future__ import annotations

import torch

from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.posterior import build_estimator, flow_loss
from broker_filter.inference.prior import BoxPrior

PRIOR = BoxPrior("box-1", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))


def make_estimator() -> torch.nn.Module:
    torch.manual_seed(1)
    encoder = build_encoder("compact", width=16, layers=1, heads=2, feed_forward=16)
    return build_estimator(encoder, PRIOR, transforms=2, hidden=(16,))


def sample(estimator: torch.nn.Module, s: torch.Tensor, n: int, seeds: list[int]) -> torch.Tensor:
    return FlowSampler(estimator)(s, n, seeds)[0]


def test_no_sample_leaves_the_prior_however_odd_the_summary() -> None:
    theta = sample(make_estimator(), 100 * torch.randn(3, 16), 2000, [1, 2, 3])
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


def test_samples_follow_the_density() -> None:
    """Draws of the prior, weighted by the density, have the mean that the samples have."""
    estimator, s = make_estimator(), torch.zeros(1, 16)
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
