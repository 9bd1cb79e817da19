"""Fits and samples in the words of an alert."""

from __future__ import annotations

import numpy as np

from broker_filter.alerts.parts import (
    QUANTILES,
    UNITS,
    Best,
    Draws,
    FitQuality,
    Interval,
    physical,
)
from broker_filter.types import PARAMETERS, Fit, FloatArray, NotFitted, StarEpochs

__all__ = ["draws_of", "quality_of", "samples_after", "usable_fit"]


def usable_fit(fit: Fit | NotFitted | None) -> tuple[Fit | None, str | None]:
    """The fit, or why there is none; no alert may hold numbers that are not finite."""
    if fit is None or isinstance(fit, NotFitted):
        return None, None if fit is None else fit.reason
    figures = [fit.log10_k, fit.log10_k_error, fit.effective_sample_size, fit.chi2]
    figures += [fit.p_value, fit.autocorrelation, *fit.best.tolist()]
    figures += [value for one in fit.sources for value in (one.f_s, one.baseline, one.chi2)]
    finite = np.isfinite(fit.samples).all() and np.isfinite(fit.f_s).all()
    if not (finite and np.isfinite(figures).all()):
        return None, "not fitted: the result is not finite"
    return fit, None


def samples_after(fit: Fit, start: float) -> FloatArray:
    """Samples of the fit with t0 in days after ``start`` (MJD TAI), float64."""
    samples = fit.samples.astype(np.float64)
    samples[:, PARAMETERS.index("t0")] += fit.t_start - start
    return samples


def draws_of(samples: FloatArray, start: float) -> Draws:
    """Samples (shape (S, 5), float64, t0 in days after ``start``, MJD TAI) and their summary."""
    columns = physical(samples, start)
    return Draws(
        PARAMETERS,
        samples.astype(np.float32),
        tuple(_interval(name, columns[name]) for name in UNITS),
        np.cov([columns[name] for name in ("t0", "u0", "tE")]),
    )


def _interval(name: str, values: FloatArray) -> Interval:
    quantiles = np.quantile(values, list(QUANTILES.values())).tolist()
    return Interval(name, UNITS[name], **dict(zip(QUANTILES, quantiles, strict=True)))


def quality_of(fit: Fit, epochs: StarEpochs, left_out: tuple[int, ...] = ()) -> FitQuality:
    """How well a fit of all ``epochs`` but some rows went, for an alert with their sources."""
    t0, u0, log10_tE, log10_rho, _ = fit.best.tolist()
    return FitQuality(
        converged=bool(fit.converged),
        reason=fit.reason,
        effective_sample_size=float(fit.effective_sample_size),
        log10_k=float(fit.log10_k),
        log10_k_error=float(fit.log10_k_error),
        chi2=float(fit.chi2),
        degrees_of_freedom=int(fit.degrees_of_freedom),
        p_value=float(fit.p_value),
        residual_autocorrelation=float(fit.autocorrelation),
        best=Best(fit.t_start + t0, u0, 10**log10_tE, 10**log10_rho),
        main_source=_main_source(fit, epochs),
        left_out=left_out,
    )


def _main_source(fit: Fit, epochs: StarEpochs) -> int:
    """The source whose f_s the samples of a fit hold."""
    away = np.abs(fit.f_s - fit.samples[:, PARAMETERS.index("f_s"), None]).sum(axis=0)
    main = fit.sources[int(away.argmin())]
    name = (main.band, main.source)
    return epochs.sources.index(name) if name in epochs.sources else 0
