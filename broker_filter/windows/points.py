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

from broker_filter.compiled import compiled
from broker_filter.state.columns import Column, Streamed
from broker_filter.types import FloatArray, IntArray
from broker_filter.windows.arrays import grown, lengthened, spans, take
from broker_filter.windows.compact import packed_error, unpacked_error
from broker_filter.windows.moments import Moments, SharedMoments
from broker_filter.windows.pages import LARGE, SMALL, Pages
from broker_filter.windows.point_copy import PageCopy

__all__ = ["Columns", "PagedPoints"]

_SHIFT: Final = 6
_MASK: Final = LARGE - 1
_CHUNK_POINTS: Final = 1 << 20
LAST_FEW: Final = 16
"""Points at the end of a row in which most of what is delivered again is found."""
_NAMES: Final = ("time", "flux", "error", "source")

Columns = tuple[FloatArray, NDArray[np.float32], NDArray[np.float32], NDArray[np.uint16]]
"""Time (float64), flux and error (float32) and source code (uint16) of n points."""


class PagedPoints:
    """Rows of points, each in an order that the caller keeps.

    A row is a queue: points are appended, overwritten, and dropped from the front. The index
    of a point is its place in the flat columns of points. A row begins with a small page, and moves
    to large ones when it is full. A point of an exposure that many stars share takes eight bytes:
    see `broker_filter.windows.moments` and `broker_filter.windows.compact`.

    Attributes
    ----------
    flux : ndarray, shape (room for all pages,), float32
        In the source's own unit.
    count : ndarray, shape (at least the number of rows,), int32
        Points of each row.
    """

    __slots__ = (
        *("flux", "count", "_error", "_moments"),
        *("_first", "_table", "_small", "_pages", "_copies"),
    )

    def __init__(self) -> None:
        self.flux = np.zeros(LARGE, np.float32)
        self._error = np.zeros(LARGE, np.uint16)
        nothing = np.zeros(0), np.zeros(0, np.uint16)
        self._moments: Moments = SharedMoments(np.zeros(LARGE, np.uint16), *nothing)
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
        return own + self._pages.nbytes + self._moments.nbytes

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

    def indices(self, row: IntArray, width: int) -> IntArray:
        """Indices of the first points of rows, shape (len(row), width); the last is repeated."""
        found = np.empty((len(row), width), np.int64)
        _indices(row, self.count, self._first, self._table, found)
        return found

    def columns(self, index: IntArray) -> Columns:
        """Time, flux, error and source at these indices."""
        moments = self._moments
        flux = take(self.flux, index)
        return moments.time(index), flux, self.error(index), moments.source(index)

    def time(self, index: IntArray) -> FloatArray:
        """Times at these indices, MJD TAI."""
        return self._moments.time(index)

    def source(self, index: IntArray) -> NDArray[np.uint16]:
        """Codes of the sources at these indices (`Instruments`)."""
        return self._moments.source(index)

    def error(self, index: IntArray) -> NDArray[np.float32]:
        """1-sigma errors at these indices, in the source's own unit."""
        return unpacked_error(take(self._error, index))

    def write(self, index: IntArray, columns: Columns) -> None:
        """Overwrite the points at these indices; errors are rounded (`rounded_error`)."""
        for copy in self._copies:
            if (pages := copy()) is not None:
                pages.keep(index)
        time, self.flux[index], error, source = columns
        self._error[index] = packed_error(error)
        if not self._moments.write(index, time, source):
            # New columns: those that are being copied stay as they are.
            self._moments = self._moments.roomier(time, source)
            self._moments.write(index, time, source)

    def search(
        self,
        row: IntArray,
        before: Callable[[IntArray], NDArray[np.bool_]],
        *,
        last_few: bool = False,
    ) -> IntArray:
        """Binary search: how many leading points of each row lie before something.

        Parameters
        ----------
        row : ndarray, shape (n,), int64
        before : callable
            From indices, shape (n,), to whether the point there lies before what entry ``i`` looks
            for: true for the first points of a row, false from some point on.
        last_few : bool
            Whether that is mostly among the last `LAST_FEW` points, so that these come first.
        """
        low, high = np.zeros(len(row), np.int64), self.count[row].astype(np.int64)
        last = np.maximum(high - 1, 0)
        if last_few:
            at = np.maximum(high - LAST_FEW, 0)
            right = before(self.index(row, at)) & (high > 0)
            low, high = np.where(right, at + 1, low), np.where(right, high, at)
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
        columns: list[NDArray[Any]] = [self.flux, self._error, *self._moments.columns]
        pages = PageCopy(columns, self._n_large, LARGE)
        self._copies = [copy for copy in self._copies if copy() is not None] + [ref(pages)]
        rows, moments = PagedPoints(), self._moments.reader()
        for name in ("count", "_first", "_table"):
            setattr(rows, name, getattr(self, name)[:n_rows].copy())
        total = int(rows.count.sum(dtype=np.int64))
        decoders: dict[str, Callable[[list[NDArray[Any]], IntArray], NDArray[Any]]] = {
            "time": lambda held, index: moments(held[2:], index)[0],
            "flux": lambda held, index: held[0][index],
            "error": lambda held, index: unpacked_error(held[1][index]),
            "source": lambda held, index: moments(held[2:], index)[1],
        }

        def column(name: str, dtype: type[Any]) -> Streamed:
            def parts() -> Iterator[NDArray[Any]]:
                held = pages.columns()
                for row, position in _blocks(rows.count):
                    yield decoders[name](held, rows.index(row, position))

            return Streamed(np.dtype(dtype), (total,), parts)

        types = zip(_NAMES, (np.float64, np.float32, np.float32, np.uint16), strict=True)
        return {"count": rows.count, **{name: column(name, dtype) for name, dtype in types}}

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over rows that `state` gave, as the first.

        Raises
        ------
        ValueError
            The points are more or fewer than the rows say.
        """
        count = columns["count"].astype(np.int64)
        if count.min(initial=0) < 0 or any(len(columns[name]) != count.sum() for name in _NAMES):
            raise ValueError("points and their counts contradict each other")
        first = np.cumsum(count) - count
        self.lengthen(np.arange(len(count)), count)
        for row, position in _blocks(count):
            at = first[row] + position
            time, flux, error, source = (columns[name][at] for name in _NAMES)
            self.write(self.index(row, position), (time, flux, error, source))

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
        in_place = not any(copy() is not None for copy in self._copies)
        self.flux = lengthened(self.flux, size, in_place=in_place)
        self._error = lengthened(self._error, size, in_place=in_place)
        self._moments.resize(size, in_place=in_place)


def _blocks(count: NDArray[np.integer[Any]]) -> Iterator[tuple[IntArray, IntArray]]:
    """Row and position of all points, in order, so many rows at a time as make up a chunk."""
    total = np.cumsum(count, dtype=np.int64)
    steps = np.arange(_CHUNK_POINTS, total[-1] if len(total) else 0, _CHUNK_POINTS)
    for rows in np.split(np.arange(len(count)), np.unique(np.searchsorted(total, steps))):
        owner, position = spans(np.zeros(len(rows), np.int64), count[rows].astype(np.int64))
        yield rows[owner], position


@compiled
def _indices(
    row: IntArray,
    count: NDArray[np.int32],
    first: NDArray[np.int32],
    table: NDArray[np.int32],
    found: IntArray,
) -> None:
    """As `PagedPoints.indices`; a row without points has any index."""
    for i in range(len(row)):
        start, n = first[row[i]], count[row[i]]
        index = 0
        for j in range(found.shape[1]):
            if j < n:
                at = start + j
                index = np.int64(table[row[i], at >> _SHIFT]) * SMALL + (at & _MASK)
            found[i, j] = index
