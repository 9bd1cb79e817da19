"""The alert record: what it holds, and its columns as tables.

An `Alert` is one record of ``schemas/alert``; `broker_filter.alerts.build` makes it from a window
and its posterior, `broker_filter.alerts.codec` writes and reads it.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import PARAMETERS, AlertState, FloatArray, StarId

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "QUANTILES",
    "UNITS",
    "Alert",
    "CertifiedK",
    "Interval",
    "OtherBand",
    "mjd_to_datetime",
    "physical",
]

UNITS = {"t0": "d", "u0": "einstein_radius", "tE": "d", "rho": "einstein_radius", "f_s": ""}
"""Parameters that an alert sums up, in this order, and their units."""

QUANTILES = {"median": 0.5, "p16": 0.16, "p84": 0.84, "p2_5": 0.025, "p97_5": 0.975}
"""Names of the quantiles in a summary."""

_MJD_ZERO = datetime(1858, 11, 17)


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
        import pandas as pd  # half a second that a filter or a replay does not need

        return pd.DataFrame(physical(self.samples, self.window_start_mjd_tai, self.parameters))

    @property
    def light_curve(self) -> pd.DataFrame:
        """The window's photometry: columns mjd_tai, flux and sigma (in units of the baseline)."""
        import pandas as pd

        return pd.DataFrame({"mjd_tai": self.mjd_tai, "flux": self.flux, "sigma": self.sigma})

    def interval(self, name: str) -> Interval:
        """Quantiles of the parameter called t0, u0, tE, rho or f_s."""
        return next(entry for entry in self.summary if entry.name == name)


def mjd_to_datetime(mjd: float) -> datetime:
    """Calendar date and time of an MJD, on the same clock (so without a time zone)."""
    return _MJD_ZERO + timedelta(days=mjd)


def physical(
    samples: NDArray[np.floating[Any]], window_start: float, names: tuple[str, ...] = PARAMETERS
) -> dict[str, FloatArray]:
    """Samples in physical units.

    Parameters
    ----------
    samples : ndarray, shape (S, P)
        Columns ``names``; t0 in days after ``window_start``.
    window_start : float, MJD TAI

    Returns
    -------
    dict of str to ndarray, shape (S,), float64
        t0 (MJD TAI), u0, tE (d), rho, f_s, log10_tE, log10_rho.
    """
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
