"""Visits of a survey of many fields against their description."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from broker_filter.windows.store import WindowStore
from model_zoo.simulate.curves import Simulator, baselines_of_bands
from model_zoo.simulate.pattern import Pattern, PatternConfig, draw_patterns
from model_zoo.simulate.prior import SPARSE_PRIOR
from model_zoo.simulate.visits import WIDE_VISITS
from tests import build

DAYS = 180.0
CONFIG = PatternConfig(days=DAYS, stream_sigma=(0.003, 0.25), visits=WIDE_VISITS)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def pattern() -> Pattern:
    return draw_patterns(3000, CONFIG, seeded())


def test_visits_are_sorted_inside_the_window_and_end_before_it_does(pattern: Pattern) -> None:
    t = torch.where(pattern.valid, pattern.t, torch.nan)
    assert bool((t.diff(dim=1)[pattern.valid[:, 1:]] >= 0).all())
    assert t.nan_to_num(0).min() >= 0
    assert t.nan_to_num(0).max() <= DAYS
    last = t.nan_to_num(0).amax(1)
    assert (last < 0.75 * DAYS).float().mean() > 0.1  # seasons' ends and slow cadences
    assert bool((pattern.n >= 1).all())


def test_no_star_is_visited_more_often_than_thrice_a_night(pattern: Pattern) -> None:
    assert pattern.n.max() <= 3 * DAYS
    rich = pattern.t[pattern.n > 100]
    gaps = torch.where(rich.isfinite(), rich, torch.nan).diff(dim=1)
    assert 0.5 < float(gaps.nanquantile(0.75)) < 4  # days


def test_the_shares_of_stars_in_so_many_bands_are_as_stated(pattern: Pattern) -> None:
    rich = pattern[(pattern.n > 60).nonzero()[:, 0]]
    band = torch.where(rich.valid, rich.band, -1)
    count = torch.stack([(band == b).any(1) for b in range(len(WIDE_VISITS.bands))]).sum(0)
    shares = np.bincount(count.numpy(), minlength=6)[1:] / len(count)
    np.testing.assert_allclose(shares, WIDE_VISITS.bands, atol=0.06)


def test_bands_differ_in_their_errors(pattern: Pattern) -> None:
    rich = pattern[(pattern.n > 100).nonzero()[:, 0]]
    means = [
        torch.where(rich.valid & (rich.band == b), rich.sigma.log(), torch.nan).nanmean(1)
        for b in (0, 1)
    ]
    spread = (means[0] - means[1])[~(means[0] - means[1]).isnan()].std()
    assert float(spread) == pytest.approx(2**0.5 * WIDE_VISITS.band_scatter, rel=0.15)


def test_the_error_of_the_baselines_is_the_one_that_windows_state() -> None:
    """As `WindowStore` makes it of the same epochs, bands and baselines."""
    pattern = draw_patterns(50, CONFIG, seeded(3))
    pattern = pattern[(pattern.n > 20).nonzero()[:3, 0]]
    b = torch.tensor([0.01, 0.03, 0.05])
    error, _ = baselines_of_bands(b, pattern, seeded(4))
    factors = torch.randn(3, int(pattern.band.max()) + 1, generator=seeded(4)).mul(0.5).exp()
    for row in range(3):
        n = int(pattern.n[row])
        t, sigma, band = (
            getattr(pattern, name)[row, :n].numpy() for name in ("t", "sigma", "band")
        )
        store = WindowStore(DAYS, joined=True)
        for one in np.unique(band):
            mine = band == one
            store.insert(
                build.photometry(
                    45_000 + t[mine], band=str(one), flux=1000.0, flux_err=1000 * sigma[mine],
                    ref_flux=1000.0, ref_flux_err=1000 * float(b[row] * factors[row, one]),
                )
            )  # fmt: skip
        found = store.read(np.arange(1)).baseline_error[0]
        assert found == pytest.approx(float(error[row]), rel=0.02)


def test_each_band_is_off_by_an_amount_of_its_own(pattern: Pattern) -> None:
    b = torch.full((len(pattern.n),), 0.1)
    _, change = baselines_of_bands(b, pattern, seeded(5))
    for star in range(20):
        n = int(pattern.n[star])
        for band in pattern.band[star, :n].unique():
            assert len(change[star, :n][pattern.band[star, :n] == band].unique()) == 1
    assert float(change[pattern.valid].square().mean().sqrt()) == pytest.approx(0.128, rel=0.1)


def test_curves_with_visits_are_the_same_for_the_same_seed_and_finite() -> None:
    simulator = Simulator(
        prior=SPARSE_PRIOR, gate=None, pattern=CONFIG, baseline_error=(0.001, 0.3), length=256
    )
    one, two = (simulator.events(200, seeded(7)) for _ in range(2))
    assert torch.equal(one.x, two.x)
    assert bool(torch.isfinite(one.x).all())
    exact = replace(simulator, baseline_error=(0.0, 0.0))
    assert not exact.noise(20, seeded()).baseline_error.any()
