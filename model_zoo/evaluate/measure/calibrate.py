"""Recalibration: a monotone map of log10 K for networks whose K cannot be taken as it is.

The map is a broken line with a few knots, for the card. Where the validation sets hold events and
noise it follows the likelihood ratio of log10 K itself, which is what a calibrated K must equal.
Beyond them it never raises K, except to keep the line from falling, and nowhere does K exceed what
the noise seen supports: 1 / (95 % upper limit of the share of noise at least as high).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import ModelError
from broker_filter.inference.network import Network
from model_zoo.evaluate.measure.calibration import log10_k_batches
from model_zoo.evaluate.measure.rates import clopper_pearson
from model_zoo.evaluate.sets import SEEDS
from model_zoo.simulate.curves import Simulator

__all__ = ["Recalibration", "fit_recalibration", "measure_recalibration"]

Floats = NDArray[np.float64]

FEWEST = 10  # events and noise curves that a knot needs to follow their ratio
STEPS = np.concatenate([np.arange(-12, -3, 1.0), np.arange(-3, 6, 0.25), np.arange(6, 33, 3.0)])


@dataclass(frozen=True, slots=True)
class Recalibration:
    """A broken line from raw to recalibrated log10 K, level beyond its ends.

    Parameters
    ----------
    raw, log10_k : tuple of float
        Knots; ``raw`` rises, ``log10_k`` never falls.
    n_noise : int
        Noise curves that support it.

    Raises
    ------
    ModelError
        The knots are no such line.
    """

    raw: tuple[float, ...]
    log10_k: tuple[float, ...]
    n_noise: int

    def __post_init__(self) -> None:
        same = len(self.raw) == len(self.log10_k) >= 2
        if not (same and np.isfinite([*self.raw, *self.log10_k]).all()):
            raise ModelError("recalibration: needs as many knots in raw as in log10_k, two or more")
        if (np.diff(self.raw) <= 0).any() or (np.diff(self.log10_k) < 0).any():
            raise ModelError("recalibration: raw must rise and log10_k must not fall")

    def __call__(self, log10_k: Floats) -> Floats:
        """Recalibrated log10 K of raw values, any shape, float64."""
        return np.asarray(np.interp(log10_k, self.raw, self.log10_k), dtype=np.float64)

    def to_card(self) -> dict[str, Any]:
        """The map as a section of a card."""
        return {"raw": list(self.raw), "log10_k": list(self.log10_k), "n_noise": self.n_noise}


def measure_recalibration(
    network: Network, simulator: Simulator, events: int, noise: int, *, quiet: bool = False
) -> Recalibration:
    """Fit the map on so many curves of the frozen validation sets."""
    network.eval()
    values = (
        np.concatenate([*log10_k_batches(network, draw, n, SEEDS[name], name, quiet=quiet)])
        for draw, n, name in (
            (simulator.events, events, "validation_events"),
            (simulator.noise, noise, "validation_noise"),
        )
    )
    return fit_recalibration(*values)


def fit_recalibration(events: Floats, noise: Floats) -> Recalibration:
    """Fit the map to log10 K of validation curves.

    Parameters
    ----------
    events, noise : ndarray, shape (n,), float64
        Raw log10 K of each class.

    Notes
    -----
    The likelihood ratio in bins of raw log10 K, made monotone by pooling adjacent violators (Ayer
    et al. 1955, Ann. Math. Stat. 26, 641). Bins with fewer than `FEWEST` of either keep
    their raw value; above the last that has enough, less by what was too much there, as a
    difference or as a factor.

    Raises
    ------
    ValueError
        If either class is empty.
    """
    if not len(events) or not len(noise):
        raise ValueError("a recalibration needs events and noise curves")
    e, m = (np.histogram(np.clip(v, STEPS[0], STEPS[-1]), STEPS)[0] for v in (events, noise))
    raw = (STEPS[:-1] + STEPS[1:]) / 2
    both = np.flatnonzero((e >= FEWEST) & (m >= FEWEST))
    target = raw.copy()
    if len(both):
        ratio = np.log10(e[both] / len(events)) - np.log10(m[both] / len(noise))
        ratio = _rising(ratio, (e[both] + m[both]).astype(float))
        inside = slice(both[0], both[-1] + 1)
        target[inside] = np.interp(raw[inside], raw[both], ratio)
        target[: both[0]] = np.minimum(raw[: both[0]], ratio[0])
        target[both[-1] + 1 :] = _beyond(raw[both[-1] + 1 :], raw[both[-1]], ratio[-1])
    # Each knot stays below the limit of the knot before it, so the line between them does too.
    limit = _supported(noise, np.r_[-np.inf, raw[:-1]])
    target = np.minimum(np.maximum.accumulate(target), limit)
    return Recalibration(tuple(raw.tolist()), tuple(target.tolist()), len(noise))


def _beyond(raw: Floats, last_raw: float, last: float) -> Floats:
    """Raw values above the last that is known: if that was too high, so are they, or more."""
    shifted = raw + min(last - last_raw, 0.0)
    scaled = raw * min(last / last_raw, 1.0) if last_raw > 0 else raw
    return np.maximum(np.minimum(shifted, scaled), last)


def _supported(noise: Floats, at: Floats) -> Floats:
    """log10 of the largest k for which the noise seen supports P(K >= k) <= 1/k, at raw values."""
    counts = len(noise) - np.searchsorted(np.sort(noise), at)
    return -np.log10([clopper_pearson(int(c), len(noise), 0.90)[1] for c in counts])


def _rising(values: Floats, weights: Floats) -> Floats:
    """The nearest values, by weighted squares, that never fall."""
    pools: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v1, w1, n1), (v2, w2, n2) = pools[-2:]
            pools[-2:] = [[(v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2]]
    return np.concatenate([np.full(int(n), v) for v, _, n in pools])
