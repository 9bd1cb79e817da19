"""The exact posterior and Bayes factor of a lens for the epochs of one star.

The network proposes where the event may be; the likelihood decides. Population Monte Carlo (Cappe
et al. 2004, J. Comput. Graph. Stat. 13, 907) starts from the flow's samples, from the matched
filter's templates and from maxima of the likelihood, and sharpens mixtures on all that was seen so
far (Cornuet et al. 2012, Scand. J. Stat. 39, 798). Its last round is of fresh samples, from a
mixture and of a number that were fixed before.

The mean weight of that round, likelihood ratio x prior / proposal density, is an unbiased estimate
of K. So with no event in the data P(estimate >= k) <= 1/k by Markov's inequality, whatever the
proposals were; better ones only make the estimate less noisy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.ascent import Modes, climb
from broker_filter.inference.evidence import LN_10
from broker_filter.inference.fit_epochs import usable_epochs
from broker_filter.inference.fit_quality import (
    autocorrelation,
    chi2_tail,
    error_dex,
    free_parameters,
    source_fits,
)
from broker_filter.inference.lens_coordinates import LENS, Bend, LensBox, prior_log_density
from broker_filter.inference.likelihood import Likelihood, Sums
from broker_filter.inference.matched_filter import LensScan
from broker_filter.inference.noise_bounds import NoiseBounds
from broker_filter.inference.population import Mixture, effective, tempered
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.ridge import ridges
from broker_filter.inference.robust import robust_k
from broker_filter.types import Fit, Lenses, NotFitted, RobustK, StarEpochs

__all__ = ["ENOUGH_SAMPLES", "Fitter"]

FEW, MOST_OF_IT, LEAST_GAIN = 2, 0.7, 25.0
"""A fit rests on so few epochs where they make so much of its gain in chi2, if it is a gain."""

LEAST_EPOCHS = 6
"""Four parameters, a share and a baseline: fewer epochs decide nothing."""

MOST_SOURCES = 64
"""Each source has a baseline and an f_s of its own, which take time."""

ENOUGH_SAMPLES, WANTED_SAMPLES = 100, 200
"""Effective samples of the last round: the first make a fit converged, the second are its aim."""

ROUNDS, ROUND = 16, 300
LAST_LEAST, LAST_MOST = 800, 8000
MARGIN = 2.0  # of a last round, since the share of effective samples is an estimate
WORTH_IT = 0.6  # size of a last round, in all samples so far, from which on another round is better
STEEPEST = 3.0  # slope of a `Bend`; more is at the edge of the prior
ADAPT_SAMPLES = 150.0  # effective ones that a mixture is fitted to
STARTS, APART = 8, 0.3  # of the first climbs; how far they are from each other, in z
FIRST_STEPS, GO_ON = 6, 3  # of all climbs, and how many go on after these
RIDGES, HIGHER = 3, 0.5  # most ridges that are followed; gain of ln L that is worth another one
U0, LOG_TE, LOG_RHO = 1, 2, 3
LONGEST = 2.3  # log10 tE of the longest events (200 d); slow variables outnumber longer ones
WIDEST = 100.0  # variance, in z, of a Gaussian around a maximum or along a ridge
MODES_DEEP = 12.0  # of the mass of a Gaussian around a maximum or ridge, in ln
SHARE_POWER = 0.5


@dataclass(slots=True)
class _Seen:
    """All samples so far, as if drawn from all proposals together."""

    z: Tensor = field(default_factory=lambda: torch.empty(0, LENS, dtype=torch.float64))
    straight: Tensor = field(default_factory=lambda: torch.empty(0, LENS, dtype=torch.float64))
    log_target: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    log_drawn: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    proposals: list[tuple[Mixture, int]] = field(default_factory=list)
    sums: list[Sums] = field(default_factory=list)

    def add(
        self,
        z: Tensor,
        straight: Tensor,
        sums: Sums,
        log_target: Tensor,
        mixture: Mixture,
        own: Tensor,
    ) -> None:
        """Take in a round; ``own`` is its log density under its own proposal, ``mixture``."""
        n = len(z)
        log_drawn = own + math.log(n)
        for before, m in self.proposals:
            log_drawn = torch.logaddexp(log_drawn, before.log_density(z, m, straight) + math.log(m))
        if len(self.z):
            more = mixture.log_density(self.z, n, self.straight) + math.log(n)
            self.log_drawn = torch.logaddexp(self.log_drawn, more)
        self.z = torch.cat([self.z, z])
        self.straight = torch.cat([self.straight, straight])
        self.log_target = torch.cat([self.log_target, log_target])
        self.log_drawn = torch.cat([self.log_drawn, log_drawn])
        self.proposals.append((mixture, n))
        self.sums.append(sums)

    @property
    def log_weight(self) -> Tensor:
        return self.log_target - self.log_drawn


@dataclass(frozen=True, slots=True)
class _Problem:
    """The epochs of one star under a prior."""

    likelihood: Likelihood
    box: LensBox

    def log_target(self, z: Tensor) -> tuple[Tensor, Sums]:
        """Natural log of likelihood ratio times prior density, in z; and the lenses' sums."""
        sums = self.likelihood.sums(self.box.theta(z))
        ratio = self.likelihood.marginal(sums).sum(1).nan_to_num(nan=-math.inf, posinf=-math.inf)
        return ratio + prior_log_density(z), sums


class Fitter:
    """Fits stars under one prior.

    Parameters
    ----------
    prior : BoxPrior
        t0 in days after a fit's ``t_start``.
    noise : NoiseBounds, optional
        Constant stars against which fits have a robust K as well.
    days : float, optional
        Length of the windows that are fitted; where it is given the robust K counts their later
        parts too.
    """

    def __init__(
        self, prior: BoxPrior, *, noise: NoiseBounds | None = None, days: float | None = None
    ) -> None:
        self._prior, self._box, self._noise = prior, LensBox(prior), noise
        self._days = days
        self._scan = LensScan()

    @torch.inference_mode()
    def __call__(
        self, epochs: StarEpochs, t_start: float, starts: Tensor, seed: int, *, samples: int = 1000
    ) -> Fit | NotFitted:
        """Fit one star.

        Parameters
        ----------
        epochs : StarEpochs
        t_start : float, MJD TAI
            Zero of t0.
        starts : Tensor, shape (n, 5) or (n, 4)
            Where the event may be, as the flow has it; may be empty.
        seed : int
            The same seed gives the same fit.
        samples : int
            Of the posterior.

        Returns
        -------
        Fit or NotFitted
            The latter with the reason: too few epochs, too many sources, or no lens of the prior
            with a finite likelihood.
        """
        epochs = usable_epochs(epochs)
        if len(epochs) < LEAST_EPOCHS:
            return NotFitted(f"not fitted: {len(epochs)} usable epochs, {LEAST_EPOCHS} are needed")
        if (sources := len(np.unique(epochs.source))) > MOST_SOURCES:
            return NotFitted(f"not fitted: {sources} sources, at most {MOST_SOURCES} can be")
        draw = torch.Generator().manual_seed(seed)
        problem = _Problem(Likelihood(epochs, t_start, self._prior), self._box)
        modes, seen, mixture = self._tuned(problem, starts, draw)
        last = _last_round(problem, seen, mixture, draw)
        if not bool(torch.isfinite(last).any()):
            return NotFitted("not fitted: no lens of the prior has a finite likelihood")
        fit = _fit(problem, epochs, t_start, modes, seen, last, samples, draw)
        fit = replace(fit, lenses=_lenses(problem, seen), longest=self._prior.high[LOG_TE])
        if self._noise is None:
            return fit
        proposals = [seen.proposals[-1][0]]
        if len(kept := _beside_few(problem.likelihood, epochs, fit)) < len(epochs):
            rest = _Problem(Likelihood(kept, t_start, self._prior), self._box)
            proposals.append(self._tuned(rest, starts, draw)[2])
        return replace(
            fit, robust=self._robust(problem, proposals, seen, epochs, self._noise, draw)
        )

    def _tuned(
        self, problem: _Problem, starts: Tensor, draw: torch.Generator
    ) -> tuple[Modes, _Seen, Mixture]:
        """Maxima, samples so far, and a mixture that promises enough effective ones."""
        candidates = self._candidates(problem.likelihood, starts, draw)
        modes, along, mass = _found_modes(problem, candidates)
        mixture = _first_mixture(candidates, modes, along, mass, self._bend(modes), draw)
        return modes, *_adapted(problem, mixture, draw)

    def of_whole_event(self, days: float) -> Fitter:
        """A fitter of events whose peak may lie so many days earlier, and which may last longer.

        A window bounds the events that can be found in it, and the network's prior with them; an
        event that was found may be longer. Such a fitter gives no robust K.
        """
        t0, *low = self._prior.low
        high = [*self._prior.high]
        high[LOG_TE] = max(high[LOG_TE], LONGEST)
        return Fitter(replace(self._prior, low=(t0 - days, *low), high=tuple(high)))

    def _robust(
        self,
        problem: _Problem,
        proposals: Sequence[Mixture],
        seen: _Seen,
        epochs: StarEpochs,
        noise: NoiseBounds,
        draw: torch.Generator,
    ) -> RobustK:
        """From the lenses of the last round, which are fresh, and as many of other proposals."""
        n = seen.proposals[-1][1]
        z = torch.cat([seen.z[-n:], *(mixture.sample(n, draw) for mixture in proposals[1:])])
        log_drawn = torch.stack([mixture.log_density(z, n) for mixture in proposals])
        log_ratio = prior_log_density(z) - log_drawn.logsumexp(0) + math.log(len(proposals))
        theta = self._box.theta(z)
        return robust_k(
            problem.likelihood,
            theta,
            log_ratio,
            noise.families(epochs),
            draw,
            self._days,
            cameras=[camera for _, camera in epochs.sources],
        )

    def _bend(self, modes: Modes) -> Bend:
        """Of the slope that log10 tE has at the highest mode."""
        highest = modes.z[modes.height.argmax()]
        return Bend(self._box, min(1 / float(self._box.slope(highest)[2]), STEEPEST))

    def _candidates(self, likelihood: Likelihood, starts: Tensor, draw: torch.Generator) -> Tensor:
        """Where the event may be, shape (n, 4), in z: starts first, templates, prior."""
        b = float(likelihood.variance.mean().sqrt())
        days, flux, sigma = likelihood.days, 1 + likelihood.residual, likelihood.weight.rsqrt()
        order = days.argsort()
        templates = self._scan.lenses(days[order], flux[order], sigma[order], b)
        prior = torch.randn(len(templates), LENS, generator=draw, dtype=torch.float64)
        finite = starts[torch.isfinite(starts).all(1), :LENS].double().cpu()
        return torch.cat([self._box.z(finite), self._box.z(templates), prior])


def _fit(
    problem: _Problem,
    epochs: StarEpochs,
    t_start: float,
    modes: Modes,
    seen: _Seen,
    last: Tensor,
    samples: int,
    draw: torch.Generator,
) -> Fit:
    """The fit from all samples; ``last`` has the log weights of the last round."""
    likelihood, box = problem.likelihood, problem.box
    rows = _resampled(seen.log_weight.softmax(0), samples, draw)
    theta = box.theta(seen.z[rows])
    f_s = likelihood.draw_f_s_of(Sums.join(seen.sums)[rows], draw)
    best = _most_likely(problem, seen, modes)
    curve = likelihood.best_curve(best)
    main = int(curve.snr.argmax())
    n, size = len(last), effective(last.softmax(0))
    enough = size >= ENOUGH_SAMPLES
    chi2 = float(curve.residual.square().sum())
    freedom = max(len(epochs) - free_parameters(likelihood), 1)
    return Fit(
        t_start=t_start,
        samples=torch.cat([theta, f_s[:, main, None]], 1).float().numpy(),
        sources=source_fits(likelihood, epochs, curve),
        f_s=f_s.float().numpy(),
        log10_k=(float(last.logsumexp(0)) - math.log(n)) / LN_10,
        log10_k_error=error_dex(size, n),
        effective_sample_size=size,
        converged=enough,
        reason="" if enough else f"{size:.0f} effective samples, {ENOUGH_SAMPLES} are needed",
        best=torch.cat([best, curve.f_s[main, None]]).numpy(),
        chi2=chi2,
        degrees_of_freedom=freedom,
        p_value=chi2_tail(chi2, freedom),
        autocorrelation=autocorrelation(curve.residual, likelihood.source),
    )


def _beside_few(likelihood: Likelihood, epochs: StarEpochs, fit: Fit) -> StarEpochs:
    """The epochs without the few on which a fit rests, if it rests on few; else all of them.

    K against the family allows for wrong epochs, and one that is far off draws the fit, which
    does not, away from an event beside it.
    """
    curve = likelihood.best_curve(torch.from_numpy(fit.best[:LENS]))
    gain = likelihood.residual.square() * likelihood.weight - curve.residual.square()
    order = gain.argsort(descending=True)
    if gain.sum() < LEAST_GAIN or gain[order[:FEW]].sum() < MOST_OF_IT * gain.sum():
        return epochs
    few = 1 if gain[order[0]] >= MOST_OF_IT * gain.sum() else FEW
    kept = np.sort(np.delete(epochs.by_source, order[:few].numpy()))
    return epochs.take(kept) if len(kept) >= LEAST_EPOCHS else epochs


def _lenses(problem: _Problem, seen: _Seen) -> Lenses:
    """All samples, so that those of wide proposals serve where the noise is larger than claimed."""
    log_drawn = seen.log_drawn - math.log(len(seen.z))
    log_ratio = prior_log_density(seen.z) - log_drawn
    return Lenses(problem.box.theta(seen.z).numpy(), log_ratio.numpy())


def _most_likely(problem: _Problem, seen: _Seen, modes: Modes) -> Tensor:
    """Maximum of the likelihood, shape (4,): a climb from the best of modes and samples."""
    ratio = seen.log_target - prior_log_density(seen.z)
    z = torch.cat([modes.z[modes.height.argmax()][None], seen.z[ratio.topk(2).indices]])
    found = climb(problem.likelihood, problem.box, z, prior=1e-6, steps=20)
    return problem.box.theta(found.z[found.height.argmax()])


def _found_modes(problem: _Problem, candidates: Tensor) -> tuple[Modes, Modes, Tensor]:
    """Maxima of the posterior; Gaussians along the ridges through the highest, and their masses.

    A ridge may lead to a higher maximum, and a climb from there to another ridge.
    """
    likelihood, box = problem.likelihood, problem.box
    first = climb(likelihood, box, _chosen(problem, candidates), steps=FIRST_STEPS)
    best = first.z[_apart(first.z, first.height, GO_ON)]
    modes = climb(likelihood, box, best)
    for _ in range(RIDGES):
        along, mass = ridges(likelihood, box, modes)
        top = int(along.height.argmax())
        if not float(along.height[top]) > float(modes.height.max()) + HIGHER:
            break
        higher = climb(likelihood, box, along.z[top][None])
        modes = modes.joined(higher)
    return modes, along, mass


def _chosen(problem: _Problem, candidates: Tensor) -> Tensor:
    """The best candidates of either kind, lens off the source's disc and on it, shape (k, 4)."""
    likelihood, theta = problem.likelihood, problem.box.theta(candidates)
    height = likelihood.profile(likelihood.sums(theta))
    height = height.nan_to_num(nan=-math.inf, posinf=-math.inf) - 0.5 * candidates.square().sum(1)
    off = theta[:, U0] > 10 ** theta[:, LOG_RHO]
    rows = [
        _apart(candidates, height.masked_fill(~kind, -math.inf), STARTS // 2)
        for kind in (off, ~off)
    ]
    return candidates[torch.cat(rows)]


def _apart(z: Tensor, height: Tensor, most: int) -> Tensor:
    """Rows of the highest that are not too near to each other, shape (k,)."""
    chosen = []
    for _ in range(most):
        i = int(height.argmax())
        chosen.append(i)
        height = height.masked_fill((z - z[i]).abs().amax(1) < APART, -math.inf)
        if not bool((height > -math.inf).any()):
            break
    return torch.tensor(chosen)


def _first_mixture(
    candidates: Tensor,
    modes: Modes,
    along: Modes,
    along_mass: Tensor,
    bend: Bend,
    draw: torch.Generator,
) -> Mixture:
    """Around all candidates, around the maxima (Laplace's approximation), and along the ridges."""
    n = len(candidates)
    wide = Mixture.fit(candidates, torch.full((n,), 1 / n, dtype=torch.float64), bend, draw)
    mass = torch.cat([modes.height + 0.5 * torch.logdet(modes.covariance), along_mass])
    z = torch.cat([modes.z, along.z])
    covariance = torch.cat([1.5 * modes.covariance, along.covariance])
    root, failed = torch.linalg.cholesky_ex(bend.straight_covariance(z, covariance))
    # Where the signal-to-noise is in the thousands, rounding may leave a negative variance, or one
    # far above the prior's, which is 1.
    wrong = (failed != 0) | (covariance.diagonal(dim1=1, dim2=2).amax(1) > WIDEST)
    mass = mass.nan_to_num(nan=-math.inf).masked_fill(wrong, -math.inf)
    kept = mass > mass.max() - MODES_DEEP
    if not bool(kept.any()):
        return wide
    share = (SHARE_POWER * mass[kept]).softmax(0)
    return wide.joined(Mixture(share, bend.straight(z[kept]), root[kept], bend), 0.8)


def _adapted(problem: _Problem, mixture: Mixture, draw: torch.Generator) -> tuple[_Seen, Mixture]:
    """Rounds of adaptation, until the next mixture promises enough effective samples."""
    seen = _Seen()
    for _ in range(ROUNDS):
        _round(problem, seen, mixture, ROUND, draw)
        mixture = _next_mixture(seen)
        if _needed(seen, mixture) <= max(LAST_LEAST, WORTH_IT * len(seen.z)):
            break
    return seen, mixture


def _round(
    problem: _Problem, seen: _Seen, mixture: Mixture, n: int, draw: torch.Generator
) -> Tensor:
    """Draw and weigh ``n`` samples; their log weights under their own proposal."""
    z = mixture.sample(n, draw)
    straight = mixture.bend.straight(z)
    log_target, sums = problem.log_target(z)
    own = mixture.log_density(z, n, straight)
    seen.add(z, straight, sums, log_target, mixture, own)
    return log_target - own


def _needed(seen: _Seen, mixture: Mixture) -> float:
    """Samples of ``mixture`` that will make enough effective ones.

    From the effective share of the round before, and from that which the weights of all samples so
    far give for this mixture: either alone would be too hopeful.
    """
    last, n = seen.proposals[-1]
    own = seen.log_target[-n:] - last.log_density(seen.z[-n:], n, seen.straight[-n:])
    log_weight = seen.log_weight
    ratio = seen.log_target - mixture.log_density(seen.z, n, seen.straight)
    spread = float((log_weight.log_softmax(0) + ratio).logsumexp(0) - log_weight.logsumexp(0))
    share = min(effective(own.softmax(0)) / n, math.exp(min(-spread, 0.0)))
    return MARGIN * WANTED_SAMPLES / max(share, 1e-6)


def _next_mixture(seen: _Seen) -> Mixture:
    """The last one, moved towards all samples."""
    return seen.proposals[-1][0].improved(seen.straight, tempered(seen.log_weight, ADAPT_SAMPLES))


def _last_round(problem: _Problem, seen: _Seen, mixture: Mixture, draw: torch.Generator) -> Tensor:
    """Log weights of fresh samples, of a number fixed before."""
    n = int(min(max(_needed(seen, mixture), LAST_LEAST), LAST_MOST))
    return _round(problem, seen, mixture, n, draw)


def _resampled(weight: Tensor, n: int, draw: torch.Generator) -> Tensor:
    """Rows by systematic resampling, in random order, shape (n,)."""
    at = (torch.arange(n) + torch.rand(1, generator=draw, dtype=torch.float64)) / n
    rows = torch.searchsorted(weight.cumsum(0), at).clamp(max=len(weight) - 1)
    return rows[torch.randperm(n, generator=draw)]
