"""Ordered rows of points of very different length, in pages of 64 points.

A star with five points pays for one page, one with two thousand for 32; adding points to
many rows is a handful of array operations, and nothing per point is a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from broker_filter.state.columns import Column, Streamed
from broker_filter.types import FloatArray, IntArray
from broker_filter.windows.point_copy import PageCopy

__all__ = ["PAGE", "Columns", "PagedPoints", "grown", "spans"]

PAGE: Final = 64
_SHIFT: Final = 6
_MASK: Final = PAGE - 1
_CHUNK_POINTS: Final = 1 << 20
_POINT_COLUMNS: Final = ("time", "flux", "error", "source")

Scalar = TypeVar("Scalar", bound=np.generic)
Columns = tuple[FloatArray, NDArray[np.float32], NDArray[np.float32], NDArray[np.uint16]]
"""Time (float64), flux and error (float32) and source code (uint16) of n points."""


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
    longer = np.zeros((max(size, 2 * len(array), PAGE), *array.shape[1:]), array.dtype)
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


class PagedPoints:
    """Rows of points, each in an order that the caller keeps.

    A row is a queue: points are appended, overwritten, and dropped from the front. The index
    of a point is its place in the flat columns of points.

    Parameters
    ----------
    time : ndarray, shape (pages * 64,), float64, MJD TAI
    flux, error : ndarray, shape (pages * 64,), float32
        Flux and its 1-sigma error, in the source's own unit.
    source : ndarray, shape (pages * 64,), uint16
        Code of the source (`Instruments`).
    count : ndarray, shape (at least the number of rows,), int32
        Points of each row.
    """

    __slots__ = (
        *("time", "flux", "error", "source", "count"),
        *("_first", "_table", "_free", "_n_free", "_n_pages", "_copies"),
    )

    def __init__(self) -> None:
        self.time: FloatArray = np.zeros(PAGE)
        self.flux = np.zeros(PAGE, np.float32)
        self.error = np.zeros(PAGE, np.float32)
        self.source = np.zeros(PAGE, np.uint16)
        self.count = np.zeros(0, np.int32)
        self._first = np.zeros(0, np.int32)
        self._table = np.zeros((0, 1), np.int32)
        self._free = np.zeros(0, np.int32)
        self._n_free = 0
        self._copies: list[ref[PageCopy]] = []
        self._n_pages = 1  # page 0 is nobody's: empty rows point at it

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        arrays = (getattr(self, name) for name in self.__slots__)
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    @property
    def pages_in_use(self) -> int:
        """Pages that hold points."""
        return self._n_pages - 1 - self._n_free

    def add_rows(self, n_rows: int) -> None:
        """Make room for rows 0 to ``n_rows - 1``."""
        self.count = grown(self.count, n_rows)
        self._first = grown(self._first, n_rows)
        self._table = grown(self._table, n_rows)

    def index(self, row: IntArray, position: IntArray | int) -> IntArray:
        """Flat index of the points at ``position`` of ``row`` (any shapes that broadcast)."""
        at = position + self._first[row]
        page = self._table[row, at >> _SHIFT].astype(np.int64)
        return np.asarray((page << _SHIFT) + (at & _MASK), np.int64)

    def columns(self, index: IntArray) -> Columns:
        """Time, flux, error and source at these indices."""
        return self.time[index], self.flux[index], self.error[index], self.source[index]

    def write(self, index: IntArray, columns: Columns) -> None:
        """Overwrite the points at these indices."""
        for copy in self._copies:
            if (pages := copy()) is not None:
                pages.keep(index)
        self.time[index], self.flux[index], self.error[index], self.source[index] = columns

    def search(self, row: IntArray, before: Callable[[IntArray], NDArray[np.bool_]]) -> IntArray:
        """Binary search: how many leading points of each row lie before something.

        Parameters
        ----------
        row : ndarray, shape (n,), int64
        before : callable
            From indices, shape (n,), to whether the point there lies before what entry ``i`` looks
            for: true for the first points of a row, false from some point on.
        """
        low, high = np.zeros(len(row), np.int64), self.count[row].astype(np.int64)
        while (open_ := low < high).any():
            middle = (low + high) >> 1
            right = before(self.index(row, middle)) & open_
            low = np.where(right, middle + 1, low)
            high = np.where(open_ & ~right, middle, high)
        return low

    def lengthen(self, row: IntArray, count: IntArray) -> None:
        """Give each of ``row`` (no repeats) room for ``count`` points; new ones are undefined."""
        held = self._pages_of(row)
        self.count[row] = count
        owner, column = spans(held, self._pages_of(row))
        if len(owner):
            self._widen(int(column.max()) + 1)
            self._table[row[owner], column] = self._take(len(owner))

    def resize(self, row: IntArray, count: IntArray) -> None:
        """Give each of ``row`` (no repeats) ``count`` > 0 points: new ones are undefined."""
        more = count > self.count[row]
        self.lengthen(row[more], count[more])
        row, count = row[~more], count[~more]
        held = self._pages_of(row)
        self.count[row] = count
        owner, column = spans(self._pages_of(row), held)
        self._give_back(self._table[row[owner], column])

    def drop_front(self, row: IntArray, n: IntArray) -> None:
        """Drop the first ``n`` points of each of ``row`` (no repeats); free pages left empty."""
        held = self._pages_of(row)
        first, left = self._first[row] + n, self.count[row] - n
        passed = np.where(left == 0, held, first >> _SHIFT)
        self._first[row] = np.where(left == 0, 0, first & _MASK)
        self.count[row] = left
        moved = np.flatnonzero(passed)
        if len(moved):
            owner, column = spans(np.zeros(len(moved), np.int64), passed[moved])
            self._give_back(self._table[row[moved][owner], column])
            width = self._table.shape[1]
            kept = np.minimum(np.arange(width) + passed[moved, None], width - 1)
            self._table[row[moved]] = np.take_along_axis(self._table[row[moved]], kept, 1)

    def state(self, n_rows: int) -> dict[str, Column]:
        """Rows 0 to ``n_rows - 1`` as columns: how many points each has, and all their points.

        The points are those of now, whenever they are used and in whatever thread: their pages are
        copied when they are needed, or before they are overwritten (`PageCopy`).
        """
        pages = PageCopy([getattr(self, name) for name in _POINT_COLUMNS], self._n_pages, PAGE)
        self._copies = [copy for copy in self._copies if copy() is not None] + [ref(pages)]
        rows = PagedPoints()
        for name in ("count", "_first", "_table"):
            setattr(rows, name, getattr(self, name)[:n_rows].copy())
        total = int(rows.count.sum(dtype=np.int64))

        def column(i: int, dtype: np.dtype[Any]) -> Streamed:
            def parts() -> Iterator[NDArray[Any]]:
                points = pages.columns()[i]
                for row, position in _blocks(rows.count):
                    yield points[rows.index(row, position)]

            return Streamed(dtype, (total,), parts)

        points = {
            name: column(i, getattr(self, name).dtype) for i, name in enumerate(_POINT_COLUMNS)
        }
        return {"count": rows.count, **points}

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over rows that `state` gave, as the first.

        Raises
        ------
        ValueError
            The points are more or fewer than the rows say.
        """
        count = columns["count"].astype(np.int64)
        if count.min(initial=0) < 0 or any(
            len(columns[name]) != count.sum() for name in _POINT_COLUMNS
        ):
            raise ValueError("points and their counts contradict each other")
        first = np.cumsum(count) - count
        self.lengthen(np.arange(len(count)), count)
        for row, position in _blocks(count):
            at, index = first[row] + position, self.index(row, position)
            for name in _POINT_COLUMNS:
                getattr(self, name)[index] = columns[name][at]

    def _pages_of(self, row: IntArray) -> IntArray:
        """Pages held: a row that is empty holds none, for its ``_first`` is 0."""
        return (self._first[row].astype(np.int64) + self.count[row] + _MASK) >> _SHIFT

    def _widen(self, width: int) -> None:
        if width > self._table.shape[1]:
            spare = max(width, 2 * self._table.shape[1]) - self._table.shape[1]
            self._table = np.pad(self._table, ((0, 0), (0, spare)))

    def _take(self, n: int) -> NDArray[np.int32]:
        """Numbers of ``n`` pages, first from those given back."""
        again = min(n, self._n_free)
        old = self._free[self._n_free - again : self._n_free]
        new = np.arange(self._n_pages, self._n_pages + n - again, dtype=np.int32)
        self._n_free -= again
        self._n_pages += len(new)
        size = self._n_pages * PAGE
        self.time, self.flux = grown(self.time, size), grown(self.flux, size)
        self.error, self.source = grown(self.error, size), grown(self.source, size)
        return np.concatenate([old, new])

    def _give_back(self, pages: NDArray[Any]) -> None:
        self._free = grown(self._free, self._n_free + len(pages))
        self._free[self._n_free : self._n_free + len(pages)] = pages
        self._n_free += len(pages)


def _blocks(count: NDArray[np.integer[Any]]) -> Iterator[tuple[IntArray, IntArray]]:
    """Row and position of all points, in order, so many rows at a time as make up a chunk."""
    total = np.cumsum(count, dtype=np.int64)
    steps = np.arange(_CHUNK_POINTS, total[-1] if len(total) else 0, _CHUNK_POINTS)
    for rows in np.split(np.arange(len(count)), np.unique(np.searchsorted(total, steps))):
        owner, position = spans(np.zeros(len(rows), np.int64), count[rows].astype(np.int64))
        yield rows[owner], position
