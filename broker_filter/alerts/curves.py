"""Light curves of lenses, as alerts and pictures need them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import PARAMETERS, FloatArray

__all__ = ["CURVES", "Magnification", "model_curves", "peak_flux"]

CURVES = 200
"""How many models of a posterior stand for all of it, where light curves are computed."""


class Magnification(Protocol):
    """A(u, rho) of a finite source, as in `broker_filter.inference.magnification`."""

    def __call__(self, u: FloatArray, rho: FloatArray, /) -> FloatArray:
        """Magnify; ``rho`` (Einstein radii) is broadcast against ``u`` (Einstein radii, u >= 0)."""
        ...


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


def peak_flux(samples: NDArray[np.floating[Any]], magnification: Magnification) -> FloatArray:
    """Flux of each model at its own peak.

    Parameters
    ----------
    samples : ndarray, shape (S, 5)
        Columns `PARAMETERS`.
    magnification : Magnification

    Returns
    -------
    ndarray, shape (S,), float64, units of the baseline
    """
    column = dict(zip(PARAMETERS, samples.astype(np.float64).T, strict=True))
    amplification = magnification(np.abs(column["u0"]), 10 ** column["log10_rho"])
    return np.asarray(1 + column["f_s"] * (amplification - 1))
