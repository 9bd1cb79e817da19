"""Arrays that grow, and ranges of many rows at once."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled
from broker_filter.types import IntArray

__all__ = ["grown", "lengthened", "spans", "take", "take_twice"]

LEAST_ROWS: Final = 64
SPARE: Final = 4
"""A longer array has at least one in so many rows to spare."""
SPARE_POINTS: Final = 16
"""The same of arrays of points, which are the most of what is held."""

Scalar = TypeVar("Scalar", bound=np.generic)


def grown(array: NDArray[Scalar], size: int, fill: float = 0) -> NDArray[Scalar]:
    """``array`` itself if it has ``size`` rows, else a copy that has some to spare.

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
    rows = max(size, len(array) + len(array) // SPARE, LEAST_ROWS)
    longer = np.zeros((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    if fill:
        longer[len(array) :] = fill
    return longer


def lengthened(array: NDArray[Scalar], size: int, *, in_place: bool) -> NDArray[Scalar]:
    """As `grown`, with less to spare, and without a copy where no view of the array is left.

    Parameters
    ----------
    array : ndarray, shape (n,)
        Owns its memory.
    size : int
    in_place : bool
        Whether no view of the array is left, in whatever thread.
    """
    if size <= len(array):
        return array
    size = max(size, len(array) + len(array) // SPARE_POINTS, LEAST_ROWS)
    if in_place:
        array.resize(size, refcheck=False)
        return array
    longer = np.zeros(size, array.dtype)
    longer[: len(array)] = array
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


def take(values: NDArray[Scalar], index: IntArray) -> NDArray[Scalar]:
    """``values[index]``, several times as fast; what is out of bounds is not noticed."""
    found = np.empty(index.shape, values.dtype)
    _take(values, np.ravel(index), found.reshape(-1))
    return found


def take_twice(values: NDArray[Scalar], code: NDArray[Any], index: IntArray) -> NDArray[Scalar]:
    """``values[code[index]]``, as `take`."""
    found = np.empty(index.shape, values.dtype)
    _take_twice(values, code, np.ravel(index), found.reshape(-1))
    return found


@compiled
def _take(values: NDArray[Any], index: IntArray, found: NDArray[Any]) -> None:
    for i in range(len(index)):
        found[i] = values[index[i]]


@compiled
def _take_twice(
    values: NDArray[Any], code: NDArray[Any], index: IntArray, found: NDArray[Any]
) -> None:
    for i in range(len(index)):
        found[i] = values[code[index[i]]]
