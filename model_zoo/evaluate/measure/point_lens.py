"""A point lens by least squares, as surveys fit every star that may have an event."""

from __future__ import annotations

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
WORTH_IT: Final = 0.1 * LEAST_DELTA_CHI2
"""A star that the best start explains by less is left at it."""
NEAR: Final = {"ftol": 1e-4, "xtol": 1e-4, "max_nfev": 20}
"""When a fit is near enough to its best: chi2 is within a thousandth of it."""
PARAMETERS: Final = 4
"""t0, u0, tE and f_s; the baseline is known."""
EXACT: Final = 1e-6
"""Least error of a baseline."""
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


def fit_point_lens(
    t: FloatArray, flux: FloatArray, sigma: FloatArray, baseline_error: float
) -> PointLens:
    """Fit ``g + f_s (A(t) - 1)``, f_s >= 0, from the best lens that a matched filter finds.

    The baseline g is 1 within its error, as the other rules on the same windows have it. Were it
    free, a star that is bright all through a window would count as a constant one.

    Parameters
    ----------
    t : ndarray, shape (n,), float64, days
        In order.
    flux, sigma : ndarray, shape (n,), float64
    baseline_error : float
        1-sigma.
    """
    days, level, error = torch.from_numpy(np.stack([t, flux, sigma]))
    b = max(baseline_error, EXACT)
    tried = LensScan().lenses(days, level, error, b).numpy()
    starts = [np.array([t0, log_t_einstein, u0]) for t0, u0, log_t_einstein, _ in tried]
    # The baseline is one more epoch, on which no lens shines.
    y, one = np.append(flux / sigma, 1 / b), np.append(1 / sigma, 1 / b)

    def left(parameters: FloatArray) -> FloatArray:
        return _residuals(np.append(_excess(parameters, t) / sigma, 0.0), y, one)

    constant = float(np.square(_without(y, one)).sum())
    chi2 = np.array([np.square(left(start)).sum() for start in starts])
    best = float(chi2.min())
    if constant - best >= WORTH_IT:
        span = float(t[-1] - t[0])
        low = np.array([t[0] - span, np.log10(SHORTEST), LEAST_U0])
        high = np.array([t[-1] + span, np.log10(5 * span), LARGEST_U0])
        start = np.clip(starts[int(chi2.argmin())], low + 1e-9, high - 1e-9)
        found = least_squares(left, start, bounds=(low, high), x_scale=(0.1, 0.1, 0.1), **NEAR)
        best = min(best, 2 * float(found.cost))
    return PointLens(constant - best, best / max(len(t) - PARAMETERS, 1))


def point_lens_of(batch: WindowBatch, row: int) -> PointLens:
    """The best point lens of the epochs of one window, each in units of its source's baseline."""
    n = int(batch.n[row])
    flux, sigma = (each[row, :n].astype(np.float64) for each in (batch.flux, batch.sigma))
    days = batch.mjd_tai[row, :n] - batch.t_start[row]
    return fit_point_lens(days, flux, sigma, float(batch.baseline_error[row]))


def _excess(parameters: FloatArray, t: FloatArray) -> FloatArray:
    """A - 1."""
    t0, log_t_einstein, u0 = parameters
    u2 = u0**2 + np.square((t - t0) / 10**log_t_einstein)
    return np.asarray((u2 + 2) / np.sqrt(u2 * (u2 + 4)) - 1)


def _without(values: FloatArray, one: FloatArray) -> FloatArray:
    """What the best baseline leaves over; all in errors."""
    return np.asarray(values - one * (one @ values) / (one @ one))


def _residuals(excess: FloatArray, y: FloatArray, one: FloatArray) -> FloatArray:
    """What the best baseline and f_s leave over; all in errors."""
    rest, signal = _without(y, one), _without(excess, one)
    f_s = max(float(signal @ rest) / max(float(signal @ signal), 1e-300), 0.0)
    return np.asarray(rest - f_s * signal)
