"""The fit against emcee with the paper's settings, on the same likelihood, at equal accuracy.

The settings are those of Smyth, Perreault-Levasseur & Hezaveh (ICML 2026), appendix "NPE vs. MCMC
Wall-Clock Benchmark". f_s is integrated out for the chains too, which helps them: four parameters
mix faster than five. Accuracy is the number of independent samples: of a fit its effective sample
size, of a chain its samples over its autocorrelation time. The fit gives K as well. A chain does
not; for K it takes a ladder of chains, each of the likelihood to a power (stepping stones: Xie et
al. 2011, Systematic Biology 60, 150).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import emcee
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.network import Network
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import Fit
from model_zoo.evaluate.measure.fits import Problem, fitted_events, of_all_kinds
from model_zoo.evaluate.measure.speed import BURN_IN, RETAINED, WALKERS
from model_zoo.evaluate.sets import SEEDS
from model_zoo.simulate.curves import Simulator

__all__ = ["measure_chains", "run_ladder", "run_lens_chain"]

Floats = NDArray[np.float64]
LogRatio = Callable[[Tensor], Tensor]  # lenses, shape (n, 4) -> ln L(lens) / L(no lens), shape (n,)

LENS = 4
LOST = 20.0  # ln L below the best of the ensemble, at which a walker is lost
RUNGS, SKEW = 16, 0.3  # of a ladder: powers (k / RUNGS) ** (1 / SKEW), as Xie et al. advise


def measure_chains(
    network: Network,
    entry_config: Mapping[str, Any],
    simulator: Simulator,
    n: int,
    *,
    burn_in: int = BURN_IN,
    retained: int = RETAINED,
    quiet: bool = False,
) -> dict[str, Any]:
    """CPU seconds of fits and of chains that are as accurate.

    Parameters
    ----------
    network : Network
        Whose flow the fits start from.
    entry_config : mapping
    simulator : Simulator
    n : int
        Events, by `of_all_kinds`.
    burn_in, retained : int
        Steps that a chain forgets, and samples that it then keeps.

    Returns
    -------
    dict
        Settings of the chains; ``ratio_median``, how many times longer a chain takes to as many
        independent samples as the fit has, its burn-in as set; medians of seconds, autocorrelation
        time and acceptance; ``never_moved``, chains without such a time, which these medians leave
        out; ``lost_walkers``, their share; ``with_k_ratio_median``, how many times longer than the
        fit a ladder of `RUNGS` such chains takes, at these settings; ``with_k_off_median``, by how
        much its ln K differs from the fit's; ``events``, a row each.
    """
    problem = Problem.of(entry_config)
    steps, rows = burn_in + math.ceil(retained / WALKERS), []
    index = of_all_kinds(simulator, n)
    fitted = fitted_events(
        network, problem, simulator, index, seed=SEEDS["chains"], title="emcee", quiet=quiet
    )
    for one in fitted:
        chain, passed = run_lens_chain(one.likelihood, problem.prior, steps, seed=one.seed)
        seconds = one.flow_seconds + one.fit_seconds
        row = _against(one.fit, seconds, _health(chain, burn_in), passed / steps, burn_in)
        ln_k, climbed = run_ladder(one.likelihood, problem.prior, steps, burn_in, seed=one.seed)
        row |= _with_k(one.fit, seconds, ln_k, passed + climbed)
        rows.append(one.about | row)
    return _summary(rows, burn_in, retained)


def run_ladder(
    likelihood: LogRatio,
    prior: BoxPrior,
    steps: int,
    burn_in: int,
    *,
    seed: int,
    rungs: int = RUNGS,
) -> tuple[float, float]:
    """K's logarithm by stepping stones between the prior and the posterior, and its CPU seconds.

    The chain of the posterior itself is not needed: samples of each power serve the next one.
    """
    powers = (np.arange(rungs + 1) / rungs) ** (1 / SKEW)
    began = time.process_time()
    draws = prior.sample(WALKERS * (steps - burn_in), torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        heights = likelihood(draws[:, :LENS].double()).numpy()
    ln_k, seconds = _stone(powers[1], heights), time.process_time() - began
    for k, power in enumerate(powers[1:-1], 1):
        chain, passed = run_lens_chain(likelihood, prior, steps, seed=seed + k, power=power)
        heights = chain.get_log_prob(discard=burn_in, flat=True) / power
        ln_k += _stone(powers[k + 1] - power, heights)
        seconds += passed
    return ln_k, seconds


def _stone(power: float, heights: Floats) -> float:
    """Logarithm of the mean of the likelihood to a power."""
    log = power * np.nan_to_num(heights, nan=-np.inf)
    return float(np.logaddexp.reduce(log)) - math.log(len(log))


def run_lens_chain(
    likelihood: LogRatio, prior: BoxPrior, steps: int, *, seed: int, power: float = 1.0
) -> tuple[emcee.EnsembleSampler, float]:
    """An ensemble of `WALKERS` that starts from the prior, and its CPU seconds.

    Its density is the prior times the likelihood to ``power``.
    """
    low, high = (np.array(edge[:LENS]) for edge in (prior.low, prior.high))

    @torch.inference_mode()
    def log_posterior(theta: Floats) -> Floats:
        inside = ((theta >= low) & (theta <= high)).all(1)
        log = np.full(len(theta), -np.inf)
        if inside.any():
            log[inside] = power * likelihood(torch.from_numpy(theta[inside])).numpy()
        finite: Floats = np.nan_to_num(log, nan=-np.inf, neginf=-np.inf)
        return finite

    start = prior.sample(WALKERS, torch.Generator().manual_seed(seed))[:, :LENS].double().numpy()
    sampler = emcee.EnsembleSampler(WALKERS, LENS, log_posterior, vectorize=True)
    sampler.random_state = np.random.RandomState(seed).get_state()
    began = time.process_time()
    sampler.run_mcmc(start.clip(low, high), steps)
    return sampler, time.process_time() - began


def _health(chain: emcee.EnsembleSampler, burn_in: int) -> dict[str, float | None]:
    """Autocorrelation time in steps (the longest of the parameters), acceptance, lost walkers.

    There is no such time where walkers never move.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a chain that is short for its memory
        tau = float(np.max(chain.get_autocorr_time(discard=burn_in // 2, tol=0)))
    heights = chain.get_log_prob()
    return {
        "autocorrelation_steps": round(tau, 1) if math.isfinite(tau) else None,
        "acceptance": round(float(chain.acceptance_fraction.mean()), 3),
        "lost_walkers": round(float((heights[-1] < heights.max() - LOST).mean()), 3),
    }


def _against(
    fit: Fit, seconds: float, health: dict[str, float | None], step: float, burn_in: int
) -> dict[str, Any]:
    """Seconds of both, ``step`` those of one step of the chain."""
    tau, size = health["autocorrelation_steps"], fit.effective_sample_size
    chain = None if tau is None else (burn_in + size * tau / WALKERS) * step
    return {
        "fit_seconds": round(seconds, 4),
        "effective_samples": round(size, 1),
        "chain_seconds": None if chain is None else round(chain, 3),
        "step_ms": round(1000 * step, 3),
        "ratio": None if chain is None else round(chain / seconds, 1),
        **health,
    }


def _with_k(fit: Fit, seconds: float, ln_k: float, passed: float) -> dict[str, float]:
    """The ladder's K beside the fit's; ``passed``, seconds of all its chains."""
    return {
        "with_k_seconds": round(passed, 2),
        "with_k_ratio": round(passed / seconds, 1),
        "lnk_fit": round(fit.log10_k * LN_10, 2),
        "lnk_ladder": round(ln_k, 2),
    }


def _summary(rows: list[dict[str, Any]], burn_in: int, retained: int) -> dict[str, Any]:
    mixed = [row for row in rows if row["ratio"] is not None]
    names = ("ratio", "fit_seconds", "chain_seconds", "autocorrelation_steps", "acceptance")
    middle = {f"{name}_median": _median([row[name] for row in mixed]) for name in names}
    return {
        "n": len(rows),
        "never_moved": len(rows) - len(mixed),
        "walkers": WALKERS,
        "burn_in": burn_in,
        "retained": retained,
        **middle,
        "with_k_ratio_median": _median([row["with_k_ratio"] for row in rows]),
        "with_k_off_median": _median([abs(row["lnk_ladder"] - row["lnk_fit"]) for row in rows]),
        "lost_walkers": round(float(np.mean([row["lost_walkers"] for row in rows])), 3),
        "events": rows,
    }


def _median(values: list[float]) -> float | None:
    return round(float(np.median(values)), 3) if values else None
