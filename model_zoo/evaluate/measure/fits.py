"""The fit and the network's flow side by side on frozen events: errors, coverage, convergence.

Both are measured against the same truth. The flow reads events as networks do, thinned; the fit
reads all their epochs, as it does in a service. Where the simulator has a gate, events are of the
prior that the gate lets pass. The flow has learned that. Of the fit's samples those are left out
that the gate would not let pass, so that both posteriors are of the same event class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.fit import ENOUGH_SAMPLES, Fitter
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import split_padding
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import PARAMETERS, Fit, NotFitted
from model_zoo.evaluate.measure.certified import FLOW_SAMPLES, star_of
from model_zoo.evaluate.measure.cuts import as_pattern
from model_zoo.evaluate.measure.posteriors import (
    LEVELS,
    by_parameter,
    posterior_figures,
    weighted_quantiles,
)
from model_zoo.evaluate.sets import SEEDS, curves, progress, score_curves
from model_zoo.simulate.curves import Curves, Simulator
from model_zoo.simulate.prior import Gate

__all__ = [
    "SAMPLES",
    "SNR_EDGES",
    "FittedEvent",
    "Problem",
    "fitted_events",
    "measure_fits",
    "of_all_kinds",
    "of_the_gate",
    "peak_in_data",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.int64]

SAMPLES = 1000  # of each posterior
SNR_EDGES = (0.0, 8.0, 25.0, 100.0, 1000.0, 1e6)
FAINTEST, POOL = 5.0, 500  # of events of all kinds: signal-to-noise, and how many are looked at
FEWEST_PASSING = 20  # samples that a gate must leave


@dataclass(frozen=True, slots=True)
class Problem:
    """What the fit of a frozen event needs.

    Parameters
    ----------
    prior : BoxPrior
    days : float
        Length of the window; t0 counts from its start.
    """

    prior: BoxPrior
    days: float

    @classmethod
    def of(cls, entry_config: Mapping[str, Any]) -> Problem:
        """From an entry's config.json."""
        prior = BoxPrior.from_config(entry_config["prior"])
        return cls(prior, float(entry_config["window"]["days"]))


@dataclass(frozen=True, slots=True)
class _Posteriors:
    """Samples of n events, shape (n, S, 5), and the CPU seconds that each took, shape (n,)."""

    samples: NDArray[np.float32]
    seconds: Floats

    def __getitem__(self, rows: NDArray[np.int64]) -> _Posteriors:
        return _Posteriors(self.samples[rows], self.seconds[rows])


def measure_fits(
    network: Network,
    entry_config: Mapping[str, Any],
    simulator: Simulator,
    n: int,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Figures of the fit's and of the flow's posteriors over the first ``n`` frozen events.

    Parameters
    ----------
    network : Network
    entry_config : mapping
        The entry's config.json, for its prior and window.
    simulator : Simulator
    n : int

    Returns
    -------
    dict
        ``n_events``; ``not_fitted``, how many had no fit and are left out of both sides;
        ``n_peak``, how many have their peak in the data; ``fit`` and ``flow``, each with ``n``,
        ``rmse`` (of medians, and ``rmse_of_means``, which no estimate can undercut),
        ``median_error``, ``coverage68`` and ``coverage95`` by parameter, ``ranks``
        (simulation-based calibration) and CPU ``seconds_median``; the fit's also with
        ``converged``, the share with `ENOUGH_SAMPLES` among those with their peak in the data, and
        ``seconds_p95``; ``by_snr``, a row for each bin of the signal-to-noise and each of peak in
        the data or not.
    """
    events = curves(simulator.events, n, SEEDS["events"], "events", quiet=quiet)
    scored = score_curves(network.eval(), events, "network", quiet=quiet)
    whole = curves(simulator.unthinned.events, n, SEEDS["events"], "all epochs", quiet=quiet)
    flow, found, seconds = _both(
        network, Problem.of(entry_config), whole, scored.summary, quiet=quiet
    )
    rows = [(i, one) for i, one in enumerate(found) if isinstance(one, Fit)]
    good = np.array([i for i, _ in rows])
    samples = np.stack([of_the_gate(fit.samples, whole.x[i], simulator) for i, fit in rows])
    ours, theirs = _Posteriors(samples, seconds[good]), flow[good]
    theta, snr = scored.theta[good], scored.snr[good]
    peak = peak_in_data(whole, simulator.pattern.days)[good]
    effective = np.array([fit.effective_sample_size for _, fit in rows])
    return {
        "n_events": n,
        "not_fitted": n - len(rows),
        "n_peak": int(peak.sum()),
        "fit": {
            "converged": _share(effective[peak] >= ENOUGH_SAMPLES),
            **_figures(ours, theta),
        },
        "flow": _figures(theirs, theta),
        "by_snr": _by_snr(_coverage(ours, theirs, theta), effective, snr, peak),
    }


@torch.inference_mode()
def _both(
    network: Network, problem: Problem, events: Curves, summary: Tensor, *, quiet: bool
) -> tuple[_Posteriors, list[Fit | NotFitted], Floats]:
    """The flow's posteriors; the fit of each event from the flow's samples, and its seconds."""
    sampler, fit = FlowSampler(network.estimator), fitter_of(problem)
    n = len(events)
    samples, found = np.empty((n, SAMPLES, len(PARAMETERS)), np.float32), []
    seconds = np.empty((2, n))
    for i, _ in enumerate(progress(n, "fits", quiet=quiet, batch=1)):
        began = time.process_time()
        drawn = sampler(summary[i : i + 1], SAMPLES, [SEEDS["posterior"] + i])[0][0]
        between = time.process_time()
        found.append(fit(events, i, drawn[:FLOW_SAMPLES]))
        seconds[:, i] = between - began, time.process_time() - between
        samples[i] = drawn.numpy()
    return _Posteriors(samples, seconds[0]), found, seconds[1]


def fitter_of(problem: Problem) -> Callable[[Curves, int, Tensor], Fit | NotFitted]:
    """A function that fits row i of some curves, started from samples of shape (k, 5)."""
    fitter = Fitter(problem.prior)

    def fit(events: Curves, i: int, starts: Tensor) -> Fit | NotFitted:
        star = star_of(events.x[i], float(events.baseline_error[i]), problem.days)
        return fitter(star, 0.0, starts, i, samples=SAMPLES)

    return fit


def peak_in_data(events: Curves, days: float) -> Bools:
    """Whether t0 lies between the first and the last epoch of each event, shape (n,)."""
    x, valid = split_padding(events.x)
    t = (x[..., 0].double() + 1) * (days / 2)
    first = torch.where(valid, t, torch.inf).amin(1)
    last = torch.where(valid, t, -torch.inf).amax(1)
    t0 = events.theta[:, 0].double()
    inside: Bools = ((first <= t0) & (t0 <= last)).numpy()
    return inside


def of_all_kinds(simulator: Simulator, n: int) -> Places:
    """Places of ``n`` frozen events, from the faintest that a search may find to the brightest.

    Evenly by rank of the signal-to-noise among those of `FAINTEST` and more in the first `POOL`.
    """
    pool = curves(simulator.events, POOL, SEEDS["events"], "events", quiet=True)
    order = np.argsort(pool.snr.numpy(), kind="stable")
    seen = order[pool.snr.numpy()[order] >= FAINTEST]
    index: Places = seen[np.linspace(0, len(seen) - 1, min(n, len(seen))).round().astype(int)]
    return index


@dataclass(frozen=True, slots=True)
class FittedEvent:
    """A frozen event, its fit, and the likelihood that another method may take.

    Parameters
    ----------
    about : dict
        ``event``, its place in the frozen set, and ``snr``, as rows of results have them.
    x : Tensor, shape (L, 3), float32
        All its epochs, as network input has them.
    theta : ndarray, shape (5,), float64
        Truth.
    likelihood : Likelihood
    fit : Fit
    flow_seconds, fit_seconds : float
        CPU seconds of the samples that the fit starts from, and of the fit.
    seed : int
    """

    about: dict[str, Any]
    x: Tensor
    theta: Floats
    likelihood: Likelihood
    fit: Fit
    flow_seconds: float
    fit_seconds: float
    seed: int


def fitted_events(
    network: Network,
    problem: Problem,
    simulator: Simulator,
    index: Places,
    *,
    seed: int,
    title: str,
    quiet: bool,
) -> Iterator[FittedEvent]:
    """Fit the frozen events at places ``index``, with seeds from ``seed`` on; some have no fit."""
    chosen = torch.from_numpy(index)
    thinned, events = (
        curves(draw, int(index.max()) + 1, SEEDS["events"], "events", quiet=True)[chosen]
        for draw in (simulator.events, simulator.unthinned.events)
    )
    summary = score_curves(network.eval(), thinned, "network", quiet=quiet).summary
    sampler, fit = FlowSampler(network.estimator), fitter_of(problem)
    for i, _ in enumerate(progress(len(events), title, quiet=quiet, batch=1)):
        began = time.process_time()
        starts = sampler(summary[i : i + 1], FLOW_SAMPLES, [seed + i])[0][0]
        between = time.process_time()
        found = fit(events, i, starts)
        ended = time.process_time()
        if not isinstance(found, Fit):
            continue
        yield FittedEvent(
            {"event": int(index[i]), "snr": round(float(events.snr[i]), 2)},
            events.x[i],
            events.theta[i].double().numpy(),
            Likelihood(
                star_of(events.x[i], float(events.baseline_error[i]), problem.days),
                0.0,
                problem.prior,
            ),
            found,
            between - began,
            ended - between,
            seed + i,
        )


def of_the_gate(
    samples: NDArray[np.float32], x: Tensor, simulator: Simulator
) -> NDArray[np.float32]:
    """As many samples, of those that the simulator's gate lets pass for the epochs of ``x``.

    Parameters
    ----------
    samples : ndarray, shape (S, 5), float32
    x : Tensor, shape (L, 3)
        The event's epochs, as network input has them.
    """
    if simulator.gate is None:
        return samples
    passing = np.flatnonzero(_passes(simulator.gate, samples, x, simulator.pattern.days))
    if len(passing) < FEWEST_PASSING:
        return samples
    rows = passing[np.arange(len(samples)) * len(passing) // len(samples)]
    chosen: NDArray[np.float32] = samples[rows]
    return chosen


def _passes(gate: Gate, samples: NDArray[np.float32], x: Tensor, days: float) -> Bools:
    pattern = as_pattern(x[None], days=days)
    theta = torch.from_numpy(samples)[None]
    passes: Bools = gate.passes(theta, pattern.t, pattern.n, pattern.level)[0].numpy()
    return passes


def _figures(posteriors: _Posteriors, theta: Floats) -> dict[str, Any]:
    whole = posterior_figures(posteriors.samples, theta)
    return {
        "n": whole["n_posterior"],
        "bias": whole["bias"],
        "rmse": whole["rmse"],
        "rmse_of_means": whole["rmse_of_means"],
        "median_error": whole["median_abs_error"],
        "coverage68": whole["coverage68"],
        "coverage95": whole["coverage95"],
        "ranks": whole["ranks"],
        "tarp_max_deviation": whole["tarp_max_deviation"],
        "seconds_median": round(float(np.median(posteriors.seconds)), 4),
        "seconds_p95": round(float(np.quantile(posteriors.seconds, 0.95)), 4),
    }


Coverage = dict[str, dict[str, Bools]]


def _coverage(ours: _Posteriors, theirs: _Posteriors, theta: Floats) -> Coverage:
    """Of fit and flow whether each central interval holds the truth, shape (n, 5)."""
    found = {}
    for name, posteriors in (("fit", ours), ("flow", theirs)):
        low95, low68, _, high68, high95 = weighted_quantiles(posteriors.samples, None, LEVELS)
        found[name] = {
            "coverage68": (theta > low68) & (theta < high68),
            "coverage95": (theta > low95) & (theta < high95),
        }
    return found


def _by_snr(covered: Coverage, effective: Floats, snr: Floats, peak: Bools) -> list[dict[str, Any]]:
    """One row for each bin that holds events, those with their peak in the data first."""
    rows = []
    for inside in (True, False):
        for low, high in pairwise(SNR_EDGES):
            chosen = (peak == inside) & (snr >= low) & (snr < high)
            if not chosen.any():
                continue
            row: dict[str, Any] = {
                "peak_in_data": inside,
                "snr_low": low,
                "snr_high": high,
                "n": int(chosen.sum()),
                "converged": _share(effective[chosen] >= ENOUGH_SAMPLES),
                "effective_samples": round(float(np.median(effective[chosen])), 1),
            }
            for name, levels in covered.items():
                row[name] = {
                    level: by_parameter(hits[chosen].mean(0)) for level, hits in levels.items()
                }
            rows.append(row)
    return rows


def _share(hits: Bools) -> float | None:
    return round(float(hits.mean()), 4) if len(hits) else None
