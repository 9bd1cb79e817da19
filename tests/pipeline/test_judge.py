"""Judging an event with the default network and fit, and the record of its star."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker_filter.alerts.event_columns import counts_from_columns
from broker_filter.alerts.known_variables import KnownVariables
from broker_filter.alerts.parts import Verdict
from broker_filter.config import Model
from broker_filter.errors import StateError
from broker_filter.inference import zoo
from broker_filter.inference.magnification import excess
from broker_filter.inference.rival_grids import Found
from broker_filter.inference.rival_shapes import CURVED
from broker_filter.inference.scorer import Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.candidate import Candidate, Memory
from broker_filter.pipeline.judge import Judge, Judgement, JudgeOptions, light_left, spare_epochs
from broker_filter.state.partition import PartitionState
from broker_filter.types import Fit, FloatArray, IntArray, StarEpochs, WindowBatch

T = np.sort(np.random.default_rng(1).uniform(0, 20, 300))
SHAPES = {shape.name: shape for shape in CURVED}
KEY = ("test", 7, "r")


def test_earlier_events_of_a_star_are_counted_once_each() -> None:
    memory = Memory()
    assert memory.earlier_events(KEY, 60_000.0) == 0
    for _ in range(3):
        memory.count(KEY, 60_000.0)
        assert memory.earlier_events(KEY, 60_000.0) == 0
    assert memory.earlier_events(KEY, 60_100.0) == 1
    memory.count(KEY, 60_100.0)
    assert memory.earlier_events(KEY, 60_200.0) == 2
    assert memory.earlier_events(("test", 8, "r"), 60_200.0) == 0


def test_counts_outlive_a_snapshot() -> None:
    memory = Memory()
    memory.count(KEY, 60_000.0)
    state = PartitionState(("topic", 0), {}, 20.0, "model", memory.columns())
    assert Memory.of(state).counts == {KEY: (1, 60_000.0)}


def test_a_snapshot_of_an_older_version_has_no_counts() -> None:
    assert counts_from_columns({}) == {}


def test_counts_that_lack_a_column_are_damaged() -> None:
    columns = Memory(counts={KEY: (1, 60_000.0)}).columns()
    part = {name.removeprefix("count/"): column for name, column in columns.items()}
    with pytest.raises(StateError, match="counts"):
        counts_from_columns({"events": part["events"]})


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer(zoo.verify(zoo.find(Model().id)), chunk=1)


def window(signal: FloatArray) -> WindowBatch:
    """One star, three hundred epochs in twenty days, of 1 % each."""
    n, one = len(T), np.ones(1)
    flux = 1 + signal + 0.01 * np.random.default_rng(2).normal(size=n)
    return WindowBatch(
        slot=np.zeros(1, np.int64),
        star=["star"],
        survey=["test"],
        band=["r"],
        coordinates=[None],
        t_start=60_000 * one,
        mjd_tai=60_000 + T[None],
        flux=flux[None].astype(np.float32),
        sigma=np.full((1, n), 0.01, np.float32),
        n=np.array([n]),
        baseline=one,
        baseline_err=0.003 * one,
        baseline_error=0.003 * one,
        relative=np.zeros(1, bool),
        source=np.zeros((1, n), np.int16),
        sources=[(("r", "camera"),)],
        source_level=one[None],
        source_error=0.003 * one[None],
        source_history=np.zeros((1, 1, 6)),
    )


def judged(
    scorer: Scorer, signal: FloatArray, options: JudgeOptions, *, threshold: float = 3.0
) -> Judgement:
    batch = window(signal)
    scored = scorer.score(batch)
    epochs = batch.epochs(0)
    fit = scorer.fit(epochs, 60_000.0, scored, 0, 1, samples=100)
    assert isinstance(fit, Fit)
    candidate = Candidate(batch, scored, 0, ("test", "star", "r"), Memory())
    judge = Judge(scorer, options, Metrics(), threshold)
    return judge.judge(candidate, epochs, fit, 1, 0)


def lens() -> FloatArray:
    return np.asarray(0.7 * excess(np.hypot(0.4, (T - 9.1) / 1.5), 0.01))


def test_a_lens_is_microlensing_and_its_rivals_are_ranked(scorer: Scorer) -> None:
    found = judged(scorer, lens(), JudgeOptions())
    assert found.verdict is not None
    assert found.verdict.verdict == "microlensing"
    assert found.established
    behind = [rival.log10_k for rival in found.rivals]
    assert behind == sorted(behind)
    assert behind[0] > 3
    assert [rival.curve is not None for rival in found.rivals] == [True] + [False] * 7
    assert found.refit is None


@pytest.mark.parametrize(
    ("name", "theta", "height", "verdict"),
    [
        ("flare", [9.1, 0.3], 1.0, "flare"),
        ("outburst", [7.0, 0.5, 3.0, 2.0], 1.0, "outburst"),
        ("periodic", [0.61], 0.1, "variable"),
        ("dip", [9.0, 0.5], 0.2, "variable"),
    ],
)
def test_look_alikes_are_called_by_their_names(
    scorer: Scorer, name: str, theta: list[float], height: float, verdict: str
) -> None:
    signal = height * SHAPES[name].shape(T, np.array([theta]))[:, 0, 0]
    found = judged(scorer, signal, JudgeOptions())
    assert found.verdict is not None
    assert found.verdict.verdict == verdict
    best = found.rivals[0]
    assert best.name == name
    assert best.curve is not None
    np.testing.assert_allclose(best.curve, 1 + signal, atol=0.1 * height)
    times = [best.parameters[key] for key in best.parameters if key.startswith("t_")]
    assert times == pytest.approx([60_000 + theta[0]] * len(times), abs=0.3)


def test_light_is_left_as_the_source_says_that_saw_the_star_first() -> None:
    one = window(lens()).epochs(0)
    late = one.mjd_tai > 60_009
    both = replace(
        one,
        sources=(("r", "camera"), ("r", "late")),
        level=np.ones(2),
        error=np.full(2, 0.003),
        mjd_tai=np.concatenate([one.mjd_tai, one.mjd_tai[late]]),
        flux=np.concatenate([one.flux, one.flux[late]]),
        sigma=np.concatenate([one.sigma, one.sigma[late]]),
        source=np.concatenate([one.source, one.source[late] + 1]).astype(np.int16),
        history=(),
    )
    first = np.linspace(0, 1, len(one)) * 0.4
    first[0] = 0.8  # the peak
    curve = Found(0.0, 0.0, {}, np.concatenate([first, np.full(late.sum(), -0.3)]), 1.0)
    assert light_left(both, curve, 0.5) == pytest.approx(0.5)
    assert light_left(both, curve, 0.05) == 1.0
    faded = replace(curve, curve=np.where(curve.curve < 0.8, -0.1, curve.curve))
    assert light_left(both, faded, 0.5) == 0.0


def test_a_planet_is_an_anomalous_lens(scorer: Scorer) -> None:
    planet = 0.6 * np.exp(-0.5 * ((T - 10.5) / 0.1) ** 2)
    found = judged(
        scorer, 0.7 * excess(np.hypot(0.3, (T - 9.1) / 3), 0.01) + planet, JudgeOptions()
    )
    assert found.verdict is not None
    assert found.verdict.verdict == "anomalous-lens"


@pytest.mark.parametrize("rows", [[40], [40, 250]])
def test_a_lens_beside_wrong_epochs_that_weigh_more_is_microlensing(
    scorer: Scorer, rows: list[int]
) -> None:
    signal = lens() / 8
    signal[rows] += 0.5
    found = judged(scorer, signal, JudgeOptions())
    assert found.verdict is not None
    assert found.verdict.verdict == "microlensing"
    assert found.verdict.reason.endswith(f"left out as wrong: {len(rows)} of the epochs")
    assert found.established
    best = found.rivals[0].curve
    assert best is not None
    assert len(best) == len(T)
    assert (best[rows] == 1).all()


@pytest.mark.parametrize("good", [0, 1])
def test_an_epoch_is_wrong_in_its_own_source_alone(scorer: Scorer, good: int) -> None:
    """The other source has an epoch of the same time, and errors that let it say nothing."""
    signal = lens() / 8
    signal[40] += 0.5
    flux, sigma = np.ones(2 * len(T)), np.full(2 * len(T), 0.3)
    flux[good::2], sigma[good::2] = window(signal).flux[0], 0.01
    found = judged_few(scorer, np.repeat(T, 2), flux, sigma, sources=2)
    assert found.verdict == "microlensing"
    assert found.reason.endswith("left out as wrong: 1 of the epochs")


@pytest.mark.parametrize("at", [7.3, 15.0])
@pytest.mark.parametrize(("t_einstein", "f_s"), [(1.0, 0.1), (3.0, 0.06)])
def test_of_an_event_beside_a_wrong_epoch_that_was_fitted_there_is_another_fit(
    scorer: Scorer, at: float, t_einstein: float, f_s: float
) -> None:
    signal = f_s * excess(np.hypot(0.4, (T - 9.1) / t_einstein), 0.01)
    wrong = int(np.abs(T - at).argmin())
    signal[wrong] += 1.5
    batch = window(signal)
    fit = scorer.fit(batch.epochs(0), 60_000.0, scorer.score(batch), 0, 1, samples=100)
    assert isinstance(fit, Fit)
    assert fit.best[0] == pytest.approx(T[wrong], abs=0.2)
    found = judged(scorer, signal, JudgeOptions())
    assert found.verdict is not None
    assert found.verdict.verdict == "microlensing"
    assert found.established
    assert found.refit is not None
    assert found.refit.left_out == (wrong,)
    assert found.refit.fit.best[0] == pytest.approx(9.1, abs=0.2)
    assert len(found.refit.fit.samples) == 100


def test_an_event_beside_wrong_epochs_is_as_significant_as_an_alert_has_to_be(
    scorer: Scorer,
) -> None:
    signal = lens() / 8
    signal[40] += 0.5
    low, high = (judged(scorer, signal, JudgeOptions(), threshold=at) for at in (6.6, 1e3))
    assert low.refit is not None
    assert high.refit is None
    assert high.verdict is not None
    assert high.verdict.verdict == "artefact"


@pytest.mark.parametrize("rows", [[40], [40, 250], [40, 150, 250]])
def test_wrong_epochs_of_a_quiet_star_are_an_artefact(scorer: Scorer, rows: list[int]) -> None:
    signal = np.zeros(len(T))
    signal[rows] += 0.5
    found = judged(scorer, signal, JudgeOptions())
    assert found.verdict is not None
    assert found.verdict.verdict == "artefact"
    assert not found.established
    assert found.refit is None


def test_noise_is_no_event_of_a_star(scorer: Scorer) -> None:
    assert not judged(scorer, np.zeros(len(T)), JudgeOptions()).established


def test_a_catalogued_label_is_named(scorer: Scorer) -> None:
    options = JudgeOptions(known=KnownVariables({"star": "RR Lyrae"}))
    signal = 0.1 * np.sin(2 * np.pi * T / 0.61)
    found = judged(scorer, signal, options)
    assert found.verdict is not None
    assert "RR Lyrae" in found.verdict.reason


def test_the_same_seed_gives_the_same_judgement(scorer: Scorer) -> None:
    first, second = (judged(scorer, lens(), JudgeOptions()) for _ in range(2))
    assert first.verdict == second.verdict
    assert [r.log10_k for r in first.rivals] == [r.log10_k for r in second.rivals]


def judged_few(
    scorer: Scorer, t: FloatArray, flux: FloatArray, sigma: FloatArray, sources: int = 1
) -> Verdict:
    """The verdict on epochs of some sources in turn, of which the window knows nothing more."""
    batch = window(lens())
    scored = scorer.score(batch)
    few = replace(
        batch.epochs(0),
        mjd_tai=60_000 + t,
        flux=flux.astype(np.float32),
        sigma=sigma.astype(np.float32),
        source=(np.arange(len(t)) % sources).astype(np.int16),
        sources=tuple(("r", f"camera {i}") for i in range(sources)),
        level=np.ones(sources),
        error=np.full(sources, 0.003),
        history=(),
    )
    fit = scorer.fit(few, 60_000.0, scored, 0, 1, samples=50, whole_event=True)
    assert isinstance(fit, Fit)
    candidate = Candidate(batch, scored, 0, ("test", "star", "r"), Memory())
    found = Judge(scorer, JudgeOptions(), Metrics()).judge(candidate, few, fit, 1, 0)
    assert found.verdict is not None
    assert np.isfinite(list(found.verdict.probabilities.values())).all()
    return found.verdict


def test_epochs_of_a_single_moment_are_judged(scorer: Scorer) -> None:
    found = judged_few(scorer, np.full(6, 9.0), np.array([1, 2, 1, 2, 1, 2]), np.full(6, 0.01))
    assert found.verdict not in {"microlensing", "anomalous-lens"}


@pytest.mark.parametrize(
    ("n", "times", "errors"),
    [
        (6, 2, (1e-7, 1e-7)),
        (20, 1, (1e-7, 1e-3)),
        (20, 2, (1e-7, 1e-7)),
        (20, 5, (1e-7, 1e-7)),
        (100, 2, (1e-7, 1e-3)),
        (100, 2, (1e-12, 1e-6)),
    ],
)
def test_few_times_with_tiny_errors_are_judged(
    scorer: Scorer, n: int, times: int, errors: tuple[float, float]
) -> None:
    rng = np.random.default_rng(3)
    t = np.sort(rng.choice(rng.uniform(0, 20, times), n))
    sigma = np.exp(rng.uniform(*np.log(errors), n))
    assert judged_few(scorer, t, np.ones(n), sigma).verdict == "unclear"


def test_sources_of_one_or_two_epochs_are_no_microlensing(scorer: Scorer) -> None:
    """Any rise of theirs is that of some lens, as each has an f_s and a baseline of its own."""
    t = np.linspace(5, 13, 12)
    flux = 1 + 0.7 * excess(np.hypot(0.3, (t - 9) / 2), 0.01)
    found = judged_few(scorer, t, flux, np.full(12, 0.01), sources=6)
    assert found.verdict == "unclear"
    assert "more epochs settle it" in found.reason
    assert judged_few(scorer, t, flux, np.full(12, 0.01)).verdict == "microlensing"


def test_epochs_beyond_the_parameters_of_a_lens_are_counted_source_by_source() -> None:
    one = window(lens()).epochs(0)
    n = len(one)

    def seen_by(source: IntArray) -> StarEpochs:
        cameras = tuple(("r", f"camera {i}") for i in range(int(source.max()) + 1))
        return replace(one, sources=cameras, source=source.astype(np.int16))

    assert spare_epochs(one) == n - 2 - 4
    assert spare_epochs(seen_by(np.arange(n))) == -4
    assert spare_epochs(seen_by((np.arange(n) < 2).astype(np.int64))) == n - 2 - 2 - 4
    assert spare_epochs(seen_by((np.arange(n) < 3).astype(np.int64))) == n - 2 - 2 - 4
    assert spare_epochs(replace(one, mjd_tai=np.full(n, 60_009.0))) == -4
