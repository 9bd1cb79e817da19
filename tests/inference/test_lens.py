"""The magnification table against exact quadrature and against VBMicrolensing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from VBMicrolensing import VBMicrolensing

from broker_filter.inference.lens import excess, point_excess
from broker_filter.inference.magnification import magnification
from model_zoo.simulate.lens_table import disc_excess

RHOS = [0.001, 0.01, 0.1, 1.0, 2.0, 5.0, 10.0]


def table_excess(u: np.ndarray, rho: float) -> np.ndarray:
    return excess(torch.from_numpy(u), torch.tensor(rho)).double().numpy()


@pytest.mark.parametrize("rho", RHOS)
def test_quadrature_gives_the_closed_form_at_the_centre(rho: float) -> None:
    assert disc_excess(np.zeros(1), rho)[0] == pytest.approx(
        math.sqrt(1 + 4 / rho**2) - 1, rel=1e-9
    )


@pytest.mark.parametrize("rho", RHOS)
def test_quadrature_is_the_mean_of_the_point_source_over_the_disc(rho: float) -> None:
    rng = np.random.default_rng(5)
    radius, angle = np.sqrt(rng.uniform(size=2_000_000)), rng.uniform(0, 2 * np.pi, 2_000_000)
    u = rho * np.hypot(1.7 + radius * np.cos(angle), radius * np.sin(angle))
    mean = point_excess(torch.from_numpy(u)).mean().item()
    assert disc_excess(np.array([1.7]), rho)[0] == pytest.approx(mean, rel=5e-3)


@pytest.mark.parametrize("rho", [*RHOS, 0.00137, 0.0042, 0.0137, 0.33, 7.7])
def test_table_follows_the_quadrature_everywhere_and_at_the_limb(rho: float) -> None:
    rng = np.random.default_rng(0)
    z = np.abs(
        np.concatenate(
            [
                [0, 1, 0.999, 1.001, 1 - 1e-6, 1 + 1e-6],
                rng.uniform(0, 3, 2000),
                1 + rng.normal(0, 0.01, 1000),
                10 ** rng.uniform(0, 2.5, 2000),
            ]
        )
    )
    error = np.abs(table_excess(z * rho, rho) / disc_excess(z, rho) - 1)
    assert error.max() < 1e-3
    assert np.median(error) < 1e-4


@pytest.mark.parametrize("rho", [0.001, 0.003, 0.01, 0.1, 1.0])
def test_table_agrees_with_vbmicrolensing_away_from_its_own_limb_error(rho: float) -> None:
    vbm = VBMicrolensing()
    vbm.Tol = 1e-4
    u = rho * np.concatenate([np.linspace(0, 0.9, 50), np.linspace(1.1, 3, 50)])
    theirs = np.array([vbm.ESPLMag2(float(value), rho) for value in u])
    ours = magnification(u, rho)
    np.testing.assert_allclose(ours, theirs, rtol=5e-4)


@pytest.mark.parametrize("rho", [2.0, 5.0, 10.0])
def test_table_agrees_with_vbmicrolensing_for_large_sources(rho: float) -> None:
    vbm = VBMicrolensing()
    vbm.Tol = 1e-4
    u = rho * np.linspace(0, 0.9, 40)
    theirs = np.array([vbm.ESPLMag2(float(value), rho) for value in u])
    np.testing.assert_allclose(magnification(u, rho), theirs, rtol=2e-3)


def test_small_sources_are_points() -> None:
    u = torch.tensor([0.001, 0.5, 3.0, 1000.0])
    assert torch.equal(excess(u, torch.tensor(0.0009)), point_excess(u))


def test_point_source_keeps_its_precision_far_out() -> None:
    assert point_excess(torch.tensor(1000.0)).item() == pytest.approx(2e-12, rel=1e-5)


@pytest.mark.parametrize(
    ("u", "rho", "word"),
    [
        (-0.1, 1.0, "u"),
        (math.nan, 1.0, "u"),
        (math.inf, 1.0, "u"),
        (1.0, 0.0, "rho"),
        (1.0, 11.0, "rho"),
        (1.0, math.nan, "rho"),
    ],
)
def test_refuses_what_has_no_magnification(u: float, rho: float, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        magnification(np.array([u]), rho)


def test_numpy_in_numpy_out() -> None:
    result = magnification(np.array([0.1, 0.2]), np.array([[0.1], [1.0]]))
    assert isinstance(result, np.ndarray)
    assert result.shape == (2, 2)
    assert result.dtype == np.float64
