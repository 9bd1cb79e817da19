"""Posteriors of the frozen test events: accuracy, coverage, and where the errors come from.

Every function takes samples with or without importance weights, so that the flow's posteriors and
those that importance sampling has refined go through the same tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tarp
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.lens import excess
from broker_filter.inference.network import Network
from broker_filter.types import PARAMETERS
from model_zoo.evaluate.sets import SEEDS, Sizes, progress, score
from model_zoo.simulate.curves import Simulator

__all__ = [
    "BIAS_AXES",
    "SUBSETS",
    "by_parameter",
    "draw_posteriors",
    "measure_posteriors",
    "posterior_figures",
    "ranks",
    "resample",
    "rms",
    "table",
    "tarp_curve",
    "weighted_quantiles",
]

Samples = NDArray[np.floating[Any]]
Array = NDArray[np.float64]

LEVELS = (0.025, 0.16, 0.5, 0.84, 0.975)
RANK_BINS, TARP_BINS, BINS = 20, 50, 20
SCATTERED = 500  # events whose medians are kept for the figure
MANY = 10  # events that a bin must hold

DISC_DAYS = 10.0  # half of the window

SUBSETS: dict[str, Callable[[Array], NDArray[np.bool_]]] = {
    "t0": lambda theta: 2 * 10 ** (theta[:, 2] + theta[:, 3]) < DISC_DAYS,
    "u0": lambda theta: theta[:, 1] > 10 ** theta[:, 3],
    "log10_rho": lambda theta: theta[:, 1] < 10 ** theta[:, 3],
}
"""Events in which a parameter shows. The paper's are those of u0 (u0 > rho) and of rho (u0 < rho).
Where the lens takes most of the window to cross the source's disc, 2 rho tE, the star is brighter
by a constant, and t0 may lie anywhere: that of t0 is where half of the window is enough."""

BIAS_AXES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "log10_rho": ("log10_u0_over_rho", lambda theta: np.log10(theta[:, 1]) - theta[:, 3]),
    "f_s": ("log10_peak_magnification", lambda theta: np.log10(_peak_magnification(theta))),
    "u0": ("u0", lambda theta: theta[:, 1]),
}
"""By parameter the axis against which the paper decomposes its error."""


def measure_posteriors(
    network: Network, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """All figures of an entry's posteriors over the first ``sizes.posterior_events`` events."""
    n, seed = sizes.posterior_events, SEEDS["events"]
    events = score(network, simulator.events, n, seed, "events", summaries=True, quiet=quiet)
    samples = draw_posteriors(network, events.summary, sizes.samples, quiet=quiet)
    return posterior_figures(samples, events.theta)


def draw_posteriors(
    network: Network, summary: Tensor, samples: int, *, quiet: bool = False
) -> NDArray[np.float32]:
    """Posterior samples of each event from a stream of its own, shape (n, samples, 5)."""
    sample = FlowSampler(network.estimator)
    theta = np.empty((len(summary), samples, len(PARAMETERS)), np.float32)
    first = 0
    for size in progress(len(summary), "posteriors", quiet=quiet, batch=50):
        rows = slice(first, first + size)
        seeds = [SEEDS["posterior"] + i for i in range(first, first + size)]
        theta[rows] = sample(summary[rows], samples, seeds)[0].numpy()
        first += size
    return theta


def posterior_figures(
    samples: Samples, theta: Array, weights: Array | None = None
) -> dict[str, Any]:
    """Table, TARP, ranks, injected against recovered, and the decomposition of the bias.

    Parameters
    ----------
    samples : ndarray, shape (n, S, 5)
        Posterior samples in the order of `broker_filter.types.PARAMETERS`.
    theta : ndarray, shape (n, 5), float64
        The truth.
    weights : ndarray, shape (n, S), optional
        Importance weights, in any units; equal if left out.

    Raises
    ------
    ValueError
        If the shapes do not match, or a row of weights is negative, not finite or all zero.
    """
    _check(samples, theta, weights)
    quantiles = weighted_quantiles(samples, weights, LEVELS)
    coverage = tarp_curve(samples, theta, weights)
    return {
        **table(quantiles, _means(samples, weights), theta),
        "subsets": _subsets(quantiles, theta),
        "tarp_max_deviation": coverage["max_deviation"],
        "tarp": coverage,
        "ranks": _rank_tests(ranks(samples, theta, weights)),
        "recovered": _recovered(quantiles, theta),
        "bias_against": _bias(quantiles[2], theta),
    }


def table(quantiles: Array, means: Array, theta: Array) -> dict[str, Any]:
    """The paper's table: bias, RMSE, correlation and coverage by parameter.

    ``rmse_error`` is the standard error of the RMSE, for a few events may make most of it.

    Parameters
    ----------
    quantiles : ndarray, shape (5, n, 5)
        At the levels 2.5, 16, 50, 84 and 97.5 %, by event and parameter.
    means, theta : ndarray, shape (n, 5)
        Posterior means and the truth.
    """
    low95, low68, median, high68, high95 = quantiles
    error = median - theta
    r = [np.corrcoef(a, b)[0, 1] for a, b in zip(median.T, theta.T, strict=True)]
    return {
        "n_posterior": len(theta),
        "bias": by_parameter(error.mean(0)),
        "rmse": by_parameter(rms(error)),
        "rmse_error": by_parameter(np.square(error).std(0) / (2 * rms(error) * len(theta) ** 0.5)),
        "rmse_of_means": by_parameter(rms(means - theta)),
        "median_abs_error": by_parameter(np.median(np.abs(error), 0)),
        "r": by_parameter(np.array(r)),
        "coverage68": by_parameter(((theta > low68) & (theta < high68)).mean(0)),
        "coverage95": by_parameter(((theta > low95) & (theta < high95)).mean(0)),
    }


def weighted_quantiles(samples: Samples, weights: Array | None, levels: tuple[float, ...]) -> Array:
    """Quantiles over the samples, shape (levels, n, 5).

    Each sample stands in the middle of its share of the weight, with straight lines between them;
    equal weights give ``numpy.quantile(..., method="hazen")``.
    """
    if weights is None:
        quantiles: Array = np.quantile(samples, levels, axis=1, method="hazen").astype(np.float64)
        return quantiles
    parts = [_quantiles(samples[:, :, i], weights, levels) for i in range(samples.shape[2])]
    return np.stack(parts, axis=-1)


def _quantiles(values: Samples, weights: Array, levels: tuple[float, ...]) -> Array:
    order = values.argsort(1)
    ordered = np.take_along_axis(values, order, 1)
    weight = np.take_along_axis(weights, order, 1)
    total = weight.cumsum(1)
    place = (total - 0.5 * weight) / total[:, -1:]
    rows = zip(place, ordered, strict=True)
    return np.array([np.interp(levels, p, v) for p, v in rows]).T


def ranks(samples: Samples, theta: Array, weights: Array | None = None) -> Array:
    """Share of the posterior below the truth, shape (n, 5), within (0, 1).

    Notes
    -----
    Simulation-based calibration, Talts et al. 2018, arXiv:1804.06788: uniform for posteriors that
    are right. Of S equal samples the rank r among S + 1 places becomes (r + 1/2) / (S + 1).
    """
    count = samples.shape[1]
    below = samples < theta[:, None]
    if weights is None:
        share: Array = below.mean(1)
    else:
        share = np.einsum("ns,nsp->np", weights / weights.sum(1, keepdims=True), below)
    result: Array = (share * count + 0.5) / (count + 1)
    return result


def tarp_curve(
    samples: Samples, theta: Array, weights: Array | None = None, *, seed: int = SEEDS["posterior"]
) -> dict[str, Any]:
    """Expected coverage of credible regions around random points, all five parameters together.

    Returns
    -------
    dict
        ``alpha`` and ``ecp``, the credibility and how often such regions hold the truth;
        ``max_deviation``, the largest |ecp - alpha|; ``chance95``, what it stays under in 95 % of
        tests of exact posteriors (Kolmogorov).

    Notes
    -----
    Lemos et al. 2023, arXiv:2302.03026. The parameters are scaled to the range of the truth, and
    the reference points uniform in it.
    """
    equal = samples if weights is None else resample(samples, weights, seed=seed)
    low, width = theta.min(0), np.ptp(theta, 0)
    points = np.random.default_rng(seed).uniform(size=theta.shape)
    state = np.random.get_state()  # noqa: NPY002  tarp reseeds numpy's global generator
    try:
        ecp, alpha = tarp.get_tarp_coverage(
            np.moveaxis((equal - low) / width, 1, 0),
            (theta - low) / width,
            references=points,
            num_alpha_bins=TARP_BINS,
            seed=seed,
        )
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return {
        "alpha": _rounded(alpha),
        "ecp": _rounded(ecp),
        "max_deviation": round(float(np.abs(ecp - alpha).max()), 4),
        "chance95": round(1.358 / len(theta) ** 0.5, 4),
    }


def resample(samples: Samples, weights: Array, *, seed: int) -> Samples:
    """Equal samples in place of weighted ones, by systematic resampling; the same shape."""
    n, count = weights.shape
    start = np.random.default_rng(seed).uniform(size=(n, 1))
    places = (np.arange(count) + start) / count
    share = weights.cumsum(1) / weights.sum(1, keepdims=True)
    rows = zip(share, places, strict=True)
    chosen = np.array([np.searchsorted(s, p, "right").clip(max=count - 1) for s, p in rows])
    drawn: Samples = np.take_along_axis(samples, chosen[..., None], 1)
    return drawn


def _means(samples: Samples, weights: Array | None) -> Array:
    if weights is None:
        weights = np.ones(samples.shape[:2])
    means: Array = np.einsum("ns,nsp->np", weights / weights.sum(1, keepdims=True), samples)
    return means


def _subsets(quantiles: Array, theta: Array) -> dict[str, Any]:
    """One row of the table each, over the events in which the parameter shows."""
    rows: dict[str, Any] = {}
    for name, chosen in _chosen(theta).items():
        if name not in SUBSETS:
            continue
        i, n = PARAMETERS.index(name), int(chosen.sum())
        rows[name] = {"n": n}
        if n >= MANY:
            whole = table(quantiles[:, chosen], quantiles[2, chosen], theta[chosen])
            shown = ("bias", "rmse", "r", "coverage68", "coverage95")
            rows[name] |= {key: whole[key][PARAMETERS[i]] for key in shown}
    return rows


def _rank_tests(rank: Array) -> dict[str, Any]:
    """Histogram of each parameter's ranks, and how likely it is for uniform ones."""
    from sbi.diagnostics.sbc import check_uniformity_frequentist  # seconds that no other part needs

    ks_p = check_uniformity_frequentist(torch.from_numpy(rank), 1).tolist()
    tests = {}
    for name, column, p in zip(PARAMETERS, rank.T, ks_p, strict=True):
        counts = np.histogram(column, RANK_BINS, (0, 1))[0]
        tests[name] = {
            "counts": counts.tolist(),
            "chi2_p": float(stats.chisquare(counts).pvalue),
            "ks_p": p,
        }
    return tests


def _recovered(quantiles: Array, theta: Array) -> dict[str, Any]:
    """Injected against recovered, where the parameter shows: bins of the truth, and some events."""
    shown = {}
    for i, (name, chosen) in enumerate(_chosen(theta).items()):
        truth, median = theta[chosen, i], quantiles[2, chosen, i]
        shown[name] = {
            **_binned(truth, median),
            "injected": _rounded(truth[:SCATTERED]),
            "recovered": _rounded(median[:SCATTERED]),
        }
    return shown


def _bias(median: Array, theta: Array) -> dict[str, Any]:
    """Error of three medians along the axes on which they are degenerate."""
    result = {}
    for name, (axis, along) in BIAS_AXES.items():
        i = PARAMETERS.index(name)
        result[name] = {"axis": axis, **_binned(along(theta), median[:, i] - theta[:, i])}
    return result


def _binned(x: Array, y: Array) -> dict[str, Any]:
    """Median and central 68 % of ``y`` in bins of ``x`` that hold equally many events."""
    bins = np.array_split(x.argsort(), max(1, min(BINS, len(x) // MANY)))
    rows = [[np.median(x[i]), *np.quantile(y[i], (0.16, 0.5, 0.84))] for i in bins if len(i)]
    columns = np.array(rows).reshape(-1, 4).T
    return {k: _rounded(c) for k, c in zip(("x", "low", "median", "high"), columns, strict=True)}


def _chosen(theta: Array) -> dict[str, NDArray[np.bool_]]:
    """By parameter the events in which it shows."""
    whole = np.ones(len(theta), bool)
    return {name: SUBSETS[name](theta) if name in SUBSETS else whole for name in PARAMETERS}


def _peak_magnification(theta: Array) -> Array:
    u0, rho = torch.from_numpy(theta[:, 1]), torch.from_numpy(10 ** theta[:, 3])
    return 1 + excess(u0, rho).double().numpy()


def _check(samples: Samples, theta: Array, weights: Array | None) -> None:
    n, count = samples.shape[:2]
    expected = (n, count, len(PARAMETERS)), (n, len(PARAMETERS))
    if (samples.shape, theta.shape) != expected:
        raise ValueError(f"samples {samples.shape} and theta {theta.shape}: expected {expected}")
    if weights is None:
        return
    if weights.shape != (n, count):
        raise ValueError(f"weights {weights.shape}: expected {(n, count)}, one a sample")
    good = (np.isfinite(weights) & (weights >= 0)).all(1) & (weights.sum(1) > 0)
    if not good.all():
        raise ValueError(f"weights of event {int((~good).argmax())}: not finite, negative or all 0")


def rms(error: Array) -> Array:
    """Root of the mean square over events, shape (n, ...)."""
    found: Array = np.sqrt(np.square(error).mean(0))
    return found


def by_parameter(values: Array) -> dict[str, float]:
    """Values in the order of `PARAMETERS` by name, as results have them."""
    return dict(zip(PARAMETERS, _rounded(values), strict=True))


def _rounded(values: Array) -> list[float]:
    return [round(float(v), 4) for v in values]
