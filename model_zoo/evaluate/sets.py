"""Frozen test sets: their seeds and sizes, and log10 K of an entry for each curve.

Training draws from other seeds. The same seeds give the same curves for every entry that shares a
simulator, so that figures can be compared. Curves are drawn in batches of a fixed size, and a set
of n curves begins with those of any smaller set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.network import Network
from model_zoo.progress import Progress
from model_zoo.simulate.curves import Curves

__all__ = [
    "FULL",
    "FULL_PROOF",
    "QUICK",
    "QUICK_PROOF",
    "SEEDS",
    "Proof",
    "ScoredCurves",
    "Sizes",
    "batches",
    "curves",
    "progress",
    "score",
    "score_curves",
]

SEEDS = {
    "events": 9_001,
    "noise": 9_002,
    "posterior": 9_003,
    "ungated_events": 9_004,
    "validation_events": 9_005,
    "validation_noise": 9_006,
    "blended_events": 9_007,
    "exact_events": 9_008,
    "exact_noise": 9_009,
    "streams": 9_010,
    "tail_noise": 9_011,
    "certified": 9_012,
    "nested": 9_013,
    "chains": 9_014,
    "surveys": 9_015,
    "corners": 9_016,
    "efficiency": 9_017,
    "scale": 9_016,
    "verdicts": 9_018,
    "seasons": 9_019,
    "corner_tails": 9_021,
}
"""Seed of each set; never changed once an entry has been measured.

``corners`` and ``scale`` have one number and no draw in common: numpy draws the first, torch the
second."""

BATCH = 250

Draw = Callable[[int, torch.Generator], Curves]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many curves, streams and samples a run of the suite takes.

    Parameters
    ----------
    events, noise : int
        Curves of the detection sets.
    tail : int
        Noise curves on which the tail of K is measured.
    exact : int
        Events, and as many noise curves, whose evidence is integrated.
    streams : int
        Streams of noise that are evaluated over time.
    posterior_events, samples : int
        Events whose posteriors are measured, and samples of each.
    """

    events: int
    noise: int
    tail: int
    exact: int
    streams: int
    posterior_events: int
    samples: int


FULL = Sizes(5_000, 5_000, 1_000_000, 200, 10_000, 5_000, 1_000)
QUICK = Sizes(500, 500, 4_000, 8, 50, 100, 300)


@dataclass(frozen=True, slots=True)
class Proof:
    """How many events and stars the fit is proved on.

    Parameters
    ----------
    fits : int
        Events beside the flow, 0.1 seconds each.
    nested : int
        Events beside nested sampling, 10 seconds each.
    chains : int
        Events beside emcee, 5 seconds each.
    corners : int
        Streams at each corner of the family of noise, on the service's own path, 0.01 seconds each.
    skies : int
        On the same path, 1 second each: events in each sky (``efficiency``), stars of each kind
        (``verdicts``), and stars at each corner whose noise is like a lens (``corner_tails``).
    seasons : int
        Events in each sparse survey, on the same path, 10 seconds each.
    scale : int
        Events from which the scale of the network's K comes, 0.1 seconds each.
    reach : int
        Events of which nested sampling gives the errors too, 5 seconds each.
    """

    fits: int
    nested: int
    chains: int
    corners: int
    skies: int
    seasons: int
    scale: int
    reach: int


FULL_PROOF = Proof(2_000, 50, 20, 20_000, 500, 150, 240, 100)
QUICK_PROOF = Proof(20, 1, 1, 40, 4, 2, 20, 1)


@dataclass(frozen=True, slots=True)
class ScoredCurves:
    """log10 K and summaries of n curves by an entry.

    Parameters
    ----------
    log10_k : ndarray, shape (n,), float64
    theta : ndarray, shape (n, 5), float64
        Truth; NaN for noise.
    snr : ndarray, shape (n,), float64
        Matched-filter signal-to-noise for an exactly known baseline.
    summary : Tensor, shape (n, d) or (0, d)
        The encoder's summaries, where requested.
    """

    log10_k: NDArray[np.float64]
    theta: NDArray[np.float64]
    snr: NDArray[np.float64]
    summary: Tensor


def batches(draw: Draw, n: int, seed: int, name: str, *, quiet: bool = False) -> Iterator[Curves]:
    """The frozen curves of a set, in batches, with a progress bar on a terminal."""
    generator = torch.Generator().manual_seed(seed)
    for size in progress(n, name, quiet=quiet):
        # Always a full batch, so that a smaller set is the beginning of a larger one.
        yield draw(BATCH, generator)[:size]


def curves(draw: Draw, n: int, seed: int, name: str, *, quiet: bool = False) -> Curves:
    """The frozen curves of a set, all at once."""
    return Curves.join(list(batches(draw, n, seed, name, quiet=quiet)))


@torch.inference_mode()
def score(
    network: Network,
    draw: Draw,
    n: int,
    seed: int,
    name: str,
    *,
    summaries: bool = False,
    quiet: bool = False,
    bfloat16: bool = False,
) -> ScoredCurves:
    """Draw the frozen curves of a set and evaluate them, without ever holding them all."""
    parts = [
        _evaluate(network, batch, summaries=summaries, bfloat16=bfloat16)
        for batch in batches(draw, n, seed, name, quiet=quiet)
    ]
    return _scored(parts)


@torch.inference_mode()
def score_curves(
    network: Network, whole: Curves, name: str, *, quiet: bool = False
) -> ScoredCurves:
    """Evaluate curves that are held in memory, summaries included."""
    parts, first = [], 0
    for size in progress(len(whole), name, quiet=quiet):
        part = whole[first : first + size]
        parts.append(_evaluate(network, part, summaries=True, bfloat16=False))
        first += size
    return _scored(parts)


def progress(n: int, name: str, *, quiet: bool = False, batch: int = BATCH) -> Iterator[int]:
    """Sizes of the batches of n things; shows how far it is."""
    with Progress(name, n, "curves", quiet=quiet) as shown:
        for first in range(0, n, batch):
            size = min(batch, n - first)
            yield size
            shown.add(size)


def _evaluate(
    network: Network, batch: Curves, *, summaries: bool, bfloat16: bool
) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        ln_k, s = network(batch.x, batch.baseline_error, batch.star_noise)
    return ln_k / LN_10, batch.theta, batch.snr, s if summaries else s[:0]


def _scored(parts: list[tuple[Tensor, ...]]) -> ScoredCurves:
    log10_k, theta, snr, summary = (torch.cat(column) for column in zip(*parts, strict=True))
    return ScoredCurves(
        log10_k.double().numpy(), theta.double().numpy(), snr.double().numpy(), summary
    )
