"""The alert: what it holds, and how it is made from a window and its posterior.

An `Alert` is one record of ``schemas/alert``; `broker_filter.alerts.codec` writes it. Its ids
are made from the data alone, so that the same data filtered again give the same ids.
"""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from broker_filter.alerts.lifecycle import EventState
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.types import (
    PARAMETERS,
    AlertState,
    FloatArray,
    StarId,
    WindowBatch,
)

__all__ = [
    "QUANTILES",
    "UNITS",
    "Alert",
    "CertifiedK",
    "Interval",
    "Magnification",
    "OtherBand",
    "ProcessingTimes",
    "Provenance",
    "ab_magnitude",
    "alert_id",
    "build_alert",
    "event_id",
    "event_probability",
    "mjd_to_datetime",
    "model_curves",
]

UNITS = {"t0": "d", "u0": "einstein_radius", "tE": "d", "rho": "einstein_radius", "f_s": ""}
"""Parameters that an alert sums up, in this order, and their units."""

_MJD_ZERO = datetime(1858, 11, 17)
JD_MINUS_MJD = 2400000.5
CURVES = 200
"""How many models of a posterior stand for all of it, where light curves are computed."""

_NAMESPACE = uuid.UUID("5e0f7c1d-64d8-4c55-9c7d-0c2f6b1f7a31")
QUANTILES = {"median": 0.5, "p16": 0.16, "p84": 0.84, "p2_5": 0.025, "p97_5": 0.975}
"""Names of the quantiles in a summary."""


class Magnification(Protocol):
    """A(u, rho) of a finite source, such as `broker_filter.inference.lens.magnification`."""

    def __call__(self, u: FloatArray, rho: FloatArray, /) -> FloatArray:
        """Magnify; ``rho`` (Einstein radii) is broadcast against ``u`` (Einstein radii, u >= 0)."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Quantiles of one parameter's marginal posterior, in ``unit`` (t0 in MJD TAI)."""

    name: str
    unit: str
    median: float
    p16: float
    p84: float
    p2_5: float
    p97_5: float

    def rounded(self) -> tuple[str, str, str]:
        """Write the median, and how far the 68 % interval goes up and down, to two digits."""
        up, down = self.p84 - self.median, self.median - self.p16
        narrow = min(up, down)
        digits = min(6, max(0, 1 - math.floor(math.log10(narrow)))) if narrow > 0 else 6
        return f"{self.median:.{digits}f}", f"{up:.{digits}f}", f"{down:.{digits}f}"


@dataclass(frozen=True, slots=True)
class CertifiedK:
    """An unbiased estimate of K, its standard error in dex, and how it came about."""

    log10_k: float
    log10_k_error: float
    effective_sample_size: float
    look: int


@dataclass(frozen=True, slots=True)
class OtherBand:
    """What the network says of the same star in another band; last epoch in MJD TAI."""

    band: str
    log10_k: float
    n_epochs: int
    last_epoch_mjd_tai: float


@dataclass(frozen=True, slots=True)
class Provenance:
    """What evaluated the window: the model (and its window's length in days) and the software."""

    model_id: str
    model_sha256: str
    software_version: str
    window_days: float


@dataclass(frozen=True, slots=True)
class ProcessingTimes:
    """When the last epoch came, was evaluated, and became an alert: ms since 1970-01-01 UTC."""

    received_ms: int | None
    evaluated_ms: int
    created_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Alert:
    """One star whose light curve favours microlensing, with the posterior and the data behind it.

    The fields are those of the schema, whose docs say more.

    Parameters
    ----------
    alert_id, event_id : UUID
    state : "new", "update", "retraction" or "final"
    star_id : str or int
    ra, dec : float or None, degrees
    other_bands : tuple of OtherBand
    log10_k, log10_k_threshold : float
    certified : CertifiedK or None
    prior_odds, p_event : float
    parameters : tuple of str
        Columns of ``samples``.
    samples : ndarray, shape (S, P), float32
        As the flow gave them; t0 in days after ``window_start_mjd_tai``.
    summary : tuple of Interval
    covariance : ndarray, shape (3, 3), float64
        Of (t0, u0, tE), days and Einstein radii.
    t0_mjd_tai, t0_jd_tai : float, days
        Median t0; both TAI.
    source_magnitude, blend_magnitude, baseline_magnitude, magnitude_now : float or None, AB
    reduced_chi2 : float or None
    mjd_tai : ndarray, shape (n,), float64
    flux, sigma : ndarray, shape (n,), float32, units of the baseline
    baseline_flux : float or None, nJy
    baseline_relative_error : float
    received_ms, evaluated_ms, created_ms : int, ms since 1970 UTC
    """

    alert_id: uuid.UUID
    event_id: uuid.UUID
    state: AlertState
    star_id: StarId
    ra: float | None
    dec: float | None
    survey: str
    band: str
    other_bands: tuple[OtherBand, ...]
    log10_k: float
    log10_k_threshold: float
    certified: CertifiedK | None
    prior_odds: float
    p_event: float
    parameters: tuple[str, ...]
    samples: NDArray[np.float32]
    summary: tuple[Interval, ...]
    covariance: FloatArray
    t0_mjd_tai: float
    t0_jd_tai: float
    source_magnitude: float | None
    blend_magnitude: float | None
    baseline_magnitude: float | None
    magnitude_now: float | None
    reduced_chi2: float | None
    window_start_mjd_tai: float
    window_days: float
    n_epochs: int
    first_epoch_mjd_tai: float
    last_epoch_mjd_tai: float
    mjd_tai: FloatArray
    flux: NDArray[np.float32]
    sigma: NDArray[np.float32]
    baseline_flux: float | None
    baseline_relative_error: float
    model_id: str
    model_sha256: str
    software_version: str
    received_ms: int | None
    evaluated_ms: int
    created_ms: int

    @property
    def posterior(self) -> pd.DataFrame:
        """The samples: columns t0 (MJD TAI), u0, tE (d), rho, f_s, log10_tE, log10_rho."""
        return pd.DataFrame(_physical(self.samples, self.window_start_mjd_tai, self.parameters))

    @property
    def light_curve(self) -> pd.DataFrame:
        """The window's photometry: columns mjd_tai, flux and sigma (in units of the baseline)."""
        return pd.DataFrame({"mjd_tai": self.mjd_tai, "flux": self.flux, "sigma": self.sigma})

    def interval(self, name: str) -> Interval:
        """Quantiles of the parameter called t0, u0, tE, rho or f_s."""
        return next(entry for entry in self.summary if entry.name == name)


def alert_id(
    survey: str, star: StarId, band: str, last_epoch_mjd: float, model_id: str
) -> uuid.UUID:
    """UUIDv5 of one star, band, last epoch (MJD TAI, to 1e-8 d) and model."""
    return _identify("alert", survey, star, band, f"{last_epoch_mjd:.8f}", model_id)


def event_id(
    survey: str, star: StarId, band: str, first_alert_mjd: float, model_id: str
) -> uuid.UUID:
    """UUIDv5 of one event: as `alert_id`, with last epoch and model of the event's first alert."""
    return _identify("event", survey, star, band, f"{first_alert_mjd:.8f}", model_id)


def _identify(*parts: StarId) -> uuid.UUID:
    # JSON tells the star 7 from the star "7", and no separator can be forged by a star's name.
    return uuid.uuid5(_NAMESPACE, json.dumps(parts))


def event_probability(log10_k: float, prior_odds: float) -> float:
    """K pi / (1 + K pi), without overflow for any K; ``prior_odds`` = pi > 0."""
    log_odds = log10_k * math.log(10) + math.log(prior_odds)
    small = math.exp(-abs(log_odds))
    return (1.0 if log_odds >= 0 else small) / (1.0 + small)


def mjd_to_datetime(mjd: float) -> datetime:
    """Calendar date and time of an MJD, on the same clock (so without a time zone)."""
    return _MJD_ZERO + timedelta(days=mjd)


def ab_magnitude(flux_njy: float) -> float | None:
    """AB magnitude of a flux in nJy; None where the flux is not positive."""
    return AB_ZERO_POINT - 2.5 * math.log10(flux_njy) if flux_njy > 0 else None


def model_curves(
    samples: NDArray[np.floating[Any]],
    days: FloatArray,
    magnification: Magnification,
    curves: int = CURVES,
) -> FloatArray:
    """Light curves of the posterior's models.

    Parameters
    ----------
    samples : ndarray, shape (S, 5)
        Columns `PARAMETERS`; of more than ``curves`` samples, evenly spaced ones are taken.
    days : ndarray, shape (n,), float64
        Days after the window's start.
    magnification : Magnification

    Returns
    -------
    ndarray, shape (min(S, curves), n), float64
        F(t) = f_s A(u(t), rho) + 1 - f_s in units of the baseline, u^2 = u0^2 + ((t - t0)/tE)^2.
    """
    chosen = np.linspace(0, len(samples) - 1, min(len(samples), curves)).round().astype(np.int64)
    t0, u0, log10_tE, log10_rho, f_s = samples[chosen].astype(np.float64).T[:, :, None]
    u = np.hypot(u0, (days - t0) / 10**log10_tE)
    return np.asarray(1 + f_s * (magnification(u, 10**log10_rho) - 1))


def _physical(
    samples: NDArray[np.floating[Any]], window_start: float, names: tuple[str, ...] = PARAMETERS
) -> dict[str, FloatArray]:
    column = dict(zip(names, samples.astype(np.float64).T, strict=True))
    return {
        "t0": window_start + column["t0"],
        "u0": column["u0"],
        "tE": 10 ** column["log10_tE"],
        "rho": 10 ** column["log10_rho"],
        "f_s": column["f_s"],
        "log10_tE": column["log10_tE"],
        "log10_rho": column["log10_rho"],
    }


def _interval(name: str, values: FloatArray) -> Interval:
    quantiles = np.quantile(values, list(QUANTILES.values())).tolist()
    return Interval(name, UNITS[name], **dict(zip(QUANTILES, quantiles, strict=True)))


def build_alert(
    batch: WindowBatch,
    row: int,
    *,
    event: EventState,
    state: AlertState,
    log10_k: float,
    threshold: float,
    prior_odds: float,
    samples: NDArray[np.floating[Any]],
    magnification: Magnification,
    provenance: Provenance,
    times: ProcessingTimes,
    certified: CertifiedK | None = None,
    other_bands: tuple[OtherBand, ...] = (),
) -> Alert:
    """Make the alert of one window.

    Parameters
    ----------
    batch, row : WindowBatch, int
        The window.
    event, state : EventState, AlertState
        As `broker_filter.alerts.lifecycle.decide` returned them.
    log10_k, threshold : float
        Of the network; the threshold may be one of certified K.
    prior_odds : float
        pi > 0.
    samples : ndarray, shape (S, 5), S >= 2, float32 or float64
        Columns `PARAMETERS`.

    Raises
    ------
    ValueError
        ``samples`` has another shape or holds values that are not finite.
    """
    if samples.ndim != 2 or samples.shape[1] != len(PARAMETERS) or len(samples) < 2:
        raise ValueError(
            f"samples of shape {samples.shape}; expected (2 or more, {len(PARAMETERS)})"
        )
    if not np.isfinite(samples).all():
        raise ValueError(f"posterior samples of star {batch.star[row]!r} are not all finite")
    star, survey, band = batch.star[row], batch.survey[row], batch.band[row]
    n, start = int(batch.n[row]), float(batch.t_start[row])
    mjd, flux, sigma = batch.mjd_tai[row, :n], batch.flux[row, :n], batch.sigma[row, :n]
    columns = _physical(samples, start)
    summary = tuple(_interval(name, columns[name]) for name in UNITS)
    median = {entry.name: entry.median for entry in summary}
    model = np.median(model_curves(samples, mjd - start, magnification), axis=0)
    baseline = None if batch.relative[row] else float(batch.baseline[row])
    ra, dec = batch.coordinates[row] or (None, None)
    return Alert(
        alert_id=alert_id(survey, star, band, float(mjd[-1]), provenance.model_id),
        event_id=event_id(survey, star, band, event.opened_mjd, event.opened_by),
        state=state,
        star_id=star,
        ra=ra,
        dec=dec,
        survey=survey,
        band=band,
        other_bands=other_bands,
        log10_k=float(log10_k),
        log10_k_threshold=float(threshold),
        certified=certified,
        prior_odds=float(prior_odds),
        p_event=event_probability(log10_k if certified is None else certified.log10_k, prior_odds),
        parameters=PARAMETERS,
        samples=samples.astype(np.float32),
        summary=summary,
        covariance=np.cov([columns[name] for name in ("t0", "u0", "tE")]),
        t0_mjd_tai=median["t0"],
        t0_jd_tai=median["t0"] + JD_MINUS_MJD,
        source_magnitude=_magnitude(baseline, median["f_s"]),
        blend_magnitude=_magnitude(baseline, 1 - median["f_s"]),
        baseline_magnitude=_magnitude(baseline, 1.0),
        magnitude_now=_magnitude(baseline, float(model[-1])),
        reduced_chi2=_reduced_chi2(flux, sigma, model),
        window_start_mjd_tai=start,
        window_days=provenance.window_days,
        n_epochs=n,
        first_epoch_mjd_tai=float(mjd[0]),
        last_epoch_mjd_tai=float(mjd[-1]),
        mjd_tai=mjd.astype(np.float64),
        flux=flux.astype(np.float32),
        sigma=sigma.astype(np.float32),
        baseline_flux=baseline,
        baseline_relative_error=float(batch.baseline_err[row] / batch.baseline[row]),
        model_id=provenance.model_id,
        model_sha256=provenance.model_sha256,
        software_version=provenance.software_version,
        received_ms=times.received_ms,
        evaluated_ms=times.evaluated_ms,
        created_ms=times.created_ms,
    )


def _magnitude(baseline_njy: float | None, part: float) -> float | None:
    return None if baseline_njy is None else ab_magnitude(part * baseline_njy)


def _reduced_chi2(
    flux: NDArray[np.float32], sigma: NDArray[np.float32], model: FloatArray
) -> float | None:
    freedom = len(flux) - len(PARAMETERS)
    if freedom <= 0:
        return None
    return float((((flux - model) / sigma.astype(np.float64)) ** 2).sum()) / freedom
