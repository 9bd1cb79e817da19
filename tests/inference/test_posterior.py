"""The flow and its samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from sbi.neural_nets import posterior_nn
from sbi.utils import BoxUniform

from broker_filter.inference.coordinates import COORDINATES
from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.posterior import Estimator, build_estimator, flow_loss
from broker_filter.inference.prior import BoxPrior

PRIOR = BoxPrior("box-1", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))


BOTH = pytest.mark.parametrize("coordinates", COORDINATES)


def make_estimator(coordinates: str = "logit", passes: int = 5) -> Estimator:
    torch.manual_seed(1)
    encoder = build_encoder("compact", width=16, layers=1, heads=2, feed_forward=16)
    return build_estimator(
        encoder, PRIOR, transforms=2, hidden=(16,), passes=passes, coordinates=coordinates
    )


def sample(estimator: Estimator, s: torch.Tensor, n: int, seeds: list[int]) -> torch.Tensor:
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


@pytest.mark.parametrize("passes", [2, 5])
@BOTH
def test_the_flow_is_that_of_sbi(coordinates: str, passes: int) -> None:
    """Same names and shapes of weights; with the same weights the same density and samples."""
    ours = make_estimator(coordinates, passes)
    theirs: Any = sbis(ours, passes)
    theirs.load_state_dict(ours.state_dict())
    x = torch.full((4, 64, 3), -2.0)
    x[:, :50, 0], x[:, :50, 1], x[:, :50, 2] = torch.linspace(-1, 1, 50), 1.0, 0.01
    s = ours.embedding_net(x)
    torch.manual_seed(2)
    samples = theirs.sample(torch.Size([5]), x)[:, 0]
    torch.manual_seed(2)
    assert torch.equal(ours.net(s).sample((5,))[:, 0], samples)
    inside = torch.tensor([[10.0, 0.5, 0.0, 0.0, 0.5]]).expand(4, -1)
    assert torch.equal(-ours.net(s).log_prob(inside), theirs.loss(inside, x))


def sbis(ours: Estimator, passes: int) -> Any:
    """The estimator that sbi builds of the same shape."""
    box = BoxUniform(torch.tensor(ours.prior.low), torch.tensor(ours.prior.high))
    z_score = "transform_to_unconstrained" if ours.coordinates == "logit" else "none"
    build = partial(
        posterior_nn,
        model="zuko_nsf",
        embedding_net=ours.embedding_net,
        z_score_x="none",
        z_score_theta=z_score,
        x_dist=box,
        hidden_features=[16],
        num_transforms=2,
        num_bins=8,
    )
    with pytest.warns(UserWarning, match="Unknown kwargs"):  # it hands `passes` on
        builder = build(passes=passes)
    return builder(box.sample(torch.Size([16])), torch.full((16, 64, 3), -2.0))


def test_loss_has_the_jacobian_of_the_prior() -> None:
    estimator = make_estimator()
    theta, s = torch.tensor([[10.0, 0.5, 0.0, 0.0, 0.5]]).expand(4, -1), torch.randn(4, 16)
    torch.testing.assert_close(flow_loss(estimator, theta, s), -estimator.net(s).log_prob(theta))


def test_an_estimator_works_in_logit_coordinates_unless_it_is_asked_for_others() -> None:
    encoder = build_encoder("compact", width=16, layers=1, heads=2, feed_forward=16)
    assert build_estimator(encoder, PRIOR, transforms=1, hidden=(8,)).coordinates == "logit"


def test_other_coordinates_are_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'polar' are not among \('logit', 'probit'\)"):
        make_estimator("polar")
