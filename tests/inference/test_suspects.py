"""What is left to explain once some epochs and nights may be anywhere, against dense algebra."""

from __future__ import annotations

import numpy as np

from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.suspects import Unexplained


def light() -> SourceLight:
    rng = np.random.default_rng(3)
    t = np.sort(np.repeat(np.arange(6.0), 5) + rng.uniform(0, 0.2, 30))
    return SourceLight(t, rng.normal(0, 0.02, 30), rng.uniform(0.01, 0.03, 30), 0.002)


def test_what_is_free_explains_itself() -> None:
    star = light()
    night = (int(star.nights[2][0]), int(star.nights[2][-1]))
    amplitude, tau = np.array([0.0, 0.5]), np.array([1.0, 2.0])
    left = Unexplained(star, star.noise(amplitude, tau), (night,))
    left.free(4)
    left.free(len(star))
    fixed = np.stack([star.residual, np.ones(len(star))], axis=1)
    free = np.zeros((len(star), 2))
    free[4, 0] = free[night[0] : night[1] + 1, 1] = 1
    lag = np.abs(star.t[:, None] - star.t)
    for i in range(2):
        a = amplitude[i] * star.median_error
        cov = a**2 * np.exp(-lag / tau[i]) + np.diag(star.sigma**2) + 1e8 * free @ free.T
        expected = fixed.T @ np.linalg.solve(cov, fixed)
        np.testing.assert_allclose(left.products[i], expected, rtol=1e-5)
    found = left.freed(np.ones(2), np.zeros(2))
    assert found.shape == (len(star) + 1,)
    assert (found[[4, len(star)]] == -np.inf).all()


def test_the_epoch_that_is_off_most_gains_most() -> None:
    star = light()
    star.residual[[7, 20]] += (0.9, -2.0)
    left = Unexplained(star, star.noise(np.zeros(1), np.ones(1)), ())
    assert left.freed(np.ones(1), np.zeros(1)).argmax() == 20
    left.free(20)
    assert left.freed(np.ones(1), np.zeros(1)).argmax() == 7


def test_an_offset_counts_under_the_model_that_is_best_with_it() -> None:
    star = light()
    star.residual[20] += 2.0
    left = Unexplained(star, star.noise(np.array([0.0, 0.5]), np.ones(2)), ())
    alone = [left.freed(np.ones(2), np.array(base))[20] for base in ([0.0, -1e9], [-1e9, 0.0])]
    assert left.freed(np.ones(2), np.zeros(2))[20] == max(alone)
