"""Robust K of a star: the lens against every constant star of a family of noise.

Certified K asks whether a lens explains the data better than a constant star with white noise of
the quoted size. On the real sky errors are misjudged, nights correlate and single epochs are wrong;
`broker_filter.inference.noise_family` holds such stars, and K against the best of them keeps the
bound P(K >= k) <= 1/k for each.

Epochs long before an event say nothing of it, but each has to be as probable with a lens as under
the best member of the family, which is chosen once all are known: so a short event is worth less in
a long window. K is therefore a mean of that of the whole window and of those of its later parts,
which begin at fixed times. Each of them keeps the bound at any moment, so their mean does, and with
it any part of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.lens_density import LensDensity
from broker_filter.inference.lens_outliers import WrongSet, far_off, left_over
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.noise_family import NoiseFamily, SourceLight
from broker_filter.inference.supremum import Supremum, log_supremum
from broker_filter.types import FloatArray, NoiseFit, RobustK

__all__ = ["robust_k", "source_lights"]

MOST_SAMPLES = 200
EIGHTHS = 8
WHOLE, PART = 0.8, 0.2 / (EIGHTHS - 1)
"""Shares in the mean of the whole window, and of each part: one begins with each other eighth."""
SEARCHES = 2
"""Times that what the best lens so far leaves over is looked for."""
SMALLEST = 1e-6  # of the error of a baseline, relative


def robust_k(
    likelihood: Likelihood,
    theta: Tensor,
    log_ratio: Tensor,
    families: Sequence[NoiseFamily],
    draw: torch.Generator,
    days: float | None = None,
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
    days : float, optional
        Length of the window, of which later parts count too; without it the whole alone does.
    """
    rows = torch.randperm(len(theta), generator=draw)[:MOST_SAMPLES]
    signal = likelihood.excess(theta[rows]).numpy().T
    whole = [
        (light, family, signal[first:last])
        for (first, last), light, family in zip(
            _spans(likelihood), source_lights(likelihood), families, strict=True
        )
    ]
    log_e, found = _log_e(likelihood, whole)
    if days is not None:
        of_all, log_e = log_e, log_e + math.log(WHOLE)
        for start in _latest_parts(float(likelihood.days.max()), days):
            part = [(light.since(start), family, s[light.t >= start]) for light, family, s in whole]
            part = [each for each in part if len(each[0])]
            fewer = sum(len(light) for light, *_ in part) < len(likelihood)
            of_part = _log_e(likelihood, part)[0] if fewer else of_all
            log_e = np.logaddexp(log_e, of_part + math.log(PART))
    log_weight = log_ratio[rows].double().numpy() + log_e
    top = float(log_weight.max())
    weight = np.exp(log_weight - top)
    mean = float(weight.mean())
    effective = float(weight.sum() ** 2 / np.square(weight).sum())
    error = math.sqrt(max(1 / effective - 1 / len(weight), 0.0)) / LN_10
    return RobustK((top + math.log(mean)) / LN_10, error, effective, tuple(found))


def _latest_parts(last: float, days: float) -> list[float]:
    """Where the last two parts begin, in days: the others add to the mean, and are left out.

    By the time of the last epoch alone, not by what was measured.
    """
    eighth = days / EIGHTHS
    latest = min(math.floor(last / eighth), EIGHTHS - 1)
    return [eighth * start for start in (latest - 1, latest) if start > 0]


def _log_e(
    likelihood: Likelihood, sources: Sequence[tuple[SourceLight, NoiseFamily, FloatArray]]
) -> tuple[FloatArray, list[NoiseFit]]:
    """Natural log of the density with each lens over the largest of the family, of all sources.

    And the noise of each source under which that one is reached.
    """
    log_e, found = np.zeros(sources[0][2].shape[1]), []
    for light, family, signal in sources:
        best = log_supremum(light, family)
        density = _log_density(likelihood, light, family, signal, best)
        log_e = log_e + density - best.log_density
        found.append(_noise_fit(light, family, best))
    return log_e, found


def _log_density(
    likelihood: Likelihood,
    light: SourceLight,
    family: NoiseFamily,
    signal: FloatArray,
    best: Supremum,
) -> FloatArray:
    """Of the epochs of one source for each lens, or less than that.

    Of the sum over all sets of wrong epochs and nights few terms are taken: none, those wrong
    without a lens, and those that the best lens so far leaves over.
    """

    @cache
    def lens_density(epochs: WrongSet) -> LensDensity:
        return LensDensity(
            epochs.applied(light),
            family,
            likelihood.f_s_range,
            log_f_s=likelihood.uniform_in_log_f_s,
        )

    def term(wrong: WrongSet) -> FloatArray:
        density = lens_density(replace(wrong, night=None))
        return density(signal, wrong.night) + wrong.log_prior(light)

    sets = {WrongSet(), far_off(light, light.residual, best.wrong_epochs)}
    found = {wrong: term(wrong) for wrong in sets}
    for _ in range(SEARCHES):
        known = max(found, key=lambda wrong: float(found[wrong].max()))
        lens = signal[:, int(found[known].argmax())]
        new = left_over(light, family, lens, known)
        more = {new, replace(new, night=None)} - set(found)
        if not more:
            break
        found |= {wrong: term(wrong) for wrong in more}
    return np.asarray(np.logaddexp.reduce(list(found.values())))


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
