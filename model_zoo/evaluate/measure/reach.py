"""What any exact posterior reaches: errors of fit and nested sampling on the same frozen events.

Both have the same likelihood, so they differ only by their sampling. An error that both have is the
noise's, and no better sampler would have a smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from broker_filter.inference.network import Network
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import PARAMETERS
from model_zoo.evaluate.measure.fits import (
    SAMPLES,
    FittedEvent,
    Problem,
    fitted_events,
    of_the_gate,
)
from model_zoo.evaluate.measure.nested import lenses_of, log_likelihood_in_cube, nested_sampling
from model_zoo.evaluate.measure.posteriors import by_parameter, rms
from model_zoo.evaluate.sets import SEEDS
from model_zoo.simulate.curves import Simulator

__all__ = ["measure_reach"]

Floats = NDArray[np.float64]
Samples = NDArray[np.float32]

LIVE = 200
RESAMPLED = 400  # times that the events are drawn anew for the errors of ratios


def measure_reach(
    network: Network,
    entry_config: Mapping[str, Any],
    simulator: Simulator,
    n: int,
    *,
    live: int = LIVE,
    quiet: bool = False,
) -> dict[str, Any]:
    """Errors of the fit's and of nested sampling's medians over the first ``n`` frozen events.

    Parameters
    ----------
    network : Network
        Whose flow the fits start from.
    entry_config : mapping
    simulator : Simulator
    n : int
    live : int
        Live points.

    Returns
    -------
    dict
        ``n``, events with a fit; ``live_points``; ``fit`` and ``nested``, each with ``rmse`` and
        ``median_error`` by parameter; ``rmse_ratio``, fit over nested, and ``rmse_ratio_error``, by
        how much it scatters over events drawn anew.
    """
    problem, both, truth = Problem.of(entry_config), [], []
    fitted = fitted_events(
        network, problem, simulator, np.arange(n), seed=SEEDS["nested"], title="reach", quiet=quiet
    )
    for one in fitted:
        samples = one.fit.samples, _nested_samples(one, problem.prior, live)
        both.append([np.median(of_the_gate(s, one.x, simulator), 0) for s in samples])
        truth.append(one.theta)
    ours, theirs = np.moveaxis(np.array(both) - np.array(truth)[:, None], 1, 0)
    ratio, scatter = _ratio(ours, theirs)
    return {
        "n": len(truth),
        "live_points": live,
        "fit": _errors(ours),
        "nested": _errors(theirs),
        "rmse_ratio": by_parameter(ratio),
        "rmse_ratio_error": by_parameter(scatter),
    }


@torch.inference_mode()
def _nested_samples(one: FittedEvent, prior: BoxPrior, live: int) -> Samples:
    """Posterior samples of all five parameters, shape (`SAMPLES`, 5)."""
    in_cube = log_likelihood_in_cube(one.likelihood, prior)
    places = nested_sampling(in_cube, len(PARAMETERS) - 1, seed=one.seed, live=live)[2]
    rows = np.random.default_rng(one.seed).integers(len(places), size=SAMPLES)
    theta = torch.from_numpy(lenses_of(places[rows], prior))
    f_s = one.likelihood.draw_f_s(theta, torch.Generator().manual_seed(one.seed))
    return torch.cat([theta, f_s[:, :1]], 1).float().numpy()


def _errors(off: Floats) -> dict[str, dict[str, float]]:
    return {"rmse": by_parameter(rms(off)), "median_error": by_parameter(np.median(np.abs(off), 0))}


def _ratio(ours: Floats, theirs: Floats) -> tuple[Floats, Floats]:
    """RMSE over RMSE by parameter, and its scatter over events drawn anew."""
    rows = np.random.default_rng(0).integers(len(ours), size=(RESAMPLED, len(ours)))
    scatter = np.std([rms(ours[row]) / rms(theirs[row]) for row in rows], axis=0)
    return rms(ours) / rms(theirs), scatter
