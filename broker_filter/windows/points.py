"""Ordered rows of points of very different length, in pages.

A star of up to eight points pays for one small page, one of two thousand for 32 large ones; adding
points to many rows is a handful of array operations, and nothing per point is a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from broker_filter.state.columns import Column, Streamed
from broker_filter.types import FloatArray, IntArray
from broker_filter.windows.arrays import grown, spans
from broker_filter.windows.pages import LARGE, SMALL, Pages
from broker_filter.windows.point_copy import PageCopy

__all__ = ["Columns", "PagedPoints"]

_SHIFT: Final = 6
_MASK: Final = LARGE - 1
_CHUNK_POINTS: Final = 1 << 20
_POINT_COLUMNS: Final = ("time", "flux", "error", "source")

Columns = tuple[FloatArray, NDArray[np.float32], NDArray[np.float32], NDArray[np.uint16]]
"""Time (float64), flux and error (float32) and source code (uint16) of n points."""


class PagedPoints:
    """Rows of points, each in an order that the caller keeps.

    A row is a queue: points are appended, overwritten, and dropped from the front. The index
    of a point is its place in the flat columns of points. A row begins with a small page, and moves
    to large ones when it is full.

    Parameters
    ----------
    time : ndarray, shape (room for all pages,), float64, MJD TAI
    flux, error : ndarray, shape (room for all pages,), float32
        Flux and its 1-sigma error, in the source's own unit.
    source : ndarray, shape (room for all pages,), uint16
        Code of the source (`Instruments`).
    count : ndarray, shape (at least the number of rows,), int32
        Points of each row.
    """

    __slots__ = (
        *("time", "flux", "error", "source", "count"),
        *("_first", "_table", "_small", "_pages", "_copies"),
    )

    def __init__(self) -> None:
        self.time: FloatArray = np.zeros(LARGE)
        self.flux = np.zeros(LARGE, np.float32)
        self.error = np.zeros(LARGE, np.float32)
        self.source = np.zeros(LARGE, np.uint16)
        self.count = np.zeros(0, np.int32)
        self._first = np.zeros(0, np.int32)
        self._table = np.zeros((0, 1), np.int32)
        self._small = np.zeros(0, np.bool_)
        self._pages = Pages()
        self._copies: list[ref[PageCopy]] = []

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        arrays = (getattr(self, name) for name in self.__slots__)
        own = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        return own + self._pages.nbytes

    @property
    def points_in_use(self) -> int:
        """Points that the pages of all rows have room for."""
        return self._pages.points_in_use

    def add_rows(self, n_rows: int) -> None:
        """Make room for rows 0 to ``n_rows - 1``."""
        self.count = grown(self.count, n_rows)
        self._first = grown(self._first, n_rows)
        self._table = grown(self._table, n_rows)
        self._small = grown(self._small, n_rows)

    def keep(self, row: IntArray) -> None:
        """Make ``row`` (ascending, no repeats) the first rows and drop the others."""
        gone = np.delete(np.arange(len(self.count)), row)
        self.drop_front(gone, self.count[gone].astype(np.int64))
        self.count, self._first = self.count[row], self._first[row]
        self._table, self._small = self._table[row], self._small[row]

    def index(self, row: IntArray, position: IntArray | int) -> IntArray:
        """Flat index of the points at ``position`` of ``row`` (any shapes that broadcast)."""
        at = position + self._first[row]
        page = self._table[row, at >> _SHIFT].astype(np.int64)
        return np.asarray(page * SMALL + (at & _MASK), np.int64)

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
        last = np.maximum(high - 1, 0)
        while (open_ := low < high).any():
            middle = (low + high) >> 1
            right = before(self.index(row, np.minimum(middle, last))) & open_
            low = np.where(right, middle + 1, low)
            high = np.where(open_ & ~right, middle, high)
        return low

    def lengthen(self, row: IntArray, count: IntArray) -> None:
        """Give each of ``row`` (no repeats) room for ``count`` points; new ones are undefined."""
        held = self._pages_of(row)
        small = self._small[row]
        self.count[row] = count
        end = self._first[row] + count
        rows = np.flatnonzero((self._pages_of(row) > held) | (small & (end > SMALL)))
        if len(rows):
            self._add_pages(row[rows], held[rows], few=end[rows] <= SMALL)

    def _add_pages(self, row: IntArray, held: IntArray, few: NDArray[np.bool_]) -> None:
        """Give rows that hold some pages those that they lack; ``few`` means one small page."""
        begin = row[few]
        self._table[begin, 0] = self._pages.take(len(begin), SMALL)
        self._small[begin] = True
        row, held = row[~few], held[~few]
        moving = np.flatnonzero(self._small[row])
        old = self._table[row[moving], 0]
        self._small[row] = False
        held[moving] = 0
        owner, column = spans(held, self._pages_of(row))
        self._widen(int(column.max(initial=0)) + 1)
        self._table[row[owner], column] = self._pages.take(len(owner), LARGE)
        self._grow_columns()
        self._move(old, self._table[row[moving], 0])

    def _move(self, old: NDArray[np.int32], new: NDArray[np.int32]) -> None:
        """Copy small pages to where large ones begin, and give them back."""
        if not len(old):
            return
        inside = np.arange(SMALL)
        source = old.astype(np.int64)[:, None] * SMALL + inside
        target = new.astype(np.int64)[:, None] * SMALL + inside
        self.write(target.reshape(-1), self.columns(source.reshape(-1)))
        self._pages.give_back(old, SMALL)

    def resize(self, row: IntArray, count: IntArray) -> None:
        """Give each of ``row`` (no repeats) ``count`` > 0 points: new ones are undefined."""
        more = count > self.count[row]
        self.lengthen(row[more], count[more])
        row, count = row[~more], count[~more]
        held = self._pages_of(row)
        self.count[row] = count
        owner, column = spans(self._pages_of(row), held)
        self._pages.give_back(self._table[row[owner], column], LARGE)

    def drop_front(self, row: IntArray, n: IntArray) -> None:
        """Drop the first ``n`` points of each of ``row`` (no repeats); free pages left empty."""
        held = self._pages_of(row)
        first, left = self._first[row] + n, self.count[row] - n
        passed = np.where(left == 0, held, first >> _SHIFT)
        self._first[row] = np.where(left == 0, 0, first & _MASK)
        self.count[row] = left
        moved = np.flatnonzero(passed)
        if len(moved):
            self._drop_pages(row[moved], passed[moved])

    def _drop_pages(self, row: IntArray, n: IntArray) -> None:
        """Take the first ``n`` pages from rows; a small one is all that its row has."""
        small = self._small[row]
        self._pages.give_back(self._table[row[small], 0], SMALL)
        self._small[row] = False
        row, n = row[~small], n[~small]
        owner, column = spans(np.zeros(len(row), np.int64), n)
        self._pages.give_back(self._table[row[owner], column], LARGE)
        width = self._table.shape[1]
        kept = np.minimum(np.arange(width) + n[:, None], width - 1)
        self._table[row] = np.take_along_axis(self._table[row], kept, 1)

    def state(self, n_rows: int) -> dict[str, Column]:
        """Rows 0 to ``n_rows - 1`` as columns: how many points each has, and all their points.

        The points are those of now, whenever they are used and in whatever thread: their pages are
        copied when they are needed, or before they are overwritten (`PageCopy`).
        """
        columns = [getattr(self, name) for name in _POINT_COLUMNS]
        pages = PageCopy(columns, self._n_large, LARGE)
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

    @property
    def _n_large(self) -> int:
        """Large pages that hold all pages in use."""
        return -(-self._pages.end * SMALL // LARGE)

    def _grow_columns(self) -> None:
        """Make room for all pages in the columns of points."""
        size = self._n_large * LARGE
        self.time, self.flux = grown(self.time, size), grown(self.flux, size)
        self.error, self.source = grown(self.error, size), grown(self.source, size)


def _blocks(count: NDArray[np.integer[Any]]) -> Iterator[tuple[IntArray, IntArray]]:
    """Row and position of all points, in order, so many rows at a time as make up a chunk."""
    total = np.cumsum(count, dtype=np.int64)
    steps = np.arange(_CHUNK_POINTS, total[-1] if len(total) else 0, _CHUNK_POINTS)
    for rows in np.split(np.arange(len(count)), np.unique(np.searchsorted(total, steps))):
        owner, position = spans(np.zeros(len(rows), np.int64), count[rows].astype(np.int64))
        yield rows[owner], position
