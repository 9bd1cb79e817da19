"""The statistics of quiet light, against simulated stars."""

from __future__ import annotations

import math

import numpy as np
import pytest

from broker_filter.photometry.statistics import (
    RESIDUAL_BINS,
    combine,
    quiet_level,
    residual_bin,
    residual_scale,
    roughness_scale,
)


def test_combination_is_the_inverse_variance_mean_and_leaves_out_what_is_missing() -> None:
    nan = math.nan
    value, error = combine(
        np.array([1.0, nan, 1.0, nan]),
        np.array([1.0, nan, 1.0, nan]),
        np.array([4.0, 4.0, nan, nan]),
        np.array([2.0, 2.0, nan, nan]),
    )
    np.testing.assert_allclose(value, [1.6, 4.0, 1.0, nan])
    np.testing.assert_allclose(error, [math.sqrt(0.8), 2.0, 1.0, nan])


@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0, 4.0])
def test_scale_from_residuals_is_that_of_their_normal_core(scale: float) -> None:
    rng = np.random.default_rng(1)
    residual = scale * rng.standard_normal(50_000)
    residual[:1000] += 50  # 2 % flares
    histogram = np.bincount(residual_bin(residual), minlength=RESIDUAL_BINS)
    found = residual_scale(histogram[None].astype(np.uint32))[0]
    assert found == pytest.approx(scale, rel=0.05)


def stars(n_rows: int, n: int, sigma: float, seed: int = 1) -> tuple[np.ndarray, ...]:
    """Times over 20 days, flux about 1 and error, shape (n_rows, n)."""
    rng = np.random.default_rng(seed)
    time = np.sort(rng.uniform(0, 20, (n_rows, n)), axis=1)
    flux = 1 + sigma * rng.standard_normal((n_rows, n))
    return time, flux, np.full((n_rows, n), sigma), np.full(n_rows, n)


def lensed(time: np.ndarray, t0: float, tE: float, u0: float) -> np.ndarray:
    """Point-lens magnification (Paczynski 1986, ApJ 304, 1)."""
    u = np.hypot((time - t0) / tE, u0)
    return (u * u + 2) / (u * np.sqrt(u * u + 4))


@pytest.mark.parametrize("scale", [1.0, 1.7])
def test_roughness_measures_error_bars_that_are_too_small(scale: float) -> None:
    time, flux, error, n = stars(400, 800, 0.01)
    found = roughness_scale(time, flux, error / scale, n)
    assert found.mean() == pytest.approx(scale, rel=0.02)


def test_a_strong_event_leaves_roughness_alone() -> None:
    rng = np.random.default_rng(2)
    time = np.tile(np.arange(0, 20, 1 / 96), (30, 1))
    flux = lensed(time, 12.0, 2.0, 0.02) * (1 + 0.01 * rng.standard_normal(time.shape))
    found = roughness_scale(time, flux, 0.01 * flux, np.full(30, time.shape[1]))
    assert found.mean() < 1.05


def test_roughness_needs_fifty_points() -> None:
    time, flux, error, n = stars(5, 49, 0.01)
    assert (roughness_scale(time, flux, error / 3, n) == 1).all()


@pytest.mark.parametrize("n", [1, 2, 5, 8, 30, 800])
def test_quiet_level_of_a_quiet_star_is_unbiased_with_an_honest_error(n: int) -> None:
    _, flux, error, size = stars(2000, n, 0.01, seed=n)
    level, level_err = quiet_level(flux, error, size, np.ones(2000))
    pull = (level - 1) / level_err
    assert abs(pull.mean()) < 0.1
    assert 0.5 < pull.std() < 1.15


@pytest.mark.parametrize(("tE", "u0"), [(0.3, 0.1), (1.0, 0.1), (1.0, 0.5), (3.0, 0.3)])
def test_quiet_level_under_an_event_has_an_honest_error(tE: float, u0: float) -> None:
    time, flux, error, n = stars(200, 800, 0.01)
    level, level_err = quiet_level(flux * lensed(time, 12.0, tE, u0), error, n, np.ones(200))
    assert (np.abs(level - 1) < 3 * level_err).mean() > 0.95


def test_rows_do_not_depend_on_their_padding() -> None:
    time, flux, error, n = stars(3, 300, 0.01)
    n = np.array([300, 120, 61])
    together = quiet_level(flux, error, n, np.ones(3)), roughness_scale(time, flux, error, n)
    for i, k in enumerate(n):
        row = (slice(i, i + 1), slice(0, k))
        alone = quiet_level(flux[row], error[row], n[i : i + 1], np.ones(1))
        assert alone[0][0] == together[0][0][i]
        assert alone[1][0] == together[0][1][i]
        rough = roughness_scale(time[row], flux[row], error[row], n[i : i + 1])
        assert rough[0] == together[1][i]
