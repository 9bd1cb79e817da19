"""Magnitudes to fluxes in nJy, and the total flux of a star from its difference and its reference.

Symbols: m a magnitude, zp the zero point (magnitude of 1 nJy, 31.4 for AB), F flux in nJy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from broker_filter.types import FloatArray

__all__ = ["AB_ZERO_POINT", "add_reference", "flux_error", "flux_of"]

AB_ZERO_POINT: Final = 31.4  # AB magnitude of 1 nJy


def flux_of(mag: FloatArray, zero_point: float | FloatArray = AB_ZERO_POINT) -> FloatArray:
    """F = 10^(-0.4 (m - zp)).

    Parameters
    ----------
    mag : ndarray, shape (n,), float64, magnitudes
    zero_point : float or ndarray, shape (n,)

    Returns
    -------
    ndarray, shape (n,), float64, nJy
    """
    return np.asarray(10 ** (-0.4 * (mag - zero_point)))


def flux_error(flux: FloatArray, mag_err: FloatArray) -> FloatArray:
    """1-sigma error of a flux from that of its magnitude: F sigma_m ln 10 / 2.5.

    Parameters
    ----------
    flux : ndarray, shape (n,), float64
    mag_err : ndarray, shape (n,), float64, magnitudes

    Returns
    -------
    ndarray, shape (n,), float64, unit of ``flux``
    """
    return np.asarray(flux * mag_err * np.log(10) / 2.5)


def add_reference(
    difference: FloatArray, error: FloatArray, reference: FloatArray, reference_err: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Total ("apparent", "DC") flux of the star that the reference image shows.

    Parameters
    ----------
    difference, error : ndarray, shape (n,), float64, nJy
        Signed difference flux and its 1-sigma error.
    reference, reference_err : ndarray, shape (n,), float64, nJy

    Returns
    -------
    flux, flux_err : ndarray, shape (n,), float64, nJy

    Notes
    -----
    ``apparent_flux`` of astrolabsoftware/fink-utils: F = F_r +- F_d, errors in quadrature. That of
    the reference is common to all epochs, so the errors are too large rather than too small.
    """
    return reference + difference, np.hypot(error, reference_err)
