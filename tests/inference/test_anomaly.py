"""A lens with a stretch left out: a planet's bump is seen as such, a variable star is not."""

from __future__ import annotations

import numpy as np
import torch

from broker_filter.inference.anomaly import anomalous, worst_stretch
from broker_filter.inference.fit import Fitter
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.magnification import excess
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.rival_noise import NoisePrior
from broker_filter.inference.rival_shapes import Span
from broker_filter.inference.rivals import compare
from broker_filter.types import Fit, FloatArray, StarEpochs

PRIOR = BoxPrior("test", (-2.0, 0.0, -1.3, -3.0, 0.005), (25.0, 1.5, 1.778, 1.0, 1.0), True)
SPAN = Span(0.0, 20.0)
T = np.sort(np.random.default_rng(1).uniform(0, 20, 300))
LENS = 0.7 * excess(np.hypot(0.3, (T - 9.1) / 3), 0.01)


def epochs(signal: FloatArray, sigma: float = 0.01) -> StarEpochs:
    n = len(T)
    flux = 1 + signal + sigma * np.random.default_rng(2).normal(size=n)
    return StarEpochs(
        (("F146", ""),),
        np.ones(1),
        np.full(1, 0.003),
        60_000 + T,
        flux.astype(np.float32),
        np.full(n, sigma, np.float32),
        np.zeros(n, np.int16),
    )


def fit(of: StarEpochs) -> Fit:
    found = Fitter(PRIOR)(of, 60_000.0, torch.empty(0, 5), 1)
    assert isinstance(found, Fit)
    return found


def gains(signal: FloatArray) -> tuple[float, float, dict[str, float]]:
    """Nats of the anomalous lens over the best rival and over the lens, and what it leaves out."""
    of = epochs(signal)
    lenses = fit(of).lenses
    assert lenses is not None
    found = compare(Likelihood(of, 60_000.0, PRIOR), lenses, NoisePrior(), SPAN, 1)
    models = anomalous(of, 60_000.0, PRIOR, found, fit, NoisePrior(), 1)
    lens = models.pop("anomalous")
    best = max(one.log_p for one in (*found.rivals.values(), *models.values()))
    over_lens = lens.log_p - found.lens.found.log_p
    return lens.log_p - best, over_lens, dict(lens.parameters)


def test_a_planet_mends_the_lens() -> None:
    planet = 0.6 * np.exp(-0.5 * ((T - 11.0) / 0.15) ** 2)
    over_rivals, over_lens, where = gains(LENS + planet)
    assert over_rivals > 10
    assert over_lens > 100
    assert 10 < where["first"] < 11 < where["last"] < 12


def test_a_lens_gains_nothing() -> None:
    _, over_lens, _ = gains(LENS)
    assert over_lens < 0


def test_an_outburst_with_a_dip_is_none_of_a_lens() -> None:
    """Without the dip an outburst describes it better than a lens does."""
    rise, decline = (T - 8.0) / 0.5, np.exp(-(T - 12.5) / 2.0)
    outburst = np.where(T < 12.5, 1.0, decline) * np.clip(rise, 0, 1)
    dip = -0.5 * np.exp(-0.5 * ((T - 10.5) / 0.3) ** 2)
    over_rivals, over_lens, _ = gains(0.6 * (outburst + dip))
    assert over_lens > 10
    assert over_rivals < -3


def test_pulsation_is_not_mended_by_leaving_out_a_stretch() -> None:
    over_rivals, _, _ = gains(0.3 * np.sin(2 * np.pi * T / 3.1))
    assert over_rivals < -10


def test_the_worst_stretch_is_bounded_and_may_be_none() -> None:
    off = np.zeros(300)
    assert worst_stretch(T, off, 5.0) is None
    off[100:140] = 6.0
    out = worst_stretch(T, off, 30.0)
    assert out is not None
    assert np.flatnonzero(out).tolist() == list(range(100, 140))
    short = worst_stretch(T, off, 1.0)
    assert short is not None
    assert np.ptp(T[short]) <= 1.0


def test_a_stretch_that_goes_on_at_the_last_epochs_is_none() -> None:
    off = np.zeros(300)
    off[270:297] = 6.0
    assert worst_stretch(T, off, 5.0) is not None
    off[297] = 6.0
    assert worst_stretch(T, off, 5.0) is None
