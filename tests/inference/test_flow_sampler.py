"""The fast sampler draws what zuko draws, with zuko's density."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from broker_filter.inference import spline_loops
from broker_filter.inference.coordinates import ProbitBox
from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.flow_sampler import FlowSampler, spline, spline_inverse
from broker_filter.inference.posterior import build_estimator, flow_loss
from broker_filter.inference.prior import BoxPrior

PRIOR = BoxPrior("box-1", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))
WIDTH, N = 16, 200
SHAPES = [(2, (16,)), (2, (64, 16, 32)), (3, (24, 40)), (5, (16,)), (5, (64, 16, 32))]


def make_estimator(
    passes: int, hidden: tuple[int, ...], prior: BoxPrior = PRIOR, coordinates: str = "logit"
) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder = build_encoder("compact", width=WIDTH, layers=1, heads=2, feed_forward=16)
        estimator = build_estimator(
            encoder,
            prior,
            transforms=3,
            hidden=hidden,
            bins=5,
            passes=passes,
            coordinates=coordinates,
        )
        for parameter in estimator.net.parameters():
            # An untrained flow is close to the identity, where much would look right.
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return estimator


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]} passes {shape[1]}")
def estimator(request: pytest.FixtureRequest) -> Any:
    return make_estimator(*request.param)


def summaries(n: int = 3) -> Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(2))


def noise(seed: int) -> Tensor:
    return torch.randn(N, 5, generator=torch.Generator().manual_seed(seed))


def span() -> Tensor:
    return torch.tensor(PRIOR.high) - torch.tensor(PRIOR.low)


def test_samples_are_those_of_zuko_for_the_same_noise(estimator: Any) -> None:
    s = summaries()
    theta, _ = FlowSampler(estimator)(s, N, [1, 2, 3])
    for row, seed in enumerate((1, 2, 3)):
        with torch.no_grad():
            expected = estimator.net(s[row].expand(N, -1)).transform.inv(noise(seed))
        torch.testing.assert_close(theta[row] / span(), expected / span(), rtol=0, atol=2e-5)


def test_densities_are_those_of_zuko(estimator: Any) -> None:
    s = summaries()
    theta, density = FlowSampler(estimator)(s, N, [1, 2, 3])
    with torch.no_grad():
        expected = estimator.net(s[:, None].expand(-1, N, -1)).log_prob(theta)
    # Where a sample touches the edge of the box, float32 has nothing left to invert.
    inside = (((theta - torch.tensor(PRIOR.low)) / span() - 0.5).abs() < 0.499).all(-1)
    assert inside.float().mean() > 0.5
    torch.testing.assert_close(density[inside], expected[inside], rtol=1e-3, atol=5e-3)


def test_density_of_given_parameters_is_that_of_the_samples(estimator: Any) -> None:
    s = summaries(1)
    sampler = FlowSampler(estimator)
    theta, density = sampler(s, N, [4])
    inside = (((theta[0] - torch.tensor(PRIOR.low)) / span() - 0.5).abs() < 0.499).all(-1)
    again = sampler.log_density(s, theta[0])
    torch.testing.assert_close(again[inside], density[0][inside], rtol=1e-3, atol=5e-3)


def test_density_of_any_parameters_is_zukos(estimator: Any) -> None:
    s, theta = summaries(1), PRIOR.sample(N, torch.Generator().manual_seed(6))
    with torch.no_grad():
        expected = estimator.net(s.expand(N, -1)).log_prob(theta)
    density = FlowSampler(estimator).log_density(s, theta)
    torch.testing.assert_close(density, expected, rtol=1e-4, atol=1e-3)


def test_a_window_has_its_own_samples_whatever_its_batch_mates(estimator: Any) -> None:
    sampler, s = FlowSampler(estimator), summaries()
    together, density = sampler(s, N, [1, 2, 3])
    for row in range(3):
        alone, alone_density = sampler(s[row : row + 1], N, [row + 1])
        torch.testing.assert_close(together[row] / span(), alone[0] / span(), rtol=0, atol=2e-5)
        torch.testing.assert_close(density[row], alone_density[0], rtol=1e-3, atol=5e-3)


def test_samples_that_are_known_need_not_be_drawn_again(estimator: Any) -> None:
    sampler, s = FlowSampler(estimator), summaries(2)
    few, whole = sampler(s, 48, [1, 2])[0], sampler(s, N, [1, 2])[0]
    rest, _ = sampler(s, N, [1, 2], known=48)
    drawn = torch.cat([few, rest], 1)
    torch.testing.assert_close(drawn / span(), whole / span(), rtol=0, atol=2e-5)


def test_on_the_edge_of_the_prior_there_is_next_to_no_density() -> None:
    sampler = FlowSampler(make_estimator(2, (16,)))
    corners = torch.stack([torch.tensor(PRIOR.low), torch.tensor(PRIOR.high)])
    assert (sampler.log_density(summaries(1), corners) < -100).all()


def test_later_training_does_not_change_a_sampler() -> None:
    estimator, s = make_estimator(2, (16,)), summaries(1)
    sampler = FlowSampler(estimator)
    before, _ = sampler(s, N, [1])
    for parameter in estimator.net.parameters():
        parameter.data.mul_(2)
    assert torch.equal(sampler(s, N, [1])[0], before)


@pytest.mark.parametrize("bins", [2, 8])
def test_spline_is_zukos_and_the_identity_outside(bins: int) -> None:
    from zuko.transforms import MonotonicRQSTransform

    generator = torch.Generator().manual_seed(5)
    phi = 2 * torch.randn(500, 3 * bins - 1, generator=generator)
    x = 14 * torch.rand(500, generator=generator) - 7
    widths, heights, slopes = phi.split([bins, bins, bins - 1], dim=-1)
    zukos = MonotonicRQSTransform(widths, heights, slopes)
    y = zukos(x)
    ours, slope = spline(phi, x)
    torch.testing.assert_close(ours, y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(slope, zukos.log_abs_det_jacobian(x, y), rtol=1e-2, atol=1e-3)
    back, log_slope = spline_inverse(phi, y)
    compiled = [torch.empty_like(x) for _ in range(4)]
    own = [each[None, :, None].numpy() for each in (x, y, *compiled)]
    spline_loops.forward(phi[None, :, None].numpy(), own[0], *own[2:4])
    spline_loops.inverse(phi[None, :, None].numpy(), own[1], *own[4:])
    for found, expected in zip(compiled, (y, slope, x, log_slope), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(back, x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_slope, -zukos.log_abs_det_jacobian(x, y), rtol=1e-2, atol=1e-3)
    outside = x.abs() > 5
    assert torch.equal(back[outside], x[outside])
    assert (log_slope[outside] == 0).all()


def test_under_a_log_uniform_f_s_densities_are_those_of_f_s_itself() -> None:
    """The mean of 1 / density over the draws in a part of the box is the volume of that part."""
    prior = replace(PRIOR, name="log-1", log_f_s=True)
    with torch.random.fork_rng():
        torch.manual_seed(1)  # some untrained flows leave parts of the box next to empty
        encoder = build_encoder("compact", width=WIDTH, layers=1, heads=2, feed_forward=16)
        estimator = build_estimator(encoder, prior, transforms=2, hidden=(16,), passes=2)
    sampler = FlowSampler(estimator)
    theta, density = sampler(summaries(1), 100_000, [5])
    low, high = torch.tensor(PRIOR.low) + 0.2 * span(), torch.tensor(PRIOR.high) - 0.2 * span()
    inside = ((theta > low) & (theta < high)).all(-1)
    volume = torch.where(inside, (-density).exp(), 0.0)
    error = float(volume.std()) / math.sqrt(volume.numel())
    expected = float((high - low).prod())
    assert error < 0.05 * expected
    assert float(volume.mean()) == pytest.approx(expected, abs=4 * error)
    again = sampler.log_density(summaries(1), theta[0, :100])
    torch.testing.assert_close(again, density[0, :100], rtol=1e-3, atol=5e-2)


LOG_PRIOR = BoxPrior(
    "log-1", (-2.0, 0.0, -1.3, -3.0, 0.005), (25.0, 1.5, 1.78, 1.0, 1.0), log_f_s=True
)
PRIORS = pytest.mark.parametrize("prior", [PRIOR, LOG_PRIOR], ids=["uniform", "log f_s"])


@PRIORS
@pytest.mark.parametrize("passes", [2, 5])
def test_probit_samples_and_densities_are_those_of_zuko(prior: BoxPrior, passes: int) -> None:
    """Zuko's own flow between noise and probit coordinates, and the normal distribution beyond."""
    estimator = make_estimator(passes, (24, 40), prior, "probit")
    s = summaries(1)
    theta, density = FlowSampler(estimator)(s, N, [4])
    with torch.no_grad():
        flow = estimator.net(s.expand(N, -1))
        y = flow.transform.inv(noise(4))
        log_flow = flow.log_prob(y)
    box = prior.flow_box()
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in (box.low, box.high))
    normal = torch.distributions.Normal(0.0, 1.0)
    z = low + (high - low) * normal.cdf(y.double())
    expected = prior.from_flow(z.float())
    torch.testing.assert_close(theta[0], expected, rtol=1e-4, atol=1e-4)
    # The density of theta is that of y, over the prior's density, times the normal density of y.
    log_prior = prior.log_density(expected)
    log_density = log_flow - normal.log_prob(y).sum(-1) + log_prior
    torch.testing.assert_close(density[0], log_density, rtol=1e-3, atol=5e-3)


@PRIORS
def test_probit_densities_at_samples_and_of_the_loss_agree(prior: BoxPrior) -> None:
    estimator, s = make_estimator(5, (24, 40), prior, "probit"), summaries(1)
    sampler = FlowSampler(estimator)
    theta, density = sampler(s, N, [4])
    inside = (estimator_y(prior, theta[0]).abs() < 4).all(-1)
    assert inside.float().mean() > 0.5
    again = sampler.log_density(s, theta[0])
    with torch.no_grad():
        loss = flow_loss(estimator, theta[0], s.expand(N, -1))
    torch.testing.assert_close(again[inside], density[0][inside], rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(-loss[inside], density[0][inside], rtol=1e-3, atol=2e-2)


def estimator_y(prior: BoxPrior, theta: Tensor) -> Tensor:
    box = prior.flow_box()
    return ProbitBox(box.low, box.high)(prior.to_flow(theta)[0])


@PRIORS
def test_probit_densities_are_finite_on_every_edge(prior: BoxPrior) -> None:
    estimator = make_estimator(5, (16,), prior, "probit")
    corners = torch.stack([torch.tensor(prior.low), torch.tensor(prior.high)])
    assert torch.isfinite(FlowSampler(estimator).log_density(summaries(1), corners)).all()
    assert torch.isfinite(flow_loss(estimator, corners, summaries(2))).all()
