"""Arrays that grow, and ranges of many rows at once."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import IntArray

__all__ = ["grown", "spans"]

LEAST_ROWS: Final = 64

Scalar = TypeVar("Scalar", bound=np.generic)


def grown(array: NDArray[Scalar], size: int, fill: float = 0) -> NDArray[Scalar]:
    """``array`` itself if it has ``size`` rows, else a copy of at least twice its length.

    Parameters
    ----------
    array : ndarray, shape (n, ...)
    size : int
        Rows needed.
    fill : float
        Value of the new rows.
    """
    if size <= len(array):
        return array
    longer = np.zeros((max(size, 2 * len(array), LEAST_ROWS), *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    if fill:
        longer[len(array) :] = fill
    return longer


def spans(start: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """All positions of the ranges ``start[i]:stop[i]``, one range after the other.

    Parameters
    ----------
    start, stop : ndarray, shape (n,), int64

    Returns
    -------
    owner, position : ndarray, shape (sum(stop - start),), int64
        Which range, and the position.
    """
    size = stop - start
    owner = np.repeat(np.arange(len(size)), size)
    offset = np.cumsum(size) - size
    return owner, np.arange(len(owner)) - (offset - start)[owner]
