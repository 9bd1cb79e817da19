"""The hard cuts' statistics, against plain loops and brute force, and how they are tuned."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch

from model_zoo.evaluate.measure.cuts import (
    CUTS,
    LONGEST_RUN,
    Cut,
    CutStatistics,
    _runs,
    as_pattern,
    event_statistics,
    join_statistics,
    noise_statistics,
    tune,
)
from model_zoo.simulate.curves import Curves, Simulator, signal_of
from model_zoo.simulate.pattern import GRID, PatternConfig

DAYS = 20.0
DENSE = Simulator(length=GRID)
UNSURE = replace(DENSE, gate=None, baseline_error=(0.01, 0.01))


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat_curve(flux: list[float], sigma: float = 0.01) -> Curves:
    """One curve of given fluxes, a point-source event far away as its truth, padded by two rows."""
    n = len(flux)
    x = torch.full((1, n + 2, 3), -2.0)
    x[0, :n] = torch.stack(
        [torch.linspace(-1, 1, n), torch.tensor(flux), torch.full((n,), sigma)], 1
    )
    theta = torch.tensor([[10.0, 1.5, -1.0, -2.0, 1.0]])
    return Curves(x, torch.zeros(1), theta, torch.zeros(1), torch.full((1, 3), torch.nan))


def best_chi2(flux: np.ndarray, model: np.ndarray, weight: np.ndarray, b: float) -> float:
    """chi2 with the best baseline by least squares; its prior is one more measurement."""
    design = np.append(np.sqrt(weight) * model, 1 / b)[:, None]
    target = np.append(np.sqrt(weight) * (flux - model), 0.0)
    return float(np.linalg.lstsq(design, target)[1][0])


def columns(curves: Curves, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flux, weight and signal of one event as float64."""
    pattern = as_pattern(curves.x, days=DAYS)
    n = int(pattern.n[i])
    signal = signal_of(curves.theta, pattern)[i, :n].double().numpy()
    flux, sigma = curves.x[i, :n, 1:].double().numpy().T
    return flux, sigma**-2, signal


def test_runs_are_those_of_a_plain_loop() -> None:
    above = 3 + 2 * torch.randn(50, 40, generator=generator(), dtype=torch.float64)
    run, chi3 = _runs(above)
    for i, row in enumerate(above.tolist()):
        runs = [list(part) for high, part in groupby(row, lambda z: z > 3) if high]
        assert run[i] == max(map(len, runs), default=0)
        for n in range(1, LONGEST_RUN + 1):
            sums = [sum(part) for part in runs if len(part) >= n]
            assert chi3[i, n - 1].item() == pytest.approx(max(sums, default=0))


def test_published_cuts_on_a_curve_made_by_hand() -> None:
    """Five epochs of 8 sigma in a row: chi3+ is 40."""
    flux = [1.0] * 40
    flux[10:15] = [1.08] * 5
    flux[20] = flux[22] = 1.5
    measured = event_statistics(flat_curve(flux), days=DAYS)
    assert measured.run.tolist() == [5]
    assert measured.chi3[0, 2] == pytest.approx(40, rel=1e-3)
    assert measured.chi3[0, 0] == pytest.approx(50, rel=1e-3)
    bright = replace(measured, delta_chi2=np.array([1e4]))
    passes = {name: bool(cut.passes(bright)[0]) for name, cut in CUTS.items()}
    assert passes == {"johnson_2020": False, "sumi_2011": False, "mroz_2017": True}
    longer = replace(bright, run=np.array([6]))
    assert CUTS["johnson_2020"].passes(longer)[0]
    assert not CUTS["johnson_2020"].passes(replace(longer, delta_chi2=np.array([299.0])))[0]


def test_delta_chi2_is_that_of_the_best_baselines() -> None:
    curves = UNSURE.events(6, generator())
    measured = event_statistics(curves, days=DAYS)
    for i in range(6):
        flux, weight, signal = columns(curves, i)
        flat = best_chi2(flux, np.ones_like(flux), weight, 0.01)
        lens = best_chi2(flux, 1 + signal, weight, 0.01)
        assert measured.delta_chi2[i] == pytest.approx(flat - lens, rel=1e-3, abs=0.1)


def test_signal_to_noise_marginalises_the_baseline() -> None:
    """As the covariance diag(sigma^2) + b^2 has it, inverted by brute force."""
    curves = UNSURE.events(4, generator(5))
    measured = event_statistics(curves, days=DAYS)
    for i in range(4):
        _, weight, signal = columns(curves, i)
        covariance = np.diag(1 / weight) + 0.01**2
        expected = np.sqrt(signal @ np.linalg.solve(covariance, signal))
        assert measured.snr[i] == pytest.approx(expected, rel=1e-4)
    exact = DENSE.events(20, generator(6))
    assert event_statistics(exact, days=DAYS).snr == pytest.approx(exact.snr.numpy(), rel=1e-4)


def test_noise_is_searched_with_every_model_and_any_source_flux() -> None:
    bank = DENSE.events(5, generator(8)).theta
    noise = replace(UNSURE, pattern=PatternConfig(stream_share=1.0)).noise(4, generator(9))
    measured = noise_statistics(noise, bank, days=DAYS)
    for i in range(4):
        found = [0.0]
        for theta in bank:
            one = replace(noise, theta=theta.expand(4, 5))
            flux, weight, signal = columns(one, i)
            flat = best_chi2(flux, np.ones_like(flux), weight, 0.01)
            unit = signal / max(np.sqrt((weight * signal**2).sum()), 1e-9)
            lens = [best_chi2(flux, 1 + a * unit, weight, 0.01) for a in np.linspace(0, 6, 25)]
            found.append(flat - min(lens))
        assert measured.delta_chi2[i] == pytest.approx(max(found), rel=0.05, abs=0.1)


def test_a_wrong_baseline_makes_no_run() -> None:
    """Of noise a hundred times sharper than its baseline, hardly any epoch stands out."""
    sharp = replace(UNSURE, pattern=PatternConfig(stream_share=1.0, stream_sigma=(1e-4, 1.001e-4)))
    noise = sharp.noise(100, generator(10))
    assert (noise_statistics(noise, DENSE.events(2, generator()).theta, days=DAYS).run <= 3).all()


def statistics(delta_chi2: list[float], run: list[int]) -> CutStatistics:
    n = len(run)
    chi3 = np.where(np.array(run)[:, None] >= np.arange(1, LONGEST_RUN + 1), 10.0, 0.0)
    return CutStatistics(np.array(delta_chi2), np.array(run), chi3, np.zeros(n))


def test_tuning_sweeps_threshold_and_run() -> None:
    """A long run lets the threshold fall below that of loud noise without one."""
    noise = statistics([50, 20, 5, -1], [1, 2, 2, 0])
    events = statistics([60, 45, 30, 8, 3], [9, 3, 3, 3, 2])
    cut = tune(CUTS["johnson_2020"], events, noise, 0)
    assert (cut.statistic, cut.run) == ("delta_chi2", 3)
    assert cut.passes(events).tolist() == [True, True, True, True, False]
    assert not cut.passes(noise).any()
    lenient = tune(CUTS["johnson_2020"], events, noise, 2)
    assert lenient.passes(noise).sum() <= 2
    assert lenient.passes(events).sum() >= cut.passes(events).sum()


def test_a_tuned_cut_keeps_to_the_false_alarms_allowed() -> None:
    rng = np.random.default_rng(4)
    noise = statistics(rng.normal(0, 10, 500).tolist(), rng.integers(0, 4, 500).tolist())
    events = statistics(rng.normal(30, 10, 500).tolist(), rng.integers(0, 9, 500).tolist())
    for allowed in (0, 1, 7):
        cut = tune(CUTS["johnson_2020"], events, noise, allowed)
        assert cut.passes(noise).sum() <= allowed
        for run in range(1, 6):
            highest = np.sort(Cut("delta_chi2", 0, run).values(noise))[::-1][allowed]
            rival = Cut("delta_chi2", max(float(highest), 0.0) + 1e-9, run)
            assert cut.passes(events).sum() >= rival.passes(events).sum()


def test_parts_join_in_order() -> None:
    parts = [statistics([1.0, 2.0], [1, 2]), statistics([3.0], [3])]
    assert join_statistics(parts).delta_chi2.tolist() == [1.0, 2.0, 3.0]
