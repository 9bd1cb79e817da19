"""Thinning, normalising and padding of windows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from broker_filter.inference.network_input import network_input, split_padding, thin


def columns(n: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    t = torch.zeros(1, width, dtype=torch.float64)
    t[0, :n] = torch.rand(n, generator=generator, dtype=torch.float64).sort().values * 20
    sigma = 0.01 + 0.01 * torch.rand(1, width, generator=generator)
    flux = 1 + sigma * torch.randn(1, width, generator=generator)
    return t, flux, sigma, torch.tensor([n])


def test_times_span_minus_one_to_one_and_padding_is_minus_two() -> None:
    t = torch.tensor([[0.0, 10.0, 20.0]], dtype=torch.float64)
    one = torch.ones(1, 3)
    x = network_input(t, one, 0.01 * one, torch.tensor([3]), days=20, length=5)
    assert x[0, :, 0].tolist() == [-1, 0, 1, -2, -2]
    assert (x[0, 3:] == -2).all()


def test_times_are_subtracted_in_double_precision() -> None:
    t = torch.tensor([[10.0, 10.0 + 1e-5]], dtype=torch.float64)
    one = torch.ones(1, 2)
    x = network_input(t, one, one, torch.tensor([2]), days=20, length=2)
    assert x[0, 1, 0] > x[0, 0, 0]


@given(n=st.integers(1, 900), length=st.sampled_from([16, 50, 128]), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_thinning_keeps_the_weighted_mean_and_its_error(n: int, length: int, seed: int) -> None:
    t, flux, sigma, count = columns(n, 900, seed)
    t2, flux2, sigma2, count2 = thin(t, flux, sigma, count, length, close=0.04)
    m = int(count2)
    assert m == min(n, length) or m <= length < n
    w1, w2 = sigma[0, :n].double() ** -2, sigma2[0, :m].double() ** -2
    torch.testing.assert_close(w1.sum(), w2.sum(), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        (w1 * flux[0, :n]).sum(), (w2 * flux2[0, :m]).sum(), rtol=1e-5, atol=0
    )
    assert (t2[0, 1:m] > t2[0, : m - 1]).all()


def test_thinning_leaves_exactly_the_length_up_to_twice_as_many() -> None:
    for n in (129, 200, 256):
        assert int(thin(*columns(n, 256), 128, close=100.0)[3]) == 128


def test_thinning_merges_the_oldest_first_and_leaves_the_newest_alone() -> None:
    t, flux, sigma, n = columns(150, 150)
    t2, flux2, _, _ = thin(t, flux, sigma, n, 128, close=100.0)
    assert torch.equal(t2[0, -100:], t[0, -100:])
    torch.testing.assert_close(flux2[0, -100:], flux[0, -100:])


def test_thinning_spares_pairs_across_a_gap() -> None:
    t = torch.cat([torch.arange(0, 3) * 0.01, 10 + torch.arange(0, 9) * 0.01]).double()[None]
    one = torch.ones_like(t).float()
    merged = thin(t, one, one, torch.tensor([12]), 8, close=0.04)[0]
    assert not ((merged > 0.1) & (merged < 9.9)).any()


def test_thinning_does_not_depend_on_batch_mates() -> None:
    short, long = columns(150, 900), columns(900, 900, seed=1)
    both = [torch.cat(pair) for pair in zip(short, long, strict=True)]
    alone = thin(*short, 128, close=0.04)
    together = thin(*both, 128, close=0.04)
    assert torch.equal(together[3][:1], alone[3])
    width = int(alone[3])
    for a, b in zip(alone[:3], together[:3], strict=True):
        assert torch.equal(a[0, :width], b[0, :width])


def test_damaged_rows_count_as_padding_and_become_zero() -> None:
    x = torch.tensor([[[0.0, 1.0, 0.01], [0.1, torch.nan, 0.01], [-2.0, -2.0, -2.0]]])
    clean, valid = split_padding(x)
    assert valid.tolist() == [[True, False, False]]
    assert (clean[0, 1:] == 0).all()
