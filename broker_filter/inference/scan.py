"""The matched filter as a compiled loop, for windows that the network need not see.

ln K of a lens cannot exceed S^2 / 2, where S is the significance of the best template, so a window
in which no template of `broker_filter.inference.matched_filter` reaches a bound is settled without
the network. The loop computes the S of that module, and leaves out what cannot reach the bound.

K is a mean over all lenses of the prior, so it lies below that of the best one by the share of them
that fit as well: the shorter an event, the more times it could have had instead. So the templates
of each level have a margin of their own (`MARGINS`).

Notes
-----
With the sums s of (F - 1) / sigma^2 and w of 1 / sigma^2 in cells, the sum k's of a template over
its cells is at most sqrt(k'^2 w) sqrt(P), where P is the sum of s^2 / w over those of the cells
that have s > 0 (Cauchy and Schwarz), and the baseline's error b takes at most the share c W of
k'^2 w away, with c = b^2 / (1 + b^2 sum w) and the weight W of the template's cells. So
S^2 <= P / (1 - c W). P and W are running sums, and far cheaper than 9 templates: of a constant star
few places are left, and next to none of a star with few epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled
from broker_filter.inference.matched_filter import CELLS, LENS_KERNELS, LEVELS, TAPS, outside
from broker_filter.types import FloatArray, IntArray, WindowBatch

Cells = NDArray[Any]  # float32

__all__ = ["MARGINS", "ceiling", "ceiling_of", "significance", "warm_up"]

MARGINS: Final = np.arange(LEVELS, 0, -1, dtype=np.float64) + 0.5
"""By how much S^2 must exceed 2 ln K at each level, shape (LEVELS,), the shortest events first. An
octave takes half of the places, which would be 2 ln 2 = 1.4; the part ``cascade`` of an entry's
evaluation measures what this costs."""

TWICE_LN_10: Final = 2 * math.log(10)

ROWS_A_THREAD: Final = 64
"""Fewer are not worth a thread."""

EDGE: Final = TAPS  # empty cells on either side, for templates that reach beyond the window
WIDTH: Final = CELLS + 4 * TAPS
PLACES: Final = 16  # at once: a few vectors of the processor, and the fewest places of any level
# What one thread works with, as rows of one array.
SIGNAL, WEIGHT, EXCESS, COVERED, SPARE, ROWS = range(6)
OUTSIDE: Final = np.array([outside(level) for level in range(LEVELS)])
KERNELS: Final[Cells] = LENS_KERNELS.numpy()
FLOOR: Final = np.float32(1e-3)  # of the power of templates that are as flat as the baseline
ONE, ZERO, TINY = np.float32(1), np.float32(0), np.float32(1e-30)


def ceiling(
    batch: WindowBatch, days: float, log10_k: float = -math.inf, threads: int = 1
) -> FloatArray:
    """The log10 K that each window can have at most.

    Parameters
    ----------
    batch : WindowBatch
        All its points are used, also where the network would read fewer.
    days : float
        Length of a window.
    log10_k : float
        What the result is compared with: below it a result may be too low, which saves time.
    threads : int

    Returns
    -------
    ndarray, shape (B,), float64
    """
    return _largest(batch, days, TWICE_LN_10 * log10_k, MARGINS, threads) / TWICE_LN_10


def ceiling_of(s: FloatArray) -> FloatArray:
    """The same, shape (B,), from the largest S by level, shape (B, LEVELS)."""
    return np.asarray((np.maximum(s, 0) ** 2 - MARGINS).max(axis=1) / TWICE_LN_10)


def significance(batch: WindowBatch, days: float, threads: int = 1) -> FloatArray:
    """The largest S of each window, at least 0, shape (B,); arguments as of `ceiling`."""
    return np.sqrt(_largest(batch, days, -math.inf, np.zeros(LEVELS), threads))


def _largest(
    batch: WindowBatch, days: float, least: float, margins: FloatArray, threads: int
) -> FloatArray:
    """The largest S^2 less its level's margin, of each window; exact from ``least`` on."""
    found = np.zeros(len(batch))
    squares = np.maximum(least + margins, 0)
    points = batch.mjd_tai, batch.flux, batch.sigma
    windows = batch.n, batch.t_start, batch.baseline_error

    def part(first: int, after: int) -> None:
        rows = (each[first:after] for each in (*points, *windows, found))
        _scan(*map(np.ascontiguousarray, rows), days, squares, margins, KERNELS, OUTSIDE)

    share = max(math.ceil(len(batch) / threads), ROWS_A_THREAD)
    firsts = range(0, len(batch), share)
    if len(firsts) < 2:
        part(0, len(batch))
    else:
        with ThreadPoolExecutor(len(firsts)) as pool:
            list(pool.map(lambda first: part(first, first + share), firsts))
    return found


def warm_up() -> None:
    """Compile the loop, or load it from where it is kept."""
    epochs, windows = np.zeros((1, 1)), np.zeros(1)
    flux = epochs.astype(np.float32)
    margins = np.zeros(LEVELS), np.zeros(LEVELS)
    none = np.zeros(1, np.int64)
    _scan(epochs, flux, flux, none, *[windows] * 3, 1.0, *margins, KERNELS, OUTSIDE)


def _reordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `compiled`; sums may be taken in another order, which is what makes vectors of them."""
    return numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})(function)  # type: ignore[no-any-return]


@compiled
def _scan(
    mjd: FloatArray,
    flux: Cells,
    sigma: Cells,
    n: IntArray,
    t_start: FloatArray,
    baseline_error: FloatArray,
    found: FloatArray,
    days: float,
    squares: FloatArray,
    margins: FloatArray,
    kernels: Cells,
    outside: IntArray,
) -> None:
    """As `_largest`, written to ``found``; ``squares`` is what S^2 must reach by level."""
    room = np.zeros((ROWS, WIDTH), np.float32)
    block = np.empty((2, TAPS // 2, PLACES), np.float32)
    sums = np.empty((4, PLACES), np.float32)
    for row in range(len(n)):
        b = baseline_error[row] ** 2
        epochs = mjd[row], flux[row], sigma[row], n[row], t_start[row]
        common = np.float32(_fill_cells(room, *epochs, days, b))
        largest = -np.inf
        cells = CELLS
        for level in range(len(outside)):
            square = np.float32(squares[level])
            best = _best(room, cells, outside[level], common, square, kernels, block, sums)
            largest = max(largest, best - margins[level])
            _halve(room[SIGNAL], cells)
            _halve(room[WEIGHT], cells)
            cells //= 2
        found[row] = largest


@compiled
def _fill_cells(
    room: Cells,
    mjd: FloatArray,
    flux: Cells,
    sigma: Cells,
    n: int,
    t_start: float,
    days: float,
    b: float,
) -> float:
    """Sums by cell, as the network has them; ``b`` is b^2, and b^2 / (1 + b^2 sum w) comes back."""
    signal, weight = room[SIGNAL], room[WEIGHT]
    signal[:] = ZERO
    weight[:] = ZERO
    total, moved = 0.0, 0.0
    for i in range(n):
        w = ONE / (sigma[i] * sigma[i])
        total += w
        moved += w * (flux[i] - ONE)
    offset = np.float32(b * moved / (1 + b * total))
    for i in range(n):
        t = np.float32(2 * (mjd[i] - t_start) / days - 1)
        cell = EDGE + min(max(int((t + ONE) * np.float32(CELLS / 2)), 0), CELLS - 1)
        w = ONE / (sigma[i] * sigma[i])
        weight[cell] += w
        signal[cell] += w * (flux[i] - ONE - offset)
    return b / (1 + b * total)


@_reordered
def _halve(cells: Cells, n: int) -> None:
    """Join the cells of a level, of which there are n, in pairs."""
    for i in range(n // 2):
        cells[EDGE + i] = cells[EDGE + 2 * i] + cells[EDGE + 2 * i + 1]
    cells[EDGE + n // 2 : EDGE + n] = ZERO


@_reordered
def _running_sum(values: Cells, spare: Cells, n: int) -> None:
    """Replace each of n values by the sum of the `TAPS` values from it on."""
    for i in range(n + 14):
        spare[i] = values[i] + values[i + 1]
    for i in range(n + 12):
        values[i] = spare[i] + spare[i + 2]
    for i in range(n + 8):
        spare[i] = values[i] + values[i + 4]
    for i in range(n):
        values[i] = spare[i] + spare[i + 8]


@_reordered
def _best(
    room: Cells,
    cells: int,
    outside: int,
    common: float,
    bound: float,
    kernels: Cells,
    block: Cells,
    sums: Cells,
) -> Any:  # noqa: ANN401  float32
    """The largest S^2 of one level among those that can reach the bound on it, at least 0."""
    signal, weight = room[SIGNAL], room[WEIGHT]
    reach, covered = room[EXCESS], room[COVERED]
    first, places = EDGE - outside, cells + 2 * outside - TAPS + 1
    for i in range(places + TAPS - 1):
        above = max(signal[first + i], ZERO)
        covered[i] = weight[first + i]
        reach[i] = above * above / max(covered[i], TINY)
    _running_sum(reach, room[SPARE], places)
    _running_sum(covered, room[SPARE], places)
    sums[3] = ZERO
    for start in range(0, places, PLACES):
        at = min(start, places - PLACES)
        most = -ONE
        for i in range(at, at + PLACES):
            most = max(most, reach[i] - bound * max(ONE - common * covered[i], FLOOR))
        if most >= -FLOOR * bound:  # rounding
            _templates(signal, weight, first + at, common, kernels, block, sums)
    return max(sums[3].max(), ZERO)


@_reordered
def _templates(
    signal: Cells,
    weight: Cells,
    at: int,
    common: float,
    kernels: Cells,
    block: Cells,
    sums: Cells,
) -> None:
    """Raise ``sums[3]`` to the S^2 of the templates at so many places, if that is larger."""
    s, w = block[0], block[1]
    for j in range(TAPS // 2):  # the kernels are symmetric
        for i in range(PLACES):
            s[j, i] = signal[at + i + j] + signal[at + i + TAPS - 1 - j]
            w[j, i] = weight[at + i + j] + weight[at + i + TAPS - 1 - j]
    for kernel in kernels:
        sums[:3] = ZERO
        for j in range(TAPS // 2):
            k = kernel[j]
            for i in range(PLACES):
                sums[0, i] += k * s[j, i]
                sums[1, i] += k * w[j, i]
                sums[2, i] += k * k * w[j, i]
        for i in range(PLACES):
            alone = sums[2, i]
            power = max(alone - common * sums[1, i] * sums[1, i], FLOOR * alone)
            above = max(sums[0, i], ZERO)
            sums[3, i] = max(sums[3, i], above * above / max(power, np.float32(1e-12)))
