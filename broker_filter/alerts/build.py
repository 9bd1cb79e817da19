"""Makes alerts from windows and their posteriors.

Ids are made from the data alone, so that the same data filtered again give the same ids.
"""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.alert import (
    QUANTILES,
    UNITS,
    Alert,
    CertifiedK,
    Interval,
    OtherBand,
    physical,
)
from broker_filter.alerts.lifecycle import EventState
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.types import PARAMETERS, AlertState, FloatArray, StarId, WindowBatch

__all__ = [
    "Common",
    "Evaluation",
    "Magnification",
    "ProcessingTimes",
    "Provenance",
    "ab_magnitude",
    "alert_id",
    "build_alert",
    "event_id",
    "event_probability",
    "model_curves",
]

JD_MINUS_MJD = 2400000.5

CURVES = 200
"""How many models of a posterior stand for all of it, where light curves are computed."""

_NAMESPACE = uuid.UUID("5e0f7c1d-64d8-4c55-9c7d-0c2f6b1f7a31")


class Magnification(Protocol):
    """A(u, rho) of a finite source, as in `broker_filter.inference.magnification`."""

    def __call__(self, u: FloatArray, rho: FloatArray, /) -> FloatArray:
        """Magnify; ``rho`` (Einstein radii) is broadcast against ``u`` (Einstein radii, u >= 0)."""
        ...


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


@dataclass(frozen=True, slots=True)
class Common:
    """What all alerts of one run have in common.

    Parameters
    ----------
    provenance : Provenance
    threshold : float
        log10 K of the network, or certified, from which on there is an event.
    prior_odds : float
        pi > 0, of an event in one window before any data.
    magnification : Magnification
        Forward model of the curves.
    """

    provenance: Provenance
    threshold: float
    prior_odds: float
    magnification: Magnification


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one evaluation of a window found, apart from its posterior.

    Parameters
    ----------
    event, state : EventState, AlertState
        As `broker_filter.alerts.lifecycle.decide` returned them.
    log10_k : float
        Of the network.
    certified : CertifiedK, optional
    other_bands : tuple of OtherBand
    """

    event: EventState
    state: AlertState
    log10_k: float
    certified: CertifiedK | None = None
    other_bands: tuple[OtherBand, ...] = ()


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


def build_alert(
    batch: WindowBatch,
    row: int,
    found: Evaluation,
    samples: NDArray[np.floating[Any]],
    times: ProcessingTimes,
    common: Common,
) -> Alert:
    """Make the alert of one window.

    Parameters
    ----------
    batch, row : WindowBatch, int
        The window.
    found : Evaluation
    samples : ndarray, shape (S, 5), S >= 2, float32 or float64
        Columns `PARAMETERS`.
    times : ProcessingTimes
    common : Common

    Raises
    ------
    ValueError
        ``samples`` has another shape or holds values that are not finite.
    """
    _check(samples, batch.star[row])
    model_id = common.provenance.model_id
    star, survey, band = batch.star[row], batch.survey[row], batch.band[row]
    last_mjd = float(batch.mjd_tai[row, batch.n[row] - 1])
    event, certified = found.event, found.certified
    log10_k = found.log10_k if certified is None else certified.log10_k
    return Alert(
        alert_id=alert_id(survey, star, band, last_mjd, model_id),
        event_id=event_id(survey, star, band, event.opened_mjd, event.opened_by),
        state=found.state,
        log10_k=float(found.log10_k),
        log10_k_threshold=float(common.threshold),
        certified=certified,
        other_bands=found.other_bands,
        prior_odds=float(common.prior_odds),
        p_event=event_probability(log10_k, common.prior_odds),
        **_star(batch, row),
        **_window(batch, row),
        **_posterior(samples, float(batch.t_start[row])),
        **_brightness(batch, row, samples, common.magnification),
        **_origin(common.provenance, times),
    )


def _check(samples: NDArray[np.floating[Any]], star: StarId) -> None:
    if samples.ndim != 2 or samples.shape[1] != len(PARAMETERS) or len(samples) < 2:
        raise ValueError(
            f"samples of shape {samples.shape}; expected (2 or more, {len(PARAMETERS)})"
        )
    if not np.isfinite(samples).all():
        raise ValueError(f"posterior samples of star {star!r} are not all finite")


# Each of the following fills some fields of an alert.


def _star(batch: WindowBatch, row: int) -> dict[str, Any]:
    ra, dec = batch.coordinates[row] or (None, None)
    return {
        "star_id": batch.star[row],
        "ra": ra,
        "dec": dec,
        "survey": batch.survey[row],
        "band": batch.band[row],
    }


def _window(batch: WindowBatch, row: int) -> dict[str, Any]:
    """The light curve of the window, in units of the baseline, and what that is."""
    n = int(batch.n[row])
    mjd = batch.mjd_tai[row, :n]
    return {
        "window_start_mjd_tai": float(batch.t_start[row]),
        "n_epochs": n,
        "first_epoch_mjd_tai": float(mjd[0]),
        "last_epoch_mjd_tai": float(mjd[-1]),
        "mjd_tai": mjd.astype(np.float64),
        "flux": batch.flux[row, :n].astype(np.float32),
        "sigma": batch.sigma[row, :n].astype(np.float32),
        "baseline_flux": _baseline(batch, row),
        "baseline_relative_error": float(batch.baseline_err[row] / batch.baseline[row]),
    }


def _posterior(samples: NDArray[np.floating[Any]], start: float) -> dict[str, Any]:
    """Samples and what sums them up."""
    columns = physical(samples, start)
    summary = tuple(_interval(name, columns[name]) for name in UNITS)
    t0 = summary[list(UNITS).index("t0")].median
    return {
        "parameters": PARAMETERS,
        "samples": samples.astype(np.float32),
        "summary": summary,
        "covariance": np.cov([columns[name] for name in ("t0", "u0", "tE")]),
        "t0_mjd_tai": t0,
        "t0_jd_tai": t0 + JD_MINUS_MJD,
    }


def _brightness(
    batch: WindowBatch,
    row: int,
    samples: NDArray[np.floating[Any]],
    magnification: Magnification,
) -> dict[str, Any]:
    """Magnitudes, and how well the median of the posterior's curves fits the data."""
    n = int(batch.n[row])
    days = batch.mjd_tai[row, :n] - float(batch.t_start[row])
    curve = np.median(model_curves(samples, days, magnification), axis=0)
    baseline, f_s = _baseline(batch, row), _median_f_s(samples)
    return {
        "source_magnitude": _magnitude(baseline, f_s),
        "blend_magnitude": _magnitude(baseline, 1 - f_s),
        "baseline_magnitude": _magnitude(baseline, 1.0),
        "magnitude_now": _magnitude(baseline, float(curve[-1])),
        "reduced_chi2": _reduced_chi2(batch.flux[row, :n], batch.sigma[row, :n], curve),
    }


def _median_f_s(samples: NDArray[np.floating[Any]]) -> float:
    return float(np.quantile(samples[:, PARAMETERS.index("f_s")].astype(np.float64), 0.5))


def _origin(provenance: Provenance, times: ProcessingTimes) -> dict[str, Any]:
    return {
        "model_id": provenance.model_id,
        "model_sha256": provenance.model_sha256,
        "software_version": provenance.software_version,
        "window_days": provenance.window_days,
        "received_ms": times.received_ms,
        "evaluated_ms": times.evaluated_ms,
        "created_ms": times.created_ms,
    }


def _interval(name: str, values: FloatArray) -> Interval:
    quantiles = np.quantile(values, list(QUANTILES.values())).tolist()
    return Interval(name, UNITS[name], **dict(zip(QUANTILES, quantiles, strict=True)))


def _baseline(batch: WindowBatch, row: int) -> float | None:
    """Baseline in nJy; None where the photometry came in units of it."""
    return None if batch.relative[row] else float(batch.baseline[row])


def _magnitude(baseline_njy: float | None, part: float) -> float | None:
    return None if baseline_njy is None else ab_magnitude(part * baseline_njy)


def _reduced_chi2(
    flux: NDArray[np.float32], sigma: NDArray[np.float32], model: FloatArray
) -> float | None:
    freedom = len(flux) - len(PARAMETERS)
    if freedom <= 0:
        return None
    return float((((flux - model) / sigma.astype(np.float64)) ** 2).sum()) / freedom
