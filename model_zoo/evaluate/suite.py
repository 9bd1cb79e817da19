"""The figures of an entry's card: detection, calibration of K on noise, and posteriors.

Sizes and seeds are frozen here; training draws from other seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from broker_filter.evidence import LN_10
from broker_filter.flow_sampler import FlowSampler
from broker_filter.network import Network
from broker_filter.network_input import PADDING
from broker_filter.posterior import PARAMETERS
from model_zoo.simulate.curves import Curves, Simulator

__all__ = ["FULL", "QUICK", "Sizes", "detection", "evaluate", "noise_tail", "posterior_figures"]

EVENT_SEED, NOISE_SEED, POSTERIOR_SEED = 9_001, 9_002, 9_003
BATCH = 250


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many curves and samples a run of the suite takes."""

    events: int
    noise: int
    posterior_events: int
    samples: int


FULL = Sizes(events=5_000, noise=100_000, posterior_events=2_000, samples=500)
QUICK = Sizes(events=500, noise=2_000, posterior_events=50, samples=200)


@dataclass(frozen=True, slots=True)
class _Scored:
    log10_k: NDArray[np.float64]
    theta: NDArray[np.float64]
    snr: NDArray[np.float64]
    summary: Tensor


def evaluate(
    network: Network, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """All figures of one network on seeded curves of one simulator, as a flat dictionary."""
    network.eval()
    events = _score(network, simulator.events, sizes.events, EVENT_SEED, "events", quiet)
    noise = _score(network, simulator.noise, sizes.noise, NOISE_SEED, "noise", quiet)
    figures = detection(events.log10_k, noise.log10_k, events.theta)
    figures |= noise_tail(noise.log10_k)
    n = sizes.posterior_events
    theta = _sample(network, events.summary[:n], sizes.samples, quiet)
    figures |= posterior_figures(theta, events.theta[:n])
    return figures


def detection(
    events: NDArray[np.float64], noise: NDArray[np.float64], theta: NDArray[np.float64]
) -> dict[str, Any]:
    """Share of events found when no noise curve may be.

    Parameters
    ----------
    events, noise : ndarray, shape (n,), float64
        log10 K. Of the noise the first 5,000 and 20,000 are also taken by themselves.
    theta : ndarray, shape (n, 5)
        True parameters of the events.
    """
    large = 10 ** theta[:, 3] >= 5
    figures: dict[str, Any] = {"n_events": len(events), "n_noise": len(noise)}
    sizes = [size for size in (5_000, 20_000, 100_000) if size < len(noise)] + [len(noise)]
    figures["tpr_zero_fp"] = {
        str(size): {
            "tpr": float((events > noise[:size].max()).mean()),
            "tpr_rho_ge_5": float((events[large] > noise[:size].max()).mean()),
            "log10_k": float(noise[:size].max()),
        }
        for size in sizes
    }
    figures["at_log10_k_0.8"] = {
        "tpr": float((events > 0.8).mean()),
        "fp_noise": int((noise > 0.8).sum()),
    }
    return figures


def noise_tail(noise: NDArray[np.float64]) -> dict[str, Any]:
    """P(K >= k | no event) beside its bound 1/k, and mean K, which must not exceed one."""
    tail = [
        {"k": 10**power, "observed": float((noise >= power).mean()), "bound": 10.0**-power}
        for power in range(5)
    ]
    return {"k_tail": tail, "mean_k_noise": float((10.0 ** np.minimum(noise, 300)).mean())}


def posterior_figures(samples: NDArray[np.float64], theta: NDArray[np.float64]) -> dict[str, Any]:
    """Bias, RMSE and correlation of posterior medians, and coverage of central intervals.

    Parameters
    ----------
    samples : ndarray, shape (n, S, 5)
    theta : ndarray, shape (n, 5)
        The truth.
    """
    low95, low68, median, high68, high95 = np.quantile(samples, [0.025, 0.16, 0.5, 0.84, 0.975], 1)
    error = median - theta

    def named(values: NDArray[np.float64]) -> dict[str, float]:
        return {name: round(float(v), 4) for name, v in zip(PARAMETERS, values, strict=True)}

    r = np.array([np.corrcoef(median[:, i], theta[:, i])[0, 1] for i in range(theta.shape[1])])
    return {
        "n_posterior": len(theta),
        "bias": named(error.mean(0)),
        "rmse": named(np.sqrt((error**2).mean(0))),
        "median_abs_error": named(np.median(np.abs(error), 0)),
        "r": named(r),
        "coverage68": named(((theta > low68) & (theta < high68)).mean(0)),
        "coverage95": named(((theta > low95) & (theta < high95)).mean(0)),
    }


def seconds_for_samples(network: Network, n: int = 10_000) -> float:
    """Wall time of ``n`` posterior samples of one window, best of three."""
    s, sample = network.encoder(torch.full((1, 128, 3), PADDING)), FlowSampler(network.estimator)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        sample(s, n, [0])
        times.append(time.perf_counter() - began)
    return min(times)


@torch.inference_mode()
def _score(
    network: Network,
    draw: Callable[[int, torch.Generator], Curves],
    n: int,
    seed: int,
    name: str,
    quiet: bool,
) -> _Scored:
    generator = torch.Generator().manual_seed(seed)
    parts: list[tuple[Tensor, ...]] = []
    for size in _sizes(n, name, quiet):
        curves = draw(size, generator)
        ln_k, s = network(curves.x, curves.baseline_error)
        parts.append((ln_k / LN_10, curves.theta, curves.snr, s if name == "events" else s[:0]))
    log10_k, theta, snr, summary = (torch.cat(column) for column in zip(*parts, strict=True))
    return _Scored(log10_k.double().numpy(), theta.double().numpy(), snr.double().numpy(), summary)


@torch.inference_mode()
def _sample(network: Network, summary: Tensor, samples: int, quiet: bool) -> NDArray[np.float64]:
    sample = FlowSampler(network.estimator)
    parts = []
    first = 0
    for size in _sizes(len(summary), "posteriors", quiet, batch=50):
        seeds = [POSTERIOR_SEED + i for i in range(first, first + size)]
        s = summary[first : first + size]
        parts.append(sample(s, samples, seeds)[0].double().numpy())
        first += size
    return np.concatenate(parts)


def _sizes(n: int, name: str, quiet: bool, batch: int = BATCH) -> Iterator[int]:
    with tqdm(total=n, desc=name, unit="curve", disable=quiet or None) as bar:
        for first in range(0, n, batch):
            size = min(batch, n - first)
            yield size
            bar.update(size)
