"""The magnification in numpy against that in torch, and where neither table nor disc ends."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from broker_filter.inference import lens
from broker_filter.inference.magnification import RHO_MAX, RHO_MIN, excess, magnification


def test_agrees_with_the_magnification_of_the_networks() -> None:
    rng = np.random.default_rng(1)
    rho = 10 ** rng.uniform(-3.5, 1, 20_000)
    u = rho * 10 ** rng.uniform(-3, 2.5, 20_000)
    theirs = lens.excess(torch.from_numpy(u), torch.from_numpy(rho)).numpy()
    # float32 moves a point by up to 1e-7 of u, which matters most at the limb.
    np.testing.assert_allclose(excess(u, rho), theirs, rtol=2e-4)


def test_meets_the_point_source_at_the_end_of_the_table() -> None:
    u = 100 * RHO_MIN * np.array([1 - 1e-9, 1 + 1e-9])
    inside, outside = excess(u, RHO_MIN)
    assert inside == pytest.approx(outside, rel=1e-3)


def test_a_point_source_below_the_smallest_disc() -> None:
    u = np.array([0.5, 3.0, 1000.0])
    exact = (u**2 + 2) / (u * np.sqrt(u**2 + 4))
    np.testing.assert_allclose(magnification(u, RHO_MIN / 2), exact, rtol=1e-12)
    assert excess(np.array([1000.0]), RHO_MIN / 2)[0] == pytest.approx(2e-12, rel=1e-5)
    assert np.isinf(excess(np.array([0.0]), RHO_MIN / 2)[0])


def test_broadcasts_as_numpy_does() -> None:
    result = magnification(np.array([0.1, 0.2]), np.array([[0.1], [1.0], [RHO_MAX]]))
    assert (result.shape, result.dtype) == ((3, 2), np.float64)


@pytest.mark.parametrize(
    ("u", "rho", "word"),
    [(-0.1, 1, "u"), (math.nan, 1, "u"), (math.inf, 1, "u"), (1, 0, "rho"), (1, 11, "rho")],
)
def test_refuses_what_has_no_magnification(u: float, rho: float, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        magnification(np.array([u]), rho)


def test_needs_no_torch() -> None:
    code = "import sys, broker_filter.inference.magnification; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
