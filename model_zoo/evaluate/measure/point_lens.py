"""A point lens by least squares, as surveys fit every star that may have an event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from scipy.optimize import least_squares

from broker_filter.inference.matched_filter import LensScan
from broker_filter.types import FloatArray, WindowBatch

__all__ = ["GOOD_CHI2", "LEAST_DELTA_CHI2", "PointLens", "fit_point_lens", "point_lens_of"]

LEAST_DELTA_CHI2: Final = 500.0
"""By how much chi2 has to fall below that of a constant star."""
GOOD_CHI2: Final = 2.0
"""Largest chi2 per degree of freedom of a fit that counts as good."""
STARTS: Final = 3
WORTH_IT: Final = 0.1 * LEAST_DELTA_CHI2
"""A star that the best start explains by less is left at it."""
PARAMETERS: Final = 5
FREE: Final = 1.0
"""Error of a baseline that is as good as unknown."""
SHORTEST: Final = 0.02  # days
LEAST_U0, LARGEST_U0 = 1e-3, 2.0


@dataclass(frozen=True, slots=True)
class PointLens:
    """The best point lens of some epochs.

    Parameters
    ----------
    delta_chi2 : float
        chi2 of a constant star less that of the lens.
    chi2 : float
        Of the lens, per degree of freedom.
    """

    delta_chi2: float
    chi2: float


def fit_point_lens(t: FloatArray, flux: FloatArray, sigma: FloatArray) -> PointLens:
    """Fit ``f_b + f_s A(t)``, f_s >= 0, from a few starts that a matched filter finds.

    Parameters
    ----------
    t : ndarray, shape (n,), float64, days
        In order.
    flux, sigma : ndarray, shape (n,), float64
    """
    days, level, error = torch.from_numpy(np.stack([t, flux, sigma]))
    tried = LensScan().lenses(days, level, error, FREE).numpy()
    starts = [np.array([t0, log_t_einstein, u0]) for t0, u0, log_t_einstein, _ in tried]

    def left(parameters: FloatArray) -> FloatArray:
        return _residuals(parameters, t, flux, sigma)

    constant = float(np.square(_residuals(None, t, flux, sigma)).sum())
    chi2 = np.array([np.square(left(start)).sum() for start in starts])
    best = float(chi2.min())
    if constant - best >= WORTH_IT:
        span = float(t[-1] - t[0])
        low = np.array([t[0] - span, np.log10(SHORTEST), LEAST_U0])
        high = np.array([t[-1] + span, np.log10(5 * span), LARGEST_U0])
        for which in _distinct(starts, chi2):
            start = np.clip(starts[which], low + 1e-9, high - 1e-9)
            found = least_squares(left, start, bounds=(low, high), x_scale=(0.1, 0.1, 0.1))
            best = min(best, 2 * float(found.cost))
    return PointLens(constant - best, best / max(len(t) - PARAMETERS, 1))


def point_lens_of(batch: WindowBatch, row: int) -> PointLens:
    """The best point lens of the epochs of one window, each in units of its source's baseline."""
    n = int(batch.n[row])
    flux, sigma = (each[row, :n].astype(np.float64) for each in (batch.flux, batch.sigma))
    return fit_point_lens(batch.mjd_tai[row, :n] - batch.t_start[row], flux, sigma)


def _residuals(
    parameters: FloatArray | None, t: FloatArray, flux: FloatArray, sigma: FloatArray
) -> FloatArray:
    """What the best f_b and f_s leave over, in errors; of a constant star without parameters."""
    y, one = flux / sigma, 1 / sigma
    rest = y - one * (one @ y) / (one @ one)
    if parameters is None:
        return rest
    t0, log_t_einstein, u0 = parameters
    u2 = u0**2 + np.square((t - t0) / 10**log_t_einstein)
    excess = ((u2 + 2) / np.sqrt(u2 * (u2 + 4)) - 1) / sigma
    excess -= one * (one @ excess) / (one @ one)
    f_s = max(float(excess @ rest) / max(float(excess @ excess), 1e-300), 0.0)
    return np.asarray(rest - f_s * excess)


def _distinct(starts: list[FloatArray], chi2: FloatArray) -> Iterable[int]:
    """The best starts that are not of the same time and duration."""
    chosen: list[int] = []
    for which in np.argsort(chi2, kind="stable").tolist():
        t_einstein = 10 ** starts[which][1]
        near = (abs(starts[which][0] - starts[other][0]) < t_einstein for other in chosen)
        if not any(near):
            chosen.append(which)
        if len(chosen) == STARTS:
            break
    return chosen
