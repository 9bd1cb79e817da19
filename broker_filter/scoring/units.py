"""Fluxes and errors with the units of astropy, or as magnitudes, as numbers.

Objects of astropy are known by what they can do; it is not imported.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import SchemaError
from broker_filter.photometry.magnitudes import flux_error, flux_of
from broker_filter.replay.lightcurves.layout import STAR_MAGNITUDES
from broker_filter.types import FloatArray

__all__ = ["converted", "flat", "flux_values", "quantity"]

MAG_OF_DEX: Final = -2.5
MOST_MAGNITUDES: Final = 75.0
"""How far from the zero point magnitudes may be: 30 decades of flux."""


def flux_values(
    flux: Any,  # noqa: ANN401
    error: Any,  # noqa: ANN401
    zero_point: float | None,
) -> tuple[FloatArray, FloatArray]:
    """Flux and 1-sigma error, each of shape (n,).

    Parameters
    ----------
    flux : array, shape (n,), or Quantity
        A flux in any unit; or magnitudes, plain with ``zero_point``, or of a unit such as ABmag.
    error : array, shape (n,), or Quantity
        In a unit of flux where flux is one. Of magnitudes, in magnitudes (or dex, or dB).
    zero_point : float or None
        Magnitude of 1 nJy.

    Returns
    -------
    flux, error : ndarray, shape (n,), float64
        nJy where the units say so or the values are magnitudes, else the flux's own unit.

    Raises
    ------
    SchemaError
        Values are missing, of different lengths, magnitudes given as flux, or of units that do not
        fit each other or the zero point.
    """
    if error is None:
        raise SchemaError("no errors are given: K needs the 1-sigma error of each flux")
    flux, error = quantity(flux), quantity(error)
    unit = getattr(flux, "unit", None)
    if unit is None or _is_plain_magnitude(unit):
        return _unitless(flux, error, zero_point)
    if zero_point is not None:
        raise SchemaError(f"flux is in {unit}: leave zero_point out, which is for magnitudes")
    to = "nJy" if _is_flux_density(flux) else getattr(unit, "physical_unit", unit)
    value = converted("flux", flux, to)
    if hasattr(unit, "physical_unit"):  # ABmag and other logarithms
        return _of_magnitudes(*_pair(value, _mags(error)))
    if getattr(error, "unit", None) is None:
        raise SchemaError(f"flux is in {unit} and error has no unit: give both the same")
    return _pair(value, converted("error", error, to))


def _unitless(
    flux: Any,  # noqa: ANN401
    error: Any,  # noqa: ANN401
    zero_point: float | None,
) -> tuple[FloatArray, FloatArray]:
    """The same where only the zero point says what the values are."""
    unit = getattr(flux, "unit", None)
    if zero_point is not None:
        magnitudes = flux if unit is None else converted("flux", flux, "mag")
        value, sigma = _pair(magnitudes, _mags(error))
        return _of_magnitudes(_flux_of(value, zero_point), sigma)
    if unit is not None:
        raise SchemaError(
            f"flux is in {unit}: give zero_point, the magnitude of 1 nJy, 31.4 for AB"
        )
    if getattr(error, "unit", None) is not None:
        raise SchemaError(f"error is in {error.unit} and flux has no unit: give both the same")
    value, sigma = _pair(flux, error)
    _refuse_magnitudes(value, sigma)
    return value, sigma


def quantity(values: Any) -> Any:  # noqa: ANN401  anything like an array
    """A column of astropy's with a unit as a Quantity; all else as it is."""
    if getattr(values, "unit", None) is None or not hasattr(values, "quantity"):
        return values
    filled = values.filled(np.nan) if hasattr(values, "filled") else values
    return filled.quantity


def _is_plain_magnitude(unit: Any) -> bool:  # noqa: ANN401  astropy's unit
    """Whether values are magnitudes of no stated zero point: ``mag``, or ``mag(1)``."""
    physical = getattr(unit, "physical_unit", None)
    if physical is None:
        return str(unit) == "mag"
    return str(physical) == "" and str(unit).startswith("mag")


def _mags(error: Any) -> Any:  # noqa: ANN401
    """Errors of magnitudes, in magnitudes: plain numbers are such, other units are converted."""
    unit = getattr(error, "unit", None)
    if unit is None:
        return error
    if (scale := getattr(unit, "function_unit", None)) is not None:
        # An error "in ABmag" is a difference of magnitudes; as a flux it would be enormous.
        return np.abs(MAG_OF_DEX * scale.to("dex")) * np.asarray(error.value)
    try:
        return np.abs(MAG_OF_DEX * np.asarray(error.to_value("dex")))
    except Exception as problem:
        raise SchemaError(f"flux is in magnitudes, and error in {unit}: give it in mag") from (
            problem
        )


def _of_magnitudes(flux: FloatArray, sigma: FloatArray) -> tuple[FloatArray, FloatArray]:
    with np.errstate(invalid="ignore", over="ignore"):
        return flux, flux_error(flux, sigma)


def _flux_of(magnitudes: FloatArray, zero_point: float) -> FloatArray:
    known = magnitudes[np.isfinite(magnitudes)]
    if not np.isfinite(zero_point):
        raise SchemaError(f"zero_point {zero_point} is no magnitude")
    if known.size and abs(typical := float(np.median(known)) - zero_point) > MOST_MAGNITUDES:
        raise SchemaError(
            f"values around {typical + zero_point:.4g} are no magnitudes: leave zero_point out for"
            " a flux"
        )
    with np.errstate(over="ignore"):  # a wrong value becomes infinite, and is counted as such
        return flux_of(magnitudes, zero_point)


def _pair(flux: Any, error: Any) -> tuple[FloatArray, FloatArray]:  # noqa: ANN401
    value, sigma = flat("flux", flux), flat("error", error)
    if len(value) != len(sigma):
        raise SchemaError(
            f"flux and error hold {len(value)} and {len(sigma)} values; they must agree"
        )
    return value, sigma


def _is_flux_density(flux: Any) -> bool:  # noqa: ANN401  astropy's Quantity
    try:
        flux.to_value("nJy")
    except Exception:  # noqa: BLE001  astropy's UnitConversionError, which is not imported here
        return False
    return True


def converted(name: str, values: Any, unit: Any) -> Any:  # noqa: ANN401  astropy's Quantity
    """Values in another unit.

    Raises
    ------
    SchemaError
        They are of another kind.
    """
    try:
        return values.to_value(unit)
    except Exception as error:
        raise SchemaError(f"{name} is in {values.unit}, which is no {unit}") from error


def _refuse_magnitudes(value: FloatArray, sigma: FloatArray) -> None:
    known = np.isfinite(value) & np.isfinite(sigma)
    low, high = STAR_MAGNITUDES
    if not known.any() or not ((value[known] > low) & (value[known] < high)).all():
        return
    raise SchemaError(
        f"flux of {np.median(value[known]):.4g} +- {np.median(sigma[known]):.2g} looks like a"
        " magnitude: give zero_point (31.4 for AB), or flux in nJy or divided by its median"
    )


def flat(name: str, values: Any) -> NDArray[np.float64]:  # noqa: ANN401  anything like an array
    """A flat float64 array; masked values are NaN.

    Raises
    ------
    SchemaError
        Something in it is no number, or it has more than one dimension.
    """
    if np.iscomplexobj(values):
        raise SchemaError(f"{name} holds complex numbers")
    try:
        if hasattr(values, "filled"):  # of numpy.ma and astropy
            values = values.astype(np.float64).filled(np.nan)
        elif hasattr(values, "to_numpy"):  # of pandas, which has missing integers too
            values = values.to_numpy(dtype=np.float64, na_value=np.nan)
        array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{name} holds something that is no number: {error}") from None
    if array.ndim != 1:
        raise SchemaError(f"{name} has shape {array.shape}; one star is a flat array")
    return array
