"""The model of an event under the names that the microlensing targets MOP and rogue_db give it.

Times are JD in UTC, not corrected to the Sun; magnitudes are in the survey's system (AB). What an
alert does not say is left out, so that the target's own default stands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.parts import Source
from broker_filter.observe.text import printable
from broker_filter.photometry.times import MJD_ZERO, to_mjd_utc
from broker_filter.types import FloatArray

__all__ = ["MAGNITUDES_PER_E", "chi2_gain", "jd_utc", "lens", "target_fields", "target_name"]

_ERRORS: Final = ("t0", "u0", "tE", "rho")
MAGNITUDES_PER_E: Final = 2.5 / math.log(10)
"""Error of a magnitude for a relative error of 1 of the flux."""

_CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    "microlensing": ("Microlensing PSPL", "Microlensing stellar/planet"),
    "anomalous-lens": ("Microlensing binary", "Microlensing stellar/planet"),
    "flare": ("Stellar flare", "Stellar activity"),
    "outburst": ("Variable star", "Stellar variable"),
    "variable": ("Variable star", "Stellar variable"),
    "artefact": ("Artefact", "Artefact"),
    "unclear": ("Unknown", "Unclassified"),
}
"""Classification and category of a target, by our verdict."""


def jd_utc(mjd_tai: FloatArray | float) -> Any:  # noqa: ANN401  as what is given
    """JD in UTC of MJD in TAI: a float of a float, an array of an array."""
    jd = MJD_ZERO + to_mjd_utc(np.asarray(mjd_tai, dtype=np.float64))
    return float(jd) if jd.ndim == 0 else jd


def target_name(alert: Alert) -> str:
    """Survey and star, in at most 100 characters that print."""
    return printable(f"{alert.survey} {alert.star_id}", 100)


def lens(alert: Alert) -> dict[str, float]:
    """t0 (JD UTC), u0, tE (days) and rho with 1-sigma errors: medians, and half of 68 %."""
    fields: dict[str, float] = {}
    for name in _ERRORS:
        entry = alert.interval(name)
        fields[name] = jd_utc(entry.median) if name == "t0" else entry.median
        fields[f"{name}_error"] = (entry.p84 - entry.p16) / 2
    return fields


def target_fields(alert: Alert) -> dict[str, Any]:
    """All fields of a microlensing target that an alert fills."""
    verdict = "microlensing" if alert.verdict is None else alert.verdict.verdict
    classification, category = _CLASSES.get(verdict, _CLASSES["unclear"])
    last = jd_utc(alert.last_epoch_mjd_tai)
    fields = {
        "classification": classification,
        "category": category,
        **lens(alert),
        **_magnitudes(alert),
        # Rows and columns t0, u0, tE, in the form of MOP's own load_fit_covariance.
        "fit_covariance": {"covariance": json.dumps(alert.covariance.tolist())},
        "chi2": None if alert.fit is None else alert.fit.chi2,
        "red_chi2": alert.reduced_chi2,
        "last_fit": last,
        "latest_data_hjd": last,
        "mag_now": alert.magnitude_now,
        "mag_now_passband": alert.magnitude_band[:10],
    }
    return {name: value for name, value in fields.items() if value is not None}


def _magnitudes(alert: Alert) -> dict[str, float | None]:
    if alert.baseline_magnitude is None:
        return {}
    source_error, blend_error = _flux_errors(alert.newest_source)
    baseline = MAGNITUDES_PER_E * alert.baseline_relative_error
    return {
        "source_magnitude": alert.source_magnitude,
        "source_mag_error": source_error,
        "blend_magnitude": alert.blend_magnitude,
        "blend_mag_error": blend_error,
        "baseline_magnitude": alert.baseline_magnitude,
        "baseline_mag_error": baseline,
    }


def _flux_errors(source: Source | None) -> tuple[float | None, float | None]:
    """Errors in magnitudes of source and blend; None where they are not known."""
    if source is None or not source.source_flux or source.source_flux_error is None:
        return None, None
    error = MAGNITUDES_PER_E * source.source_flux_error / source.source_flux
    blend = source.blend_flux
    if not blend or blend < 0:
        return error, None
    baseline = source.baseline_flux * source.baseline_relative_error
    return error, MAGNITUDES_PER_E * math.hypot(source.source_flux_error, baseline) / blend


def chi2_gain(alert: Alert) -> float | None:
    """chi2 of a constant of each source, less that of the best lens; None without a fit."""
    if alert.fit is None:
        return None
    where = np.zeros(alert.n_epochs, int) if alert.source is None else alert.source
    weight = alert.sigma.astype(np.float64) ** -2
    fitted = np.ones(alert.n_epochs, np.bool_)
    fitted[list(alert.fit.left_out)] = False
    chi2 = 0.0
    for one in np.unique(where[fitted]):
        mine = fitted & (where == one)
        mean = np.average(alert.flux[mine], weights=weight[mine])
        chi2 += float(weight[mine] @ (alert.flux[mine] - mean) ** 2)
    return chi2 - alert.fit.chi2
