"""How long before its peak an event is found, when its window grows epoch by epoch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.lens import excess
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import PADDING
from model_zoo.evaluate.measure.cuts import as_pattern, event_statistics
from model_zoo.evaluate.measure.rates import Bools, as_list, share, wilson
from model_zoo.evaluate.sets import SEEDS, batches
from model_zoo.simulate.curves import Curves, Simulator
from model_zoo.simulate.pattern import Pattern

__all__ = ["PHASES", "cut_off", "looks_at", "measure_rising", "peak_is_seen", "peak_stands_out"]

PHASES = (-5.0, -4, -3, -2.5, -2, -1.75, -1.5, -1.25, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 1, 2)
"""Time since the peak in units of tE at which the growing window is looked at."""
TE_EDGES = (0.05, 0.3, 1.0, 3.0, 10.0, 60.0)
MOST_EVENTS = 1_000
SEEN_SNR2 = 25.0


def measure_rising(
    network: Network,
    simulator: Simulator,
    n: int,
    threshold: float,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Share of bright events found by each time before and after their peak.

    Of the frozen events those count whose peak stands 5 sigma high, f_s (A_peak - 1) > 5 sigma, and
    lies between their first and last epoch. An event counts as found from the first look on at
    which log10 K exceeds ``threshold``.

    Parameters
    ----------
    network : Network
    simulator : Simulator
    n : int
        Number of events drawn, at most `MOST_EVENTS` of which are used.
    threshold : float
        In log10 K.

    Returns
    -------
    dict
        ``phase`` (t - t0) / tE, and by then ``found`` and ``snr2_ge_25``, the share whose
        matched-filter signal-to-noise has reached 5; ``by_tE`` the share found before the peak and
        the lead of the first look that found them.
    """
    days, parts = simulator.pattern.days, []
    total = min(n, MOST_EVENTS)
    for curves in batches(simulator.events, total, SEEDS["events"], "rising", quiet=quiet):
        rows = peak_is_seen(curves, days).nonzero()[:, 0]
        parts.append(looks_at(network, curves[rows], days, threshold))
    found, seen, tE = (np.concatenate(column) for column in zip(*parts, strict=True))
    found, seen = np.maximum.accumulate(found, 1), np.maximum.accumulate(seen, 1)
    return {
        "n": len(tE),
        "threshold": threshold,
        "phase": list(map(float, PHASES)),
        "found": _shares(found),
        "snr2_ge_25": _shares(seen),
        "by_tE": _by_length(found, tE),
    }


def cut_off(curves: Curves, phase: float, *, days: float) -> Curves:
    """The same curves as they were ``phase`` tE after the peak: no later epochs."""
    t0, tE = curves.theta[:, 0], 10 ** curves.theta[:, 2]
    later = as_pattern(curves.x, days=days).t > (t0 + phase * tE)[:, None]
    x = torch.where(later[..., None], PADDING, curves.x)
    return replace(curves, x=x)


@torch.inference_mode()
def looks_at(
    network: Network, curves: Curves, days: float, threshold: float
) -> tuple[Bools, Bools, NDArray[np.float64]]:
    """Whether each event is found, and could be, at each phase, shape (B, phases); and tE, days."""
    found, seen = [], []
    for phase in PHASES:
        young = cut_off(curves, phase, days=days)
        any_epoch = as_pattern(young.x, days=days).n > 0
        ln_k, _ = network(young.x, young.baseline_error, young.star_noise)
        found.append(((ln_k / LN_10 > threshold) & any_epoch).numpy())
        seen.append(event_statistics(young, days=days).snr ** 2 >= SEEN_SNR2)
    tE = 10 ** curves.theta[:, 2].double().numpy()
    return np.stack(found, 1), np.stack(seen, 1), tE


def peak_is_seen(curves: Curves, days: float) -> torch.Tensor:
    """Whether the peak stands 5 sigma high between the first epoch and the last, shape (B,)."""
    return peak_stands_out(curves.theta, as_pattern(curves.x, days=days))


def peak_stands_out(theta: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The same of lenses ``theta``, shape (B, 5), and the patterns in which they are seen."""
    t0 = theta[:, 0]
    last = torch.where(pattern.valid, pattern.t, -torch.inf).amax(1)
    peak = theta[:, 4] * excess(theta[:, 1], 10 ** theta[:, 3])
    return (peak > 5 * pattern.level) & (pattern.t[:, 0] < t0) & (t0 < last)


def _shares(hits: Bools) -> dict[str, list[float]]:
    """Share by phase with its 68 % interval."""
    n = len(hits)
    counts = hits.sum(0).tolist()
    low, high = zip(*(wilson(k, n) for k in counts), strict=True)
    return {
        "share": as_list([k / max(n, 1) for k in counts]),
        "low68": as_list(low),
        "high68": as_list(high),
    }


def _by_length(found: Bools, tE: NDArray[np.float64]) -> list[dict[str, Any]]:
    before = [phase < 0 for phase in PHASES]
    early = np.asarray(found[:, before].any(axis=1))
    # The first look that found it; meaningful only where one did.
    lead = -np.array(PHASES)[found.argmax(1)]
    rows = []
    for low, high in pairwise(TE_EDGES):
        of_class = (tE >= low) & (tE < high)
        chosen = of_class & early
        in_tE, in_days = lead[chosen], (lead * tE)[chosen]
        rows.append(
            {"tE_low": low, "tE_high": high, "before_peak": share(early[of_class])}
            | {
                "median_lead_tE": float(np.median(in_tE)) if chosen.any() else None,
                "median_lead_days": float(np.median(in_days)) if chosen.any() else None,
            }
        )
    return rows
