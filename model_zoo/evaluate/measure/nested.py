"""The fit against nested sampling (Skilling 2006) of the same likelihood in four parameters.

f_s is integrated out in both, so that ln Z is the same number: the mean likelihood ratio over the
prior. dynesty (Speagle 2020, MNRAS 493, 3132) does the bookkeeping; its random walks are taken
here by all walkers at once, for one call of the likelihood costs as much as fifty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from dynesty import NestedSampler
from dynesty.internal_samplers import RWalkSampler, SamplerReturn, UnitCubeSampler
from dynesty.utils import LogLikelihood, LoglOutput
from numpy.typing import NDArray

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.network import Network
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import PARAMETERS, Fit
from model_zoo.evaluate.measure.fits import Problem, fitted_events, of_all_kinds
from model_zoo.evaluate.sets import SEEDS
from model_zoo.simulate.curves import Simulator

__all__ = [
    "Walkers",
    "lenses_of",
    "log_likelihood_in_cube",
    "measure_nested",
    "nested_sampling",
]

Floats = NDArray[np.float64]
InCube = Callable[[Floats], Floats]

LENS = PARAMETERS[:4]
LIVE, AT_ONCE, WALKS = 300, 100, 24
REMAINDER = 0.1  # of ln Z, at which a run ends
WITHIN = 3.0  # combined errors


class Walkers:
    """A pool for dynesty that moves all its walkers together.

    Parameters
    ----------
    log_likelihood : callable
        Of places in the unit cube, shape (n, d) -> (n,).
    rng : Generator
    """

    def __init__(self, log_likelihood: InCube, rng: np.random.Generator) -> None:
        self._log_likelihood, self._rng = log_likelihood, rng

    def map(self, function: Callable[..., Any], arguments: Iterable[Any]) -> list[Any]:
        """What ``function`` gives for each argument: new live points, or anything else."""
        each = list(arguments)
        if function is RWalkSampler.sample:
            return self._walk(each)
        if function is UnitCubeSampler.sample:
            return self._draw(each)
        if isinstance(function, LogLikelihood):
            heights = self._log_likelihood(np.array(each))
            return [LoglOutput(float(height), blob_flag=False) for height in heights]
        return [function(argument) for argument in each]

    def _draw(self, arguments: Sequence[Any]) -> list[Any]:
        """Points of the whole cube above the threshold."""
        n, d = len(arguments), len(arguments[0].u)
        places, heights = np.empty((0, d)), np.empty(0)
        drawn = 0
        while len(places) < n:
            u = self._rng.uniform(size=(n, d))
            height = self._log_likelihood(u)
            above = height > float(arguments[0].loglstar)
            places = np.concatenate([places, u[above]])
            heights = np.concatenate([heights, height[above]])
            drawn += n
        return [_point(u, h, drawn // n, None) for u, h in zip(places[:n], heights, strict=False)]

    def _walk(self, arguments: Sequence[Any]) -> list[Any]:
        """Random walks that stay above the threshold, as `RWalkSampler.sample` takes them."""
        u, axes = (np.array([getattr(a, key) for a in arguments]) for key in ("u", "axes"))
        scale, threshold = arguments[0].scale, float(arguments[0].loglstar)
        n, d = u.shape
        height, accepted = np.full(n, -np.inf), np.zeros(n, int)
        for _ in range(WALKS):
            step = self._rng.standard_normal((n, d))
            step *= (
                self._rng.uniform(size=(n, 1)) ** (1 / d) / np.linalg.norm(step, axis=1)[:, None]
            )
            tried = u + scale * np.einsum("nij,nj->ni", axes, step)
            found = self._inside(tried)
            better = found > threshold
            u, height = np.where(better[:, None], tried, u), np.where(better, found, height)
            accepted += better
        stayed = accepted == 0
        height[stayed] = self._inside(u)[stayed] if stayed.any() else 0.0
        tuning = [{"accept": int(a), "reject": WALKS - int(a), "scale": scale} for a in accepted]
        return [_point(*row) for row in zip(u, height, [WALKS] * n, tuning, strict=True)]

    def _inside(self, u: Floats) -> Floats:
        """Log likelihood; minus infinity outside of the cube."""
        found = np.full(len(u), -np.inf)
        inside = ((u > 0) & (u < 1)).all(1)
        if inside.any():
            found[inside] = self._log_likelihood(u[inside])
        return found


def _point(u: Floats, height: float, calls: int, tuning: dict[str, Any] | None) -> Any:  # noqa: ANN401
    return SamplerReturn(
        u=u,
        v=u,
        logl=LoglOutput(float(height), blob_flag=False),
        ncalls=calls,
        evaluation_history=[],
        tuning_info=tuning,
        proposal_stats={},
    )


def nested_sampling(
    log_likelihood: InCube, dimensions: int, *, seed: int, live: int = LIVE
) -> tuple[float, float, Floats, int]:
    """Nested sampling in a unit cube.

    Parameters
    ----------
    log_likelihood : callable
        Of places in the cube, shape (n, d) -> (n,).
    dimensions : int
    seed : int
    live : int
        Live points.

    Returns
    -------
    ln Z, its error, equally weighted samples of shape (n, d), and the number of likelihoods.
    """
    rng = np.random.default_rng(seed)
    sampler = NestedSampler(
        lambda u: float(log_likelihood(u[None])[0]),
        lambda u: u,
        dimensions,
        nlive=live,
        sample="rwalk",
        walks=WALKS,
        rstate=rng,
        pool=Walkers(log_likelihood, np.random.default_rng([seed, 1])),
        queue_size=min(AT_ONCE, live // 3),
    )
    sampler.run_nested(dlogz=REMAINDER, print_progress=False)
    found = sampler.results
    samples: Floats = found.samples_equal(rstate=rng)
    return float(found.logz[-1]), float(found.logzerr[-1]), samples, int(np.sum(found.ncall))


def lenses_of(u: Floats, prior: BoxPrior) -> Floats:
    """Lenses at places in the unit cube, shape (n, 4)."""
    low, high = (np.array(edge[: len(LENS)]) for edge in (prior.low, prior.high))
    theta: Floats = low + (high - low) * u
    return theta


def log_likelihood_in_cube(likelihood: Likelihood, prior: BoxPrior) -> InCube:
    """Natural log of the likelihood ratio at places in the cube, as `nested_sampling` takes it."""

    @torch.inference_mode()
    def found(u: Floats) -> Floats:
        height: Floats = likelihood(torch.from_numpy(lenses_of(u, prior))).numpy()
        return np.nan_to_num(height, nan=-1e300, neginf=-1e300)

    return found


def measure_nested(
    network: Network,
    entry_config: Mapping[str, Any],
    simulator: Simulator,
    n: int,
    *,
    live: int = LIVE,
    quiet: bool = False,
) -> dict[str, Any]:
    """Evidence and widths of fits beside those of nested sampling.

    Parameters
    ----------
    network : Network
        Whose flow the fits start from.
    entry_config : mapping
    simulator : Simulator
    n : int
        Events, by `of_all_kinds`.
    live : int
        Live points.

    Returns
    -------
    dict
        ``n``; ``live_points``; ``within_3``, on how many the two ln Z differ by less than `WITHIN`
        combined errors; ``largest``, the largest difference in such errors; ``width_ratio``,
        median of fit over nested for the central 68 % by parameter, and ``width_ratio_median`` of
        all; median seconds of both, and ``times_slower``, the median ratio; ``events``, a row
        each.
    """
    problem = Problem.of(entry_config)
    rows = []
    index, title = of_all_kinds(simulator, n), "nested sampling"
    fitted = fitted_events(
        network, problem, simulator, index, seed=SEEDS["nested"], title=title, quiet=quiet
    )
    for one in fitted:
        row = _compared(one.fit, one.likelihood, problem, live, seed=one.seed)
        rows.append(one.about | row | {"fit_seconds": round(one.fit_seconds, 3)})
    return {"live_points": live, **_summary(rows)}


def _compared(
    fit: Fit, likelihood: Likelihood, problem: Problem, live: int, *, seed: int
) -> dict[str, Any]:
    """One event by both."""
    began = time.process_time()
    in_cube = log_likelihood_in_cube(likelihood, problem.prior)
    ln_z, error, places, calls = nested_sampling(in_cube, 4, seed=seed, live=live)
    seconds = time.process_time() - began
    ratio = _width(fit.samples[:, :4]) / _width(lenses_of(places, problem.prior))
    ours, own_error = fit.log10_k * LN_10, fit.log10_k_error * LN_10
    return {
        "lnz_fit": round(ours, 3),
        "error_fit": round(own_error, 3),
        "lnz_nested": round(ln_z, 3),
        "error_nested": round(error, 3),
        "off": round((ours - ln_z) / math.hypot(own_error, error), 3),
        "effective_samples": round(fit.effective_sample_size, 1),
        "width_ratio": dict(zip(LENS, (round(float(r), 3) for r in ratio), strict=True)),
        "likelihoods": calls,
        "nested_seconds": round(seconds, 2),
    }


def _width(samples: Floats | NDArray[np.float32]) -> Floats:
    """Central 68 % of each column."""
    low, high = np.quantile(samples, (0.16, 0.84), axis=0)
    width: Floats = high - low
    return width


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    off = np.abs([row["off"] for row in rows])
    ratio = np.array([[row["width_ratio"][name] for name in LENS] for row in rows])
    seconds = np.array([[row["fit_seconds"], row["nested_seconds"]] for row in rows])
    medians = (round(float(m), 3) for m in np.median(ratio, 0))
    return {
        "n": len(rows),
        "within_3": int((off < WITHIN).sum()),
        "largest": round(float(off.max()), 2),
        "width_ratio": dict(zip(LENS, medians, strict=True)),
        "width_ratio_median": round(float(np.median(ratio)), 3),
        "fit_seconds_median": round(float(np.median(seconds[:, 0])), 3),
        "nested_seconds_median": round(float(np.median(seconds[:, 1])), 2),
        "times_slower": round(float(np.median(seconds[:, 1] / seconds[:, 0])), 1),
        "events": rows,
    }
