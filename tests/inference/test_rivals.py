"""Rivals: marginal likelihoods against brute force, and light curves of each kind told apart."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from scipy.stats import norm, qmc

from broker_filter.inference.fit import Fitter
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.rival_amplitude import AnySign, Between, log_marginal, source_best
from broker_filter.inference.rival_grids import artefact, constants, smooth, wrong_epoch
from broker_filter.inference.rival_noise import NoisePrior, SourceNoise
from broker_filter.inference.rival_shapes import CURVED, FLARE, CurvedShape, Span
from broker_filter.inference.rival_starts import likely_periods
from broker_filter.inference.rivals import Comparison, compare, curved, once_or_twice
from broker_filter.types import Fit, FloatArray, StarEpochs

SPAN = Span(0.0, 20.0)
SHAPES = {shape.name: shape for shape in CURVED}
WHITE = NoisePrior(red_noise=0.0)
BASELINE = NoisePrior().baseline_error(SourceLight(np.zeros(1), np.zeros(1), np.ones(1), 0.02))
PRIOR = BoxPrior("test", (-2.0, 0.0, -1.3, -3.0, 0.005), (25.0, 1.5, 1.778, 1.0, 1.0), True)


def light(
    seed: int, n: int = 30, sigma: float = 0.05, signal: FloatArray | None = None
) -> SourceLight:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 20, n))
    noise = sigma * rng.normal(size=n)
    return SourceLight(t, noise if signal is None else noise + signal, np.full(n, sigma), 0.02)


def dense(noise: SourceNoise, j: int) -> FloatArray:
    """The covariance of one noise at k = 1."""
    (amplitude, tau), t = noise.processes[j], noise.light.t
    lag = np.abs(t[:, None] - t)
    return np.diag(noise.light.sigma**2) + amplitude**2 * np.exp(-lag / tau)


def log_gaussian(x: FloatArray, covariance: FloatArray) -> float:
    """Without the factor (2 pi)^(-n/2)."""
    sign, log = np.linalg.slogdet(covariance)
    assert sign > 0
    return float(-0.5 * (x @ np.linalg.solve(covariance, x) + log))


def test_two_wild_epochs_do_not_make_errors_look_too_small() -> None:
    nothing = np.zeros((60, 0))
    scales = []
    for wild in (0, 2, 6):
        spoilt = light(5, 60)
        spoilt.residual[10 : 10 + wild] += 3.0
        scales.append(source_best(SourceNoise(spoilt, WHITE), nothing, AnySign((1.0,))).scale)
    assert scales[1] == pytest.approx(scales[0], rel=0.15)
    assert scales[2] > 5 * scales[0]


def test_products_are_those_of_the_dense_covariance() -> None:
    noise = SourceNoise(light(1), NoisePrior())
    columns = np.random.default_rng(2).normal(size=(30, 3, 2))
    gram, mixed = noise.products(columns)
    for j in range(3):
        inverse = np.linalg.inv(dense(noise, j))
        assert noise.log_determinant[j] == pytest.approx(-np.linalg.slogdet(inverse)[1])
        for m in range(3):
            wanted = columns[:, m].T @ inverse @ columns[:, m]
            np.testing.assert_allclose(gram[j, m], wanted, rtol=1e-8)
            fixed = np.stack([noise.light.residual, np.ones(30)], axis=1)
            np.testing.assert_allclose(mixed[j, m], columns[:, m].T @ inverse @ fixed, rtol=1e-6)


def test_epochs_at_the_same_time_have_products_too() -> None:
    of = light(3)
    of.t[4] = of.t[3]
    gram, _ = SourceNoise(of, NoisePrior()).products(np.ones((30, 1, 1)))
    assert np.isfinite(gram).all()
    assert (gram > 0).all()


def test_a_source_may_have_a_single_epoch() -> None:
    one = SourceLight(np.zeros(1), np.ones(1), np.ones(1), 0.02)
    noise = SourceNoise(one, NoisePrior())
    found = log_marginal(noise, np.ones((1, 1, 1)), Between.logarithmic(0.01, 1.0, 3))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", ["between", "any sign", "none"])
def test_marginal_of_amplitude_baseline_and_errors_is_that_of_a_sum(kind: str) -> None:
    """Dense covariances, a fine grid of k, and one of the amplitude."""
    rng = np.random.default_rng(4)
    column = np.exp(-0.5 * np.linspace(-4, 4, 30) ** 2)
    noise = SourceNoise(light(5, signal=0.08 * column), NoisePrior())
    log_k = np.linspace(-1.0, 1.5, 60)
    step = log_k[1] - log_k[0]
    between = Between.logarithmic(0.01, 1.0, 3)
    if kind == "between":
        edges = np.array(between.edges)
        points = np.concatenate(
            [np.linspace(a, b, 60, endpoint=False) for a, b in pairwise(edges.tolist())]
        )
        points += np.repeat(np.diff(edges) / 120, 60)
        amplitude: Between | AnySign = between
        columns = column[:, None, None]
        covariance = np.zeros((30, 30))
    else:
        points = np.zeros(1)
        amplitude = AnySign((0.1,))
        columns = np.stack([column, rng.normal(size=30)], axis=1)[:, None, :]
        columns = columns if kind == "any sign" else columns[:, :, :0]
        covariance = 0.1**2 * columns[:, 0] @ columns[:, 0].T
    student = stats.t(3, math.log(noise.prior.scale), noise.prior.spread)
    total = []
    for j in range(3):
        base = dense(noise, j)
        for log_scale in log_k:
            whole = base * math.exp(2 * log_scale) + BASELINE**2 + covariance
            inner = [log_gaussian(noise.light.residual - f * column, whole) for f in points]
            prior = student.logpdf(log_scale) + noise.log_share[j]
            total.append(logsumexp(inner) - math.log(len(points)) + prior)
    wanted = float(logsumexp(total)) + math.log(step)
    found = float(log_marginal(noise, columns, amplitude)[0])
    assert found == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("sigma", [0.05, 1e-4, 1e-7])
def test_eight_columns_at_two_times_are_as_good_as_two(sigma: float) -> None:
    """What the columns say of each other is lost in rounding where errors are tiny."""
    noise = SourceNoise(light(4, sigma=sigma, signal=np.zeros(30)), WHITE)
    at_two_times = np.random.default_rng(6).normal(size=(2, 8))
    two = np.linalg.cholesky(at_two_times @ at_two_times.T)
    eight, same = (np.repeat(columns, 15, axis=0)[:, None] for columns in (at_two_times, two))
    wanted = log_marginal(noise, same, AnySign((0.3,)))
    assert log_marginal(noise, eight, AnySign((0.3,))) == pytest.approx(wanted, abs=0.5)


@pytest.mark.parametrize("name", SHAPES)
def test_marginal_of_a_shape_is_that_of_its_prior(name: str) -> None:
    """The mean over many draws from the prior; the signal is weak, so that these suffice."""
    shape = SHAPES[name]
    truth = {
        "flare": [9.0, 0.02],
        "outburst": [7.0, 0.5, 2.0, 2.0],
        "dip": [9.0, 0.8],
        "trend": [9.0, 2.0],
        "periodic": [4.0],
    }[name]
    of = light(6, n=60)
    curve = shape.shape(of.t, np.array([truth]))[:, 0, 0]
    of.residual[:] += 0.1 * curve
    noise = SourceNoise(of, NoisePrior())
    unit = qmc.Sobol(shape.dimensions, seed=1).random_base2(13)
    theta = shape.theta(norm.ppf(np.clip(unit, 1e-12, 1 - 1e-12)), SPAN)
    draws = log_marginal(noise, shape.shape(of.t, theta), shape.amplitude)
    wanted = float(logsumexp(draws)) - math.log(len(draws))
    found = curved(shape, [noise], SPAN, np.random.default_rng(1))
    assert found.log_p == pytest.approx(wanted, abs=max(0.15, 3 * found.error))
    assert found.error < 0.2
    assert len(found.curve) == 60


@pytest.mark.parametrize(("rise", "decline"), [(0.06, 0.15), (0.3, 0.1), (4.0, 12.0)])
def test_the_shortest_and_longest_outbursts_are_found_by_any_seed(
    rise: float, decline: float
) -> None:
    """Their likelihood has narrow maxima, far from the durations that the prior calls likely."""
    shape = SHAPES["outburst"]
    of = light(12, n=600, sigma=0.01)
    curve = shape.shape(of.t, np.array([[6.0, rise, 0.05, decline]]))[:, 0, 0]
    of.residual[:] += 0.2 * curve
    noises = [SourceNoise(of, NoisePrior())]
    found = [curved(shape, noises, SPAN, np.random.default_rng(seed)) for seed in range(3)]
    for one in found:
        assert np.square((of.residual - one.curve) / of.sigma).mean() < 1.1
    log_p = np.array([one.log_p for one in found])
    assert log_p.max() - log_p.min() < 1.0


def test_smooth_light_has_the_density_of_its_processes() -> None:
    of = light(7)
    found = smooth([of], WHITE)
    assert np.isfinite(found.log_p)
    assert set(found.parameters) == {"amplitude", "tau"}
    assert np.abs(found.curve).max() < 0.2


def test_wrong_epochs_and_nights_are_found() -> None:
    of = light(8)
    of.residual[11] = 2.0
    noises = [SourceNoise(of, WHITE)]
    quiet = constants(noises)
    found = artefact(noises, quiet)
    assert found.log_p > quiet.sum() + 30
    assert found.parameters["first"] == pytest.approx(of.t[11])
    assert found.curve[11] == pytest.approx(2.0, abs=0.05)


def test_one_wrong_epoch_has_the_density_of_a_mean_over_all_epochs() -> None:
    of = light(8)
    of.residual[11] = 2.0
    noise = SourceNoise(of, WHITE)
    sizes = AnySign((0.03, 0.3, 3.0, 30.0))
    each = log_marginal(noise, np.eye(30)[:, :, None], sizes)
    found = wrong_epoch([noise], constants([noise]))
    assert found == pytest.approx(logsumexp(each) - math.log(30))


def roman(*flares: tuple[float, float, float]) -> SourceLight:
    """Flares of such times, widths (days) and heights (errors), with an epoch in 12.1 minutes."""
    t = np.arange(0, 20, 12.1 / 1440)
    noise = 0.01 * np.random.default_rng(13).normal(size=len(t))
    for at, width, height in flares:
        noise += 0.01 * height * FLARE.shape(t, np.array([[at, width]]))[:, 0, 0]
    return SourceLight(t, noise, np.full(len(t), 0.01), 0.005)


FLARES = [(5.0, 0.004, 40.0), (9.0, 0.006, 30.0), (14.0, 0.005, 25.0)]


def test_the_outburst_of_a_flare_star_is_nearly_the_same_by_any_seed() -> None:
    """Its rise is far shorter than that of any dwarf nova."""
    noises = [SourceNoise(roman((5.0, 0.02, 100.0)), NoisePrior())]
    found = [curved(SHAPES["outburst"], noises, SPAN, np.random.default_rng(i)) for i in range(4)]
    log_p = np.array([one.log_p for one in found])
    assert log_p.max() - log_p.min() < 100.0  # of 9,000


@pytest.mark.parametrize("flares", [2, 3])
def test_flares_of_one_star_are_no_wrong_epochs(flares: int) -> None:
    """Two wrong epochs describe two flares better than one flare does."""
    noises, draw = [SourceNoise(roman(*FLARES[:flares]), NoisePrior())], np.random.default_rng(1)
    first = curved(FLARE, noises, SPAN, draw)
    quiet = constants(noises)
    wrong = artefact(noises, quiet)
    assert first.log_p < wrong.log_p
    found = once_or_twice(FLARE, first, noises, quiet, SPAN, draw)
    assert found.log_p > wrong.log_p + 10
    times = [found.parameters["t_peak"], found.parameters["t_again"]]
    assert times == pytest.approx([5.0, 9.0], abs=0.01)
    for peak in times:
        assert found.curve[np.abs(noises[0].light.t - peak) < 0.02].max() > 0.1


def test_two_single_bright_epochs_are_wrong_epochs() -> None:
    of = roman()
    of.residual[[700, 1500]] += 0.4
    noises, draw = [SourceNoise(of, NoisePrior())], np.random.default_rng(1)
    first, quiet = curved(FLARE, noises, SPAN, draw), constants(noises)
    found = once_or_twice(FLARE, first, noises, quiet, SPAN, draw)
    assert found.log_p < artefact(noises, quiet).log_p - 100


def test_a_second_flare_is_one_where_no_wrong_epoch_describes_it_as_well() -> None:
    of = roman(FLARES[0])
    of.residual[1500] += 0.4
    noises, draw = [SourceNoise(of, NoisePrior())], np.random.default_rng(1)
    first = curved(FLARE, noises, SPAN, draw)
    found = once_or_twice(FLARE, first, noises, constants(noises), SPAN, draw)
    assert found.log_p == pytest.approx(first.log_p - math.log(2))
    assert found.curve is first.curve


def test_a_period_is_found_in_spite_of_gaps() -> None:
    t = np.concatenate([night + np.linspace(0, 0.3, 8) for night in range(0, 20, 2)])
    of = SourceLight(t, 0.1 * np.sin(2 * math.pi * t / 0.37), np.full(len(t), 0.01), 0.01)
    assert np.abs(likely_periods([of]) / 0.37 - 1).min() < 0.01


def test_the_best_curve_of_a_shape_follows_the_data() -> None:
    of = light(9, n=200, sigma=0.01)
    column = np.exp(-0.5 * (of.t - 9) ** 2)
    of.residual[:] += 0.5 * column
    best = source_best(SourceNoise(of, WHITE), column[:, None], Between.logarithmic(0.01, 10, 5))
    assert best.amplitude[0] == pytest.approx(0.5, rel=0.02)
    assert best.scale == pytest.approx(1, abs=0.2)
    np.testing.assert_allclose(best.curve, 0.5 * column, atol=0.02)


def epochs(signal: FloatArray, t: FloatArray, sigma: float, sites: int, seed: int) -> StarEpochs:
    n = len(t)
    flux = 1 + signal + sigma * np.random.default_rng(seed).normal(size=n)
    return StarEpochs(
        tuple(("F146", f"site {i}") for i in range(sites)),
        np.ones(sites),
        np.full(sites, 0.005),
        60_000 + t,
        flux.astype(np.float32),
        np.full(n, sigma, np.float32),
        (np.arange(n) % sites).astype(np.int16),
    )


def compared(signal: FloatArray, t: FloatArray, sites: int = 1) -> Comparison:
    of = epochs(signal, t, 0.01, sites, 3)
    fit = Fitter(PRIOR)(of, 60_000.0, torch.empty(0, 5), 1)
    assert isinstance(fit, Fit)
    assert fit.lenses is not None
    return compare(Likelihood(of, 60_000.0, PRIOR), fit.lenses, NoisePrior(), SPAN, 1)


TIMES = np.sort(np.random.default_rng(1).uniform(0, 20, 300))


@pytest.mark.parametrize("sites", [1, 2])
def test_a_lens_beats_every_rival(sites: int) -> None:
    lens = 0.7 * excess(np.hypot(0.4, (TIMES - 9.1) / 1.5), 0.01)
    found = compared(lens, TIMES, sites)
    assert min(found.log10_k(name)[0] for name in found.rivals) > 10


def test_a_wrong_epoch_beside_a_lens_does_not_speak_for_flares() -> None:
    lens = 0.2 * excess(np.hypot(0.4, (TIMES - 9.1) / 1.5), 0.01)
    clean, spoilt = lens, lens + 0.2 * (np.arange(len(TIMES)) == 290)
    before, after = (compared(signal, TIMES).log10_k("flare")[0] for signal in (clean, spoilt))
    assert before > 10
    assert after > 10


@pytest.mark.parametrize(
    ("name", "theta", "height"),
    [
        ("flare", [9.1, 0.3], 1.0),
        ("outburst", [7.0, 0.5, 3.0, 2.0], 1.0),
        ("dip", [9.0, 0.5], 0.2),
        ("trend", [9.0, 1.0], 0.2),
        ("periodic", [0.61], 0.1),
    ],
)
def test_each_rival_beats_the_lens_and_all_others(
    name: str, theta: list[float], height: float
) -> None:
    shape: CurvedShape = SHAPES[name]
    found = compared(height * shape.shape(TIMES, np.array([theta]))[:, 0, 0], TIMES)
    assert max(found.rivals, key=lambda one: found.rivals[one].log_p) == name
    assert found.log10_k(name)[0] < -3


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (compared(np.zeros(300), TIMES) for _ in range(2))
    assert first.lens.found.log_p == second.lens.found.log_p
    assert {n: r.log_p for n, r in first.rivals.items()} == {
        n: r.log_p for n, r in second.rivals.items()
    }
