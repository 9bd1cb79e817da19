"""The alert record: what it holds, and its columns as tables.

An `Alert` is one record of ``schemas/alert``; `broker_filter.alerts.build` makes it from a window,
its fit and the network's samples, `broker_filter.alerts.codec` writes and reads it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.parts import (
    QUANTILES,
    UNITS,
    CertifiedK,
    Draws,
    FitQuality,
    Interval,
    Noise,
    OtherBand,
    Rival,
    Source,
    Verdict,
    physical,
)
from broker_filter.types import ALL_BANDS, AlertState, FloatArray, StarId

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "QUANTILES",
    "UNITS",
    "Alert",
    "CertifiedK",
    "Interval",
    "OtherBand",
    "PosteriorFrom",
    "mjd_to_datetime",
    "physical",
]

PosteriorFrom = Literal["fit", "network"]

_MJD_ZERO = datetime(1858, 11, 17)


@dataclass(frozen=True, slots=True, eq=False)
class Alert:
    """One star whose light curve favours microlensing, with the posterior and the data behind it.

    The fields are those of the schema, whose docs say more. What alerts of older schemas do not
    have is None or empty.

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
        Of the fit where there is one, else of the network; t0 in days after
        ``window_start_mjd_tai``.
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
    best_constrained_alert_id : UUID or None
        Earlier alert of the event whose posterior and fit are repeated here.
    posterior_from : "fit" or "network"
    network : Draws or None
        The network's own samples, where ``samples`` are not these.
    fit : FitQuality or None
    not_fitted : str or None
        Why there is no fit.
    days_to_peak : float or None, days
        After the last epoch; negative once the peak has passed.
    magnitude_peak : float or None, AB
    source : ndarray, shape (n,), int16, or None
        Index into ``sources`` of each epoch.
    sources : tuple of Source
    rivals : tuple of Rival
    verdict : Verdict or None
    noise : Noise or None
    log10_k_lookalikes : float or None
        Of the network, for microlensing against variable stars.
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
    best_constrained_alert_id: uuid.UUID | None = None
    posterior_from: PosteriorFrom = "network"
    network: Draws | None = None
    fit: FitQuality | None = None
    not_fitted: str | None = None
    days_to_peak: float | None = None
    magnitude_peak: float | None = None
    source: NDArray[np.int16] | None = None
    sources: tuple[Source, ...] = ()
    rivals: tuple[Rival, ...] = ()
    verdict: Verdict | None = None
    noise: Noise | None = None
    log10_k_lookalikes: float | None = None

    @property
    def draws(self) -> Draws:
        """The samples and what sums them up, of the fit where there is one."""
        return Draws(self.parameters, self.samples, self.summary, self.covariance)

    @property
    def posterior(self) -> pd.DataFrame:
        """The samples: columns t0 (MJD TAI), u0, tE (d), rho, f_s, log10_tE, log10_rho."""
        return self._table(self.draws)

    @property
    def network_posterior(self) -> pd.DataFrame | None:
        """The network's own samples, as `posterior`; None where the alert does not hold them."""
        if self.network is not None:
            return self._table(self.network)
        return self.posterior if self.posterior_from == "network" else None

    def _table(self, draws: Draws) -> pd.DataFrame:
        import pandas as pd  # half a second that a filter or a replay does not need

        return pd.DataFrame(physical(draws.samples, self.window_start_mjd_tai, draws.parameters))

    @property
    def light_curve(self) -> pd.DataFrame:
        """The photometry: columns mjd_tai, flux, sigma (units of the baseline), band and source.

        The last two hold names; alerts older than schema 1/2 have no source, and one band.
        """
        import pandas as pd

        columns = {"mjd_tai": self.mjd_tai, "flux": self.flux, "sigma": self.sigma}
        names = [(self.band, "")] * self.n_epochs
        if self.source is not None:
            known = [(one.band, one.source) for one in self.sources]
            names = [known[index] for index in self.source.tolist()]
        band, source = zip(*names, strict=True) if names else ((), ())
        return pd.DataFrame(columns | {"band": list(band), "source": list(source)})

    @property
    def newest_source(self) -> Source | None:
        """That of the last epoch of the alert's band, of which its magnitudes are."""
        if self.source is None:
            return None
        found = [self.sources[i] for i in dict.fromkeys(self.source[::-1].tolist())]
        return next((one for one in found if self.band in (one.band, ALL_BANDS)), None)

    @property
    def magnitude_band(self) -> str:
        """Band of the alert's magnitudes."""
        newest = self.newest_source
        return self.band if newest is None else newest.band

    def interval(self, name: str) -> Interval:
        """Quantiles of the parameter called t0, u0, tE, rho or f_s."""
        return next(entry for entry in self.summary if entry.name == name)


def mjd_to_datetime(mjd: float) -> datetime:
    """Calendar date and time of an MJD, on the same clock (so without a time zone)."""
    return _MJD_ZERO + timedelta(days=mjd)
