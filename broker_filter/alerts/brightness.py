"""Fluxes and magnitudes of an alert: of source and blend in each site, now and at the peak."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.curves import Magnification, model_curves, peak_flux
from broker_filter.alerts.parts import Source
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.types import PARAMETERS, Fit, FloatArray, SourceFit, StarEpochs

__all__ = [
    "MAGNITUDES",
    "SourceModel",
    "ab_magnitude",
    "magnitudes",
    "reduced_chi2",
    "source_models",
    "sources",
]

MAGNITUDES = (
    "source_magnitude",
    "blend_magnitude",
    "baseline_magnitude",
    "magnitude_now",
    "magnitude_peak",
)
"""The alert's fields that hold magnitudes."""

F_S = PARAMETERS.index("f_s")


@dataclass(frozen=True, slots=True)
class SourceModel:
    """What the posterior says of one source.

    Parameters
    ----------
    samples : ndarray, shape (S, 5), float64
        Columns `PARAMETERS`, with this source's own f_s.
    baseline : float, nJy or 1
        Flux of the quiet star, the unit of the assumed baseline.
    fit : SourceFit or None
    """

    samples: FloatArray
    baseline: float
    fit: SourceFit | None = None

    @property
    def source_flux(self) -> tuple[float, float]:
        """Median flux of the lensed star without magnification, and half of its 68 % interval."""
        low, median, high = np.quantile(self.samples[:, F_S], (0.16, 0.5, 0.84)) * self.baseline
        return float(median), float(high - low) / 2


def source_models(epochs: StarEpochs, samples: FloatArray, fit: Fit | None) -> list[SourceModel]:
    """The model of each source.

    Parameters
    ----------
    epochs : StarEpochs
    samples : ndarray, shape (S, 5), float64
        Of the fit where there is one, else of the network, whose f_s holds for all sources.
    fit : Fit or None
        A source that it does not have is seen as in the source that says most.
    """
    found = {} if fit is None else {(one.band, one.source): i for i, one in enumerate(fit.sources)}
    models = []
    for name, level in zip(epochs.sources, epochs.level.tolist(), strict=True):
        if fit is None or name not in found:
            models.append(SourceModel(samples, level))
            continue
        own = samples.copy()
        own[:, F_S] = fit.f_s[:, found[name]]
        its_fit = fit.sources[found[name]]
        models.append(SourceModel(own, level * its_fit.baseline, its_fit))
    return models


def sources(epochs: StarEpochs, models: list[SourceModel], *, relative: bool) -> tuple[Source, ...]:
    """The sources as an alert lists them.

    Parameters
    ----------
    epochs : StarEpochs
    models : list of SourceModel
        One a source.
    relative : bool
        Whether the photometry came in units of the baseline, so that there are no magnitudes.
    """
    count = np.bincount(epochs.source, minlength=len(epochs.sources))
    return tuple(
        _source(epochs, i, int(n), model, relative)
        for i, (n, model) in enumerate(zip(count, models, strict=True))
    )


def _source(epochs: StarEpochs, i: int, n: int, model: SourceModel, relative: bool) -> Source:
    (band, name), fit = epochs.sources[i], model.fit
    flux, error = model.source_flux
    return Source(
        band=band,
        source=name,
        n_epochs=n,
        system=None if relative else "AB",
        baseline_flux=float(epochs.level[i]),
        baseline_relative_error=float(epochs.error[i]),
        source_flux=flux,
        source_flux_error=error,
        blend_flux=model.baseline - flux,
        best_f_s=None if fit is None else fit.f_s,
        best_baseline=None if fit is None else fit.baseline,
        chi2=None if fit is None else fit.chi2,
    )


def magnitudes(
    model: SourceModel, last_day: float, magnification: Magnification
) -> dict[str, float | None]:
    """Magnitudes of an alert, by the alert's names.

    Parameters
    ----------
    model : SourceModel
        In nJy.
    last_day : float, days
        Of the last epoch, after the zero of t0.
    magnification : Magnification
    """
    source, baseline = model.source_flux[0], model.baseline
    now = model_curves(model.samples, np.array([last_day]), magnification)
    peak = peak_flux(model.samples, magnification)
    shares = (float(np.median(now)), float(np.median(peak)))
    fluxes = (source, baseline - source, baseline, *(baseline * share for share in shares))
    return dict(zip(MAGNITUDES, map(ab_magnitude, fluxes), strict=True))


def ab_magnitude(flux_njy: float) -> float | None:
    """AB magnitude of a flux in nJy; None where the flux is not positive."""
    return AB_ZERO_POINT - 2.5 * math.log10(flux_njy) if flux_njy > 0 else None


def reduced_chi2(
    flux: NDArray[np.floating[Any]], sigma: NDArray[np.floating[Any]], model: FloatArray
) -> float | None:
    """chi2 of a curve divided by (n - 5); None for five epochs or fewer; all of shape (n,)."""
    freedom = len(flux) - len(PARAMETERS)
    if freedom <= 0:
        return None
    return float((((flux - model) / sigma.astype(np.float64)) ** 2).sum()) / freedom
