"""The fit: its posterior and K against brute force, its law on noise, and bad input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy.special import gammaincc

from broker_filter.inference.ascent import Modes
from broker_filter.inference.fit import Fitter, _first_mixture
from broker_filter.inference.lens_coordinates import LENS as LENS_SIZE
from broker_filter.inference.lens_coordinates import Bend, LensBox
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import PARAMETERS, Fit, NotFitted, StarEpochs

PRIOR = BoxPrior("test", (0.0, 0.0, -1.0, -2.0, 0.1), (20.0, 1.5, 1.3, 1.0, 1.0))
LENS = (8.0, 0.3, 0.2, -1.0)
NOWHERE = torch.empty(0, 5)


def make_epochs(
    error: Sequence[float],
    sigma: float,
    *,
    lens: Sequence[float] | None = None,
    f_s: Sequence[float] | None = None,
    n: int = 80,
    seed: int = 1,
) -> StarEpochs:
    """Epochs of sites that take turns, each off its baseline by its own error."""
    rng = np.random.default_rng(seed)
    t, source = np.sort(rng.uniform(0, 20, n)), rng.integers(0, len(error), n)
    e = np.zeros(n)
    if lens is not None:
        u = np.hypot(lens[1], (t - lens[0]) / 10 ** lens[2])
        e = np.array(f_s)[source] * excess(u, 10 ** lens[3])
    g = 1 + np.array(error) * rng.normal(size=len(error))
    flux = g[source] * (1 + e) + sigma * rng.normal(size=n)
    return StarEpochs(
        tuple(("F146", f"site {i}") for i in range(len(error))),
        np.ones(len(error)),
        np.array(error, np.float64),
        60_000 + t,
        flux.astype(np.float32),
        np.full(n, sigma, np.float32),
        source.astype(np.int16),
    )


def fit(epochs: StarEpochs, seed: int = 1, starts: torch.Tensor = NOWHERE) -> Fit:
    found = Fitter(PRIOR)(epochs, 60_000.0, starts, seed, samples=500)
    assert isinstance(found, Fit), found
    return found


@pytest.fixture(scope="module")
def two_sites() -> StarEpochs:
    return make_epochs([0.002, 0.02], 0.8, lens=LENS, f_s=[0.5, 0.9])


def test_k_and_posterior_are_those_of_the_prior_weighed_by_the_likelihood(
    two_sites: StarEpochs,
) -> None:
    draws = PRIOR.sample(100_000, torch.Generator().manual_seed(1))[:, :4].double()
    ln_l = Likelihood(two_sites, 60_000.0, PRIOR)(draws)
    weight = ln_l.softmax(0)
    expected = (float(ln_l.logsumexp(0)) - math.log(len(ln_l))) / math.log(10)
    spread = math.sqrt(float(weight.square().sum())) / math.log(10)
    found = fit(two_sites)
    assert found.log10_k == pytest.approx(expected, abs=4 * math.hypot(found.log10_k_error, spread))
    mean = (weight @ draws).numpy()
    scatter = np.sqrt(weight.numpy() @ (draws.numpy() - mean) ** 2)
    assert 1 / float(weight.square().sum()) > 100
    assert np.all(np.abs(found.samples[:, :4].mean(0) - mean) < 0.3 * scatter)
    assert found.samples[:, :4].std(0) == pytest.approx(scatter, rel=0.25)


def test_says_how_well_the_best_curve_meets_the_epochs(two_sites: StarEpochs) -> None:
    found = fit(two_sites)
    assert found.converged
    assert found.reason == ""
    assert found.samples.shape == (500, len(PARAMETERS))
    assert found.f_s.shape == (500, 2)
    assert [(s.band, s.source) for s in found.sources] == list(two_sites.sources)
    assert sum(s.n for s in found.sources) == len(two_sites)
    assert sum(s.chi2 for s in found.sources) == pytest.approx(found.chi2)
    t0, u0, log10_tE, log10_rho, _ = found.best
    e = excess(np.hypot(u0, (two_sites.mjd_tai - 60_000 - t0) / 10**log10_tE), 10**log10_rho)
    f_s, g = (np.array([getattr(s, n) for s in found.sources]) for n in ("f_s", "baseline"))
    model = g[two_sites.source] * (1 + f_s[two_sites.source] * e)
    residual = (two_sites.flux - model) / two_sites.sigma
    assert np.square(residual).sum() == pytest.approx(found.chi2, rel=1e-5)
    assert found.p_value == pytest.approx(
        gammaincc(found.degrees_of_freedom / 2, found.chi2 / 2), rel=1e-6
    )
    assert abs(found.autocorrelation) < 0.4


def test_no_sample_is_likelier_than_the_best_curve(two_sites: StarEpochs) -> None:
    found, likelihood = fit(two_sites), Likelihood(two_sites, 60_000.0, PRIOR)
    theta = torch.from_numpy(np.vstack([found.best[:4], found.samples[:, :4]])).double()
    height = likelihood.profile(likelihood.sums(theta))
    assert float(height[0]) >= float(height.max()) - 0.05


def test_a_seed_gives_the_same_fit_again(two_sites: StarEpochs) -> None:
    first, again, other = (fit(two_sites, seed) for seed in (7, 7, 8))
    assert first.log10_k == again.log10_k
    np.testing.assert_array_equal(first.samples, again.samples)
    assert first.log10_k != other.log10_k


@pytest.mark.parametrize("error", [[0.0], [1e-4, 1e-2], [0.003, 0.003]])
def test_noise_does_not_certify_whatever_the_network_proposes(error: list[float]) -> None:
    """Mean K is at most one: by chance alone for sites whose baselines are off independently."""
    n, starts = 8, torch.tensor([[4.0, 0.1, -0.8, -1.5, 0.5]]).repeat(50, 1)
    log10_k = np.array(
        [fit(make_epochs(error, 0.003, n=40, seed=seed), seed, starts).log10_k for seed in range(n)]
    )
    assert np.mean(10.0**log10_k) < 1.0 + 3 / math.sqrt(n)
    assert log10_k.max() < math.log10(30 * n)


def test_few_effective_samples_are_said(
    two_sites: StarEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sample that carries all the weight is no certainty."""
    monkeypatch.setattr(Likelihood, "marginal", lambda _, sums: 1e8 * (1e9 * sums.of[1]).sin())
    found = fit(two_sites)
    assert not found.converged
    assert "effective samples" in found.reason
    assert found.log10_k_error >= math.log10(20)


def test_more_than_one_peak_is_kept() -> None:
    """Two nights of the event are missing: it may have peaked in either gap."""
    t = np.concatenate([np.linspace(0, 6, 30), np.linspace(9, 9.4, 5), np.linspace(12.4, 20, 30)])
    e = 0.8 * excess(np.hypot(0.3, (t - 7.7) / 10**-0.1), 0.1)
    flux = np.where((t > 9) & (t < 9.5), 1 + e[(t > 9) & (t < 9.5)].mean(), 1.0)
    epochs = StarEpochs(
        (("F146", "a"),),
        np.ones(1),
        np.array([0.002]),
        60_000 + t,
        flux.astype(np.float32),
        np.full(len(t), 0.02, np.float32),
        np.zeros(len(t), np.int16),
    )
    before = fit(epochs).samples[:, 0] < 9.2
    assert 0.1 < before.mean() < 0.9


def changed(epochs: StarEpochs, **columns: object) -> StarEpochs:
    return dataclasses.replace(epochs, **columns)


def first(epochs: StarEpochs, n: int) -> StarEpochs:
    names = ("mjd_tai", "flux", "sigma", "source")
    return changed(epochs, **{name: getattr(epochs, name)[:n] for name in names})


@pytest.mark.parametrize("n", [0, 1, 5])
def test_too_few_epochs_are_not_fitted(two_sites: StarEpochs, n: int) -> None:
    found = Fitter(PRIOR)(first(two_sites, n), 60_000.0, NOWHERE, 1)
    assert found == NotFitted(f"not fitted: {n} usable epochs, 6 are needed")


def test_a_star_of_very_many_sources_is_not_fitted(two_sites: StarEpochs) -> None:
    each = np.arange(len(two_sites), dtype=np.int16)
    names = tuple(("", f"site {n}") for n in each)
    one = np.ones(len(each))
    scattered = changed(two_sites, sources=names, source=each, level=one, error=0.01 * one)
    found = Fitter(PRIOR)(scattered, 60_000.0, NOWHERE, 1)
    assert found == NotFitted(f"not fitted: {len(each)} sources, at most 64 can be")


def assert_finite(found: Fit | NotFitted) -> None:
    if isinstance(found, NotFitted):
        assert found.reason.startswith("not fitted: ")
        return
    numbers = (found.log10_k, found.log10_k_error, found.effective_sample_size, found.chi2)
    assert np.isfinite([*numbers, found.p_value, found.autocorrelation, *found.best]).all()
    assert np.isfinite(found.samples).all()
    assert np.isfinite(found.f_s).all()
    assert np.isfinite([(s.f_s, s.baseline, s.chi2) for s in found.sources]).all()
    assert found.converged or found.reason


def bad_input(epochs: StarEpochs) -> dict[str, StarEpochs]:
    n, ones = len(epochs), np.ones(len(epochs), np.float32)
    wild = epochs.flux.copy()
    wild[7] = 1e20
    spoiled = epochs.flux.copy()
    spoiled[::3] = np.nan
    spoiled[1::3] = np.inf
    return {
        "all points equal": changed(epochs, flux=ones),
        "one instant": changed(epochs, mjd_tai=np.full(n, 60_001.0)),
        "one night": changed(epochs, mjd_tai=60_001 + 0.2 * np.arange(n) / n),
        "seven epochs": first(epochs, 7),
        "an epoch of 1e20": changed(epochs, flux=wild),
        "not finite": changed(epochs, flux=spoiled),
        "errors of zero": changed(epochs, sigma=0 * ones),
        "all tiny": changed(epochs, flux=1e-30 * ones, sigma=1e-31 * ones),
        "all huge": changed(epochs, flux=1e30 * ones, sigma=1e29 * ones),
        "unknown baseline": changed(epochs, error=np.array([np.nan, 0.01])),
        "a useless baseline": changed(epochs, error=np.array([1e3, 1e-9])),
        "another year": changed(epochs, mjd_tai=epochs.mjd_tai + 400),
        "a site of one epoch": changed(epochs, source=(np.arange(n) == 3).astype(np.int16)),
        "S/N 3,000": make_epochs([0.001], 0.0005, lens=LENS, f_s=[0.5]),
        "in a gap": make_epochs([0.001], 0.01, lens=(-9.0, 0.1, -1.0, -1.0), f_s=[0.5]),
    }


@pytest.mark.parametrize("name", bad_input(make_epochs([0.1, 0.1], 0.1)))
def test_bad_input_has_a_finite_fit_or_a_reason(two_sites: StarEpochs, name: str) -> None:
    starts = torch.tensor([[4.0, 0.1, -0.8, -1.5, 0.5], [math.nan] * 5])
    epochs = bad_input(two_sites)[name]
    assert_finite(Fitter(PRIOR)(epochs, 60_000.0, starts, 1, samples=100))


def test_a_gaussian_without_a_variance_is_left_out_of_the_first_proposal() -> None:
    """As rounding leaves one along a ridge, where the signal-to-noise is in the thousands."""
    draw = torch.Generator().manual_seed(1)
    candidates = torch.randn(50, LENS_SIZE, generator=draw, dtype=torch.float64)
    unit = torch.eye(LENS_SIZE, dtype=torch.float64)
    bend = Bend(LensBox(PRIOR), 1.0)
    good = Modes(candidates[:1], torch.zeros(1, dtype=torch.float64), 1e-4 * unit[None])
    bad = Modes(
        candidates[1:3], torch.zeros(2, dtype=torch.float64), -1e-12 * torch.stack([unit] * 2)
    )
    mass = torch.tensor([5.0, 5.0], dtype=torch.float64)
    mixture = _first_mixture(candidates, good, bad, mass, bend, draw)
    assert bool(torch.isfinite(mixture.cholesky).all())
    assert bool((mixture.centre - bend.straight(good.z)).abs().amax(1).min() < 1e-9)
