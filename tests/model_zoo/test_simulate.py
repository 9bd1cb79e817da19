"""The simulator against its own description, written out again in numpy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from VBMicrolensing import VBMicrolensing

from model_zoo.simulate.curves import Curves, Simulator, matched_filter_snr, signal_of
from model_zoo.simulate.draw import Draw
from model_zoo.simulate.lookalikes import SHAPES, SKY_LOOKALIKES, Lookalikes, draw_lookalikes
from model_zoo.simulate.noise import SKY_NOISE, Noise, draw_noise, red_noise
from model_zoo.simulate.pattern import Pattern, PatternConfig, draw_patterns
from model_zoo.simulate.prior import BLENDED_GATE, PAPER_GATE, PAPER_PRIOR, ROMAN_PRIOR, Gate

DAYS = 20.0
STREAM = PatternConfig(stream_share=1.0)
# Long enough that nothing is thinned.
WHOLE = Simulator(length=1920)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def events() -> Curves:
    return WHOLE.events(300, seeded())


@pytest.fixture(scope="module")
def noise() -> Curves:
    return WHOLE.noise(300, seeded(2))


def off_by(baseline_error: float) -> Simulator:
    """All curves with the same error of the baseline."""
    return replace(WHOLE, baseline_error=(baseline_error, baseline_error))


def columns(x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times in days, flux and error of the epochs of one curve, in float64."""
    t, flux, sigma = x[x[:, 2] > 0].double().numpy().T
    return (t + 1) / 2 * DAYS, flux, sigma


def peak_excess(u0: float, rho: float) -> float:
    vbm = VBMicrolensing()
    vbm.Tol = 1e-4
    return float(vbm.ESPLMag2(u0, rho)) - 1


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest distance of two cumulative distributions (Kolmogorov-Smirnov), scaled.

    Exceeds 1.95 by chance in one of a thousand seeds.
    """
    grid = np.concatenate([a, b])
    steps = [np.searchsorted(np.sort(v), grid, side="right") / len(v) for v in (a, b)]
    return float(np.abs(steps[0] - steps[1]).max() * math.sqrt(len(a) * len(b) / (len(a) + len(b))))


def some_hours_only(pattern: Pattern) -> float:
    """Share of the rich patterns that never see some quarter of the day."""
    hour = torch.where(pattern.valid, ((pattern.t % 1) * 24).floor(), torch.nan)
    hours = torch.stack([(hour == h).any(1) for h in range(24)], 1).sum(1)
    return (hours <= 18)[pattern.n > 200].double().mean().item()


def longest_pause(pattern: Pattern) -> Tensor:
    """Longest stretch of the window without an epoch, days."""
    pause = torch.where(pattern.valid[:, 1:], pattern.t.diff(dim=1), 0).amax(1)
    last = torch.where(pattern.valid, pattern.t, 0).amax(1)
    return torch.stack([pause, DAYS - last, pattern.t[:, 0]]).amax(0)


@pytest.mark.parametrize("draw", ["events", "noise"])
def test_the_seed_decides_everything(draw: str) -> None:
    first, again, other = (
        getattr(Simulator(pattern=STREAM), draw)(20, seeded(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.theta.nan_to_num(), again.theta.nan_to_num())
    assert not any(torch.equal(a, b) for a in first.x for b in other.x)


def test_every_event_passes_the_gate_counted_by_hand(events: Curves) -> None:
    for x, theta in zip(events.x, events.theta.double().numpy(), strict=True):
        t, _, sigma = columns(x)
        t0, u0, tE, rho = theta[0], theta[1], 10 ** theta[2], 10 ** theta[3]
        phase = np.abs(t - t0) / tE
        # Times went through float32, so an epoch at the very edge may fall to either side.
        assert (phase <= 1.5 + 1e-5 / tE).sum() >= 5
        assert (phase > 3 - 1e-5 / tE).sum() >= 5
        # The table is good to 1e-3.
        assert peak_excess(u0, rho) / sigma.mean() > 5 * 0.998


def test_parameters_fill_the_prior_where_the_gate_does_not_bite() -> None:
    theta = Simulator(gate=None).events(4000, seeded()).theta.double().numpy()
    low, high = np.array(PAPER_PRIOR.low), np.array(PAPER_PRIOR.high)
    unit = (theta - low) / (high - low)
    assert ((unit >= 0) & (unit <= 1 + 1e-6)).all()
    for column in unit.T:
        assert distance(column, np.linspace(0, 1, 4000)) < 1.95


def test_the_survey_prior_fills_its_box_with_f_s_in_its_logarithm() -> None:
    simulator = Simulator(prior=ROMAN_PRIOR, gate=None)
    theta = simulator.events(3000, seeded(22)).theta.double().numpy()
    low, high = np.array(ROMAN_PRIOR.low), np.array(ROMAN_PRIOR.high)
    for i in (theta, low, high):
        i[..., 4] = np.log(i[..., 4])
    unit = (theta - low) / (high - low)
    assert ((unit >= -1e-6) & (unit <= 1 + 1e-6)).all()
    for column in unit.T:
        assert distance(column, np.linspace(0, 1, 3000)) < 1.95


def test_every_event_of_the_blended_gate_is_bright_after_blending() -> None:
    simulator = Simulator(prior=ROMAN_PRIOR, gate=BLENDED_GATE, pattern=STREAM, length=1920)
    events = simulator.events(200, seeded(23))
    for x, theta in zip(events.x, events.theta.double().numpy(), strict=True):
        _, _, sigma = columns(x)
        assert theta[4] * peak_excess(theta[1], 10 ** theta[3]) / sigma.mean() > 5 * 0.99


def test_noise_has_no_parameters_and_no_signal(noise: Curves) -> None:
    assert torch.isnan(noise.theta).all()
    assert (noise.snr == 0).all()


@pytest.mark.parametrize("baseline_error", [0.0, 0.001])
def test_noise_is_as_large_as_stated_around_a_baseline_that_is_off_as_stated(
    baseline_error: float,
) -> None:
    curves = off_by(baseline_error).noise(500, seeded(3))
    residuals, mean_pull = [], []
    for x in curves.x:
        _, flux, sigma = columns(x)
        residuals.append((flux - flux.mean()) / sigma)
        mean_pull.append(((flux - 1).mean(), sigma[0] / math.sqrt(len(flux))))
    assert np.concatenate(residuals).std() == pytest.approx(1, abs=0.005)
    mean, error = np.array(mean_pull).T
    pull = mean / np.hypot(error, baseline_error)
    assert pull.mean() == pytest.approx(0, abs=4 / math.sqrt(500))
    assert pull.std() == pytest.approx(1, abs=4 / math.sqrt(1000))


def test_a_wrong_baseline_multiplies_the_model_and_leaves_the_noise_as_stated() -> None:
    plain, moved = (off_by(error).events(200, seeded(4)) for error in (1e-9, 0.1))
    assert torch.equal(plain.theta, moved.theta)
    assert torch.equal(plain.x[..., 2], moved.x[..., 2])
    inside = plain.x[..., 2] > 0
    # The same draws of noise: the difference is (g - 1) (1 + signal), and nothing else.
    change = torch.where(inside, moved.x[..., 1] - plain.x[..., 1], torch.nan).double()
    pattern = Pattern.of(
        torch.where(inside, (plain.x[..., 0] + 1) / 2 * DAYS, torch.inf),
        torch.ones_like(plain.x[..., 2]),
        inside.sum(1),
        torch.ones(200),
    )
    off = change / (1 + signal_of(plain.theta, pattern).double())
    g = off.nanmean(1)
    torch.testing.assert_close(
        off, g[:, None].where(inside, torch.nan), equal_nan=True, rtol=5e-3, atol=1e-4
    )
    assert g.std().item() == pytest.approx(0.1, rel=0.25)


def test_curves_tell_the_size_of_their_baselines_error_and_it_is_log_uniform() -> None:
    curves = replace(WHOLE, baseline_error=(1e-4, 1e-2)).noise(1000, seeded(21))
    size = curves.baseline_error.double().numpy()
    assert distance(np.log10(size), np.linspace(-4, -2, 1000)) < 1.95
    offset = [(flux - 1).mean() for flux in (columns(x)[1] for x in curves.x)]
    error = [sigma[0] / math.sqrt(len(sigma)) for sigma in (columns(x)[2] for x in curves.x)]
    pull = np.array(offset) / np.hypot(error, size)
    assert pull.std() == pytest.approx(1, abs=4 / math.sqrt(2000))


def test_exact_baselines_have_no_error(events: Curves, noise: Curves) -> None:
    for curves in (events, noise):
        assert torch.equal(curves.baseline_error, torch.zeros(300))


@pytest.mark.parametrize("config", [PatternConfig(), STREAM])
def test_patterns_are_sorted_and_padded_and_inside_the_window(config: PatternConfig) -> None:
    pattern = draw_patterns(400, config, seeded(5))
    t, sigma, valid = pattern.t, pattern.sigma, pattern.valid
    assert (pattern.n >= 1).all()
    assert torch.equal(valid.sum(1), pattern.n)
    assert torch.isinf(t[~valid]).all()
    assert ((t[valid] >= 0) & (t[valid] <= DAYS)).all()
    assert (t[:, 1:] > t[:, :-1])[valid[:, 1:]].all()
    assert (sigma[valid] > 0).all()
    assert torch.isfinite(sigma).all()
    mean = torch.where(valid, sigma, 0).double().sum(1) / pattern.n
    torch.testing.assert_close(pattern.level.double(), mean, rtol=1e-5, atol=0)


def test_dropout_takes_between_nothing_and_60_percent() -> None:
    pattern = draw_patterns(2000, PatternConfig(), seeded(6))
    whole = longest_pause(pattern) < 0.5
    kept = pattern.n[whole].double().numpy() / 1920
    assert distance((kept - 0.4) / 0.6, np.linspace(0, 1, 2000)) < 1.95
    assert (pattern.n <= 1920).all()


def test_a_quarter_of_the_curves_have_no_gap() -> None:
    pattern = draw_patterns(2000, PatternConfig(), seeded(7))
    longest = longest_pause(pattern)
    # No run of dropped epochs is half a day long; no gap is shorter than a day.
    assert (longest < 0.5).double().mean().item() == pytest.approx(0.25, abs=0.04)
    assert ((longest < 0.5) | (longest > 0.95)).all()


def test_the_papers_errors_are_one_per_curve_and_uniform() -> None:
    pattern = draw_patterns(2000, PatternConfig(), seeded(8))
    level = pattern.level.double().numpy()
    own = torch.where(pattern.valid, pattern.sigma, pattern.sigma[:, :1])
    assert torch.equal(own, own[:, :1].expand_as(own))
    assert distance((level - 0.001) / 0.019, np.linspace(0, 1, 2000)) < 1.95


def test_streams_end_before_their_window_does() -> None:
    pattern = draw_patterns(1000, STREAM, seeded(9))
    last = torch.where(pattern.valid, pattern.t, 0).amax(1)
    full = pattern.n > 500
    assert (last < 0.99 * DAYS)[full].double().mean() > 0.9
    assert last.max() <= DAYS
    level = pattern.level.log()
    low, high = (math.log(edge) for edge in STREAM.stream_sigma)
    assert low - 0.5 < level.min() < low + 0.3
    assert high - 0.3 < level.max() < high + 0.5


def test_some_streams_began_late_and_some_see_nights_only_and_some_are_sparse() -> None:
    pattern = draw_patterns(2000, STREAM, seeded(24))
    first = pattern.t[:, 0]
    assert (first > DAYS / 2).double().mean() > 0.05
    assert (first < 1).double().mean() > 0.3
    plain = draw_patterns(2000, PatternConfig(), seeded(24))
    few = [(p.n < 300).double().mean().item() for p in (pattern, plain)]
    assert few[0] > 3 * few[1]
    # The rest of the day is empty where only nights were seen; the paper's patterns have no nights.
    assert some_hours_only(pattern) > 0.1
    assert some_hours_only(plain) == 0


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_so_many_patterns_are_streams(share: float) -> None:
    pattern = draw_patterns(2000, PatternConfig(stream_share=share), seeded(25))
    # The paper's errors never leave 0.001-0.02; those of streams do so half of the time.
    outside = (pattern.level < 0.00099) | (pattern.level > 0.0201)
    low, high = (math.log(edge) for edge in STREAM.stream_sigma)
    expected = share * (1 - (math.log(0.02) - math.log(0.001)) / (high - low))
    assert outside.double().mean().item() == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("config", [PatternConfig(), STREAM])
def test_events_and_noise_see_the_same_patterns(config: PatternConfig) -> None:
    """Or the pattern itself would be evidence. Where few epochs let no event pass, it is."""
    simulator = Simulator(pattern=config, length=1920)
    counts = [
        (draw(1500, seeded(seed)).x[..., 2] > 0).sum(1).double().numpy()
        for draw, seed in ((simulator.events, 10), (simulator.noise, 11))
    ]
    fewest = 100 if config.stream_share else 0
    assert distance(*(n[n >= fewest] for n in counts)) < 1.95


def test_events_follow_vbmicrolensing() -> None:
    theta = PAPER_PRIOR.sample(12, seeded(12))
    pattern = draw_patterns(12, PatternConfig(), seeded(13))
    quiet = Pattern.of(pattern.t, torch.full_like(pattern.sigma, 1e-7), pattern.n, pattern.level)
    signal = signal_of(theta, quiet).double().numpy()
    vbm = VBMicrolensing()
    vbm.Tol = 1e-4
    for row, (t0, u0, log_tE, log_rho, f_s) in enumerate(theta.double().tolist()):
        some = np.arange(0, int(pattern.n[row]), 37)
        u = np.hypot(u0, (pattern.t[row, some].double().numpy() - t0) / 10**log_tE)
        expected = [f_s * (vbm.ESPLMag2(float(v), 10**log_rho) - 1) for v in u]
        # Their own error at the limb of large sources is larger than that of the table.
        error = np.abs(signal[row, some] - expected) / np.maximum(expected, 1e-3)
        assert np.median(error) < 1e-3
        assert np.quantile(error, 0.95) < 1e-2


def test_the_observed_event_is_its_model_plus_noise(events: Curves) -> None:
    """Fluxes minus f_s (A - 1) + 1 are noise of the stated size."""
    pulls = []
    for x, theta in zip(events.x, events.theta, strict=True):
        t, flux, sigma = columns(x)
        n = len(t)
        pattern = Pattern.of(
            torch.from_numpy(t).float()[None],
            torch.ones(1, n),
            torch.tensor([n]),
            torch.ones(1),
        )
        pulls.append((flux - 1 - signal_of(theta[None], pattern)[0].numpy()) / sigma)
    assert np.concatenate(pulls).std() == pytest.approx(1, abs=0.01)
    assert abs(np.concatenate(pulls).mean()) < 0.01


def test_signal_to_noise_is_the_direct_sum(events: Curves) -> None:
    pattern = draw_patterns(5, STREAM, seeded(14))
    theta = PAPER_PRIOR.sample(5, seeded(15))
    signal = signal_of(theta, pattern)
    for row, snr in enumerate(matched_filter_snr(signal, pattern).tolist()):
        n = int(pattern.n[row])
        ratio = (signal[row, :n] / pattern.sigma[row, :n]).double().numpy()
        assert snr == pytest.approx(math.sqrt(sum(r * r for r in ratio)), rel=1e-4)
    assert (events.snr > 0).all()


def test_an_event_has_no_signal_in_the_padding() -> None:
    pattern = draw_patterns(20, PatternConfig(), seeded(16))
    signal = signal_of(PAPER_PRIOR.sample(20, seeded(17)), pattern)
    assert (signal[~pattern.valid] == 0).all()
    assert torch.isfinite(signal).all()


def test_curves_longer_than_the_network_reads_are_thinned() -> None:
    curves = Simulator(length=200).noise(50, seeded(18))
    assert curves.x.shape == (50, 200, 3)
    for x in curves.x:
        _, flux, sigma = columns(x)
        assert np.std((flux - 1) / sigma) == pytest.approx(1, abs=0.35)


# Peak at 10 d, tE 1 d, u0 0.5, a small source, f_s 0.5; A - 1 is 1.18 there, 0.59 blended.
THETA = torch.tensor([[[10.0, 0.5, 0.0, -1.5, 0.5]]])
SIGMA = 0.1


def passes(gate: Gate, times: list[float], sigma: float = SIGMA) -> bool:
    t = torch.tensor([sorted(times) + [math.inf] * 3])
    n = torch.tensor([len(times)])
    return bool(gate.passes(THETA, t, n, torch.tensor([sigma]))[0, 0])


def epochs(near: int, far: int, between: int = 0) -> list[float]:
    """Epochs within 1.5 tE of the peak, beyond 3 tE on both sides, and in neither place."""
    return [
        *np.linspace(8.5, 11.5, near),
        *np.linspace(1, 6.9, far // 2),
        *np.linspace(13.1, 19, far - far // 2),
        *np.linspace(12, 12.9, between),
    ]


@pytest.mark.parametrize(
    ("times", "sigma", "expected"),
    [
        (epochs(5, 5), SIGMA, True),
        (epochs(4, 5, 9), SIGMA, False),
        (epochs(5, 4, 9), SIGMA, False),
        (epochs(5, 5), 0.2, True),
        (epochs(5, 5), 0.3, False),
    ],
)
def test_each_criterion_of_the_gate_decides_alone(
    times: list[float], sigma: float, expected: bool
) -> None:
    assert passes(PAPER_GATE, times, sigma) is expected


def test_a_gate_may_count_the_blend() -> None:
    assert passes(PAPER_GATE, epochs(5, 5), 0.15)
    assert not passes(BLENDED_GATE, epochs(5, 5), 0.15)
    assert passes(BLENDED_GATE, epochs(5, 5), 0.1)


def test_the_gate_judges_many_candidates_of_many_patterns_as_one_by_one() -> None:
    pattern = draw_patterns(30, PatternConfig(), seeded(19))
    theta = PAPER_PRIOR.sample(30 * 8, seeded(20)).reshape(30, 8, 5)
    together = PAPER_GATE.passes(theta, pattern.t, pattern.n, pattern.level)
    for row in range(30):
        one = pattern[torch.tensor([row])]
        for candidate in range(8):
            alone = PAPER_GATE.passes(theta[row, candidate][None, None], one.t, one.n, one.level)
            assert bool(alone) == bool(together[row, candidate])
    assert 0.2 < together.double().mean() < 0.95


REAL = replace(SKY_NOISE, share=1.0, known=1.0)
ONLY_RED = replace(
    REAL,
    scale=(1.0, 0.0),
    red=(1.0, 0.5, 0.0),
    tau=(0.5, 0.5),
    nights=(0.0, 0.0),
    tails=(0.0, 0.03),
    wild=0.0,
    wrong_night=0.0,
    seeing=0.0,
    drift=0.0,
    floor=(0.0, 0.003),
    baseline=(1.0, 0.0),
)


def pulls(noise: Noise, pattern: Pattern) -> Tensor:
    """Noise in errors; NaN in the padding."""
    return torch.where(pattern.valid, noise.flux / pattern.sigma, torch.nan)


def test_red_noise_correlates_as_it_should_and_has_its_variance() -> None:
    """Ornstein and Uhlenbeck: variance 1, correlation exp(-dt / tau), for short tau as for long."""
    t = torch.linspace(0, DAYS, 401).expand(3000, 401)
    for tau in (0.02, 0.3, 5.0, 300.0):
        x = red_noise(t, torch.full((3000, 1), tau), Draw(3000, seeded(5)))
        least = max(tau, DAYS / 600)
        assert x.square().mean(0).sub(1).abs().max() < 0.15
        for lag in (1, 6, 40):
            expected = math.exp(-lag * DAYS / 400 / least)
            assert (x[:, lag:] * x[:, :-lag]).mean().item() == pytest.approx(expected, abs=0.06)


def test_noise_of_real_stars_is_red_and_white_by_the_stated_amounts() -> None:
    pattern = draw_patterns(800, PatternConfig(), seeded(6))
    noise = draw_noise(ONLY_RED, pattern, seeded(7))
    variance = pulls(noise, pattern).square().nanmean()
    assert variance.item() == pytest.approx(1 + 0.5**2, abs=0.03)
    assert torch.equal(noise.baseline, torch.ones(800))
    found = noise.star[noise.star[:, 2] > 100, :2].median(0).values
    assert found.tolist() == pytest.approx([1.0, 0.5], abs=0.1)


def test_a_star_of_the_other_share_has_white_noise_as_large_as_stated() -> None:
    pattern = draw_patterns(400, PatternConfig(stream_share=0.5), seeded(8))
    noise = draw_noise(replace(SKY_NOISE, share=0.0, known=0.0), pattern, seeded(9))
    assert pulls(noise, pattern).square().nanmean().item() == pytest.approx(1, abs=0.02)
    assert noise.star.isnan().all()


def test_noise_of_real_stars_has_the_spread_of_the_quiet_ones() -> None:
    """Medians of window's scatter, and tails beyond five errors in a few windows, not in most."""
    pattern = draw_patterns(1500, PatternConfig(), seeded(10))
    z = pulls(draw_noise(REAL, pattern, seeded(11)), pattern)
    scatter = (z.square().nanmean(1) - z.nanmean(1).square()).sqrt()
    assert 1.0 < scatter.median().item() < 1.4
    far = (z.nan_to_num().abs() > 5).any(1).double().mean().item()
    assert 0.15 < far < 0.6


@pytest.mark.parametrize("name", SHAPES)
def test_every_look_alike_is_finite_and_changes_within_the_window(name: str) -> None:
    pattern = draw_patterns(300, PatternConfig(stream_share=0.5), seeded(12))
    kinds = Lookalikes("one", {shape: float(shape == name) for shape in SHAPES})
    signal = draw_lookalikes(kinds, pattern, DAYS, seeded(13))
    assert torch.isfinite(signal).all()
    assert (signal > -1).all()
    assert (signal[~pattern.valid] == 0).all()
    assert (signal.abs().amax(1) > 0.003).double().mean() > 0.3


def test_flares_rise_faster_than_they_fall_and_dips_go_down() -> None:
    t = torch.linspace(0, DAYS, 40_001).expand(50, 40_001)
    flare = SHAPES["flare"](t, DAYS, Draw(50, seeded(14)))
    peak = flare.argmax(1)
    inside = (peak > 400) & (peak < 39_600)
    before, after = (flare[torch.arange(50), (peak + step).clamp(0, 40_000)] for step in (-20, 20))
    assert (after >= before)[inside].double().mean() > 0.9
    assert (SHAPES["dip"](t, DAYS, Draw(50, seeded(15))) <= 0).all()


def test_look_alikes_are_drawn_by_the_seed_and_need_variables() -> None:
    simulator = Simulator(noise_model=SKY_NOISE, variables=SKY_LOOKALIKES)
    first, again = (simulator.lookalikes(20, seeded(16)) for _ in range(2))
    assert torch.equal(first.x, again.x)
    assert first.theta.isnan().all()
    with pytest.raises(ValueError, match="without variables"):
        Simulator().lookalikes(1, seeded())


def test_romans_cadence_fills_a_window_with_an_epoch_every_twelve_minutes() -> None:
    pattern = draw_patterns(200, PatternConfig(minutes=12.1), seeded(17))
    step = torch.where(pattern.valid[:, 1:], pattern.t.diff(dim=1), torch.inf).amin(1)
    assert (step * 1440).median().item() == pytest.approx(12.1, abs=0.02)


def test_outside_a_season_there_is_an_epoch_every_few_days_at_most() -> None:
    config = PatternConfig(stream_share=1.0, season_share=1.0)
    plain, edged = (
        draw_patterns(400, c, seeded(18)) for c in (PatternConfig(stream_share=1.0), config)
    )
    assert edged.n.double().mean() < 0.7 * plain.n.double().mean()
    assert (longest_pause(edged) > 2.5).double().mean() > 0.5


def test_from_the_ground_a_star_is_seen_in_some_hours_of_some_nights() -> None:
    config = PatternConfig(stream_share=1.0, ground_share=1.0)
    pattern = draw_patterns(400, config, seeded(19))
    assert some_hours_only(pattern) > 0.9
    assert 5 < pattern.n.double().median() < 300
