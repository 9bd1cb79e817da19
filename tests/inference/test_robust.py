"""Robust K: red noise that certified K takes for a lens is seen through; an event is not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from broker_filter.inference.fit import Fitter
from broker_filter.inference.fit_epochs import NO_BASELINE, usable_epochs
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.noise_bounds import NoiseBounds
from broker_filter.inference.noise_family import NoiseFamily
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.robust import _shares, source_lights
from broker_filter.types import Fit, RobustK, SourceHistory, StarEpochs

PRIOR = BoxPrior("test", (0.0, 0.0, -1.0, -3.0, 0.0), (20.0, 1.5, 1.5, 0.0, 1.0))
FAMILY = NoiseFamily(scale=(0.8, 1.5), red_noise=2.0)


def epochs(seed: int, *, height: float = 0.0, red_noise: float = 0.0, sites: int = 1) -> StarEpochs:
    """A hundred epochs in 20 nights, with a lens of tE = 1 d and red noise, in errors."""
    rng = np.random.default_rng(seed)
    n, sigma = 100, 0.02
    t = np.sort(np.arange(n) // 5 + rng.uniform(0, 0.3, n))
    lens = excess(np.hypot(0.3, t - 9.1), 0.01)
    lag = np.abs(t[:, None] - t)
    covariance = np.eye(n) + red_noise**2 * np.exp(-lag / 2)
    noise = sigma * rng.multivariate_normal(np.zeros(n), covariance)
    return StarEpochs(
        tuple(("r", f"site{i}") for i in range(sites)),
        np.ones(sites),
        np.full(sites, 0.003),
        60_000 + t,
        (1 + height * lens + noise).astype(np.float32),
        np.full(n, sigma, np.float32),
        (np.arange(n) % sites).astype(np.int16),
    )


def fit(of: StarEpochs) -> Fit:
    found = Fitter(PRIOR, noise=NoiseBounds(FAMILY))(of, 60_000.0, torch.empty(0, 5), 1)
    assert isinstance(found, Fit)
    return found


def test_correlated_nights_have_a_certified_k_but_no_robust_one() -> None:
    found = fit(epochs(4, red_noise=2.0))
    assert found.robust is not None
    assert found.log10_k > 3
    assert found.robust.log10_k < 1
    assert found.robust.noise[0].red_noise > 0.3


@pytest.mark.parametrize("sites", [1, 2])
def test_an_event_stands_out_of_the_family(sites: int) -> None:
    found = fit(epochs(5, height=1.5, sites=sites))
    assert found.robust is not None
    assert found.robust.log10_k > 6
    assert found.robust.log10_k < found.log10_k
    assert len(found.robust.noise) == sites


def test_each_source_has_its_own_epochs() -> None:
    of = epochs(6, sites=2)
    lights = source_lights(Likelihood(of, 60_000.0, PRIOR))
    for i, light in enumerate(lights):
        mine = of.source == i
        np.testing.assert_allclose(light.t, of.mjd_tai[mine] - 60_000)
        np.testing.assert_allclose(light.residual, of.flux[mine].astype(np.float64) - 1)
        assert light.baseline_error == pytest.approx(0.003)


def test_without_a_family_there_is_no_robust_k() -> None:
    found = Fitter(PRIOR)(epochs(7), 60_000.0, torch.empty(0, 5), 1)
    assert isinstance(found, Fit)
    assert found.robust is None


def test_a_fit_that_reaches_back_finds_a_peak_before_its_window() -> None:
    of = epochs(8, height=2.0)
    late = 60_000.0 + 12
    fitter = Fitter(PRIOR)
    short = fitter(of, late, torch.empty(0, 5), 1)
    whole = fitter.of_whole_event(12)(of, late, torch.empty(0, 5), 1)
    assert isinstance(short, Fit)
    assert isinstance(whole, Fit)
    assert whole.best[0] == pytest.approx(9.1 - 12, abs=0.2)
    assert whole.log10_k > short.log10_k + 10


def test_the_fit_of_a_whole_event_finds_one_longer_than_the_network_s_prior() -> None:
    t = np.linspace(0, 600, 400)
    true = 0.8 * excess(np.hypot(0.2, (t - 310) / 150), 0.001)
    rng = np.random.default_rng(12)
    of = replace(
        epochs(1),
        mjd_tai=60_000 + t,
        flux=(1 + true + rng.normal(0, 0.02, len(t))).astype(np.float32),
        sigma=np.full(len(t), 0.02, np.float32),
        source=np.zeros(len(t), np.int16),
    )
    fitter = Fitter(PRIOR).of_whole_event(580)
    found = fitter(of, 60_580.0, torch.empty(0, 5), 1)
    assert isinstance(found, Fit)
    low, middle, high = np.quantile(found.samples[:, 2], (0.01, 0.5, 0.99))
    assert low < np.log10(150) < high
    assert high < found.longest - 0.1
    assert middle > PRIOR.high[2]


def test_a_source_that_joins_an_event_has_no_known_baseline() -> None:
    """A site that begins at the peak calls lensed light its baseline."""
    of = epochs(13, height=0.8, sites=2)
    late = (of.source == 0) | (of.mjd_tai > 60_000 + 8)
    flux = np.where(of.source == 1, of.flux / 2, of.flux)
    known = SourceHistory(40.0, 40.0, 1.0, 1.0, 0.1)
    unknown = SourceHistory(0.0, 0.0, 1.0, 0.0, 0.0)
    joined = replace(of, flux=flux.astype(np.float32), history=(known, unknown))
    joined = replace(
        joined, **{k: getattr(joined, k)[late] for k in ("mjd_tai", "flux", "sigma", "source")}
    )
    assert usable_epochs(joined).error.tolist() == [of.error[0], NO_BASELINE]
    for history in ((unknown, unknown), (known, replace(unknown, catalogue=1.0)), ()):
        assert usable_epochs(replace(joined, history=history)).error.tolist() == of.error.tolist()
    found = Fitter(PRIOR)(joined, 60_000.0, torch.empty(0, 5), 1)
    assert isinstance(found, Fit)
    assert found.p_value > 1e-3
    assert found.sources[1].baseline == pytest.approx(0.5, abs=0.05)


def test_an_event_beside_gross_outliers_is_still_one() -> None:
    clean = epochs(9, height=2.0)
    flux = clean.flux.copy()
    flux[[3, 90]] += (4.0, -0.8)
    robust = [fit(each).robust for each in (clean, replace(clean, flux=flux))]
    assert robust[0] is not None
    assert robust[1] is not None
    assert robust[1].log10_k > 0.6 * robust[0].log10_k
    assert len(robust[1].noise[0].wrong_epochs) == 2


@pytest.mark.parametrize("seed", range(20, 26))
def test_one_epoch_that_draws_the_fit_away_costs_an_event_little(seed: int) -> None:
    """The fit allows for no wrong epoch, and is of the one that weighs more than the event."""
    t = np.arange(0.1, 20, 0.2)
    flux = 1 + excess(np.hypot(0.3, t - 9.1), 0.01)
    flux += 0.1 * np.random.default_rng(seed).normal(size=len(t))
    clean = replace(epochs(seed), mjd_tai=60_000 + t, flux=flux.astype(np.float32))
    clean.sigma[:] = 0.1
    spiked = replace(clean, flux=clean.flux.copy())
    spiked.flux[20] += 6.0  # 60 errors, five days before the peak
    alone, beside = fit(clean), fit(spiked)
    assert alone.robust is not None
    assert beside.robust is not None
    assert alone.robust.log10_k > 6
    assert beside.best[0] == pytest.approx(t[20], abs=0.2)
    assert beside.robust.log10_k > 0.8 * alone.robust.log10_k


@pytest.mark.parametrize("seed", [5, 6])
def test_k_does_not_depend_on_what_lenses_are_drawn_around(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    of = epochs(seed, height=1.0)
    alone = fit(of).robust
    monkeypatch.setattr(
        "broker_filter.inference.fit._beside_few", lambda _, epochs, __: epochs.take(np.arange(90))
    )
    both = fit(of).robust
    assert alone is not None
    assert both is not None
    error = np.hypot(alone.log10_k_error, both.log10_k_error)
    assert error < 0.1
    assert both.log10_k == pytest.approx(alone.log10_k, abs=3 * error)


def test_a_wild_epoch_is_no_reason_against_a_lens_where_the_event_has_wilder_ones() -> None:
    """Without a lens the peak's own epochs are the wrong ones."""
    clean = epochs(10, height=8.0)
    flux = clean.flux.copy()
    peak = clean.mjd_tai[int(flux.argmax())]
    far = np.flatnonzero(np.abs(clean.mjd_tai - peak) > 4)[[10, 30]]
    flux[far] += (0.5, -0.4)  # 25 and 20 errors
    robust = [fit(each).robust for each in (clean, replace(clean, flux=flux))]
    assert robust[0] is not None
    assert robust[1] is not None
    assert robust[1].log10_k > 0.6 * robust[0].log10_k


def of_a_window(of: StarEpochs, days: float | None) -> float:
    fitter = Fitter(PRIOR, noise=NoiseBounds(FAMILY), days=days)
    found = fitter(of, 60_000.0, torch.empty(0, 5), 1)
    assert isinstance(found, Fit)
    assert found.robust is not None
    return found.robust.log10_k


def test_later_parts_of_a_window_cost_a_tenth_of_a_dex_at_most() -> None:
    of = epochs(12, height=1.5)
    whole, mean = of_a_window(of, None), of_a_window(of, 20.0)
    assert mean >= whole + np.log10(0.8) - 1e-9
    # The window has been seen for less than an eighth of its length.
    assert of_a_window(of, 200.0) == pytest.approx(whole + np.log10(0.8))


def test_wild_epochs_long_before_an_event_do_not_count_against_it() -> None:
    of = epochs(13, height=0.5)
    flux = of.flux.copy()
    flux[[2, 9, 13, 20]] += (0.5, -0.4, 0.3, -0.5)
    wild = replace(of, flux=flux)
    assert of_a_window(wild, 10.0) > of_a_window(wild, None) + 1


def test_a_part_keeps_the_unit_of_its_noise() -> None:
    (light,) = source_lights(Likelihood(epochs(14), 60_000.0, PRIOR))
    light = replace(light, sigma=np.where(light.t < 12, 0.02, 0.08))
    part = light.since(12.0)
    assert len(part) == (light.t >= 12).sum()
    assert part.median_error == light.median_error == pytest.approx(0.02)


def in_bands(camera: str, *, height: float = 0.0, wrong: int = 0) -> StarEpochs:
    """A week of an event in the middle of 180 days, two epochs in each of four bands.

    Names of cameras are made from ``camera`` and the number of the band. Of ``wrong`` bands one
    epoch each is off.
    """
    rng = np.random.default_rng(21)
    n, bands, sigma = 60, 4, 0.02
    t = np.arange(n) * 3.0 + rng.uniform(0, 0.1, n)
    band = np.arange(n) % bands
    flux = 1 + height * excess(np.hypot(0.3, (t - 90) / 12), 0.01) + sigma * rng.normal(size=n)
    for i in range(wrong):
        flux[np.flatnonzero(band == i)[7]] += 1.0
    return StarEpochs(
        tuple((str(i), camera.format(i)) for i in range(bands)),
        np.ones(bands),
        np.full(bands, 0.003),
        60_000 + t,
        flux.astype(np.float32),
        np.full(n, sigma, np.float32),
        band.astype(np.int16),
    )


def robust_in_bands(of: StarEpochs) -> RobustK:
    prior = BoxPrior("sparse", (0.0, 0.0, 0.3, -3.0, 0.02), (180.0, 1.5, 2.0, 0.0, 1.0))
    found = Fitter(prior, noise=NoiseBounds())(of, 60_000.0, torch.empty(0, 5), 1)
    assert isinstance(found, Fit)
    assert found.robust is not None
    return found.robust


def test_the_bands_of_a_camera_share_its_wrong_epochs() -> None:
    """As many in each band would be all that is seen of an event."""
    shared = robust_in_bands(in_bands("camera", height=0.15))
    each = robust_in_bands(in_bands("camera{}", height=0.15))
    assert shared.log10_k > 6.6
    assert shared.log10_k > each.log10_k + 3
    assert sum(len(noise.wrong_epochs) for noise in shared.noise) <= 2


def test_two_wrong_epochs_in_two_bands_of_a_camera_are_no_event() -> None:
    found = robust_in_bands(in_bands("camera", wrong=2))
    assert found.log10_k < 0
    assert [len(noise.wrong_epochs) for noise in found.noise] == [1, 1, 0, 0]


def test_wrong_epochs_are_shared_in_all_ways() -> None:
    shares = _shares(3, 2).tolist()
    assert sorted(shares) == sorted(
        list(each) for each in product(range(3), repeat=3) if sum(each) <= 2
    )
