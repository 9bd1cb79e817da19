"""What the picture of a light curve shows: all sources as one of them would see the event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.curves import Magnification, model_curves
from broker_filter.alerts.parts import FitQuality
from broker_filter.types import FloatArray

__all__ = ["ShownCurve", "bulk_limits", "shown_curve"]

SEEN_SHARE = 0.02
"""Least f_s of a source for its points to be moved to where another source would see them: below,
their errors would fill the picture."""

GRID = 400
REACH = 8.0  # of the picture, in tE around the peak, where the light curve is longer

AROUND_DAYS = 2.0  # at least, on either side of the peak of an event that is over


@dataclass(frozen=True, slots=True)
class ShownCurve:
    """Points and curves in flux of one source, in units of its baseline.

    Parameters
    ----------
    flux, sigma : ndarray, shape (n,), float64
        Of each epoch.
    residual : ndarray, shape (n,), float64
        Flux less that of the curve, in units of sigma.
    limits : tuple of two floats, MJD TAI
        What the picture shows.
    time : ndarray, shape (m,), float64, MJD TAI
        Of the curves.
    curve, low, high : ndarray, shape (m,), float64
        The curve of maximum likelihood where there is a fit, else the median of the posterior's
        curves; and their 68 % interval at each time.
    baseline : float or None, nJy
        Flux of the quiet star in that source; None where there are no magnitudes.
    """

    flux: FloatArray
    sigma: FloatArray
    residual: FloatArray
    limits: tuple[float, float]
    time: FloatArray
    curve: FloatArray
    low: FloatArray
    high: FloatArray
    baseline: float | None


def shown_curve(alert: Alert, magnify: Magnification) -> ShownCurve:
    """The points and curves of an alert."""
    limits, time = _limits(alert), _grid(alert)
    flux, sigma = alert.flux.astype(np.float64), alert.sigma.astype(np.float64)
    low, median, high = np.quantile(
        model_curves(alert.samples, time - alert.window_start_mjd_tai, magnify),
        (0.16, 0.5, 0.84),
        axis=0,
    )
    fit, source, baseline = alert.fit, alert.source, alert.baseline_flux
    if fit is not None and source is not None:
        fitted = _Fitted.of(alert, fit, source)
        flux, sigma = fitted.as_main(flux, sigma)
        curve = fitted.model(time, magnify, main=True)
        residual = (alert.flux - fitted.model(alert.mjd_tai, magnify)) / alert.sigma
        baseline = fitted.baseline_njy
    else:
        days = alert.mjd_tai - alert.window_start_mjd_tai
        curve = median
        residual = (flux - np.median(model_curves(alert.samples, days, magnify), axis=0)) / sigma
    return ShownCurve(flux, sigma, residual, limits, time, curve, low, high, baseline)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The most likely curve, as each epoch's source sees it.

    Parameters
    ----------
    lens : ndarray, shape (1, 5), float64
        Columns `PARAMETERS`, t0 in MJD TAI and f_s 1.
    f_s, baseline : ndarray, shape (n,), float64
        Of each epoch's source.
    main_f_s : float
        Of the source that says most.
    baseline_njy : float or None
        Of that source.
    """

    lens: FloatArray
    f_s: FloatArray
    baseline: FloatArray
    main_f_s: float
    baseline_njy: float | None

    @classmethod
    def of(cls, alert: Alert, fit: FitQuality, source: NDArray[np.int16]) -> _Fitted:
        best, main = fit.best, alert.sources[fit.main_source]
        f_s = np.array([one.best_f_s or 0.0 for one in alert.sources])
        baseline = np.array([one.best_baseline or 1.0 for one in alert.sources])
        njy = None if main.system is None else main.baseline_flux * baseline[fit.main_source]
        lens = np.array([[best.t0_mjd_tai, best.u0, np.log10(best.tE), np.log10(best.rho), 1.0]])
        return cls(lens, f_s[source], baseline[source], float(f_s[fit.main_source]), njy)

    def model(self, mjd: FloatArray, magnify: Magnification, *, main: bool = False) -> FloatArray:
        """Flux of the most likely curve: at the epochs, or anywhere in the main source's units."""
        excess = model_curves(self.lens, mjd, magnify)[0] - 1
        own = 1 + self.main_f_s * excess if main else self.baseline * (1 + self.f_s * excess)
        return np.asarray(own)

    def as_main(self, flux: FloatArray, sigma: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Flux and errors as the main source would see them.

        From F = g (1 + f_s (A - 1)) of each source follows A - 1, and from that the other's flux.
        """
        seen = np.minimum(self.f_s, self.main_f_s) >= SEEN_SHARE
        factor = np.where(seen, self.main_f_s / np.where(seen, self.f_s, 1.0), 1.0)
        return 1 + factor * (flux / self.baseline - 1), factor * sigma / self.baseline


def _limits(alert: Alert) -> tuple[float, float]:
    """From the first epoch to the end of the window; of an event that is over, around its peak."""
    start, end = alert.window_start_mjd_tai, alert.window_start_mjd_tai + alert.window_days
    t0, tE = alert.t0_mjd_tai, alert.interval("tE").median
    around = max(REACH * tE, AROUND_DAYS)
    if alert.state == "final" and t0 + around < alert.last_epoch_mjd_tai:
        return max(alert.first_epoch_mjd_tai, t0 - around), t0 + around
    first = min(start, max(alert.first_epoch_mjd_tai, t0 - REACH * tE))
    last = min(max(end, t0 + tE), alert.last_epoch_mjd_tai + alert.window_days)
    return first, max(end, last)


def _grid(alert: Alert) -> FloatArray:
    """Times of the curves, MJD TAI: even over the picture, and dense around the peak."""
    first, last = _limits(alert)
    near = alert.t0_mjd_tai + 2 * alert.interval("tE").median * np.linspace(-1, 1, GRID + 1)
    return np.union1d(np.linspace(first, last, GRID), np.clip(near, first, last))


def bulk_limits(values: FloatArray, curve: FloatArray) -> tuple[float, float]:
    """Limits of an axis that hold the curve and the bulk of the values, of which there may be none.

    One value in fifty, and one at least, does not count at either end, so that an outlier does not
    make the event invisible.

    Parameters
    ----------
    values : ndarray, shape (n,), float64
    curve : ndarray, shape (m,), float64
    """
    n = len(values)
    if not n:
        values, n = curve, len(curve)
    ordered = np.sort(values)[min(max(1, n // 50), (n - 1) // 2) :]
    bulk = ordered[: n - 2 * (n - len(ordered))]
    low = min(float(bulk.min()), float(curve.min()))
    high = max(float(bulk.max()), float(curve.max()))
    margin = max(0.08 * (high - low), 1e-6)
    return low - margin, high + margin
