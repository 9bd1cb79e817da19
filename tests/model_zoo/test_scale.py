"""The scale of the network's K: mends a network that claims half, and leaves thresholds alone."""

from __future__ import annotations

import numpy as np
import pytest

from broker_filter.inference.scale import rescaled
from model_zoo.evaluate.measure.scale import FIRST, compared, fit_scale


def test_a_network_that_claims_half_is_mended() -> None:
    rng = np.random.default_rng(1)
    certified = rng.uniform(-3, 60, 400)
    log10_k = np.where(certified > 3, 3 + (certified - 3) / 2, certified) + rng.normal(0, 0.2, 400)
    scale = fit_scale(log10_k[:200], certified[:200])
    snr = np.full(200, 20.0)
    before = compared(log10_k[200:], snr, certified[200:])
    after = compared(rescaled(log10_k[200:], scale), snr, certified[200:])
    assert before["relative"] == pytest.approx(-0.45, abs=0.1)
    assert after["relative"] == pytest.approx(0.0, abs=0.05)


def test_it_begins_where_no_threshold_is_and_rises() -> None:
    rng = np.random.default_rng(2)
    scale = fit_scale(rng.uniform(0, 40, 100), rng.uniform(0, 40, 100))  # nothing in common
    assert scale["network"][0] == scale["certified"][0] == FIRST
    assert (np.diff(scale["network"]) > 0).all()
    assert (np.diff(scale["certified"]) > 0).all()


def test_without_an_event_far_up_nothing_changes() -> None:
    scale = fit_scale(np.array([0.1, 2.0]), np.array([0.2, 9.0]))
    x = np.linspace(-5, 50, 20)
    np.testing.assert_allclose(rescaled(x, scale), x)
