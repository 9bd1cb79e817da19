"""K against a family of noise: the supremum is global, and the bound holds on every member."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal

from broker_filter.inference.lens_density import LensDensity
from broker_filter.inference.noise_family import NoiseFamily, SourceLight
from broker_filter.inference.supremum import log_supremum
from broker_filter.types import FloatArray

FAMILY = NoiseFamily(scale=(0.8, 1.5), red_noise=1.0, tau_days=(0.1, 20.0))
LN_2_PI = math.log(2 * math.pi)


def star(
    seed: int, n: int = 36, *, k: float = 1.0, a: float = 0.0, tau: float = 1.0, b: float = 0.002
) -> SourceLight:
    """Epochs of a constant star in eight nights; the amplitude in units of the median error."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.choice(rng.choice(20, 8, replace=False), n) + rng.uniform(0, 0.25, n))
    sigma = rng.uniform(0.01, 0.03, n)
    cov = covariance(t, sigma, k, a * float(np.median(sigma)), tau, b)
    residual = rng.multivariate_normal(np.zeros(n), cov)
    return SourceLight(t, residual, sigma, b)


def covariance(
    t: FloatArray, sigma: FloatArray, k: float, a: float, tau: float, b: float
) -> FloatArray:
    lag = np.abs(t[:, None] - t)
    return np.asarray(a**2 * np.exp(-lag / tau) + np.diag((k * sigma) ** 2) + b**2)


def log_density(light: SourceLight, cov: FloatArray) -> float:
    """Of the residuals, without the factor (2 pi)^(-n/2)."""
    normal = multivariate_normal(np.zeros(len(light)), cov)
    return float(normal.logpdf(light.residual)) + 0.5 * len(light) * LN_2_PI


@pytest.mark.parametrize("seed", range(4))
def test_the_supremum_is_not_below_a_dense_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    light = star(seed, k=rng.uniform(0.8, 1.5), a=rng.uniform(0, 1), tau=10 ** rng.uniform(-1, 1))
    plain = NoiseFamily(FAMILY.scale, FAMILY.red_noise, FAMILY.tau_days, 0, 0)
    unit = light.median_error
    dense = max(
        log_density(light, covariance(light.t, light.sigma, k, a * unit, tau, 0.002))
        for k in np.geomspace(*FAMILY.scale, 12)
        for a in np.linspace(0, FAMILY.red_noise, 9)
        for tau in np.geomspace(*FAMILY.tau_days, 10)
    )
    found = log_supremum(light, plain)
    assert found.log_density >= dense - 0.02
    # What it found is a member of the family, and has the density that it says.
    assert FAMILY.scale[0] <= found.scale <= FAMILY.scale[1] + 1e-9
    assert 0 <= found.amplitude <= FAMILY.red_noise * (1 + 1e-6)
    cov = covariance(light.t, light.sigma, found.scale, found.amplitude * unit, found.tau, 0.002)
    assert log_density(light, cov) == pytest.approx(found.log_density, abs=1e-6)


def test_two_wrong_epochs_are_found_and_cost_what_an_offset_of_their_size_costs() -> None:
    light = star(11)
    clean = log_supremum(light, FAMILY).log_density
    light.residual[[5, 20]] += (3.0, -0.7)  # the larger one hides the other
    found = log_supremum(light, FAMILY)
    assert set(found.wrong_epochs) == {5, 20}
    # A Gaussian of the best size gives an offset x the density 1 / (x sqrt(e)).
    cost = sum(math.log(x / light.median_error) for x in (3.0, 0.7))
    assert found.log_density == pytest.approx(clean - cost, abs=8)


def test_a_wrong_night_is_found() -> None:
    light = star(12)
    night = light.nights[3]
    light.residual[night] += 0.4
    found = log_supremum(light, FAMILY)
    assert found.wrong_night == (night[0], night[-1])


@pytest.mark.parametrize("seed", range(8))
def test_the_supremum_is_not_below_the_member_that_made_the_data(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, a, tau = rng.uniform(0.8, 1.5), rng.uniform(0, 1), 10 ** rng.uniform(-1, 1)
    light = star(seed, n=120, k=k, a=a, tau=tau)
    epochs, night = rng.choice(120, 2, replace=False), light.nights[rng.integers(8)]
    offsets = [*rng.choice([-0.9, 1.2, 40.0], 2), rng.choice([-0.15, 0.3])]
    cov = covariance(light.t, light.sigma, k, a * light.median_error, tau, 0.002)
    for offset, where in zip(offsets, [epochs[:1], epochs[1:], night], strict=True):
        light.residual[where] += offset
        cov[np.ix_(where, where)] += offset**2
    assert log_supremum(light, FAMILY).log_density >= log_density(light, cov) - 0.1


def test_without_wrong_epochs_in_the_family_an_outlier_counts() -> None:
    light = star(13)
    light.residual[5] += 1.0
    strict = NoiseFamily(FAMILY.scale, FAMILY.red_noise, FAMILY.tau_days, 0, 0)
    assert log_supremum(light, strict).log_density < log_supremum(light, FAMILY).log_density - 100


@pytest.mark.parametrize("log_f_s", [False, True])
def test_the_lens_density_is_the_integral_over_flux_share_and_baseline(log_f_s: bool) -> None:
    light = star(14, n=12, b=0.01)
    white = NoiseFamily((1.0, 1.0 + 1e-12), 0.0)
    signal = 3 * np.exp(-0.5 * ((light.t - 10) / 3) ** 2)
    light.residual[:] += 0.05 * signal
    low, high = 0.01, 1.0
    cov = covariance(light.t, light.sigma, 1.0, 0.0, 1.0, 0.01)
    edges = np.geomspace(low, high, 6) if log_f_s else np.array([low, high])

    def density(f_s: float) -> float:
        at = np.searchsorted(edges, f_s, side="right") - 1
        at = min(int(at), len(edges) - 2)
        prior = 1 / ((edges[at + 1] - edges[at]) * (len(edges) - 1))
        moved = SourceLight(light.t, light.residual - f_s * signal, light.sigma, 0.01)
        return float(math.exp(log_density(moved, cov)) * prior)

    whole = sum(
        quad(density, a, b, epsabs=0, epsrel=1e-9, points=[0.05] if a < 0.05 < b else None)[0]
        for a, b in pairwise(edges.tolist())
    )
    found = LensDensity(light, white, (low, high), log_f_s=log_f_s)(signal[:, None])
    assert found[0] == pytest.approx(math.log(whole), abs=1e-6)


def test_a_night_that_is_off_is_taken_up_as_a_column_of_the_covariance() -> None:
    light = star(16, n=30, b=0.01)
    white = NoiseFamily((1.0, 1.0 + 1e-12), 0.0)
    first, last, error = int(light.nights[1][0]), int(light.nights[1][-1]), 0.2
    light.residual[first : last + 1] += 0.3
    cov = covariance(light.t, light.sigma, 1.0, 0.0, 1.0, 0.01)
    cov[first : last + 1, first : last + 1] += error**2
    signal = np.exp(-0.5 * ((light.t - 10) / 3) ** 2)

    def density(f_s: float) -> float:
        moved = SourceLight(light.t, light.residual - f_s * signal, light.sigma, 0.01)
        return math.exp(log_density(moved, cov))

    whole = quad(density, 0, 1, epsabs=0, epsrel=1e-9, points=[0.05])[0]
    found = LensDensity(light, white)(signal[:, None], (first, last, error))
    assert found[0] == pytest.approx(math.log(whole), abs=1e-6)


@pytest.mark.parametrize(
    ("k", "a", "tau"), [(0.8, 0.0, 1.0), (1.5, 0.0, 1.0), (0.8, 1.0, 0.1), (1.2, 1.0, 5.0)]
)
def test_constant_stars_of_the_family_keep_the_bound(k: float, a: float, tau: float) -> None:
    rng = np.random.default_rng(5)
    found = []
    for seed in range(30):
        light = star(seed, k=k, a=a, tau=tau)
        t0, width = rng.uniform(0, 20, 40), 10 ** rng.uniform(-0.5, 1, 40)
        signal = 2 * np.exp(-0.5 * ((light.t[:, None] - t0) / width) ** 2)
        q = LensDensity(light, FAMILY)(signal)
        found.append(math.log(np.mean(np.exp(q - q.max()))) + q.max())
        found[-1] -= log_supremum(light, FAMILY).log_density
    e = np.exp(np.array(found))
    assert e.mean() < 1
    assert (e >= 10).mean() <= 0.1


def test_an_event_is_far_above_the_family() -> None:
    light = star(15, n=200)
    signal = 2 * np.exp(-0.5 * ((light.t - 10) / 3) ** 2)
    light.residual[:] += 0.5 * signal
    q = LensDensity(light, FAMILY)(signal[:, None])[0]
    assert q - log_supremum(light, FAMILY).log_density > 50


def test_the_only_night_of_a_source_may_be_wrong_too() -> None:
    """Else all that a site has seen so far, off as a whole, can only be a lens."""
    t = np.linspace(0.1, 0.4, 12)
    sigma = np.full(12, 0.01)
    residual = 12 * sigma + 0.02 * np.random.default_rng(1).standard_normal(12)
    light = SourceLight(t, residual, sigma, 0.001)
    assert [night.tolist() for night in light.nights] == [list(range(12))]
    free = log_supremum(light, NoiseFamily()).log_density
    assert free > log_supremum(light, NoiseFamily(wrong_nights=0)).log_density + 5
