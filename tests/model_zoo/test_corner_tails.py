"""Importance sampling of noise that looks like a lens: known tails of Gaussian noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from broker_filter.inference import zoo
from broker_filter.types import FloatArray
from model_zoo.evaluate.measure import corner_tails
from model_zoo.evaluate.measure.corner_tails import like_a_lens, measure_corner_tails
from model_zoo.evaluate.measure.corners import CORNERS, Corner, SiteNoise, corner_noise
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.report.tables import corner_tail_tables

STARS = 400


def bump(site: SiteNoise) -> FloatArray:
    return np.exp(-0.5 * np.square(site.t - 10))


@pytest.mark.parametrize("corner", CORNERS, ids=lambda corner: corner.name)
def test_the_covariance_is_that_of_the_noise(corner: Corner) -> None:
    rng = np.random.default_rng(1)
    chi2 = epochs = 0.0
    for _ in range(50):
        for site in corner_noise(corner, rng):
            chi2 += site.noise @ np.linalg.solve(site.covariance, site.noise)
            epochs += len(site.t)
    assert abs(chi2 - epochs) < 5 * np.sqrt(2 * epochs)


@pytest.mark.parametrize("corner", [CORNERS[0], CORNERS[3]], ids=lambda corner: corner.name)
def test_weighted_shares_are_those_of_gaussian_noise(
    corner: Corner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All curves are one, so that the filter for it has a tail that is known.
    monkeypatch.setattr(
        corner_tails,
        "_curves",
        lambda sites, _: [np.tile(bump(s), (corner_tails.CURVES, 1)) for s in sites],
    )
    weights, filtered = np.zeros(STARS), np.zeros(STARS)
    for j in range(STARS):
        rng = np.random.default_rng([5, j])
        sites = corner_noise(corner, rng)
        signals, weights[j] = like_a_lens(sites, rng)
        signal_to_noise = power = 0.0
        for site, signal in zip(sites, signals, strict=True):
            along = np.linalg.solve(site.covariance, bump(site))
            signal_to_noise += along @ (site.noise + signal)
            power += along @ bump(site)
        filtered[j] = signal_to_noise / np.sqrt(power)
    assert weights.max() <= 1 / corner_tails.PLAIN
    assert weights.mean() == pytest.approx(1, abs=5 * weights.std() / np.sqrt(STARS))
    for threshold in (3.0, 5.0, 7.0):
        counted = weights * (filtered > threshold)
        error = counted.std() / np.sqrt(STARS)
        assert error < 0.5 * norm.sf(threshold)
        assert counted.mean() == pytest.approx(norm.sf(threshold), abs=4 * error)


def test_stars_that_reach_k_are_weighted_and_known_ones_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = zoo.verify(zoo.find("fspl-roman-1.0.0"))
    monkeypatch.setattr(corner_tails, "CORNERS", CORNERS[:1])
    monkeypatch.setattr(corner_tails, "SNR", (60.0, 80.0))
    kept = tmp_path / "stars.jsonl"
    part = measure_corner_tails(entry, 3, kept=Kept(kept), quiet=True)
    (row,) = part["rows"]
    assert row["highest"] > 3
    (last,) = [reached for reached in row["tail"] if reached["k"] == 1000]
    assert last["count"] > 0
    assert last["share"] < 1e-100  # such noise never comes
    assert part["holds"]
    monkeypatch.setattr(corner_tails, "corner_noise", None)  # nothing is drawn that is known
    assert measure_corner_tails(entry, 3, kept=Kept(kept), quiet=True) == part
    assert CORNERS[0].name in corner_tail_tables(part)[2]
