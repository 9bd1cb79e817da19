"""What else it could be: Bayes factors of the lens against other kinds of light curves.

Each rival has a stated prior (`broker_filter.inference.rival_shapes` and
`broker_filter.inference.rival_grids`), and all have the noise of the lens
(`broker_filter.inference.rival_noise`): errors that are wrong by an unknown factor, and red noise
on top. Each source has its own amplitude, baseline and noise; times and durations are common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import torch

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.rival_amplitude import (
    Between,
    chi2_left,
    left_of,
    log_by_noise,
    log_marginal,
    source_best,
)
from broker_filter.inference.rival_grids import (
    Found,
    artefact,
    constant,
    constants,
    joined,
    smooth,
    wrong_epoch,
)
from broker_filter.inference.rival_noise import NoisePrior, SourceNoise
from broker_filter.inference.rival_sampler import (
    climb_to,
    heights,
    log_mean_weight,
    sample_marginal,
)
from broker_filter.inference.rival_shapes import CURVED, FLARE, CurvedShape, Span
from broker_filter.inference.rival_starts import starts_of
from broker_filter.inference.robust import source_lights
from broker_filter.types import FloatArray, Lenses

__all__ = ["Comparison", "LensFound", "compare", "curved", "lens_marginal", "once_or_twice"]

STARTS: Final = 8
APART: Final = 0.1
LENSES: Final = 400
F_S_STEPS: Final = 5
NOTHING: Final = 12.0
"""Nats below the most probable noise, from which on another one adds nothing."""
CLEAR: Final = LN_10
"""Nats by which a flare is better than a wrong epoch: an epoch of noise is no decline."""


@dataclass(frozen=True, slots=True)
class LensFound:
    """The lens's marginal likelihood and its best curve.

    Parameters
    ----------
    found : Found
    theta : ndarray, shape (4,), float64
    f_s, offset : ndarray, shape (S,), float64
        Share of lensed light of each source, and how far its baseline is from the assumed one.
    """

    found: Found
    theta: FloatArray
    f_s: FloatArray
    offset: FloatArray


@dataclass(frozen=True, slots=True)
class Comparison:
    """Marginal likelihoods of the lens and of each rival, natural log, all without (2 pi)^(-n/2).

    Parameters
    ----------
    lens : LensFound
    rivals : dict of str to Found
    """

    lens: LensFound
    rivals: dict[str, Found]

    @property
    def best_rival(self) -> float:
        """The largest marginal likelihood of a rival."""
        return max(one.log_p for one in self.rivals.values())

    @property
    def least_scale(self) -> float:
        """The least factor on the errors that a rival needs."""
        return min(one.scale for one in self.rivals.values())

    def log10_k(self, name: str) -> tuple[float, float]:
        """Bayes factor of the lens against one rival, and its standard error, in dex."""
        lens, rival = self.lens.found, self.rivals[name]
        return (lens.log_p - rival.log_p) / LN_10, math.hypot(lens.error, rival.error) / LN_10


def compare(
    likelihood: Likelihood, lenses: Lenses, prior: NoisePrior, span: Span, seed: int
) -> Comparison:
    """Compare the lens with all rivals.

    Parameters
    ----------
    likelihood : Likelihood
        Of the star's epochs.
    lenses : Lenses
        Samples of any proposal.
    prior : NoisePrior
    span : Span
        When an event may be, days after the fit's ``t_start``.
    seed : int
        The same seed gives the same result.
    """
    lights = source_lights(likelihood)
    noises = [SourceNoise(light, prior) for light in lights]
    draw = np.random.default_rng(seed)
    lens = lens_marginal(likelihood, lenses, noises, draw)
    rivals = {shape.name: curved(shape, noises, span, draw) for shape in CURVED}
    quiet = constants(noises)
    rivals["flare"] = once_or_twice(FLARE, rivals["flare"], noises, quiet, span, draw)
    rivals["smooth"] = smooth(lights, prior)
    rivals["artefact"] = artefact(noises, quiet)
    rivals["constant"] = constant(noises)
    return Comparison(lens, rivals)


def lens_marginal(
    likelihood: Likelihood,
    lenses: Lenses,
    noises: Sequence[SourceNoise],
    draw: np.random.Generator,
) -> LensFound:
    """The lens's marginal likelihood under the noise of its rivals, and its best curve."""
    rows = draw.permutation(len(lenses.theta))[:LENSES]
    theta = lenses.theta[rows]
    excess = likelihood.excess(torch.from_numpy(theta)).numpy().T[..., None]
    low, high = likelihood.f_s_range
    logarithmic = likelihood.uniform_in_log_f_s
    share = Between.logarithmic(low, high, F_S_STEPS) if logarithmic else Between((low, high))
    parts = _by_source(noises, excess)
    log_p = sum(log_marginal(noise, part, share) for noise, part in zip(noises, parts, strict=True))
    log_weight = np.asarray(log_p + lenses.log_ratio[rows])
    log_mean, error = log_mean_weight(log_weight)
    row = int(np.argmax(log_p))
    best = [source_best(n, part[:, row], share) for n, part in zip(noises, parts, strict=True)]
    return LensFound(
        Found(log_mean, error, {}, *joined(best)),
        theta[row],
        np.array([one.amplitude[0] for one in best]),
        np.array([one.offset for one in best]),
    )


def _by_source(noises: Sequence[SourceNoise], columns: FloatArray) -> list[FloatArray]:
    ends = np.cumsum([0, *(len(noise) for noise in noises)]).tolist()
    return [columns[a:b] for a, b in pairwise(ends)]


def curved(
    shape: CurvedShape, noises: Sequence[SourceNoise], span: Span, draw: np.random.Generator
) -> Found:
    """The marginal likelihood of one curved shape, and its best curve."""
    lights = [noise.light for noise in noises]
    t = np.concatenate([light.t for light in lights])
    white = _Projected([noise.some([0]) for noise in noises], t, shape, span)
    candidates = starts_of(shape, lights, span)
    starts = _chosen(white, candidates)
    by_noise = _by_noise(noises, white.parts(starts), shape)
    rows = [int(one.max(axis=1).argmax()) for one in by_noise]
    likely = white
    if any(rows):
        own = [noise.some([row]) for noise, row in zip(noises, rows, strict=True)]
        likely = replace(white, noises=own)
        starts = np.concatenate([starts, _chosen(likely, candidates)])
    peaks = climb_to(likely, starts)
    by_noise = _by_noise(noises, white.parts(peaks.z), shape)
    kept = [noise.some(_near(one)) for noise, one in zip(noises, by_noise, strict=True)]

    def log_p(z: FloatArray) -> FloatArray:
        each = [
            log_marginal(noise, part, shape.amplitude)
            for noise, part in zip(kept, white.parts(z), strict=True)
        ]
        return np.asarray(np.sum(each, axis=0))

    found = sample_marginal(log_p, peaks, draw, shape.samples)
    theta = shape.theta(found.best[None], span)
    parts = _by_source(noises, shape.shape(t, theta)[:, 0])
    best = [source_best(n, p, shape.amplitude) for n, p in zip(noises, parts, strict=True)]
    parameters = dict(zip(shape.parameters, theta[0].tolist(), strict=True))
    parameters["amplitude"] = max(float(np.abs(one.amplitude).max()) for one in best)
    return Found(found.log_p, found.error, parameters, *joined(best))


def once_or_twice(
    shape: CurvedShape,
    first: Found,
    noises: Sequence[SourceNoise],
    quiet: FloatArray,
    span: Span,
    draw: np.random.Generator,
) -> Found:
    """The marginal likelihood of a shape that comes once or twice, each with half of the prior.

    Flares of one star are many, and two wrong epochs would describe two flares better than one
    flare does. The second is sought in what the best first one leaves. Each has to be better than a
    wrong epoch: a lens may have one of those beside it too.

    Parameters
    ----------
    shape : CurvedShape
    first : Found
        As `curved` gives it.
    noises : sequence of SourceNoise
    quiet : ndarray, shape (S,), float64
        As `constants` gives it.
    span : Span
    draw : Generator
    """
    once = replace(first, log_p=first.log_p + math.log(0.5))
    if first.log_p < wrong_epoch(noises, quiet) + CLEAR:
        return once
    rest = _without(noises, first.curve)
    still, second = constants(rest), curved(shape, rest, span, draw)
    if second.log_p < wrong_epoch(rest, still) + CLEAR:
        return once
    # Either of the two may be the one that is listed first: half of the prior, twice.
    twice = second.log_p - still.sum()
    return replace(
        second,
        log_p=float(np.logaddexp(once.log_p, first.log_p + twice)),
        error=math.hypot(first.error, second.error),
        parameters={**first.parameters, "t_again": second.parameters[shape.parameters[0]]},
        curve=first.curve + second.curve,
    )


def _without(noises: Sequence[SourceNoise], curve: FloatArray) -> list[SourceNoise]:
    """The same noises of what a curve leaves."""
    parts = zip(noises, _by_source(noises, curve), strict=True)
    return [
        SourceNoise(replace(one.light, residual=one.light.residual - part), one.prior)
        for one, part in parts
    ]


def _by_noise(
    noises: Sequence[SourceNoise], parts: Sequence[FloatArray], shape: CurvedShape
) -> list[FloatArray]:
    """Ln of share and density of some curves, shape (J, m), under each noise of each source."""
    return [
        log_by_noise(noise, part, shape.amplitude) + noise.log_share[:, None]
        for noise, part in zip(noises, parts, strict=True)
    ]


def _near(by_noise: FloatArray) -> list[int]:
    """The noises that matter for any of the best curves; under the others none comes near."""
    near = by_noise > by_noise.max(axis=0) - NOTHING
    return [int(row) for row in np.flatnonzero(near.any(axis=1))]


@dataclass(frozen=True, slots=True)
class _Projected:
    """A shape with its best amplitudes and baselines, for one noise each, at z, shape (m, d)."""

    noises: Sequence[SourceNoise]
    t: FloatArray
    shape: CurvedShape
    span: Span

    def __call__(self, z: FloatArray) -> FloatArray:
        """Residuals as `left_of` has them, shape (n, m)."""
        pairs, amplitude = zip(self.noises, self.parts(z), strict=True), self.shape.amplitude
        return np.concatenate([left_of(noise, part, amplitude) for noise, part in pairs])

    def heights(self, z: FloatArray) -> FloatArray:
        """See `heights`; shape (m,)."""
        pairs, amplitude = zip(self.noises, self.parts(z), strict=True), self.shape.amplitude
        chi2 = sum(chi2_left(noise, part, amplitude) for noise, part in pairs)
        return heights(np.asarray(chi2), len(self.t), z)

    def parts(self, z: FloatArray) -> list[FloatArray]:
        """Columns of each source, shape (n, m, q)."""
        return _by_source(self.noises, self.shape.shape(self.t, self.shape.theta(z, self.span)))


def _chosen(projected: _Projected, candidates: FloatArray) -> FloatArray:
    """The best candidates that are not too near to each other, shape (k, d)."""
    height = projected.heights(candidates)
    chosen = []
    for _ in range(STARTS):
        i = int(height.argmax())
        chosen.append(candidates[i])
        near = np.abs(candidates - candidates[i]).max(axis=1) < APART
        height = np.where(near, -math.inf, height)
    return np.stack(chosen)
