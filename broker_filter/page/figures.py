"""What the browser draws of an event: its light curve, K over time, and the posterior.

All are dictionaries of JSON types; a number that is not finite is None.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.curves import Magnification
from broker_filter.alerts.parts import Rival, physical
from broker_filter.client.corner import mass_levels
from broker_filter.client.shown import bulk_limits, shown_curve
from broker_filter.inference.magnification import magnification
from broker_filter.photometry.magnitudes import AB_ZERO_POINT

__all__ = ["figures"]

MOST_CELLS: Final = 24
"""Cells along each axis of a pair of parameters, where the samples fill them."""
_LABELS: Final[Mapping[str, str]] = {
    "t0": "t0",
    "u0": "u0",
    "log10_tE": "log tE",
    "log10_rho": "log rho",
    "f_s": "f_s",
}


def figures(
    alert: Alert, history: Sequence[sqlite3.Row], magnify: Magnification = magnification
) -> dict[str, Any]:
    """All figures of an event, from its newest alert and the list of all of them."""
    return {
        "lightCurve": _light_curve(alert, magnify),
        "history": _history(alert, history),
        "corner": _corner(alert),
    }


def _light_curve(alert: Alert, magnify: Magnification) -> dict[str, Any]:
    """Points by source in flux of the baseline, curves, and the zero of the magnitudes."""
    shown = shown_curve(alert, magnify)
    source = np.zeros(alert.n_epochs, np.int16) if alert.source is None else alert.source
    low, high = bulk_limits(shown.flux, shown.curve) if alert.n_epochs else (0.0, 2.0)
    zero = None
    if shown.baseline is not None and shown.baseline > 0:
        zero = AB_ZERO_POINT - 2.5 * math.log10(shown.baseline)
    return {
        "sources": [
            {
                "name": _source_name(alert, i),
                "time": _numbers(alert.mjd_tai[source == i], 10),
                "flux": _numbers(shown.flux[source == i]),
                "sigma": _numbers(shown.sigma[source == i]),
                "residual": _numbers(shown.residual[source == i], 4),
            }
            for i in np.unique(source).tolist()
        ],
        "curve": {
            "name": "best fit" if alert.fit is not None else "median model",
            "time": _numbers(shown.time, 10),
            "flux": _numbers(shown.curve),
            "low": _numbers(shown.low),
            "high": _numbers(shown.high),
        },
        "rivals": [_rival(alert, one, source) for one in alert.rivals if one.curve is not None],
        "limits": _numbers(shown.limits, 10),
        "fluxLimits": [low, high],
        "lastEpoch": alert.last_epoch_mjd_tai,
        "magnitudeZero": zero,
    }


def _source_name(alert: Alert, i: int) -> str:
    if not alert.sources:
        return alert.band
    return f"{alert.sources[i].band} {alert.sources[i].source}".strip()


def _rival(alert: Alert, rival: Rival, source: NDArray[np.int16]) -> dict[str, Any]:
    """A rival's curve at the epochs of the source that has most of them."""
    mine = source == np.bincount(source).argmax() if alert.n_epochs else source == 0
    curve = np.empty(0) if rival.curve is None else rival.curve[mine]
    return {
        "name": f"as {rival.name}, 10^{rival.log10_k:.3g} times less likely",
        "time": _numbers(alert.mjd_tai[mine], 10),
        "flux": _numbers(curve),
    }


def _history(alert: Alert, rows: Iterable[sqlite3.Row]) -> dict[str, Any]:
    """K of each alert of the event, over the time of its last epoch."""
    kept = list(rows)
    columns = ("last_epoch", "log10_k", "certified", "certified_error")
    found = {name: [row[name] for row in kept] for name in columns}
    return found | {"state": [row["state"] for row in kept], "threshold": alert.log10_k_threshold}


def _corner(alert: Alert) -> dict[str, Any]:
    """Histograms of five parameters, and of each pair which cells hold 68 and 95 % of it."""
    samples = physical(alert.samples, alert.window_start_mjd_tai, alert.parameters)
    columns = {name: samples[name] for name in _LABELS}
    limits = {name: _limits(values) for name, values in columns.items()}
    names, cells = list(columns), min(MOST_CELLS, max(10, round(2 * len(alert.samples) ** (1 / 3))))
    return {
        "parameters": [
            {
                "name": name,
                "label": _LABELS[name],
                "limits": limits[name],
                "median": float(np.median(columns[name])),
                "counts": np.histogram(columns[name], cells, range=limits[name])[0].tolist(),
            }
            for name in names
        ],
        "cells": cells,
        "pairs": {
            f"{x},{y}": _cells(columns[x], columns[y], (limits[x], limits[y]), cells)
            for j, y in enumerate(names)
            for x in names[:j]
        },
    }


def _limits(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, (0.003, 0.997)).tolist()
    margin = max(0.08 * (high - low), 1e-6)
    return low - margin, high + margin


def _cells(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    ranges: tuple[tuple[float, float], tuple[float, float]],
    cells: int,
) -> str:
    """One digit a cell, x slowest: 2 where the densest cells hold 68 %, 1 where 95 %, else 0."""
    kernel = np.exp(-0.5 * np.arange(-2.0, 3.0) ** 2)
    density = np.histogram2d(x, y, cells, range=ranges)[0]
    for axis in (0, 1):
        density = np.apply_along_axis(np.convolve, axis, density, kernel, mode="same")
    if not density.any():
        return "0" * density.size
    wide, narrow = mass_levels(density, (0.95, 0.68))
    digits = (density >= wide).astype(int) + (density >= narrow)
    return "".join(map(str, digits.ravel().tolist()))


def _numbers(values: ArrayLike, digits: int = 6) -> list[float | None]:
    """Numbers in so many digits."""
    return [
        float(f"{value:.{digits}g}") if math.isfinite(value) else None
        for value in np.asarray(values, np.float64).tolist()
    ]
