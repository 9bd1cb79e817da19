"""Parts of an alert: what is said of one parameter, source, rival or posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import PARAMETERS, FloatArray

__all__ = [
    "QUANTILES",
    "UNITS",
    "Best",
    "CertifiedK",
    "Draws",
    "FitQuality",
    "Interval",
    "Noise",
    "OtherBand",
    "Rival",
    "Source",
    "Verdict",
    "physical",
]

UNITS = {"t0": "d", "u0": "einstein_radius", "tE": "d", "rho": "einstein_radius", "f_s": ""}
"""Parameters that an alert sums up, in this order, and their units."""

QUANTILES = {"median": 0.5, "p16": 0.16, "p84": 0.84, "p2_5": 0.025, "p97_5": 0.975}
"""Names of the quantiles in a summary."""


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
class Draws:
    """Samples of a posterior and what sums them up.

    Parameters
    ----------
    parameters : tuple of str
        Columns of ``samples``.
    samples : ndarray, shape (S, P), float32
        t0 in days after the alert's ``window_start_mjd_tai``.
    summary : tuple of Interval
    covariance : ndarray, shape (3, 3), float64
        Of (t0, u0, tE), days and Einstein radii.
    """

    parameters: tuple[str, ...]
    samples: NDArray[np.float32]
    summary: tuple[Interval, ...]
    covariance: FloatArray


@dataclass(frozen=True, slots=True)
class Best:
    """A lens: t0 in MJD TAI, tE in days, u0 and rho in Einstein radii."""

    t0_mjd_tai: float
    u0: float
    tE: float  # noqa: N815  the field's own name for it
    rho: float


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How well a fit went, and how well its best curve fits.

    Parameters
    ----------
    converged : bool
    reason : str
        Why not; empty where it has.
    effective_sample_size : float
    log10_k, log10_k_error : float
    chi2, degrees_of_freedom : float, int
        Of the best curve.
    p_value : float
        Probability of a larger chi2.
    residual_autocorrelation : float
        Of neighbouring residuals.
    best : Best
        Maximum of the likelihood.
    main_source : int
        Index into the alert's ``sources`` of the one whose f_s the samples hold.
    left_out : tuple of int
        Rows of the light curve that were left out as wrong, of this fit and of the verdict.
    """

    converged: bool
    reason: str
    effective_sample_size: float
    log10_k: float
    log10_k_error: float
    chi2: float
    degrees_of_freedom: int
    p_value: float
    residual_autocorrelation: float
    best: Best
    main_source: int
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """One source (site, camera or field) of the light curve.

    Parameters
    ----------
    band, source : str
    n_epochs : int
    system : "AB" or None
        "AB" where the fluxes are nJy; None where they are in units of the baseline.
    baseline_flux : float
        Of the quiet star as assumed: nJy, or 1.
    baseline_relative_error : float
    source_flux, source_flux_error, blend_flux : float or None, unit of ``baseline_flux``
        Of the lensed star without magnification, and of the rest.
    best_f_s, best_baseline, chi2 : float or None
        Of the most likely curve, the baseline in units of ``baseline_flux``; None without a fit.
    """

    band: str
    source: str
    n_epochs: int
    system: str | None
    baseline_flux: float
    baseline_relative_error: float
    source_flux: float | None
    source_flux_error: float | None
    blend_flux: float | None
    best_f_s: float | None = None
    best_baseline: float | None = None
    chi2: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rival:
    """Another kind of light curve, fitted to the same photometry.

    Parameters
    ----------
    name : str
    log10_k : float
        log10 of the Bayes factor of the lens against it.
    log10_k_error : float or None
    parameters : mapping of str to float
        Its best ones.
    curve : ndarray, shape (n,), float32, units of the baseline, or None
        Its best curve at the epochs of the light curve.
    """

    name: str
    log10_k: float
    log10_k_error: float | None
    parameters: Mapping[str, float]
    curve: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the event is in one word, the probability of each class, and why in one sentence."""

    verdict: str
    probabilities: Mapping[str, float]
    reason: str


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of the star against which K was computed; None where a figure is not known.

    Parameters
    ----------
    error_scale : float
        Factor on the given errors.
    error_scale_min, error_scale_max : float or None
        What was allowed for.
    red_noise, red_noise_max : float, float or None, units of the baseline
        Standard deviation of the correlated part, and its bound.
    red_noise_time : float or None, days
    baseline_error : float or None, units of the baseline
        That counts nights.
    nights : int or None
        Behind these figures.
    taken_from : str or None
        Whether the bounds come from the star's own ``history`` or are usual in its ``survey``.
    """

    error_scale: float
    red_noise: float
    error_scale_min: float | None = None
    error_scale_max: float | None = None
    red_noise_max: float | None = None
    red_noise_time: float | None = None
    baseline_error: float | None = None
    nights: int | None = None
    taken_from: str | None = None


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
