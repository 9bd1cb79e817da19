"""Robust K of a star: the lens against every constant star of a family of noise.

Certified K asks whether a lens explains the data better than a constant star with white noise of
the quoted size. On the real sky errors are misjudged, nights correlate and single epochs are wrong;
`broker_filter.inference.noise_family` holds such stars, and K against the best of them keeps the
bound P(K >= k) <= 1/k for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.lens_density import LensDensity
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.noise_family import OFFSET_SIZES, NoiseFamily, SourceLight
from broker_filter.inference.supremum import Supremum, log_supremum
from broker_filter.types import FloatArray, NoiseFit, RobustK

__all__ = ["robust_k", "source_lights"]

MOST_SAMPLES = 200
NONE_WRONG = 0.9
"""Prior probability that no epoch of a source is wrong; one, and two, have half of the rest."""
OUTLIER = 7.0
"""Errors that an epoch is off at least for the lens to count it as wrong: fewer save nothing."""
SMALLEST = 1e-6  # of the error of a baseline, relative


def robust_k(
    likelihood: Likelihood,
    theta: Tensor,
    log_ratio: Tensor,
    families: Sequence[NoiseFamily],
    draw: torch.Generator,
) -> RobustK:
    """Estimate E, the lens's marginal likelihood over the largest one of the family.

    Parameters
    ----------
    likelihood : Likelihood
        Of the star's epochs.
    theta : Tensor, shape (n, 4), float64
        Fresh samples of lenses, drawn from any proposal fixed before.
    log_ratio : Tensor, shape (n,), float64
        Natural log of prior over proposal density of each.
    families : sequence of NoiseFamily
        One of each source.
    draw : torch.Generator
        Picks the samples that are used where there are more than `MOST_SAMPLES`.
    """
    rows = torch.randperm(len(theta), generator=draw)[:MOST_SAMPLES]
    signal = likelihood.excess(theta[rows]).numpy().T
    lights = source_lights(likelihood)
    log_weight = log_ratio[rows].double().numpy()
    found = []
    spans = _spans(likelihood)
    for (first, last), light, family in zip(spans, lights, families, strict=True):
        best = log_supremum(light, family)
        density = _log_density(likelihood, light, family, signal[first:last], best)
        log_weight = log_weight + density - best.log_density
        found.append(_noise_fit(light, family, best))
    top = float(log_weight.max())
    weight = np.exp(log_weight - top)
    mean = float(weight.mean())
    effective = float(weight.sum() ** 2 / np.square(weight).sum())
    error = math.sqrt(max(1 / effective - 1 / len(weight), 0.0)) / LN_10
    return RobustK((top + math.log(mean)) / LN_10, error, effective, tuple(found))


def _log_density(
    likelihood: Likelihood,
    light: SourceLight,
    family: NoiseFamily,
    signal: FloatArray,
    best: Supremum,
) -> FloatArray:
    """Of the epochs of one source for each lens, or less than that.

    A lensed star may have wrong epochs too: its density is a sum over all sets of them, by their
    prior. Of the sum two terms are taken, none and those wrong without a lens, so that it is never
    too large.
    """

    def of(light: SourceLight) -> FloatArray:
        f_s = likelihood.f_s_range
        return LensDensity(light, family, f_s, log_f_s=likelihood.uniform_in_log_f_s)(signal)

    none = of(light) + math.log(NONE_WRONG)
    wrong = [i for i in best.wrong_epochs if abs(light.residual[i]) > OUTLIER * light.sigma[i]]
    if not wrong:
        return none
    prior = (1 - NONE_WRONG) / 2 / (len(light) * OFFSET_SIZES) ** len(wrong)
    return np.asarray(np.logaddexp(none, of(light.with_offsets(wrong)) + math.log(prior)))


def _noise_fit(light: SourceLight, family: NoiseFamily, best: Supremum) -> NoiseFit:
    night = best.wrong_night
    return NoiseFit(
        best.scale,
        best.amplitude,
        best.tau,
        light.median_error,
        tuple(float(light.t[i]) for i in best.wrong_epochs),
        night and (float(light.t[night[0]]), float(light.t[night[1]])),
        family.scale,
        family.red_noise,
        light.baseline_error,
        family.nights,
    )


def source_lights(likelihood: Likelihood) -> list[SourceLight]:
    """The epochs of each source, times in days after the fit's ``t_start``."""
    days, residual = likelihood.days.numpy(), likelihood.residual.numpy()
    sigma = likelihood.weight.rsqrt().numpy()
    error = likelihood.variance.sqrt().clamp(min=SMALLEST).tolist()
    spans = _spans(likelihood)
    return [
        SourceLight(days[a:b], residual[a:b], sigma[a:b], b_error)
        for (a, b), b_error in zip(spans, error, strict=True)
    ]


def _spans(likelihood: Likelihood) -> list[tuple[int, int]]:
    """First and last + 1 epoch of each source; the likelihood keeps them source by source."""
    counts = torch.bincount(likelihood.source, minlength=likelihood.sources)
    return list(pairwise([0, *counts.cumsum(0).tolist()]))
