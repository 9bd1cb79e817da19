"""Red noise in O(n) against dense covariance matrices."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.inference.red_noise import Models, RedNoise
from broker_filter.types import FloatArray

MODELS = Models(
    np.array([1.0, 0.8, 1.5, 1.2]),
    np.array([0.0, 0.02, 0.5, 0.1]),
    np.array([1.0, 0.05, 30.0, 2.0]),
)


def epochs(n: int, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times (two of them equal), errors and columns."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 20, n))
    t[1] = t[0]
    return t, rng.uniform(0.01, 0.2, n), rng.normal(size=(n, 3))


def covariances(t: FloatArray, sigma: FloatArray) -> list[FloatArray]:
    lag = np.abs(t[:, None] - t)
    return [
        a**2 * np.exp(-lag / tau) + np.diag((k * sigma) ** 2)
        for k, a, tau in zip(MODELS.scale, MODELS.amplitude, MODELS.tau, strict=True)
    ]


@pytest.mark.parametrize("n", [2, 60])
def test_products_are_those_of_the_dense_inverse(n: int) -> None:
    t, sigma, columns = epochs(n, n)
    noise = RedNoise(t, sigma, MODELS)
    for i, dense in enumerate(covariances(t, sigma)):
        expected = columns.T @ np.linalg.solve(dense, columns)
        np.testing.assert_allclose(noise.products(columns)[i], expected, rtol=1e-8)
        assert noise.log_determinant[i] == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-10)


def test_products_of_many_columns_are_the_same() -> None:
    t, sigma, columns = epochs(50, 1)
    noise = RedNoise(t, sigma, MODELS)
    whole = noise.products(columns)
    squares, mixed = noise.products_with(columns[:, :1], columns)
    np.testing.assert_allclose(squares, np.diagonal(whole, axis1=1, axis2=2), rtol=1e-10)
    np.testing.assert_allclose(mixed[:, 0], whole[:, 0], rtol=1e-10)


def test_the_inverse_and_its_diagonal() -> None:
    t, sigma, columns = epochs(50, 2)
    noise = RedNoise(t, sigma, MODELS)
    times, diagonal = noise.times(columns), noise.diagonal
    for i, dense in enumerate(covariances(t, sigma)):
        inverse = np.linalg.inv(dense)
        np.testing.assert_allclose(times[i], inverse @ columns, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(diagonal[i], np.diag(inverse), rtol=1e-8)
