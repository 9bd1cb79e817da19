"""The prior is a density that integrates to one, and its draws follow it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from broker_filter.inference.prior import F_S, BoxPrior

BOX = BoxPrior("box-1", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))
LOG_BOX = replace(BOX, name="log-1", log_f_s=True)
BOTH = pytest.mark.parametrize("prior", [BOX, LOG_BOX], ids=["uniform", "log f_s"])


def middle() -> Tensor:
    return (torch.tensor(BOX.low) + torch.tensor(BOX.high)) / 2


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@BOTH
@pytest.mark.parametrize("axis", range(5))
def test_density_integrates_to_one(prior: BoxPrior, axis: int) -> None:
    """It is a product: along one axis it integrates to the density over the other four."""
    n = 4000
    width = prior.high[axis] - prior.low[axis]
    theta = middle().double().expand(n, -1).clone()
    theta[:, axis] = prior.low[axis] + width * (torch.arange(n) + 0.5) / n
    others = torch.tensor([h - low for low, h in zip(prior.low, prior.high, strict=True)])
    others[axis] = 1.0
    if prior.log_f_s and axis != F_S:
        others[F_S] = math.log(10) * theta[0, F_S]
    integral = prior.log_density(theta).exp().mean() * width
    assert float(integral * others.prod()) == pytest.approx(1, rel=1e-5)


@BOTH
def test_draws_follow_the_density(prior: BoxPrior) -> None:
    """The mean of 1 / density over draws is the volume of the box."""
    theta = prior.sample(100_000, seeded())
    volume = math.prod(h - low for low, h in zip(prior.low, prior.high, strict=True))
    assert float((-prior.log_density(theta)).exp().mean()) == pytest.approx(volume, rel=0.01)


def test_log_f_s_gives_each_half_of_a_decade_the_same_share() -> None:
    f_s = LOG_BOX.sample(40_000, seeded())[:, F_S]
    share = (f_s < math.sqrt(0.1)).double().mean()
    assert float(share) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(40_000))


@BOTH
@pytest.mark.parametrize("axis", range(5))
def test_outside_the_box_the_density_is_zero(prior: BoxPrior, axis: int) -> None:
    for edge in (prior.low[axis] - 1e-3, prior.high[axis] + 1e-3):
        theta = middle()
        theta[axis] = edge
        assert prior.log_density(theta) == -math.inf


def test_no_source_light_at_all_is_outside_too() -> None:
    theta = middle().expand(2, -1).clone()
    theta[:, F_S] = torch.tensor([0.0, -0.5])
    assert (LOG_BOX.log_density(theta) == -math.inf).all()


@BOTH
def test_draws_are_those_of_the_seed_and_inside(prior: BoxPrior) -> None:
    theta = prior.sample(1000, seeded())
    assert torch.equal(theta, prior.sample(1000, seeded()))
    assert torch.isfinite(prior.log_density(theta)).all()


@BOTH
def test_config_brings_the_same_prior_back(prior: BoxPrior) -> None:
    assert BoxPrior.from_config(json.loads(json.dumps(prior.to_config()))) == prior


def test_the_flow_has_coordinates_in_which_the_prior_is_uniform() -> None:
    theta = LOG_BOX.sample(1000, seeded())
    z, log_jacobian = LOG_BOX.to_flow(theta)
    box = LOG_BOX.flow_box()
    torch.testing.assert_close(LOG_BOX.log_density(theta), box.log_density(z) + log_jacobian)
    torch.testing.assert_close(LOG_BOX.from_flow(z), theta)
    assert torch.isfinite(LOG_BOX.log_density(LOG_BOX.from_flow(torch.tensor(box.high)))).all()


def test_a_uniform_prior_is_left_as_it_is() -> None:
    theta = BOX.sample(10, seeded())
    z, log_jacobian = BOX.to_flow(theta)
    assert torch.equal(z, theta)
    assert not log_jacobian.any()
    assert BOX.flow_box() == BOX


def test_entries_from_before_log_f_s_are_uniform() -> None:
    config = LOG_BOX.to_config()
    del config["log_f_s"]
    assert not BoxPrior.from_config(config).log_f_s
