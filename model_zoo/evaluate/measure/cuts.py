"""Hard cuts of the literature, with oracle parameters, on simulated curves.

Each cut asks for a statistic and for N consecutive epochs more than 3 sigma above the baseline:

- Johnson et al. 2020, AJ 160, 123: delta chi2 >= 300 against a flat curve, N >= 6;
- Sumi et al. 2011, Nature 473, 349: chi3+ >= 80, N >= 3;
- Mroz et al. 2017, Nature 548, 183: chi3+ >= 32, N >= 3;

where chi3+ is the sum of (F - baseline) / sigma over such a run. The true parameters of
events are given, as in Smyth et al. 2026: delta chi2 is that of the true model, and the
baseline is fitted beside it, with its error as prior. Noise has no true parameters: it is searched
with a bank of events whose source flux is free, and the best fit counts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.inference.network_input import split_padding
from model_zoo.simulate.curves import Curves, signal_of
from model_zoo.simulate.pattern import GRID, Pattern

__all__ = [
    "CUTS",
    "LONGEST_RUN",
    "Cut",
    "CutStatistics",
    "as_pattern",
    "event_statistics",
    "join_statistics",
    "noise_statistics",
    "tune",
]

HIGH = 3.0
LONGEST_RUN = 12


@dataclass(frozen=True, slots=True)
class CutStatistics:
    """What the cuts look at, for n curves.

    Parameters
    ----------
    delta_chi2 : ndarray, shape (n,), float64
        chi2 of a flat curve minus that of the lensing model, each with its best baseline.
    run : ndarray, shape (n,), int64
        Most consecutive epochs above 3 sigma.
    chi3 : ndarray, shape (n, LONGEST_RUN), float64
        In column N - 1 the largest chi3+ of all runs of at least N epochs; 0 without one.
    snr : ndarray, shape (n,), float64
        Matched-filter signal-to-noise of the true model, the baseline's error marginalised; 0 for
        noise.
    """

    delta_chi2: NDArray[np.float64]
    run: NDArray[np.int64]
    chi3: NDArray[np.float64]
    snr: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cut:
    """One hard cut.

    Parameters
    ----------
    statistic : str
        ``delta_chi2`` or ``chi3``.
    threshold : float
        Least value of the statistic.
    run : int
        Fewest consecutive epochs above 3 sigma, 1 to `LONGEST_RUN`.
    """

    statistic: str
    threshold: float
    run: int

    def values(self, measured: CutStatistics) -> NDArray[np.float64]:
        """The statistic where a run is long enough, else minus infinity; shape (n,)."""
        chi3 = self.statistic == "chi3"
        value = measured.chi3[:, self.run - 1] if chi3 else measured.delta_chi2
        return np.where(measured.run >= self.run, value, -np.inf)

    def passes(self, measured: CutStatistics) -> NDArray[np.bool_]:
        """Which curves pass, shape (n,)."""
        return self.values(measured) >= self.threshold


CUTS = {
    "johnson_2020": Cut("delta_chi2", 300.0, 6),
    "sumi_2011": Cut("chi3", 80.0, 3),
    "mroz_2017": Cut("chi3", 32.0, 3),
}
"""The cuts as published."""


def event_statistics(curves: Curves, *, days: float) -> CutStatistics:
    """The cuts' statistics of events whose true parameters are given.

    Parameters
    ----------
    curves : Curves
        Not thinned, so that each epoch counts by itself.
    days : float
        Length of the window.
    """
    pattern, residual, weight = _epochs(curves, days)
    signal = signal_of(curves.theta, pattern).double()
    b2 = _variance(curves)
    flat = _Sums(_sum(weight), _sum(weight * residual), b2)
    ws, wss = _sum(weight * signal), _sum(weight * signal**2)
    delta_chi2, baseline = _fit(flat, ws, wss, _sum(weight * signal * residual))
    run, chi3 = _runs((1 + residual - baseline) * weight.sqrt())
    # What the filter loses that may not take the baseline's error for signal.
    lost = b2 * ws**2 / (1 + b2 * flat.w)
    snr = (wss - lost).clamp(min=0).sqrt()
    return CutStatistics(delta_chi2[:, 0].numpy(), run.numpy(), chi3.numpy(), snr[:, 0].numpy())


def noise_statistics(curves: Curves, bank: Tensor, *, days: float) -> CutStatistics:
    """The cuts' statistics of noise: the best delta chi2 that a fit of any model finds.

    Parameters
    ----------
    curves : Curves
        Not thinned.
    bank : Tensor, shape (T, 5)
        Parameters of the models; f_s is fitted, and may be any positive number.
    days : float
        Length of the window.
    """
    pattern, residual, weight = _epochs(curves, days)
    b2 = _variance(curves)
    flat = _Sums(_sum(weight), _sum(weight * residual), b2)
    # Epochs lie on the grid of the patterns, so each model is needed only once.
    place = (pattern.t.nan_to_num(posinf=0) / days * (GRID - 1)).round().long()
    on_grid = weight.new_zeros(len(weight), GRID)
    w, wr = (on_grid.scatter_add(1, place, values) for values in (weight, weight * residual))
    model = _on_grid(bank, days).T
    ws, wss, wrs = w @ model, w @ model**2, wr @ model
    flat_gain = b2 / (1 + b2 * flat.w)
    scale = ((wrs - flat_gain * ws * flat.wr) / (wss - flat_gain * ws**2)).clamp(min=0)
    scale = scale.nan_to_num(0.0, 0.0, 0.0)  # a model may leave no trace in a curve's epochs
    delta_chi2, _ = _fit(flat, scale * ws, scale**2 * wss, scale * wrs)
    zero = torch.zeros_like(flat.w)
    _, baseline = _fit(flat, zero, zero, zero)
    run, chi3 = _runs((1 + residual - baseline) * weight.sqrt())
    return CutStatistics(
        delta_chi2.amax(1).numpy(), run.numpy(), chi3.numpy(), np.zeros(len(curves))
    )


def join_statistics(parts: list[CutStatistics]) -> CutStatistics:
    """One `CutStatistics` of several."""
    names = [field.name for field in fields(CutStatistics)]
    return CutStatistics(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def tune(cut: Cut, events: CutStatistics, noise: CutStatistics, false_alarms: int) -> Cut:
    """The threshold and the run that find most events for at most so many false alarms.

    Both are swept: every run, and for each the lowest threshold that noise allows. Of equally good
    cuts the one with the shortest run is taken.

    Parameters
    ----------
    cut : Cut
        Whose statistic is kept.
    events, noise : CutStatistics
        Validation sets.
    false_alarms : int
        Most curves of ``noise`` that may pass.
    """
    candidates = [
        Cut(cut.statistic, _lowest_threshold(cut.statistic, run, noise, false_alarms), run)
        for run in range(1, LONGEST_RUN + 1)
    ]
    return max(candidates, key=lambda candidate: int(candidate.passes(events).sum()))


def as_pattern(x: Tensor, *, days: float) -> Pattern:
    """The observing pattern of network input ``x``, shape (B, L, 3), padded at its end."""
    x, valid = split_padding(x)
    n = valid.sum(1)
    t = torch.where(valid, (x[..., 0] + 1) * (days / 2), torch.inf)
    sigma = torch.where(valid, x[..., 2], 1.0)
    level = torch.where(valid, sigma, 0).sum(1) / n.clamp(min=1)
    return Pattern.of(t, sigma, n, level)


def _lowest_threshold(statistic: str, run: int, noise: CutStatistics, false_alarms: int) -> float:
    """Just above the highest noise that must not pass, and never below zero."""
    values = np.sort(Cut(statistic, 0.0, run).values(noise))[::-1]
    highest = values[false_alarms] if false_alarms < len(values) else -np.inf
    return float(np.nextafter(max(highest, 0.0), np.inf))


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of each curve sum w and sum w r, with w = 1 / sigma^2 and r = F - 1, and b^2; (B, 1)."""

    w: Tensor
    wr: Tensor
    b2: Tensor


def _fit(flat: _Sums, ws: Tensor, wss: Tensor, wrs: Tensor) -> tuple[Tensor, Tensor]:
    """Delta chi2 of models g (1 + s) against g, each with its best g ~ N(1, b^2), and that g.

    ``ws``, ``wss`` and ``wrs``, shape (B, T), are the sums of w s, w s^2 and w r s. With p the sum
    of w (r - s) (1 + s) and q that of w (1 + s)^2, the best g - 1 is b^2 p / (1 + b^2 q), and chi2,
    the prior's share included, is the sum of w (r - s)^2 less b^2 p^2 / (1 + b^2 q).
    """
    p, q = flat.wr + wrs - ws - wss, flat.w + 2 * ws + wss
    gain, flat_gain = flat.b2 / (1 + flat.b2 * q), flat.b2 / (1 + flat.b2 * flat.w)
    delta_chi2 = 2 * wrs - wss + gain * p**2 - flat_gain * flat.wr**2
    return delta_chi2, 1 + gain * p


def _epochs(curves: Curves, days: float) -> tuple[Pattern, Tensor, Tensor]:
    """Pattern, F - 1 and 1 / sigma^2 of curves, the latter two float64 and 0 in the padding."""
    pattern, valid = as_pattern(curves.x, days=days), split_padding(curves.x)[1]
    residual = torch.where(valid, curves.x[..., 1].double() - 1, 0.0)
    return pattern, residual, torch.where(valid, pattern.sigma.double() ** -2, 0.0)


def _variance(curves: Curves) -> Tensor:
    return curves.baseline_error.double()[:, None] ** 2


def _sum(values: Tensor) -> Tensor:
    return values.sum(1, keepdim=True)


@lru_cache(maxsize=1)
def _on_grid(bank: Tensor, days: float) -> Tensor:
    """F - 1 of each model of the bank on the grid of the patterns, shape (T, GRID), float64.

    Kept for the next call with the same bank, which is known by its identity.
    """
    t = torch.linspace(0, days, GRID).expand(len(bank), GRID)
    one = torch.ones(len(bank))
    return signal_of(bank, Pattern.of(t, torch.ones_like(t), one * GRID, one)).double()


def _runs(above: Tensor) -> tuple[Tensor, Tensor]:
    """Longest run above 3 sigma, shape (B,), and chi3+ by least length, shape (B, LONGEST_RUN).

    Each epoch that is not high opens a new run, which the high ones after it join.
    """
    high = above > HIGH
    which = (~high).cumsum(1)
    shape = (above.shape[0], above.shape[1] + 1)
    length = high.new_zeros(shape, dtype=torch.long).scatter_add(1, which, high.long())
    total = above.new_zeros(shape).scatter_add(1, which, torch.where(high, above, 0.0))
    chi3 = [torch.where(length >= n, total, 0.0).amax(1) for n in range(1, LONGEST_RUN + 1)]
    return length.amax(1), torch.stack(chi3, 1)
