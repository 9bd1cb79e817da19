"""Shapes of rivals against their formulas, written with numpy."""

from __future__ import annotations

import math

import numpy as np

from broker_filter.inference import shape_loops

T = np.sort(np.random.default_rng(1).uniform(0, 20, 200))
NEAR = 1e-12


def test_a_flare_rises_to_one_and_declines() -> None:
    found = shape_loops.flare(T, np.array([[9.0, 0.5], [3.0, 1e-4]]))[0]
    x = (T - 9.0) / 0.5
    fall = 0.689 * np.exp(-1.6 * x) + 0.303 * np.exp(-0.2783 * x)
    rise = 1 + x * (1.941 + x * (-0.175 + x * (-2.246 - 1.125 * x)))
    np.testing.assert_allclose(found[x > 0, 0], fall[x > 0], rtol=NEAR)
    between = (x > -1) & (x < 0)
    np.testing.assert_allclose(found[between, 0], rise[between], rtol=NEAR)
    assert not found[x < -1].any(axis=0)[0]


def test_an_outburst_has_a_rise_a_plateau_and_a_decline() -> None:
    found = shape_loops.outburst(T, np.array([[5.0, 2.0, 3.0, 1.5]]))[0, :, 0]
    wanted = np.clip((T - 5) / 2, 0, 1) * np.exp(-np.maximum(T - 10, 0) / 1.5)
    np.testing.assert_allclose(found, wanted, rtol=NEAR)


def test_a_dip_is_a_gaussian_downwards() -> None:
    found = shape_loops.dip(T, np.array([[9.0, 0.7]]))[0, :, 0]
    np.testing.assert_allclose(found, -np.exp(-0.5 * ((T - 9) / 0.7) ** 2), rtol=NEAR, atol=1e-195)


def test_a_step_goes_from_nothing_to_one() -> None:
    found = shape_loops.step(T, np.array([[9.0, 0.7]]))[0, :, 0]
    np.testing.assert_allclose(found, 0.5 * (1 + np.tanh((T - 9) / 0.7)), rtol=1e-9, atol=1e-15)


def test_harmonics_are_sines_and_cosines_of_one_to_three_times_the_phase() -> None:
    period = np.array([[0.31], [4.0], [19.0]])
    found = shape_loops.harmonics(T, period)
    phase = 2 * math.pi * (T - T.mean())[:, None] / period[:, 0]
    for order in (1, 2, 3):
        at = 2 * order - 2
        np.testing.assert_allclose(found[at], np.sin(order * phase) / order, atol=NEAR)
        np.testing.assert_allclose(found[at + 1], np.cos(order * phase) / order, atol=NEAR)
