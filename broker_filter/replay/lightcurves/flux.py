"""From what a file measures to flux: magnitudes, units, pySIS differences, and missing errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from broker_filter.photometry.magnitudes import flux_error, flux_of
from broker_filter.replay.lightcurves.cells import number
from broker_filter.replay.lightcurves.epochs import MAGNITUDES, Epochs
from broker_filter.replay.lightcurves.layout import Layout
from broker_filter.replay.lightcurves.names import nanojansky
from broker_filter.replay.lightcurves.table import TextTable
from broker_filter.types import FloatArray

__all__ = ["Flux", "point_to_point_scatter", "resolve_pair", "to_flux", "total_flux"]

NEGATIVE_SHARE: Final = 0.25  # total fluxes of a star are below zero at fewer of its epochs


@dataclass(frozen=True, slots=True)
class Flux:
    """Flux and error, shape (n,), float64, with their kind and a phrase on how they came about."""

    flux: FloatArray
    err: FloatArray
    kind: Literal["total", "difference"]
    note: str


def to_flux(
    epochs: Epochs, layout: Layout, line: tuple[float, float] | None, zero_point: float
) -> Flux:
    """Turn measured values into fluxes.

    Parameters
    ----------
    epochs : Epochs
    layout : Layout
    line : (float, float) or None
        F_ref and s of `total_flux`, where they apply.
    zero_point : float
        Magnitude of 1 nJy.
    """
    flux, err, note = _converted(epochs, layout, line, zero_point)
    unlinked = layout.quantity in ("delta_flux", "diff_mag") and line is None
    negative = unlinked or np.mean(flux <= 0) > NEGATIVE_SHARE
    return Flux(flux, err, "difference" if negative else "total", note)


def _converted(
    epochs: Epochs, layout: Layout, line: tuple[float, float] | None, zero_point: float
) -> tuple[FloatArray, FloatArray, str]:
    name = layout.name("value")
    if layout.quantity in ("mag", "diff_mag"):
        flux = flux_of(epochs.value, zero_point)
        differences = " of differences" if layout.quantity == "diff_mag" else ""
        note = f"nJy from magnitudes{differences}, zero point {zero_point:g}"
        return epochs.sign * flux, flux_error(flux, epochs.err), note
    if line:
        reference, scale = line
        note = (
            f"nJy = {reference:.6g} {scale:+.6g} x difference flux, by magnitudes with zero point "
            f"{zero_point:g}"
        )
        return reference + scale * epochs.value, abs(scale) * epochs.err, note
    if "zero_point" in layout.columns:
        factor = flux_of(epochs.zero_point, zero_point)
        note = f"nJy from {name} by the zero point of each row, {layout.name('zero_point')}"
        return factor * epochs.value, factor * epochs.err, note
    unit = nanojansky(name)
    if unit is None:
        note = f"{name} in the unit of the file" if name else "flux in the unit of the file"
        return epochs.value, epochs.err, note
    of_error = nanojansky(layout.name("err")) or unit
    return unit * epochs.value, of_error * epochs.err, f"nJy = {unit:g} x {name}"


def resolve_pair(
    table: TextTable, layout: Layout, zero_point: float
) -> tuple[Layout, tuple[float, float] | None]:
    """Decide for a pySIS file whether its difference fluxes can be read as total ones.

    Returns the layout, and F_ref and s of `total_flux` where they apply; a file whose columns are
    not related by a line is read by its magnitudes.
    """
    if "mag" not in layout.columns:
        return layout, None
    columns = dict(layout.columns)
    delta, mag = (_lenient(table, columns[role]) for role in ("value", "mag"))
    if line := total_flux(delta, mag, zero_point):
        return layout, line
    columns |= {"value": columns["mag"], "err": columns["mag_err"]}
    return replace(layout, quantity="mag", columns=columns), None


def _lenient(table: TextTable, index: int) -> FloatArray:
    return np.array(
        [number(cells[index]) if index < len(cells) else math.nan for _, cells in table.rows]
    )


def total_flux(delta: FloatArray, mag: FloatArray, zero_point: float) -> tuple[float, float] | None:
    """Fit flux(mag) = F_ref + s delta, the line that turns difference into total flux.

    A pySIS file gives each epoch twice: as instrumental difference flux with a Gaussian error, and
    as a magnitude. Magnitudes skew the errors of faint or wild points and cannot express a flux
    below zero, so only this line is taken from them; what is read is ``delta`` and its error,
    scaled by it. The sign of s comes out of the data (pySIS counts brighter as negative).

    Parameters
    ----------
    delta : ndarray, shape (n,), float64, instrumental units
    mag : ndarray, shape (n,), float64, magnitudes
        NaN where there is none; so for ``delta``.
    zero_point : float
        Magnitude of 1 nJy.

    Returns
    -------
    (F_ref in nJy, s in nJy per instrumental unit), or None
        None where fewer than 10 epochs have both, or the median residual exceeds 0.1 % of the flux:
        the two columns are not related by a line.

    Notes
    -----
    s is the median slope between epochs half the sorted list apart, F_ref the median intercept
    (Theil-Sen with n/2 pairs): a quarter of the points may be wild.
    """
    good = np.isfinite(delta) & (mag > MAGNITUDES[0]) & (mag < MAGNITUDES[1])
    order = np.flatnonzero(good)[np.argsort(delta[good], kind="stable")]
    half = len(order) // 2
    x, flux = delta[order], flux_of(mag[order], zero_point)
    run = x[-half:] - x[:half]
    if half < 5 or not run.all():
        return None
    scale = float(np.median((flux[-half:] - flux[:half]) / run))
    reference = float(np.median(flux - scale * x))
    residual = np.abs(flux - reference - scale * x) / flux
    return (reference, scale) if scale and np.median(residual) < 1e-3 else None


def point_to_point_scatter(flux: FloatArray) -> float:
    """Estimate a 1-sigma error from differences of neighbours: 1.4826 median |dF| / sqrt 2.

    Parameters
    ----------
    flux : ndarray, shape (n,), float64
        In order of time. Slow variation and single outliers do not enter.

    Returns
    -------
    float, same unit
        NaN for fewer than three points.
    """
    if len(flux) < 3:
        return float("nan")
    return float(1.4826 * np.median(np.abs(np.diff(flux))) / np.sqrt(2))
