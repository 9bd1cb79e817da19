"""Makes alerts from windows, fits and the network's samples.

Ids are made from the data alone, so that the same data filtered again give the same ids.
"""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.brightness import (
    MAGNITUDES,
    magnitudes,
    reduced_chi2,
    source_models,
    sources,
)
from broker_filter.alerts.curves import Magnification, model_curves
from broker_filter.alerts.fitted import draws_of, quality_of, samples_after, usable_fit
from broker_filter.alerts.lifecycle import EventState
from broker_filter.alerts.parts import (
    UNITS,
    CertifiedK,
    Noise,
    OtherBand,
    Rival,
    Verdict,
)
from broker_filter.types import (
    PARAMETERS,
    AlertState,
    Fit,
    FloatArray,
    NotFitted,
    StarEpochs,
    StarId,
    WindowBatch,
)

__all__ = [
    "Common",
    "Evaluation",
    "ProcessingTimes",
    "Provenance",
    "alert_id",
    "build_alert",
    "event_id",
    "event_probability",
    "refitted",
]

FEW_SAMPLES = 20
"""Effective samples below which the probability of an event rests on a lower bound of K."""

JD_MINUS_MJD = 2400000.5

_NAMESPACE = uuid.UUID("5e0f7c1d-64d8-4c55-9c7d-0c2f6b1f7a31")


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
    """What one evaluation of a window found, apart from the network's samples.

    Parameters
    ----------
    event, state : EventState, AlertState
        As `broker_filter.alerts.lifecycle.decide` returned them.
    log10_k : float
        Of the network.
    certified : CertifiedK, optional
    other_bands : tuple of OtherBand
    fit : Fit or NotFitted, optional
        Of ``epochs``, or of those of an earlier alert that ``best_constrained`` names; the fit's
        samples are the alert's, and the network's stand beside.
    epochs : StarEpochs, optional
        Photometry of the whole event; that of the window if left out.
    best_constrained : UUID, optional
        Earlier alert from which the fit is repeated.
    rivals, verdict, noise : optional
        What else was found.
    log10_k_lookalikes : float, optional
        Of the network, for microlensing against variable stars.
    """

    event: EventState
    state: AlertState
    log10_k: float
    certified: CertifiedK | None = None
    other_bands: tuple[OtherBand, ...] = ()
    fit: Fit | NotFitted | None = None
    epochs: StarEpochs | None = None
    best_constrained: uuid.UUID | None = None
    rivals: tuple[Rival, ...] = ()
    verdict: Verdict | None = None
    noise: Noise | None = None
    log10_k_lookalikes: float | None = None


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
    # JSON keeps the star 7 apart from the star "7", and no star's name can forge a separator.
    return uuid.uuid5(_NAMESPACE, json.dumps(parts))


def event_probability(log10_k: float, prior_odds: float) -> float:
    """K pi / (1 + K pi), without overflow for any K; ``prior_odds`` = pi > 0."""
    log_odds = log10_k * math.log(10) + math.log(prior_odds)
    small = math.exp(-abs(log_odds))
    return (1.0 if log_odds >= 0 else small) / (1.0 + small)


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
        Of the network, columns `PARAMETERS`.
    times : ProcessingTimes
    common : Common

    Raises
    ------
    ValueError
        ``samples`` has another shape or holds values that are not finite.
    """
    _check(samples, batch.star[row])
    epochs = _seen(batch.epochs(row) if found.epochs is None else found.epochs)
    fit, not_fitted = usable_fit(found.fit)
    start = float(batch.t_start[row])
    own = samples.astype(np.float64)
    drawn = own if fit is None else samples_after(fit, start)
    return Alert(
        log10_k_threshold=float(common.threshold),
        prior_odds=float(common.prior_odds),
        p_event=event_probability(_claimed(found), common.prior_odds),
        posterior_from="network" if fit is None else "fit",
        network=None if fit is None else draws_of(own, start),
        fit=None if fit is None else quality_of(fit, epochs),
        not_fitted=not_fitted,
        **_found(found),
        **_ids(batch, row, found, common.provenance.model_id),
        **_star(batch, row),
        **_window(batch, row, epochs),
        **_posterior(batch, row, drawn),
        **_brightness(batch, row, epochs, drawn, fit, common.magnification),
        **_origin(common.provenance, times),
    )


def refitted(
    alert: Alert,
    batch: WindowBatch,
    row: int,
    epochs: StarEpochs,
    fit: Fit,
    left_out: tuple[int, ...],
    magnification: Magnification,
) -> Alert:
    """The same with a fit of all its epochs but some; as it is where either fit is not finite.

    K, certified or of the network, and the network's samples stay those of all epochs.

    Parameters
    ----------
    alert : Alert
        As `build_alert` made it.
    batch, row : WindowBatch, int
    epochs : StarEpochs
        All of them.
    fit : Fit
    left_out : tuple of int
        Rows of ``epochs``.
    magnification : Magnification
    """
    usable, _ = usable_fit(fit)
    if usable is None or alert.fit is None:
        return alert
    epochs, drawn = _seen(epochs), samples_after(fit, float(batch.t_start[row]))
    return replace(
        alert,
        fit=quality_of(fit, epochs, left_out),
        **_posterior(batch, row, drawn),
        **_brightness(batch, row, epochs, drawn, fit, magnification),
    )


def _check(samples: NDArray[np.floating[Any]], star: StarId) -> None:
    if samples.ndim != 2 or samples.shape[1] != len(PARAMETERS) or len(samples) < 2:
        raise ValueError(
            f"samples of shape {samples.shape}; expected (2 or more, {len(PARAMETERS)})"
        )
    if not np.isfinite(samples).all():
        raise ValueError(f"posterior samples of star {star!r} are not all finite")


def _seen(epochs: StarEpochs) -> StarEpochs:
    """The same without sources that have no epoch: their baseline may not be known."""
    present, source = np.unique(epochs.source, return_inverse=True)
    return replace(
        epochs,
        sources=tuple(epochs.sources[i] for i in present.tolist()),
        level=epochs.level[present],
        error=epochs.error[present],
        source=source.astype(np.int16),
    )


def _claimed(found: Evaluation) -> float:
    """log10 K on which the probability of an event rests."""
    certified = found.certified
    if certified is None:
        return found.log10_k
    unsure = certified.effective_sample_size < FEW_SAMPLES
    return certified.log10_k - (certified.log10_k_error if unsure else 0)


# Each of the following fills some fields of an alert.


def _found(found: Evaluation) -> dict[str, Any]:
    return {
        "state": found.state,
        "log10_k": float(found.log10_k),
        "certified": found.certified,
        "other_bands": found.other_bands,
        "best_constrained_alert_id": found.best_constrained,
        "rivals": found.rivals,
        "verdict": found.verdict,
        "noise": found.noise,
        "log10_k_lookalikes": found.log10_k_lookalikes,
    }


def _ids(batch: WindowBatch, row: int, found: Evaluation, model_id: str) -> dict[str, Any]:
    star = batch.survey[row], batch.star[row], batch.band[row]
    last_mjd = float(batch.mjd_tai[row, batch.n[row] - 1])
    return {
        "alert_id": alert_id(*star, last_mjd, model_id),
        "event_id": event_id(*star, found.event.opened_mjd, found.event.opened_by),
    }


def _star(batch: WindowBatch, row: int) -> dict[str, Any]:
    ra, dec = batch.coordinates[row] or (None, None)
    return {
        "star_id": batch.star[row],
        "ra": ra,
        "dec": dec,
        "survey": batch.survey[row],
        "band": batch.band[row],
    }


def _window(batch: WindowBatch, row: int, epochs: StarEpochs) -> dict[str, Any]:
    """The light curve, in units of the baselines, and what window it ends with."""
    baseline = float(batch.baseline[row])
    return {
        "window_start_mjd_tai": float(batch.t_start[row]),
        "n_epochs": len(epochs),
        "first_epoch_mjd_tai": float(epochs.mjd_tai[0]),
        "last_epoch_mjd_tai": float(batch.mjd_tai[row, batch.n[row] - 1]),
        "mjd_tai": epochs.mjd_tai.astype(np.float64),
        "flux": epochs.flux.astype(np.float32),
        "sigma": epochs.sigma.astype(np.float32),
        "source": epochs.source.astype(np.int16),
        "baseline_flux": None if batch.relative[row] else baseline,
        "baseline_relative_error": float(batch.baseline_err[row]) / baseline,
    }


def _posterior(batch: WindowBatch, row: int, samples: FloatArray) -> dict[str, Any]:
    """Samples and what sums them up."""
    draws = draws_of(samples, float(batch.t_start[row]))
    t0 = draws.summary[list(UNITS).index("t0")].median
    return {
        "parameters": draws.parameters,
        "samples": draws.samples,
        "summary": draws.summary,
        "covariance": draws.covariance,
        "t0_mjd_tai": t0,
        "t0_jd_tai": t0 + JD_MINUS_MJD,
        "days_to_peak": t0 - float(batch.mjd_tai[row, batch.n[row] - 1]),
    }


def _brightness(
    batch: WindowBatch,
    row: int,
    epochs: StarEpochs,
    samples: FloatArray,
    fit: Fit | None,
    magnification: Magnification,
) -> dict[str, Any]:
    """Fluxes and magnitudes, and how well the model fits the data."""
    relative = bool(batch.relative[row])
    start, last = float(batch.t_start[row]), float(batch.mjd_tai[row, batch.n[row] - 1])
    models = source_models(epochs, samples, fit)
    newest = models[_newest(epochs, batch.band[row])]
    fields: dict[str, Any] = {"sources": sources(epochs, models, relative=relative)}
    if relative:
        fields |= dict.fromkeys(MAGNITUDES)
    else:
        fields |= magnitudes(newest, last - start, magnification)
    if fit is not None:
        return fields | {"reduced_chi2": float(fit.chi2) / max(fit.degrees_of_freedom, 1)}
    curve = np.median(model_curves(samples, epochs.mjd_tai - start, magnification), axis=0)
    return fields | {"reduced_chi2": reduced_chi2(epochs.flux, epochs.sigma, curve)}


def _newest(epochs: StarEpochs, band: str) -> int:
    """The source of the last epoch of a band."""
    return int(epochs.source[epochs.of_band(band)][-1])


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
