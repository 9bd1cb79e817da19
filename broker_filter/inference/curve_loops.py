"""A - 1 of many lenses at the epochs of a star, its sums and its derivatives, as compiled loops.

The table is that of `broker_filter.inference.magnification`, which says how it is laid out. Each
curve is made in a few passes over its epochs, which stay in the processor's nearest cache: where
they are in the table, what stands there, and which of table and point source counts.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled, reordered
from broker_filter.inference.exponential import exponential
from broker_filter.inference.magnification import RHO_MAX, RHO_MIN, TABLE_PATH, Z_MAX
from broker_filter.types import FloatArray, IntArray

__all__ = [
    "BASIS",
    "BY_TIME",
    "EXCESS",
    "EXCESS_MAX",
    "ONE",
    "RESIDUAL",
    "Table",
    "curves",
    "gram",
    "lens_table",
    "slopes",
    "sums",
]

Table = NDArray[np.float32]

EXCESS_MAX: Final = 1e6  # of a point source that the lens hits
LN_10: Final = math.log(10)
ROWS_BY_LN_RHO: Final = 1 / math.log(RHO_MAX / RHO_MIN)  # times rows less one
COLUMNS_BY_Q: Final = 1 / (1 + math.sqrt(Z_MAX - 1))
HUGE: Final = 1e30
Q_MIN: Final = 0.005  # a column: nearer to the limb the slope is that of a column
BASIS: Final = 7
"""Columns of `gram`: 1, F - 1, e = A - 1, and what the derivatives of e are made of."""
ONE, RESIDUAL, EXCESS, BY_TIME, BY_U0, BY_DURATION, BY_RHO = range(BASIS)


@cache
def lens_table() -> Table:
    """ln(A - 1), shape (n_rho, n_q)."""
    table: Table = np.load(TABLE_PATH, allow_pickle=False)
    return table


@compiled
def curves(theta: FloatArray, days: FloatArray, table: Table) -> FloatArray:
    """A - 1 of each lens at each epoch.

    Parameters
    ----------
    theta : ndarray, shape (n, 4), float64
        t0 (days), u0, log10 tE, log10 rho.
    days : ndarray, shape (L,), float64
    table : ndarray
        `lens_table`.

    Returns
    -------
    ndarray, shape (n, L), float64
        Within 5e-4 of exact quadrature, relative; at most `EXCESS_MAX`.
    """
    e = np.empty((len(theta), len(days)))
    room = np.empty((2, len(days)))
    for i in range(len(theta)):
        _curve(e[i], room, theta[i], days, table)
    return e


@compiled
def sums(
    theta: FloatArray,
    days: FloatArray,
    weight: FloatArray,
    weighted: FloatArray,
    firsts: IntArray,
    table: Table,
) -> FloatArray:
    """Of each lens and source the sums of w r e, w e and w e^2, shape (3, n, S), float64.

    Parameters
    ----------
    theta, days, table : ndarray
        As of `curves`; epochs source by source.
    weight, weighted : ndarray, shape (L,), float64
        w = sigma^-2 and w r, where r = F - 1.
    firsts : ndarray, shape (S + 1,), int64
        First epoch of each source, and the number of epochs.
    """
    found = np.empty((3, len(theta), len(firsts) - 1))
    e, room = np.empty(len(days)), np.empty((2, len(days)))
    for i in range(len(theta)):
        _curve(e, room, theta[i], days, table)
        for s in range(len(firsts) - 1):
            own = slice(firsts[s], firsts[s + 1])
            _add_up(found[:, i, s], e[own], weight[own], weighted[own])
    return found


@reordered
def _curve(
    e: FloatArray, room: FloatArray, lens: FloatArray, days: FloatArray, table: Table
) -> Any:  # noqa: ANN401
    column, log = room[0], room[1]
    rho = 10 ** lens[3]
    _places(column, e, days, lens[0], lens[1], 10 ** lens[2], rho, table.shape[1])
    _looked_up(log, column, rho, table)
    _chosen(e, log, column, table.shape[1])


@reordered
def _places(
    column: FloatArray,
    e: FloatArray,
    days: FloatArray,
    t0: float,
    u0: float,
    tE: float,
    rho: float,
    n_q: int,
) -> Any:  # noqa: ANN401
    """Column of the table for each epoch, and A - 1 of a point source."""
    by_day, by_q = 1 / tE, (n_q - 1) * COLUMNS_BY_Q
    by_u = 1 / rho if rho >= RHO_MIN else HUGE  # a point is nowhere in the table
    for k in range(len(days)):
        tau = (days[k] - t0) * by_day
        square = u0 * u0 + tau * tau
        u = math.sqrt(square)
        offset = u * by_u - 1
        column[k] = (math.copysign(math.sqrt(abs(offset)), offset) + 1) * by_q
        product = u * math.sqrt(square + 4)
        e[k] = 4 / (product * (square + 2 + product))


@reordered
def _looked_up(log: FloatArray, column: FloatArray, rho: float, table: Table) -> Any:  # noqa: ANN401
    """ln(A - 1) at columns, bilinear; that of the last column beyond it."""
    n_rho, n_q = table.shape
    row = math.log(max(rho / RHO_MIN, 1.0)) * ((n_rho - 1) * ROWS_BY_LN_RHO)
    i = min(max(int(row), 0), n_rho - 2)
    x, last = row - i, n_q - 1.001
    low, high = table[i], table[i + 1]
    for k in range(len(column)):
        at = column[k] if column[k] <= last else last  # also of what is not a number
        whole = np.int32(at)
        y = at - whole
        j = np.uint64(whole)  # without a sign, lest each index is compared with zero
        after = j + np.uint64(1)
        a = low[j] + y * (low[after] - low[j])
        b = high[j] + y * (high[after] - high[j])
        log[k] = a + x * (b - a)


@reordered
def _chosen(e: FloatArray, log: FloatArray, column: FloatArray, n_q: int) -> Any:  # noqa: ANN401
    """A - 1 of the table where the epoch is in it; ``e`` has that of a point source."""
    for k in range(len(e)):
        inside = exponential(log[k])
        e[k] = min(inside if column[k] < n_q - 1 else e[k], EXCESS_MAX)


@reordered
def _add_up(found: FloatArray, e: FloatArray, weight: FloatArray, weighted: FloatArray) -> Any:  # noqa: ANN401
    re_sum, e_sum, ee_sum = 0.0, 0.0, 0.0
    for k in range(len(e)):
        re_sum += weighted[k] * e[k]
        e_sum += weight[k] * e[k]
        ee_sum += weight[k] * e[k] * e[k]
    found[0], found[1], found[2] = re_sum, e_sum, ee_sum


@reordered
def slopes(
    columns: FloatArray,
    room: FloatArray,
    root: FloatArray,
    days: FloatArray,
    theta: FloatArray,
    table: Table,
) -> Any:  # noqa: ANN401
    """A - 1 of one lens and what its derivatives are made of, as columns of `gram`.

    The derivatives are those of the table's own interpolation, so a climb meets no other slope
    than that of the heights it compares: by t0 -1/tE, by u0 u0, by log10 tE -ln 10 times
    `BY_TIME`, `BY_U0`, `BY_DURATION`; by log10 rho `BY_RHO`.

    Parameters
    ----------
    columns : ndarray, shape (BASIS, L), float64
        Written from row `EXCESS` on; all rows are divided by the errors.
    room : ndarray, shape (5, L), float64
        To work in.
    root : ndarray, shape (L,), float64
        1 / sigma.
    days, theta, table : ndarray
        As of `curves`, of one lens.
    """
    column, log, by_q, by_row, point = room
    rho, by_day = 10 ** theta[3], 10 ** -theta[2]
    n_rho, n_q = table.shape
    _places(column, point, days, theta[0], theta[1], 10 ** theta[2], rho, n_q)
    _looked_up_with_slopes(log, by_q, by_row, column, rho, table)
    to_q, to_rho = (n_q - 1) * COLUMNS_BY_Q, LN_10 * (n_rho - 1) * ROWS_BY_LN_RHO
    for k in range(len(days)):
        tau = (days[k] - theta[0]) * by_day
        square = max(theta[1] * theta[1] + tau * tau, 1e-18)
        u = math.sqrt(square)
        # Of q = sqrt|z - 1| by z = u / rho.
        by_z = by_q[k] * to_q * 0.5 / max(math.sqrt(abs(u / rho - 1)), Q_MIN)
        e, above = exponential(log[k]), square + 4
        inside = column[k] < n_q - 1
        beyond = -8 / (square * u * above * math.sqrt(above))
        value = min(e if inside else point[k], EXCESS_MAX)
        by_u = root[k] * (e * by_z / (rho * u) if inside else beyond)
        by_rho = e * (by_row[k] * to_rho - by_z * (u / rho) * LN_10)
        columns[EXCESS, k] = root[k] * value
        columns[BY_TIME, k] = by_u * tau
        columns[BY_U0, k] = by_u
        columns[BY_DURATION, k] = by_u * tau * tau
        columns[BY_RHO, k] = root[k] * (by_rho if inside else 0.0)


@reordered
def _looked_up_with_slopes(
    log: FloatArray,
    by_column: FloatArray,
    by_row: FloatArray,
    column: FloatArray,
    rho: float,
    table: Table,
) -> Any:  # noqa: ANN401
    """As `_looked_up`, with the derivatives by column and row."""
    n_rho, n_q = table.shape
    row = math.log(max(rho / RHO_MIN, 1.0)) * ((n_rho - 1) * ROWS_BY_LN_RHO)
    i = min(max(int(row), 0), n_rho - 2)
    x, last = row - i, n_q - 1.001
    low, high = table[i], table[i + 1]
    for k in range(len(column)):
        at = column[k] if column[k] <= last else last  # also of what is not a number
        whole = np.int32(at)
        y = at - whole
        j = np.uint64(whole)
        after = j + np.uint64(1)
        rise, high_rise = low[after] - low[j], high[after] - high[j]
        a, b = low[j] + y * rise, high[j] + y * high_rise
        log[k], by_row[k] = a + x * (b - a), b - a
        by_column[k] = rise + x * (high_rise - rise)


@reordered
def gram(found: FloatArray, columns: FloatArray, first: int, last: int) -> Any:  # noqa: ANN401
    """Products of all columns over the epochs of one source, shape (BASIS, BASIS), float64."""
    for i in range(BASIS):
        for j in range(i, BASIS):
            total = 0.0
            for k in range(first, last):
                total += columns[i, k] * columns[j, k]
            found[i, j] = found[j, i] = total
