"""The network's log10 K beside exact ones, on events of low signal-to-noise and on noise."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.inference.network import Network
from broker_filter.inference.network_input import split_padding
from model_zoo.evaluate.measure.exact_evidence import ExactEvidence
from model_zoo.evaluate.measure.rates import as_list
from model_zoo.evaluate.sets import SEEDS, Sizes, batches, progress, score_curves
from model_zoo.simulate.curves import Curves, Simulator

__all__ = ["compare", "low_snr_curves", "measure_exact"]

LOW_SNR = 10.0
DRAWS_PER_CURVE = 500
CONVERGED = 0.05  # dex
SNR_EDGES = (0.0, 5.0, 6.0, 7.0, 8.0, 9.0, LOW_SNR)
SMALL_K, ALLOWED_BIAS = 3.0, 0.1

Floats = NDArray[np.float64]


def low_snr_curves(simulator: Simulator, n: int) -> tuple[Curves, Curves]:
    """Frozen events below `LOW_SNR` and noise curves, ``n`` each, whose epochs were not thinned.

    Fewer, where `DRAWS_PER_CURVE` times as many draws hold fewer.
    """
    found = []
    for draw, name in ((simulator.events, "exact_events"), (simulator.noise, "exact_noise")):
        parts: list[Curves] = []
        for batch in batches(draw, n * DRAWS_PER_CURVE, SEEDS[name], name, quiet=True):
            unthinned = split_padding(batch.x)[1].sum(1) < simulator.length
            parts.append(batch[unthinned & (batch.snr < LOW_SNR)])
            if sum(map(len, parts)) >= n:
                break
        found.append(Curves.join(parts)[:n])
    return found[0], found[1]


def measure_exact(
    network: Network, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """The network's log10 K beside exact ones, on events of low signal-to-noise and on noise.

    Parameters
    ----------
    network : Network
    simulator : Simulator
    sizes : Sizes
        ``exact`` events and as many noise curves.

    Returns
    -------
    dict
        As `compare`; and ``not_converged``, the number of curves left out because their Monte Carlo
        error exceeds `CONVERGED`, and ``seconds_per_curve`` of CPU time.
    """
    events, noise = low_snr_curves(simulator, sizes.exact)
    curves = Curves.join([events, noise])
    network.eval()
    scored = score_curves(network, curves, "exact: network", quiet=quiet)
    integrate, began = ExactEvidence(simulator), time.process_time()
    exact = [
        integrate(curves.x[i], float(curves.baseline_error[i]))
        for i in _counted(len(curves), "exact: integrals", quiet=quiet)
    ]
    seconds = (time.process_time() - began) / max(len(curves), 1)
    log10_k, error = (np.array([getattr(e, key) for e in exact]) for key in ("log10_k", "error"))
    good = error < CONVERGED
    event = np.arange(len(curves)) < len(events)
    result = compare(
        scored.log10_k[good], log10_k[good], error[good], scored.snr[good], event[good]
    )
    return result | {"not_converged": int((~good).sum()), "seconds_per_curve": round(seconds, 3)}


def compare(
    network: Floats, exact: Floats, error: Floats, snr: Floats, event: NDArray[np.bool_]
) -> dict[str, Any]:
    """Bias and scatter of the network's log10 K against the exact one.

    Parameters
    ----------
    network, exact, error : ndarray, shape (n,), float64
        log10 K of both, and the Monte Carlo error of the exact one.
    snr : ndarray, shape (n,)
    event : ndarray, shape (n,), bool

    Returns
    -------
    dict
        ``small_k`` (exact log10 K within 3 of zero), ``large_k`` and ``negative_k`` beyond, for
        events and noise together, each with ``n``, ``bias``, ``bias_error``, ``scatter`` and
        ``median`` of network - exact; ``holds`` (bias of ``small_k`` below 0.1 dex, None without
        curves); ``events`` and ``noise`` alone; ``by_snr`` of events; ``curves``, all values.
    """
    off = network - exact
    small = np.abs(exact) < SMALL_K
    in_bin = [(low <= snr) & (snr < high) & event for low, high in pairwise(SNR_EDGES)]
    summary = _summary(off[small])
    return {
        "n_events": int(event.sum()),
        "n_noise": int((~event).sum()),
        "largest_error": float(error.max(initial=0.0)),
        "small_k": summary,
        "large_k": _summary(off[exact >= SMALL_K]),
        "negative_k": _summary(off[exact <= -SMALL_K]),
        "events": _summary(off[event]),
        "noise": _summary(off[~event]),
        "holds": None if not summary["n"] else abs(summary["bias"]) < ALLOWED_BIAS,
        "by_snr": [
            {"snr_low": low, "snr_high": high} | _summary(off[rows])
            for (low, high), rows in zip(pairwise(SNR_EDGES), in_bin, strict=True)
        ],
        "curves": {
            "network": as_list(network),
            "exact": as_list(exact),
            "error": as_list(error),
            "snr": as_list(snr),
            "event": event.tolist(),
        },
    }


def _summary(off: Floats) -> dict[str, Any]:
    n = len(off)
    scatter = float(off.std(ddof=1)) if n > 1 else None
    return {
        "n": n,
        "bias": float(off.mean()) if n else None,
        "bias_error": None if scatter is None else scatter / math.sqrt(n),
        "scatter": scatter,
        "median": float(np.median(off)) if n else None,
    }


def _counted(n: int, name: str, *, quiet: bool) -> Iterator[int]:
    """0 to n - 1, with a progress bar on a terminal."""
    return (i for i, _ in enumerate(progress(n, name, quiet=quiet, batch=1)))
