"""The scan is a matched filter for lenses: compared with the filter written out in full."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.lens import excess
from broker_filter.inference.matched_filter import (
    CELLS,
    LEVELS,
    SHAPES,
    TAPS,
    LensScan,
    _sums,
    _sums_in_any_order,
)

N = 200
SCAN = LensScan()
FIRST_RATIO = 5
FIRST_LEVEL = FIRST_RATIO + LEVELS * len(SHAPES)


def window(seed: int = 0, change: Tensor | float = 0.0) -> Tensor:
    rng = np.random.default_rng(seed)
    x = torch.empty(1, N, 3)
    x[0, :, 0] = torch.tensor(np.sort(rng.uniform(-1, 1, N)))
    x[0, :, 2] = torch.tensor(rng.uniform(0.002, 0.02, N))
    x[0, :, 1] = 1 + x[0, :, 2] * torch.tensor(rng.normal(size=N)) + change
    return x


def times() -> Tensor:
    return window()[0, :, 0]


def event(t0: float, t_e: float, u0: float, rho: float = 1e-3) -> Tensor:
    """A - 1 at the epochs of `window`; t0 and tE in units of half a window."""
    u = (u0**2 + ((times() - t0) / t_e) ** 2).sqrt()
    return excess(u, torch.full_like(u, rho))


def valid(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def scan(x: Tensor, b: float = 0.0) -> Tensor:
    return SCAN(x, valid(x), torch.tensor([b]))[0]


def highest(features: Tensor) -> Tensor:
    """The largest S by level."""
    return features[FIRST_LEVEL : FIRST_LEVEL + LEVELS].sinh()


def significances(x: Tensor, level: int, b: float) -> NDArray[np.float64]:
    """S of all shapes at all places within the window, with the covariance inverted as a matrix."""
    flux, sigma = x[0, :, 1].double().numpy(), x[0, :, 2].double().numpy()
    inverse = np.linalg.inv(np.diag(sigma**2) + b * b)
    cell = ((x[0, :, 0].double().numpy() + 1) / 2 * (CELLS >> level)).astype(int)
    found = []
    for kernel in SCAN.kernels.double().numpy():
        for start in range(-TAPS + 1, CELLS >> level):
            tap = cell - start
            inside = (tap >= 0) & (tap < TAPS)
            k = np.where(inside, kernel[tap.clip(0, TAPS - 1)], 0.0)
            if inside.any():
                found.append(k @ inverse @ (flux - 1) / np.sqrt(k @ inverse @ k))
    return np.array(found)


@pytest.mark.parametrize("b", [0.0, 0.001, 0.01])
@pytest.mark.parametrize("level", [3, 5])
def test_largest_and_smallest_are_those_of_the_full_covariance(level: int, b: float) -> None:
    x = window(change=0.01 * event(0.1, 0.1, 0.5))
    features, s = scan(x, b), significances(x, level, b)
    lowest = features[FIRST_LEVEL + 2 * LEVELS :].sinh()
    assert float(highest(features)[level]) == pytest.approx(s.max(), rel=2e-3)
    assert float(lowest[level]) == pytest.approx(s.min(), rel=2e-3)


@pytest.mark.parametrize("t_e", [0.02, 0.05, 0.2, 0.6])
@pytest.mark.parametrize("u0", [0.1, 0.6, 1.2])
def test_an_event_is_found_with_nearly_all_its_signal_to_noise(t_e: float, u0: float) -> None:
    x = window()
    x[..., 2] = 0.01
    change = event(0.1, t_e, u0)
    x[..., 1] = 1 + change
    snr = float((change / x[0, :, 2]).square().sum().sqrt())
    assert 0.94 * snr < float(highest(scan(x)).max()) < 1.001 * snr


def test_time_and_duration_follow_the_event() -> None:
    early, late = (scan(window(change=event(t0, 0.1, 0.4))) for t0 in (-0.5, 0.3))
    longer = scan(window(change=event(0.3, 0.4, 0.4)))
    assert [float(early[0]), float(late[0])] == pytest.approx([-0.5, 0.3], abs=0.01)
    assert float(longer[1] - late[1]) == pytest.approx(math.log2(0.4 / 0.1), abs=0.3)


def test_shares_of_the_shapes_tell_a_disc_from_a_point() -> None:
    disc = scan(window(change=event(0.0, 0.05, 0.1, rho=3.0)))
    shares = disc[FIRST_RATIO:FIRST_LEVEL].reshape(LEVELS, -1)
    best = SHAPES[int(shares.amax(0).argmax())]
    assert float(shares.max()) == 1
    assert best[2] == 3.0


def test_a_baseline_that_is_off_raises_nothing_once_its_error_is_known() -> None:
    x = window()
    x[..., 1:] *= 1.01
    assert float(highest(scan(x)).max()) > 8
    assert float(highest(scan(x, 0.01)).max()) < 5


def test_no_epoch_no_features() -> None:
    x = window()
    assert torch.equal(SCAN(x, ~valid(x)), torch.zeros(1, LensScan.WIDTH))


def test_what_is_larger_than_can_be_told_stays_finite() -> None:
    features = scan(window(change=1e6))
    assert torch.isfinite(features).all()
    assert float(features.abs().max()) == pytest.approx(30)


def test_a_dip_has_no_event_but_a_low() -> None:
    features = scan(window(change=-0.5 * event(0.0, 0.1, 0.5).clamp(max=1)))
    assert float(highest(features).max()) < 5
    assert float(features[FIRST_LEVEL + 2 * LEVELS :].min().sinh()) < -20


def test_sums_for_a_gpu_are_the_same_in_any_order_and_those_of_the_processor() -> None:
    rng = np.random.default_rng(2)
    sizes = 10 ** rng.uniform(-6, 12, (5, 1))
    values = torch.tensor(sizes * rng.lognormal(0, 3, (5, 4096)), dtype=torch.float32)
    values[1] = -values[1]
    values[2] = 0.0
    values[3, 7] = torch.inf
    cell = torch.tensor(rng.integers(0, 300, values.shape))
    order = torch.tensor(rng.permutation(values.shape[1]))
    found = _sums_in_any_order(values, cell)
    assert torch.equal(found, _sums_in_any_order(values[:, order], cell[:, order]))
    assert not torch.equal(_sums(values, cell), _sums(values[:, order], cell[:, order]))
    assert bool(torch.isfinite(found).all())
    exact = _sums(values[:3].double(), cell[:3])
    torch.testing.assert_close(found[:3].double(), exact, rtol=1e-6, atol=0.0)
