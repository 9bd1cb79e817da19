"""Robust K of a star: the lens against every constant star of a family of noise.

Certified K asks whether a lens explains the data better than a constant star with white noise of
the quoted size. On the real sky errors are misjudged, nights correlate and single epochs are wrong;
`broker_filter.inference.noise_family` holds such stars, and K against the best of them keeps the
bound P(K >= k) <= 1/k for each.

A short event is worth less in a long window. Epochs long before it say nothing of it, but each of
them has to be as probable with the lens as under the best member of the family, which is chosen
once all are known. K is therefore a mean of that of the whole window and of those of its later
parts, which begin at fixed times. Each of them keeps the bound at any moment, so their mean does,
and with it any part of the mean.

A camera's wrong epochs are those of all its bands together. A window of five bands has no more
epochs than one of a single band elsewhere, and were two of each band free to be wrong, that would
be most of what such a survey sees of an event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement, pairwise

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.lens_density import LensDensity
from broker_filter.inference.lens_outliers import WrongSet, far_off, left_over
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.noise_family import NoiseFamily, SourceLight
from broker_filter.inference.supremum import Supremum, log_supremum
from broker_filter.types import FloatArray, IntArray, NoiseFit, RobustK

__all__ = ["robust_k", "source_lights"]

MOST_SAMPLES = 200
EIGHTHS = 8
WHOLE, PART = 0.8, 0.2 / (EIGHTHS - 1)
"""Shares in the mean of the whole window, and of each part: one begins with each other eighth."""
SEARCHES = 2
"""Times that what the best lens so far leaves over is looked for."""
SMALLEST = 1e-6  # of the error of a baseline, relative


@dataclass(frozen=True, slots=True)
class _Source:
    """Epochs of one source, its family, and A - 1 of m lenses at the epochs, shape (n, m)."""

    light: SourceLight
    family: NoiseFamily
    signal: FloatArray
    camera: str

    def since(self, start: float) -> _Source:
        """The epochs from a time on, days."""
        late = self.light.t >= start
        return replace(self, light=self.light.since(start), signal=self.signal[late])


def robust_k(
    likelihood: Likelihood,
    theta: Tensor,
    log_ratio: Tensor,
    families: Sequence[NoiseFamily],
    draw: torch.Generator,
    days: float | None = None,
    *,
    cameras: Sequence[str] | None = None,
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
    cameras : sequence of str, optional
        The camera of each source, whose bands share its wrong epochs; one each if left out.
    """
    rows = torch.randperm(len(theta), generator=draw)[:MOST_SAMPLES]
    signal = likelihood.excess(theta[rows]).numpy().T
    names = cameras or [str(i) for i in range(likelihood.sources)]
    whole = [
        _Source(light, family, signal[first:last], camera)
        for (first, last), light, family, camera in zip(
            _spans(likelihood), source_lights(likelihood), families, names, strict=True
        )
    ]
    log_e, found = _log_e(likelihood, whole)
    if days is not None:
        of_all, log_e = log_e, log_e + math.log(WHOLE)
        for start in _latest_parts(float(likelihood.days.max()), days):
            part = [source.since(start) for source in whole]
            part = [source for source in part if len(source.light)]
            fewer = sum(len(source.light) for source in part) < len(likelihood)
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


def _log_e(likelihood: Likelihood, sources: Sequence[_Source]) -> tuple[FloatArray, list[NoiseFit]]:
    """Natural log of the density with each lens over the largest of the family, of all sources.

    And the noise of each source under which that one is reached.
    """
    log_e = np.zeros(sources[0].signal.shape[1])
    found: dict[int, NoiseFit] = {}
    for camera in dict.fromkeys(source.camera for source in sources):
        own = [i for i, source in enumerate(sources) if source.camera == camera]
        ratio, best = _log_e_of_camera(likelihood, [sources[i] for i in own])
        log_e = log_e + ratio
        for i, noise in zip(own, best, strict=True):
            found[i] = _noise_fit(sources[i].light, sources[i].family, noise)
    return log_e, [found[i] for i in range(len(sources))]


def _log_e_of_camera(
    likelihood: Likelihood, sources: Sequence[_Source]
) -> tuple[FloatArray, list[Supremum]]:
    """The same for the sources of one camera, and the best member of the family for each.

    Both densities are of all shares that the sources may have in the camera's wrong epochs: with a
    lens their sum, without one the largest.
    """
    if len(sources) == 1:
        best = log_supremum(sources[0].light, sources[0].family)
        terms = _log_terms(likelihood, sources[0], [best])
        return np.logaddexp.reduce(list(terms.values())) - best.log_density, [best]
    most = max(source.family.wrong_epochs for source in sources)
    shares = _shares(len(sources), most)
    density, largest = np.zeros((len(shares), 1)), np.zeros(len(shares))
    suprema = [_suprema(source, most) for source in sources]
    for source, known, share in zip(sources, suprema, shares.T, strict=True):
        terms = _log_terms(likelihood, source, known)
        density = density + _by_count(terms, most)[share]
        largest = largest + np.array([one.log_density for one in known])[share]
    best_share = int(largest.argmax())
    ratio = np.logaddexp.reduce(density, axis=0) - largest[best_share]
    return ratio, [
        known[share] for known, share in zip(suprema, shares[best_share].tolist(), strict=True)
    ]


def _shares(sources: int, most: int) -> IntArray:
    """All ways in which sources have so many wrong epochs together at most, shape (P, sources)."""
    found = [
        [chosen.count(source) for source in range(sources)]
        for n in range(most + 1)
        for chosen in combinations_with_replacement(range(sources), n)
    ]
    return np.array(found, np.int64)


def _suprema(source: _Source, most: int) -> list[Supremum]:
    """The best member with 0, 1, ... wrong epochs at most."""
    found = [log_supremum(source.light, replace(source.family, wrong_epochs=most))]
    while (fewer := most - len(found)) >= 0:
        best = found[0]
        if len(best.wrong_epochs) > fewer:
            best = log_supremum(source.light, replace(source.family, wrong_epochs=fewer))
        found.insert(0, best)
    return found


def _by_count(terms: Mapping[WrongSet, FloatArray], most: int) -> FloatArray:
    """Natural log of the density with 0, 1, ... wrong epochs, shape (most + 1, m)."""
    width = len(next(iter(terms.values())))
    found = np.full((most + 1, width), -np.inf)
    for wrong, term in terms.items():
        n = len(wrong.epochs)
        found[n] = np.logaddexp(found[n], term)
    return found


def _log_terms(
    likelihood: Likelihood, source: _Source, suprema: Sequence[Supremum]
) -> dict[WrongSet, FloatArray]:
    """Natural log of the density of one source for each lens, or less than that, in its terms.

    Of the sum over all sets of wrong epochs and nights few terms are taken: none, those wrong
    without a lens, and those that the best lens so far leaves over.
    """
    light, family, signal = source.light, source.family, source.signal

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

    sets = {WrongSet(), *(far_off(light, light.residual, one.wrong_epochs) for one in suprema)}
    found = {wrong: term(wrong) for wrong in sets}
    for _ in range(SEARCHES):
        known = max(found, key=lambda wrong: float(found[wrong].max()))
        lens = signal[:, int(found[known].argmax())]
        new = left_over(light, family, lens, known)
        more = {new, replace(new, night=None)} - set(found)
        if not more:
            break
        found |= {wrong: term(wrong) for wrong in more}
    return found


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
