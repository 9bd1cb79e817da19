"""Closed forms of a source against a search; integrals over f_s are in `test_likelihood`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from broker_filter.inference.source_loops import along_f_s, exponent, most_likely

SUMS = np.array([120.0, 60.0, 260.0])[:, None, None]  # w r e, w e, w e^2
SOURCES = np.array([1e-4, 900.0, 110.0])[:, None]  # variance, w, w r


def test_the_most_likely_f_s_is_where_a_search_ends() -> None:
    source = (*SOURCES[:, 0], *SUMS[:, 0, 0])
    found, height = most_likely(SUMS, SOURCES, 0.005, 1.0)
    best = minimize_scalar(lambda f: -exponent(f, source), bounds=(0.005, 1), method="bounded")
    assert float(found[0, 0]) == pytest.approx(best.x, abs=2e-3)
    assert float(height[0, 0]) == pytest.approx(-best.fun - exponent(0.0, source), abs=1e-3)


@pytest.mark.parametrize(("re_sum", "end"), [(-200.0, 0.1), (5000.0, 1.0)])
def test_f_s_ends_at_the_edge_of_the_prior(re_sum: float, end: float) -> None:
    sums = SUMS.copy()
    sums[0] = re_sum
    assert float(most_likely(sums, SOURCES, 0.1, 1.0)[0][0, 0]) == end


def test_a_lens_of_which_nothing_is_seen_has_any_f_s() -> None:
    ends, log = along_f_s(np.zeros((3, 1, 1)), SOURCES, 0.1, 1.0, False, np.array([0.1, 0.9]))
    np.testing.assert_allclose(ends[:, 0, 0] ** 2, [0.1, 1.0])
    roots = ends[0, 0, 0] + np.array([0.1, 0.9]) * (ends[1, 0, 0] - ends[0, 0, 0])
    np.testing.assert_allclose(log[0, 0], np.log(2 * roots / 0.9), atol=1e-12)
