"""Calibration of K on values whose calibration is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_zoo.evaluate.draw.calibration import draw_calibration
from model_zoo.evaluate.measure.calibration import (
    HIGHEST,
    Tail,
    bound_held,
    measure_calibration,
    reliability,
)
from model_zoo.evaluate.measure.rates import clopper_pearson
from model_zoo.evaluate.sets import QUICK, SEEDS, score
from model_zoo.simulate.curves import Simulator
from tests.model_zoo.networks import make_network

SEED, LN_10 = 5, math.log(10)


def exact_log10_k(n: int, mean: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Exact log10 K of events N(mean, 1) and noise N(0, 1)."""
    rng = np.random.default_rng(SEED)
    events, noise = mean + rng.standard_normal(n), rng.standard_normal(n)
    return tuple((mean * d - mean**2 / 2) / LN_10 for d in (events, noise))


def test_an_exact_k_holds_its_bound_and_has_mean_one() -> None:
    _, noise = exact_log10_k(200_000)
    tail = Tail()
    for part in np.array_split(noise, 7):
        tail.add(part)
    figures = tail.figures()
    assert figures["n_tail"] == 200_000
    assert figures["tail_holds"]
    assert figures["mean_k_holds"]
    assert figures["mean_k_noise"] == pytest.approx(1.0, abs=4 * figures["mean_k_noise_error"])
    for row in figures["k_tail"]:
        assert row["observed"] == float((10**noise >= row["k"] * 0.99999).mean())
        assert row["low"] <= row["observed"] <= row["high"]
    assert figures["highest_log10_k"] == pytest.approx(
        np.sort(noise)[: -HIGHEST - 1 : -1], abs=1e-4
    )


def test_a_k_that_is_too_large_fails_where_it_is() -> None:
    """The paper's network gives noise a K of 10^18: one curve in 5,000 is enough to show."""
    tail = Tail()
    tail.add(np.r_[np.full(4_990, -1.0), np.full(10, 18.2)])
    figures = tail.figures()
    assert [row["holds"] for row in figures["k_tail"]] == [True] * 7 + [False] * 2
    assert not figures["tail_holds"]


def test_an_infinite_k_leaves_the_figures_finite() -> None:
    tail = Tail()
    tail.add(np.array([1e6, 0.0]))
    assert math.isfinite(tail.figures()["mean_k_noise_error"])


def test_the_mean_of_k_fails_only_beyond_its_error() -> None:
    tail = Tail()
    tail.add(np.full(100, math.log10(1.2)))
    assert not tail.figures()["mean_k_holds"]
    tail = Tail()
    tail.add(np.r_[np.full(99, -9.0), math.log10(150)])
    assert tail.figures()["mean_k_noise"] > 1
    assert tail.figures()["mean_k_holds"]


@pytest.mark.parametrize(
    ("found", "n", "expected"),
    # Clopper & Pearson's own intervals; 0 of n is the closed form 1 - (0.025)^(1/n).
    [(0, 100, (0.0, 1 - 0.025**0.01)), (10, 10, (0.025**0.1, 1.0)), (5, 20, (0.0866, 0.4910))],
)
def test_binomial_intervals(found: int, n: int, expected: tuple[float, float]) -> None:
    assert clopper_pearson(found, n) == pytest.approx(expected, abs=1e-4)


def test_a_bound_is_broken_only_beyond_the_binomial_error() -> None:
    assert bound_held(14, 10_000, 1000)["holds"]
    assert not bound_held(25, 10_000, 1000)["holds"]


def test_exact_odds_cover_and_exaggerated_ones_do_not() -> None:
    events, noise = exact_log10_k(40_000)
    good, bad = reliability(events, noise), reliability(3 * events, 3 * noise)
    assert good["covered"] >= good["bins"] - 1
    assert bad["covered"] <= bad["bins"] / 2
    for key in ("by_log10_k", "by_p"):
        assert sum(row["n"] for row in good[key]) == 80_000
        assert sum(row["events"] for row in good[key]) == 40_000


def test_reliability_needs_equal_priors() -> None:
    with pytest.raises(ValueError, match="equal priors"):
        reliability(np.zeros(3), np.zeros(4))


def test_an_entry_is_measured_on_its_frozen_noise_and_drawn(tmp_path: Path) -> None:
    network, simulator = make_network(), Simulator(length=128)
    sizes = replace(QUICK, events=5, tail=40)
    result = measure_calibration(network, simulator, sizes, quiet=True)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["n_tail"] == 40
    assert result["reliability"]["n"] == 100
    noise = score(network, simulator.noise, 40, SEEDS["tail_noise"], "x", quiet=True).log10_k
    assert result["highest_log10_k"][0] == pytest.approx(noise.max(), abs=0.02)
    for path in draw_calibration(result, tmp_path):
        assert path.read_bytes().startswith(b"\x89PNG")
