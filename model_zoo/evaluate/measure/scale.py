"""The scale of the network's log10 K above the thresholds, from fits of simulated events.

The events are split in two: from the first the scale is made, and on the second, which it never
saw, the network's K is compared with certified K before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from broker_filter.inference.fit import ENOUGH_SAMPLES
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.network import Network
from broker_filter.inference.scale import rescaled
from broker_filter.types import Fit
from model_zoo.evaluate.measure.certified import FLOW_SAMPLES
from model_zoo.evaluate.measure.fits import Problem, fitter_of
from model_zoo.evaluate.sets import BATCH, SEEDS, batches, progress, score_curves
from model_zoo.simulate.curves import Simulator

__all__ = ["compared", "fit_scale", "measure_scale"]

Floats = NDArray[np.float64]

SNR = 8.0, 60.0  # of the events that are fitted
FIRST = 5.0  # log10 K up to which nothing changes: no noise curve of the cards went so far
BINS, STEEPEST, FLATTEST = 8, 20.0, 0.1
TESTED_SNR, TESTED_K = (10.0, 50.0), (3.0, 100.0)
POOL = 40  # batches at most


def measure_scale(
    network: Network,
    entry_config: Mapping[str, Any],
    simulator: Simulator,
    n: int,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """The scale from one half of ``n`` events, and how far off K is in the other half.

    Returns
    -------
    dict
        ``n_events``; ``scale``, as of `broker_filter.inference.scale.rescaled`; ``before`` and
        ``after``, as of `compared`.
    """
    snr, log10_k, certified = _pairs(network, Problem.of(entry_config), simulator, n, quiet=quiet)
    first = np.arange(len(snr)) < len(snr) // 2
    scale = fit_scale(log10_k[first], certified[first])
    tested = snr[~first], certified[~first]
    return {
        "n_events": len(snr),
        "scale": scale,
        "before": compared(log10_k[~first], *tested),
        "after": compared(rescaled(log10_k[~first], scale), *tested),
    }


@torch.inference_mode()
def _pairs(
    network: Network, problem: Problem, simulator: Simulator, n: int, *, quiet: bool
) -> tuple[Floats, Floats, Floats]:
    """Signal-to-noise, network's and certified log10 K of the first ``n`` events with a fit."""
    sampler, fit, rows = FlowSampler(network.estimator), fitter_of(problem), list[list[float]]()
    done = progress(n, "scale", quiet=quiet, batch=1)
    for events in batches(simulator.events, POOL * BATCH, SEEDS["scale"], "events", quiet=True):
        scored = score_curves(network.eval(), events, "network", quiet=True)
        for i in np.flatnonzero((scored.snr >= SNR[0]) & (scored.snr < SNR[1])).tolist():
            seed = SEEDS["posterior"] + len(rows)
            found = fit(events, i, sampler(scored.summary[i : i + 1], FLOW_SAMPLES, [seed])[0][0])
            if isinstance(found, Fit) and found.effective_sample_size >= ENOUGH_SAMPLES:
                rows.append([float(scored.snr[i]), float(scored.log10_k[i]), found.log10_k])
                next(done, None)
            if len(rows) == n:
                break
        if len(rows) == n:
            break
    snr, log10_k, certified = np.array(rows).T
    return snr, log10_k, certified


def fit_scale(log10_k: Floats, certified: Floats) -> dict[str, list[float]]:
    """Medians of both in bins of the network's log10 K with as many events each, from `FIRST` on.

    Parameters
    ----------
    log10_k, certified : ndarray, shape (n,), float64
        Of the network, and of fits.
    """
    above = np.argsort(log10_k)[(log10_k <= FIRST).sum() :]
    network, exact = [FIRST], [FIRST]
    for rows in np.array_split(above, BINS):
        if len(rows) and (x := float(np.median(log10_k[rows]))) > network[-1] + 0.05:
            step = x - network[-1]
            rise = float(np.median(certified[rows])) - exact[-1]
            exact.append(exact[-1] + min(max(rise, FLATTEST * step), STEEPEST * step))
            network.append(x)
    if len(network) == 1:  # no event so far up
        network.append(FIRST + 1)
        exact.append(FIRST + 1)
    return {"network": [round(x, 3) for x in network], "certified": [round(x, 3) for x in exact]}


def compared(log10_k: Floats, snr: Floats, certified: Floats) -> dict[str, float | int | None]:
    """How far log10 K is from certified, where both signal-to-noise and K are as tested.

    Returns
    -------
    dict
        ``n``; medians of the difference (``dex``), of the ratio of the logarithms less one
        (``relative``), and of the size of that (``relative_size``).
    """
    chosen = (snr >= TESTED_SNR[0]) & (snr < TESTED_SNR[1])
    chosen &= (certified >= TESTED_K[0]) & (certified < TESTED_K[1])
    if not chosen.any():
        return {"n": 0, "dex": None, "relative": None, "relative_size": None}
    off = log10_k[chosen] - certified[chosen]
    relative = off / certified[chosen]
    values = np.median(off), np.median(relative), np.median(np.abs(relative))
    dex, middle, size = (round(float(value), 4) for value in values)
    return {"n": int(chosen.sum()), "dex": dex, "relative": middle, "relative_size": size}
