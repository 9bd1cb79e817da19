"""The recalibration map: what it mends, what it must never claim, and how it travels."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_filter.errors import ModelError
from model_zoo.evaluate.measure.calibrate import Recalibration, fit_recalibration
from model_zoo.evaluate.measure.calibration import Tail, reliability
from model_zoo.evaluate.measure.rates import clopper_pearson

LN_10 = math.log(10)


def exact_log10_k(n: int, seed: int, mean: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Exact log10 K of events N(mean, 1) and noise N(0, 1)."""
    rng = np.random.default_rng(seed)
    draws = mean + rng.standard_normal(n), rng.standard_normal(n)
    return tuple((mean * d - mean**2 / 2) / LN_10 for d in draws)


def tail_holds(log10_k: np.ndarray) -> bool:
    tail = Tail()
    tail.add(log10_k)
    return bool(tail.figures()["tail_holds"] and tail.figures()["mean_k_holds"])


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 0.0), (1.0, 1.5), (2.0, 2.0)])
def test_an_exaggerated_k_holds_after_recalibration(scale: float, shift: float) -> None:
    events, noise = exact_log10_k(50_000, 1)
    recalibrate = fit_recalibration(scale * events + shift, scale * noise + shift)
    events, noise = exact_log10_k(100_000, 2)
    raw_events, raw_noise = scale * events + shift, scale * noise + shift
    assert not tail_holds(raw_noise)
    assert tail_holds(recalibrate(raw_noise))
    raw, mended = (
        reliability(*pair)
        for pair in ((raw_events, raw_noise), (recalibrate(raw_events), recalibrate(raw_noise)))
    )
    assert raw["covered"] < mended["covered"]


def test_a_shy_k_is_recovered_where_both_classes_were_seen() -> None:
    events, noise = exact_log10_k(200_000, 3)
    recalibrate = fit_recalibration(0.5 * events, 0.5 * noise)
    exact = np.linspace(-1.5, 1.5, 13)
    assert recalibrate(0.5 * exact) == pytest.approx(exact, abs=0.15)


def test_a_calibrated_k_stays_as_it_is() -> None:
    events, noise = exact_log10_k(200_000, 4)
    at = np.linspace(-2, 2, 17)
    assert fit_recalibration(events, noise)(at) == pytest.approx(at, abs=0.15)


def test_no_event_gets_more_than_the_noise_supports() -> None:
    """5,000 noise curves, none of them high: log10 K of 40 becomes at most 5,000 / 3."""
    recalibrate = fit_recalibration(np.full(1000, 40.0), np.full(5_000, -4.0))
    assert recalibrate(np.array([40.0, 300.0])).max() <= np.log10(5_000 / 2.99)
    # Two noise curves at 18: of 5,000 at most 0.126 % are so high, at 95 % confidence.
    noise = np.r_[np.full(4_998, -4.0), 18.0, 18.2]
    recalibrate = fit_recalibration(np.full(1000, 40.0), noise)
    assert recalibrate(np.array([17.0]))[0] <= -np.log10(clopper_pearson(2, 5_000, 0.90)[1]) + 1e-9


values = st.lists(st.floats(-60, 60), min_size=1, max_size=60).map(np.array)


@settings(max_examples=30, deadline=None)
@given(values, values)
def test_the_map_never_falls_and_never_exceeds_its_support(
    events: np.ndarray, noise: np.ndarray
) -> None:
    recalibrate = fit_recalibration(events, noise)
    at = np.linspace(-70, 70, 701)
    mapped = recalibrate(at)
    assert (np.diff(mapped) >= 0).all()
    for raw, log10_k in zip(at[::10], mapped[::10], strict=True):
        limit = clopper_pearson(int((noise >= raw).sum()), len(noise), 0.90)[1]
        assert log10_k <= -np.log10(limit) + 1e-9


def test_a_map_survives_the_card() -> None:
    recalibrate = fit_recalibration(*exact_log10_k(2_000, 5))
    section = json.loads(json.dumps(recalibrate.to_card(), allow_nan=False))
    assert section == recalibrate.to_card()


@pytest.mark.parametrize(
    ("raw", "log10_k", "message"),
    [
        ((0, 1), (0,), "as many knots"),
        ((0,), (0,), "two or more"),
        ((1, 0), (0, 1), "must rise"),
        ((0, 1), (1, 0), "must not fall"),
        ((0, math.nan), (1, 2), "knots"),
    ],
)
def test_a_map_that_cannot_be_one_is_refused(
    raw: tuple[float, ...], log10_k: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Recalibration(raw, log10_k, n_noise=1)


def test_both_classes_are_needed() -> None:
    with pytest.raises(ValueError, match="events and noise"):
        fit_recalibration(np.zeros(0), np.zeros(3))
