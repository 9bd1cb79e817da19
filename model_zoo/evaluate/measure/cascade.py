"""What it costs to run the network only where the matched filter finds something.

Each row is a threshold of log10 K. An event is lost where the network's K passes it, and what the
filter allows at most (`broker_filter.inference.scan.ceiling`) does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.lens import excess
from broker_filter.inference.matched_filter import LensScan
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import split_padding
from broker_filter.inference.scan import ceiling_of
from model_zoo.evaluate.measure.rates import upper_limit
from model_zoo.evaluate.sets import SEEDS, Draw, Sizes, batches
from model_zoo.simulate.curves import Curves, Simulator

__all__ = ["THRESHOLDS", "measure_cascade", "visible_snr"]

THRESHOLDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
SNR_EDGES = (0.0, 4.0, 6.0, 8.0, np.inf)
EVENTS, NOISE = 4, 2  # times those of the detection sets

Floats = NDArray[np.float64]


def measure_cascade(
    network: Network, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """Events that the cascade loses, and noise that it passes on.

    Parameters
    ----------
    network : Network
    simulator : Simulator
    sizes : Sizes
        ``events`` and ``noise``, of which some times as many are drawn.

    Returns
    -------
    dict
        ``n_events`` and ``n_noise``; ``rows``, by threshold: ``log10_k``, ``found`` (events whose K
        passes the threshold), ``lost`` of them, ``share`` with its 95 % upper limit ``below``,
        ``lost_by_snr`` (as of `visible_snr`) between `SNR_EDGES`, the
        highest of a lost event ``lost_up_to_snr`` (0 of none), and the ``passed`` share of the
        noise.
    """
    days = simulator.pattern.days
    events, noise = (
        _measured(network, draw, n, name, days, quiet=quiet)
        for name, draw, n in (
            ("events", simulator.events, EVENTS * sizes.events),
            ("noise", simulator.noise, NOISE * sizes.noise),
        )
    )
    rows = [_row(log10_k, events, noise[1]) for log10_k in THRESHOLDS]
    return {"n_events": len(events[0]), "n_noise": len(noise[0]), "rows": rows}


@torch.inference_mode()
def _measured(
    network: Network, draw: Draw, n: int, name: str, days: float, *, quiet: bool
) -> tuple[Floats, Floats, Floats]:
    """log10 K of the network, the most that it can be, and signal-to-noise of each curve."""
    scan, parts = LensScan(), []
    for curves in batches(draw, n, SEEDS[name], name, quiet=quiet):
        ln_k, _ = network(curves.x, curves.baseline_error, curves.star_noise)
        s = scan.largest(*split_padding(curves.x), curves.baseline_error)
        snr = visible_snr(curves, days).double().numpy()
        parts.append((ln_k.double().numpy() / LN_10, ceiling_of(s.double().numpy()), snr))
    log10_k, most, snr = map(np.concatenate, zip(*parts, strict=True))
    return log10_k, most, snr


def visible_snr(curves: Curves, days: float) -> Tensor:
    """Signal-to-noise of the true event, its baseline known no better than the curve says.

    Parameters
    ----------
    curves : Curves
    days : float
        Length of the window.

    Returns
    -------
    Tensor, shape (n,), float32
        NaN for noise.
    """
    x, valid = split_padding(curves.x)
    t0, u0, log_tE, log_rho, f_s = (column[:, None] for column in curves.theta.unbind(-1))
    u = (u0**2 + (((x[..., 0] + 1) / 2 * days - t0) / 10**log_tE) ** 2).sqrt()
    signal = f_s * excess(u, 10**log_rho)
    weight = torch.where(valid, torch.where(valid, x[..., 2], 1.0) ** -2, 0.0)
    square = curves.baseline_error**2
    shared = (weight * signal).sum(-1) ** 2 * square / (1 + square * weight.sum(-1))
    return ((weight * signal**2).sum(-1) - shared).clamp(min=0).sqrt()


def _row(log10_k: float, events: tuple[Floats, Floats, Floats], noise: Floats) -> dict[str, Any]:
    found, most, snr = events
    above = found >= log10_k
    lost = snr[above & (most < log10_k)]
    n = int(above.sum())
    return {
        "log10_k": log10_k,
        "found": n,
        "lost": len(lost),
        "share": round(len(lost) / max(n, 1), 6),
        "below": round(upper_limit(len(lost), n), 6) if n else None,
        "lost_by_snr": np.histogram(lost, SNR_EDGES)[0].tolist(),
        "lost_up_to_snr": round(float(lost.max(initial=0)), 2),
        "passed": round(float((noise >= log10_k).mean()), 5),
    }
