"""The sum over noises is that of all of them, though most are never integrated."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.inference.lens_loops import log_densities
from broker_filter.inference.log_sum import log_sum
from broker_filter.inference.normal_steps import log_mean
from tests.inference.gaussian import absorbed

EPOCHS, LENSES, NOISES = 200, 20, 4


@pytest.mark.parametrize("height", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("edges", [np.array([0.0, 1.0]), np.geomspace(0.01, 1.0, 6)])
def test_the_sum_is_that_of_every_noise(height: float, edges: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    curves = rng.uniform(0, 1, (EPOCHS, LENSES))
    fixed = np.stack([height * curves[:, 0] + rng.normal(size=EPOCHS), np.ones(EPOCHS)], axis=1)
    fixed = np.column_stack([fixed, np.arange(EPOCHS) < 20])
    weight = rng.uniform(0.5, 1.5, (NOISES, EPOCHS))
    scale = np.geomspace(0.7, 1.5, 9)
    log_p = -EPOCHS * np.log(scale)[:, None] + 0.5 * np.log(weight).sum(axis=1)
    offsets = np.array([0.5, 20.0])
    few, squares, mixed = (
        np.stack([np.ascontiguousarray(product(w)) for w in weight])
        for product in (
            lambda w: (fixed.T * w) @ fixed,
            lambda w: w @ curves**2,
            lambda w: (fixed.T * w) @ curves,
        )
    )
    each = []
    for k, own in enumerate(scale):
        for j in range(NOISES):
            for m in range(LENSES):
                every = np.column_stack([fixed, curves[:, m]])
                gram = (every.T * weight[j]) @ every / own**2
                gram, first = absorbed(gram, 1, offsets[0])
                gram, second = absorbed(gram, 2, offsets[1])
                start = log_p[k, j] + first + second - 0.5 * gram[0, 0]
                each.append(start + log_mean(gram[3, 3], gram[0, 3], edges))
    wanted = log_sum(np.array(each).reshape(-1, LENSES))
    found = log_densities(few, squares, mixed, log_p, scale**2, offsets, edges)
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-9)
