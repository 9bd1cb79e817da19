"""Calibration of the network's K: its tail on noise, its mean there, and what p = K/(1+K) covers.

A calibrated Bayes factor obeys P(K >= k | no event) <= 1/k and has a mean of one on noise. Both can
be tested as far out as there are noise curves, and these are free to make.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.network import Network
from model_zoo.evaluate.measure.rates import clopper_pearson
from model_zoo.evaluate.sets import SEEDS, Draw, Sizes, batches
from model_zoo.simulate.curves import Simulator

__all__ = [
    "TAIL_POWERS",
    "Tail",
    "bound_held",
    "has_bfloat16",
    "log10_k_batches",
    "measure_calibration",
    "reliability",
]

Floats = NDArray[np.float64]

TAIL_POWERS = tuple(i / 2 for i in range(9))
"""log10 k at which the tail of K is measured: 1 to 10^4 in half-decades."""
LARGEST_POWER = 100.0  # K beyond 10^100 is summed as 10^100, so that squares stay finite
HIGHEST = 20
EVENTS_FACTOR = 10
ODDS_EDGES = (-math.inf, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, math.inf)
P_EDGES = tuple(i / 10 for i in range(11))


def measure_calibration(
    network: Network, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """How far K can be trusted.

    Curves are scored as a service does on this machine: in bfloat16 where the processor has it.

    Parameters
    ----------
    network : Network
    simulator : Simulator
    sizes : Sizes
        ``tail`` noise windows for the tail; ten times ``events`` events, and as many of the noise
        windows of the detection set, for the coverage of p.

    Returns
    -------
    dict
        ``precision``; of `Tail.figures` ``k_tail``, ``mean_k_noise`` and the like; and
        ``reliability`` as `reliability` gives it.
    """
    network.eval()
    tail = Tail()
    for log10_k in log10_k_batches(
        network, simulator.noise, sizes.tail, SEEDS["tail_noise"], "noise tail", quiet=quiet
    ):
        tail.add(log10_k)
    n = EVENTS_FACTOR * sizes.events
    events, noise = (
        np.concatenate(
            [*log10_k_batches(network, draw, n, SEEDS[name], f"calibration: {name}", quiet=quiet)]
        )
        for draw, name in ((simulator.events, "events"), (simulator.noise, "noise"))
    )
    precision = "bfloat16" if has_bfloat16() else "float32"
    return {"precision": precision} | tail.figures() | {"reliability": reliability(events, noise)}


@torch.inference_mode()
def log10_k_batches(
    network: Network,
    draw: Draw,
    n: int,
    seed: int,
    name: str,
    *,
    quiet: bool = False,
) -> Iterator[Floats]:
    """log10 K of the frozen curves of a set, batch by batch: memory does not grow with ``n``."""
    for batch in batches(draw, n, seed, name, quiet=quiet):
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            ln_k, _ = network(batch.x, batch.baseline_error, batch.star_noise)
        yield ln_k.double().numpy() / LN_10


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices, so that a service would."""
    return bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001  no public name


@dataclass(slots=True)
class Tail:
    """Running counts of K on noise; a few dozen numbers however many curves are added."""

    n: int = 0
    counts: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(TAIL_POWERS), dtype=np.int64)
    )
    total: float = 0.0
    square: float = 0.0
    highest: Floats = field(default_factory=lambda: np.empty(0))

    def add(self, log10_k: Floats) -> None:
        """Count noise curves of these log10 K, shape (n,)."""
        self.n += len(log10_k)
        self.counts += (log10_k[:, None] >= np.array(TAIL_POWERS)).sum(0)
        k = 10.0 ** np.minimum(log10_k, LARGEST_POWER)
        self.total, self.square = self.total + float(k.sum()), self.square + float((k**2).sum())
        self.highest = np.sort(np.concatenate([self.highest, log10_k]))[::-1][:HIGHEST]

    def figures(self) -> dict[str, Any]:
        """What was counted, for the card.

        Returns
        -------
        dict
            ``n_tail``; ``k_tail``, by k as `bound_held`; ``tail_holds``, all of them together;
            ``mean_k_noise`` with its standard error, and whether it is at most one within two of
            these; ``highest_log10_k``.

        Notes
        -----
        The standard error is that of the curves seen: a heavier tail beyond them would not show.
        """
        rows = [
            bound_held(int(count), self.n, 10**power)
            for count, power in zip(self.counts, TAIL_POWERS, strict=True)
        ]
        mean = self.total / self.n
        error = math.sqrt(max(self.square / self.n - mean**2, 0.0) / self.n)
        return {
            "n_tail": self.n,
            "k_tail": rows,
            "tail_holds": all(row["holds"] for row in rows),
            "mean_k_noise": mean,
            "mean_k_noise_error": error,
            "mean_k_holds": mean - 2 * error <= 1,
            "highest_log10_k": [round(float(v), 4) for v in self.highest],
        }


def bound_held(count: int, n: int, k: float) -> dict[str, Any]:
    """Share of ``n`` noise curves that reached ``k``, beside its bound 1/k.

    The bound ``holds`` unless the whole 95 % interval of the share, ``low`` to ``high``, is above.
    """
    low, high = clopper_pearson(count, n)
    return {
        "k": float(f"{k:.6g}"),
        "count": count,
        "observed": count / n,
        "low": low,
        "high": high,
        "bound": 1 / k,
        "holds": low <= 1 / k,
    }


def reliability(events: Floats, noise: Floats) -> dict[str, Any]:
    """Whether a share p of the curves that are given p = K / (1 + K) are events.

    Parameters
    ----------
    events, noise : ndarray, shape (n,), float64
        log10 K; the same number of both, for equal priors.

    Returns
    -------
    dict
        ``by_log10_k`` and ``by_p``, each a list of bins with ``low``, ``high``, ``n``, ``events``,
        mean ``p``, the share ``observed`` with its 95 % interval, and whether that ``covers`` the
        mean p; empty bins are left out. ``covered`` counts these over ``bins`` of ``by_log10_k``.

    Raises
    ------
    ValueError
        If the numbers differ.
    """
    if len(events) != len(noise):
        raise ValueError(
            f"{len(events)} events and {len(noise)} noise curves: p needs equal priors"
        )
    log10_k = np.concatenate([events, noise])
    event = np.arange(len(log10_k)) < len(events)
    p = 0.5 * (1 + np.tanh(0.5 * LN_10 * log10_k))
    by_odds, by_p = _bins(log10_k, p, event, ODDS_EDGES), _bins(p, p, event, P_EDGES)
    return {
        "n": len(log10_k),
        "bins": len(by_odds),
        "covered": sum(row["covers"] for row in by_odds),
        "by_log10_k": by_odds,
        "by_p": by_p,
    }


def _bins(
    values: Floats, p: Floats, event: NDArray[np.bool_], edges: tuple[float, ...]
) -> list[dict[str, Any]]:
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    rows = []
    for i in np.unique(place).tolist():
        inside = place == i
        n, found, mean = int(inside.sum()), int(event[inside].sum()), float(p[inside].mean())
        low, high = clopper_pearson(found, n)
        rows.append(
            # JSON has no infinity.
            {"low": _finite(edges[i]), "high": _finite(edges[i + 1]), "n": n, "events": found}
            | {"p": mean, "observed": found / n, "observed_low": low, "observed_high": high}
            | {"covers": low <= mean <= high}
        )
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
