"""Probit coordinates: a uniform box becomes a standard normal, without an infinity anywhere."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from broker_filter.inference.coordinates import ProbitBox

LOW, HIGH = (-2.0, 0.0, -1.3, -3.0, math.log10(0.005)), (25.0, 1.5, 1.78, 1.0, 0.0)
BOX = ProbitBox(LOW, HIGH)
EDGES = torch.tensor([LOW, HIGH])


def draws(n: int) -> Tensor:
    unit = torch.rand(n, 5, generator=torch.Generator().manual_seed(1))
    return EDGES[0] + (EDGES[1] - EDGES[0]) * unit


def test_a_uniform_box_becomes_a_standard_normal() -> None:
    y = BOX(draws(100_000))
    torch.testing.assert_close(y.mean(0), torch.zeros(5), rtol=0, atol=0.02)
    torch.testing.assert_close(y.std(0), torch.ones(5), rtol=0, atol=0.02)
    beyond_2 = (y.abs() > 2).float().mean(0)
    torch.testing.assert_close(beyond_2, torch.full((5,), 0.0455), rtol=0, atol=0.004)


def test_there_and_back() -> None:
    z = draws(10_000)
    torch.testing.assert_close(BOX.inv(BOX(z)), z, rtol=1e-5, atol=1e-5)
    y = torch.randn(10_000, 5, generator=torch.Generator().manual_seed(2)).clamp(-4, 4)
    torch.testing.assert_close(BOX(BOX.inv(y)), y, rtol=0, atol=2e-3)


def test_the_slope_is_that_of_the_map() -> None:
    """By autograd through the inverse normal distribution function in float64."""
    z = draws(500).double().requires_grad_()
    low, high = EDGES.double()
    y = torch.special.ndtri((z - low) / (high - low))
    (slope,) = torch.autograd.grad(y.sum(), z)
    ours = BOX.log_abs_det_jacobian(z, y.detach())
    torch.testing.assert_close(ours, slope.log().sum(-1), rtol=1e-6, atol=1e-6)


def test_edges_are_finite_and_beyond_all_that_is_inside() -> None:
    y = BOX(EDGES)
    assert torch.isfinite(y).all()
    inner = BOX(EDGES[0] + (EDGES[1] - EDGES[0]) * torch.tensor([[1e-6], [1 - 1e-6]]))
    assert (y[0] < inner[0]).all()
    assert (y[1] > inner[1]).all()


@given(st.floats(-1000, 1000, width=32))
def test_nothing_leaves_the_open_box(y: float) -> None:
    z = BOX.inv(torch.full((5,), y))
    assert (z > EDGES[0]).all()
    assert (z < EDGES[1]).all()
