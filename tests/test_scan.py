"""The scan is a matched filter for boxes: compared with the filter written out in full."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.scan import LENGTHS, SCAN_WIDTH, box_scan

N = 40


def window(seed: int = 0, bump: float = 0.0) -> Tensor:
    rng = np.random.default_rng(seed)
    sigma = rng.uniform(0.002, 0.02, N)
    flux = 1 + sigma * rng.normal(size=N)
    flux[8:16] += bump
    columns = [np.sort(rng.uniform(-1, 1, N)), flux, sigma]
    return torch.tensor(np.stack(columns, -1)[None], dtype=torch.float32)


def valid(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def significances(x: Tensor, length: int, b: float) -> NDArray[np.float64]:
    """Of every run, with the covariance inverted as a matrix."""
    flux, sigma = x[0, :, 1].double().numpy(), x[0, :, 2].double().numpy()
    inverse = np.linalg.inv(np.diag(sigma**2) + b * b)
    found = []
    for start in range(0, N, max(length // 2, 1)):
        run = np.zeros(N)
        run[start : start + length] = 1
        found.append(run @ inverse @ (flux - 1) / np.sqrt(run @ inverse @ run))
    return np.array(found)


@pytest.mark.parametrize("b", [0.0, 0.001, 0.01])
def test_largest_and_smallest_are_those_of_the_full_covariance(b: float) -> None:
    x = window(bump=0.01)
    scan = box_scan(x, valid(x), torch.tensor([b]))[0]
    runs = [significances(x, length, b) for length in LENGTHS]
    high, low = (torch.tensor([f(s) for s in runs]) for f in (np.max, np.min))
    torch.testing.assert_close(scan[:10], high.asinh().float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(scan[10:20], high.float() / 10, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(scan[20:30], low.asinh().float(), rtol=1e-3, atol=1e-3)


def test_a_bump_is_found_at_its_own_length() -> None:
    x = window(bump=0.05)
    assert int(box_scan(x, valid(x))[0, :10].argmax()) == LENGTHS.index(8)


def test_a_baseline_that_is_off_raises_nothing_once_its_error_is_known() -> None:
    x = window()
    x[..., 1:] *= 1.01
    exact, known = box_scan(x, valid(x)), box_scan(x, valid(x), torch.tensor([0.01]))
    assert exact[0, 10:20].max() > 0.6
    assert known[0, 10:20].max() < 0.4


def test_no_epoch_no_significance() -> None:
    x = window()
    assert torch.equal(box_scan(x, ~valid(x)), torch.zeros(1, SCAN_WIDTH))


def test_what_is_larger_than_can_be_told_stays_finite() -> None:
    x = window(bump=1e6)
    scan = box_scan(x, valid(x))
    assert torch.isfinite(scan).all()
    assert float(scan.abs().max()) == pytest.approx(30)
