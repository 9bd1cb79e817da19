"""Magnification of a finite uniform source by a point lens, in numpy alone.

Subscribers who draw an alert, and replays that inject events, have no torch; `lens` computes the
same from the same table for the networks. The table holds ln(A - 1) of a uniform disc for
0.001 <= rho <= 10 and u <= 100 rho; its columns are equally spaced in sign(z - 1) sqrt|z - 1| with
z = u / rho, which resolves the limb z = 1. Outside the table the source is a point.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "RHO_MAX",
    "RHO_MIN",
    "TABLE_PATH",
    "Z_MAX",
    "excess",
    "magnification",
    "table_axes",
]

RHO_MIN, RHO_MAX = 0.001, 10.0
Z_MAX = 100.0
TABLE_PATH = Path(__file__).with_name("lens_table.npy")

FloatArray = NDArray[np.float64]


def table_axes(n_rho: int, n_q: int) -> tuple[FloatArray, FloatArray]:
    """Nodes of the table: rho, shape (n_rho,), and q = sign(z - 1) sqrt|z - 1|, shape (n_q,)."""
    return np.geomspace(RHO_MIN, RHO_MAX, n_rho), np.linspace(-1.0, math.sqrt(Z_MAX - 1), n_q)


@cache
def _table() -> NDArray[np.float32]:
    table: NDArray[np.float32] = np.load(TABLE_PATH, allow_pickle=False)
    return table


def magnification(u: FloatArray, rho: FloatArray | float) -> FloatArray:
    """A(u, rho) of a uniform disc.

    Parameters
    ----------
    u : ndarray, any shape, float64
        Separation in Einstein radii, finite, u >= 0.
    rho : float or ndarray, broadcast against ``u``
        Source radius in Einstein radii, 0 < rho <= 10. Below 0.001 the source is a point.

    Returns
    -------
    ndarray, broadcast shape, float64
        Within 5e-4 of exact quadrature, relative to A - 1.

    Raises
    ------
    ValueError
        If ``u`` or ``rho`` leaves these limits.
    """
    if not np.isfinite(u).all() or (u < 0).any():
        raise ValueError("u must be finite and not negative")
    if not ((np.asarray(rho) > 0) & (np.asarray(rho) <= RHO_MAX)).all():
        raise ValueError(f"rho must lie in (0, {RHO_MAX:g}]")
    return 1 + excess(u, rho)


def excess(u: FloatArray, rho: FloatArray | float) -> FloatArray:
    """A(u, rho) - 1, without the loss of digits at large u; arguments as of `magnification`."""
    u, rho = np.broadcast_arrays(np.asarray(u, np.float64), np.asarray(rho, np.float64))
    offset = u / np.maximum(rho, RHO_MIN) - 1
    inside = (offset < Z_MAX - 1) & (rho >= RHO_MIN)
    result = np.empty(u.shape)
    result[inside] = np.exp(_log_excess(offset[inside], rho[inside]))
    result[~inside] = _point_excess(u[~inside])
    return result


def _log_excess(offset: FloatArray, rho: FloatArray) -> FloatArray:
    """ln(A - 1) from the table, bilinear; ``offset`` is u / rho - 1."""
    table = _table()
    n_rho, n_q = table.shape
    q = np.copysign(np.sqrt(np.abs(offset)), offset)
    column = np.clip((q + 1) * ((n_q - 1) / (1 + math.sqrt(Z_MAX - 1))), 0, n_q - 1)
    row = np.log(rho / RHO_MIN) * ((n_rho - 1) / math.log(RHO_MAX / RHO_MIN))
    i = np.clip(row.astype(np.int64), 0, n_rho - 2)
    j = np.minimum(column.astype(np.int64), n_q - 2)
    x, y = row - i, column - j
    low = table[i, j] * (1 - y) + table[i, j + 1] * y
    high = table[i + 1, j] * (1 - y) + table[i + 1, j + 1] * y
    return np.asarray(low * (1 - x) + high * x)


def _point_excess(u: FloatArray) -> FloatArray:
    """A - 1 of a point source (Paczynski 1986, ApJ 304, 1); infinite at u = 0."""
    square = u * u
    product = u * np.sqrt(square + 4)
    with np.errstate(divide="ignore"):
        return np.asarray(4 / (product * (square + 2 + product)))
