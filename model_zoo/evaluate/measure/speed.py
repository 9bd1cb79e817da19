"""How fast posteriors and Bayes factors come: the network against MCMC, compact against paper.

MCMC has the settings of Smyth, Perreault-Levasseur & Hezaveh (ICML 2026), appendix "NPE vs. MCMC
Wall-Clock Benchmark": emcee, 32 walkers, 1,000 steps of burn-in, then 5,000 retained samples. It
starts from the prior. The likelihood is ours (all walkers and epochs at once), and, as the paper
had it, a Python loop over ``ESPLMag2`` of VBMicrolensing.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import emcee
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from VBMicrolensing import VBMicrolensing

from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.evidence import EvidenceHead
from broker_filter.inference.five_parameters import LikelihoodRatio
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import split_padding
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import PARAMETERS
from model_zoo.evaluate.sets import SEEDS, curves, progress
from model_zoo.simulate.curves import Simulator

__all__ = [
    "FULL_SPEED",
    "QUICK_SPEED",
    "LoopLikelihood",
    "SpeedSizes",
    "measure_speed",
    "run_emcee",
]

Array = NDArray[np.float64]
LogLikelihood = Callable[[Array], Array]

WALKERS, BURN_IN, RETAINED = 32, 1_000, 5_000
# A window of 20 days at 15 minutes, thinned by weather and its open end, fills its bucket to 835.
EPOCHS = {128: 128, 256: 256, 512: 512, 1000: 835}


@dataclass(frozen=True, slots=True)
class SpeedSizes:
    """How much is timed.

    ``samples`` of one posterior and ``batch_samples`` of each of ``batch_events``; emcee on
    ``mcmc_events``, the looped likelihood for ``loop_steps`` of its steps; ``windows`` a batch of
    the compact encoder and ``paper_windows`` of the paper's.
    """

    samples: int
    batch_events: int
    batch_samples: int
    mcmc_events: int
    loop_steps: int
    windows: int
    paper_windows: int


FULL_SPEED = SpeedSizes(10_000, 100, 1_000, 20, 10, 256, 8)
QUICK_SPEED = SpeedSizes(10_000, 100, 100, 1, 2, 32, 1)


def measure_speed(
    network: Network,
    simulator: Simulator,
    encoder: dict[str, Any],
    sizes: SpeedSizes = FULL_SPEED,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Wall times of posteriors by flow and by MCMC, and windows a second by encoder and bucket.

    Parameters
    ----------
    network : Network
    simulator : Simulator
        Draws the events whose posteriors are timed.
    encoder : dict
        The ``encoder`` section of the entry's config.
    """
    npe = _npe(network.eval(), simulator, sizes)
    return {
        "sizes": asdict(sizes),
        "threads": torch.get_num_threads(),
        "npe": npe,
        "emcee": _emcee(simulator, sizes, npe["event_ms"] / 1000, quiet=quiet),
        "windows_per_second": _encoders(encoder, sizes),
    }


@torch.inference_mode()
def _npe(network: Network, simulator: Simulator, sizes: SpeedSizes) -> dict[str, float]:
    events = curves(simulator.events, sizes.batch_events, SEEDS["events"], "events", quiet=True)
    sample = FlowSampler(network.estimator)

    def posterior(n: int, samples: int) -> None:
        s = network.encoder(events.x[:n], events.baseline_error[:n])
        sample(s, samples, range(n))

    n, each = len(events), sizes.batch_samples
    one = _best(lambda: posterior(1, sizes.samples))
    many = _best(lambda: posterior(n, each), repeats=1)
    return {
        "event_ms": round(1000 * one, 2),
        "samples_per_second_1_event": round(sizes.samples / one),
        "samples_per_second_many_events": round(n * each / many),
        "many_events": n,
    }


def _emcee(
    simulator: Simulator, sizes: SpeedSizes, npe_seconds: float, *, quiet: bool
) -> dict[str, Any]:
    """Seconds an event of the whole chain, with either likelihood."""
    n, days, prior = sizes.mcmc_events, simulator.pattern.days, simulator.prior
    events = curves(simulator.events, n, SEEDS["events"], "events", quiet=True)
    steps = BURN_IN + math.ceil(RETAINED / WALKERS)
    fast, looped, chains = [], [], []
    for i, _ in enumerate(progress(n, "emcee", quiet=quiet, batch=1)):
        likelihood = LikelihoodRatio(events.x[i], float(events.baseline_error[i]), days)
        chain, seconds = run_emcee(_vectorised(likelihood), prior, steps, seed=i)
        chains.append(chain)
        fast.append(seconds)
        loop = LoopLikelihood(events.x[i], days)
        seconds = run_emcee(loop, prior, sizes.loop_steps, seed=i, vectorize=False)[1]
        # The first call of emcee, for where the walkers start, counts as one step more.
        looped.append(seconds * (steps + 1) / (sizes.loop_steps + 1))
    return {
        "walkers": WALKERS,
        "burn_in": BURN_IN,
        "retained": RETAINED,
        "events": n,
        "vectorised": _times(fast, npe_seconds) | _health(chains),
        "looped": _times(looped, npe_seconds) | {"extrapolated_from_steps": sizes.loop_steps},
    }


def run_emcee(
    log_likelihood: LogLikelihood,
    prior: BoxPrior,
    steps: int,
    *,
    seed: int,
    vectorize: bool = True,
) -> tuple[emcee.EnsembleSampler, float]:
    """Run an ensemble that starts from the prior.

    Parameters
    ----------
    log_likelihood : callable
        Of theta inside the prior: shape (n, 5) -> (n,), or (5,) -> number if not ``vectorize``.
    prior : BoxPrior
    steps : int
    seed : int
        Of the starting points and of the chain.

    Returns
    -------
    EnsembleSampler, float
        The sampler after its run, and the wall time in seconds.
    """

    def log_posterior(theta: Array) -> Array:
        log = prior.log_density(torch.from_numpy(theta)).double().numpy()
        inside = np.isfinite(log)
        if vectorize:
            log[inside] += log_likelihood(theta[inside])
            return log
        return log + log_likelihood(theta) if inside else log

    start = prior.sample(WALKERS, torch.Generator().manual_seed(seed)).double().numpy()
    sampler = emcee.EnsembleSampler(WALKERS, len(PARAMETERS), log_posterior, vectorize=vectorize)
    sampler.random_state = np.random.RandomState(seed).get_state()
    began = time.perf_counter()
    sampler.run_mcmc(start, steps)
    return sampler, time.perf_counter() - began


class LoopLikelihood:
    """ln L of one window as the paper has it: the magnification epoch by epoch, in Python.

    Parameters
    ----------
    x : Tensor, shape (L, 3), float32
        Network input; its baseline counts as exact.
    days : float
        Length of the window.
    """

    def __init__(self, x: Tensor, days: float) -> None:
        rows, valid = split_padding(x)
        t_norm, self._flux, self._sigma = rows[valid].double().numpy().T
        self._t = ((t_norm + 1) / 2 * days).tolist()
        self._lens = VBMicrolensing()
        self._lens.Tol = 1e-4

    def __call__(self, theta: Array) -> Any:  # noqa: ANN401  a number, which emcee takes for an array
        """``theta``, shape (5,) -> ln L but for a constant."""
        t0, u0, log_tE, log_rho, f_s = theta.tolist()
        tE, rho = 10**log_tE, 10**log_rho
        magnify = self._lens.ESPLMag2
        a = np.array([magnify(math.hypot(u0, (t - t0) / tE), rho) for t in self._t])
        return -0.5 * np.square((self._flux - 1 - f_s * (a - 1)) / self._sigma).sum()


def _vectorised(likelihood: LikelihoodRatio) -> LogLikelihood:
    def log_likelihood(theta: Array) -> Array:
        with torch.inference_mode():
            ln_ratio: Array = likelihood(torch.from_numpy(theta)).numpy()
        return ln_ratio

    return log_likelihood


def _times(seconds: list[float], npe: float) -> dict[str, float]:
    median = float(np.median(seconds))
    return {
        "median_s": round(median, 3),
        "mean_s": round(float(np.mean(seconds)), 3),
        "over_npe": round(median / npe, 1),
    }


def _health(samplers: list[emcee.EnsembleSampler]) -> dict[str, float]:
    """Whether the chains may be believed: acceptance, autocorrelation, walkers that got lost.

    A walker is lost if the last of its ln L is more than 20 below the best of the ensemble, which
    in five dimensions a sample of the posterior is once in 10^7 times.
    """
    accepted, tau, lost = [], [], []
    for sampler in samplers:
        accepted.append(sampler.acceptance_fraction.mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a chain that is short for its memory
            tau.append(np.max(sampler.get_autocorr_time(discard=BURN_IN // 2, tol=0)))
        last = sampler.get_log_prob()[-1]
        lost.append((last < sampler.get_log_prob().max() - 20).mean())
    return {
        "acceptance": round(float(np.mean(accepted)), 3),
        "autocorrelation_steps": round(float(np.nanmedian(tau)), 1),
        "lost_walkers": round(float(np.mean(lost)), 3),
    }


def _encoders(options: dict[str, Any], sizes: SpeedSizes) -> dict[str, Any]:
    """Windows a second, ln K included, by encoder, number type and bucket; untrained weights."""
    cases = {
        "entry": (options, torch.float32, sizes.windows),
        "entry_bfloat16": (options, torch.bfloat16, sizes.windows),
        "paper": ({"name": "paper"}, torch.float32, sizes.paper_windows),
    }
    rates: dict[str, Any] = {name: _rates(*case) for name, case in cases.items()}
    longest = str(max(EPOCHS))
    best = max(rates["entry"][longest], rates["entry_bfloat16"][longest])
    rates["entry_over_paper"] = round(best / rates["paper"][longest], 1)
    return rates


@torch.inference_mode()
def _rates(options: dict[str, Any], precision: torch.dtype, n: int) -> dict[str, float]:
    encoder = build_encoder(**options).eval()
    head = EvidenceHead(encoder.summary_width)
    rates = {}
    for bucket, epochs in EPOCHS.items():
        x = _constant_stars(n, bucket, epochs)
        with torch.autocast("cpu", precision, precision != torch.float32):
            rates[str(bucket)] = round(n / _best(partial(_forward, encoder, head, x)), 2)
    return rates


def _forward(encoder: nn.Module, head: nn.Module, x: Tensor) -> None:
    head(encoder(x))


def _constant_stars(n: int, bucket: int, epochs: int) -> Tensor:
    x = torch.full((n, bucket, 3), -2.0)
    x[:, :epochs, 0] = torch.linspace(-1, 1, epochs)
    x[:, :epochs, 1] = 1 + 0.01 * torch.randn(n, epochs, generator=torch.Generator().manual_seed(1))
    x[:, :epochs, 2] = 0.01
    return x


def _best(run: Callable[[], object], repeats: int = 3) -> float:
    """Shortest wall time of a few, after one run to warm up."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times[1:])
