"""Paged storage: the points of many windows in a few arrays.

Each window owns pages of 64 points, so that a sparse star pays for one page only, and all windows
that a message touches are written by a few array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import FloatArray, IntArray

__all__ = ["Columns", "Pages", "Points"]

PAGE: Final = 64
_NAMES: Final = ("time", "flux", "error", "track")


@dataclass(frozen=True, slots=True)
class Points:
    """Points as columns of equal shape: a list of them, (n,), or windows as rows, (B, N).

    ``time`` is MJD TAI, float64; ``flux`` and ``error`` are float32; ``track`` is int32.
    """

    time: FloatArray
    flux: NDArray[np.float32]
    error: NDArray[np.float32]
    track: NDArray[np.int32]

    def __getitem__(self, rows: Any) -> Points:  # noqa: ANN401  whatever numpy indexes with
        return Points(self.time[rows], self.flux[rows], self.error[rows], self.track[rows])

    def __len__(self) -> int:
        return len(self.time)

    def in_order(self) -> Points:
        """Rows in order of (time, track); most are in order already."""
        later = (self.time[:, 1:] > self.time[:, :-1]) | np.isinf(self.time[:, 1:])
        rows = np.flatnonzero(~later.all(1))
        if len(rows):
            order = np.lexsort((self.track[rows], self.time[rows]), axis=-1)
            for column in (self.time, self.flux, self.error, self.track):
                column[rows] = np.take_along_axis(column[rows], order, 1)
        return self


class Columns:
    """Arrays of equal length that grow together by doubling.

    Parameters
    ----------
    **fills : (dtype, fill value, shape of one row)
    """

    def __init__(self, **fills: tuple[Any, Any, tuple[int, ...]]) -> None:
        self.size = 0
        self._fills = fills
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.full((0, *shape), fill, dtype) for name, (dtype, fill, shape) in fills.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, bytes."""
        return sum(array.nbytes for array in self._arrays.values())

    def grow(self, n: int) -> IntArray:
        """Make ``n`` more rows; their places."""
        first, self.size = self.size, self.size + n
        for name, array in self._arrays.items():
            if self.size > len(array):
                _, fill, shape = self._fills[name]
                grown = np.full((max(2 * len(array), self.size, 64), *shape), fill, array.dtype)
                grown[: len(array)] = array
                self._arrays[name] = grown
        return np.arange(first, self.size)


class Pages:
    """Points of windows, in order of arrival.

    Parameters
    ----------
    max_points : int
        Most points that a window may hold.
    """

    def __init__(self, max_points: int) -> None:
        self.max_points = max_points
        pages = -(-max_points // PAGE)
        self._windows = Columns(count=(np.int64, 0, ()), page=(np.int32, -1, (pages,)))
        self._points = Columns(
            time=(np.float64, np.inf, (PAGE,)),
            flux=(np.float32, 0, (PAGE,)),
            error=(np.float32, 0, (PAGE,)),
            track=(np.int32, -1, (PAGE,)),
        )
        self._points.grow(1)  # windows without any page read this one, and see nothing of it
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, bytes."""
        return self._windows.nbytes + self._points.nbytes

    @property
    def count(self) -> IntArray:
        """Points of each window."""
        return self._windows["count"]

    @property
    def used(self) -> int:
        """Pages ever taken, in use or free."""
        return self._points.size - 1

    def grow(self, n: int) -> IntArray:
        """Make ``n`` more windows, empty; their slots."""
        return self._windows.grow(n)

    def append(self, slots: IntArray, points: Points) -> NDArray[np.bool_]:
        """Append points to windows.

        Parameters
        ----------
        slots : ndarray, shape (n,), int64
            Window of each point, sorted.
        points : Points, shape (n,)

        Returns
        -------
        ndarray, shape (n,), bool
            Which points found room.
        """
        first = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])[: len(slots)]
        length = np.diff(np.r_[first, len(slots)])
        rank = np.arange(len(slots)) - np.repeat(first, length)
        index = self.count[slots] + rank
        room: NDArray[np.bool_] = index < self.max_points
        slots, index = slots[room], index[room]
        page, place = self._pages(slots, index // PAGE), index % PAGE
        for name in _NAMES:
            self._points[name][page, place] = getattr(points, name)[room]
        np.maximum.at(self.count, slots, index + 1)
        return room

    def gather(self, slots: IntArray) -> tuple[Points, IntArray]:
        """Copy windows as rows, shape (B, N), and the count of each; times beyond are infinite."""
        n = self.count[slots]
        width = max(1, -(-int(n.max(initial=0)) // PAGE))
        pages = np.maximum(self._windows["page"][slots, :width], 0)
        rows = Points(*(self._points[name][pages].reshape(len(slots), -1) for name in _NAMES))
        beyond = np.arange(rows.time.shape[1]) >= n[:, None]
        rows.time[beyond] = np.inf
        rows.track[beyond] = -1
        return rows, n

    def release(self, slots: IntArray) -> None:
        """Empty windows; their pages are used again."""
        table = self._windows["page"]
        pages = table[slots]
        self._free += pages[pages >= 0].tolist()
        table[slots] = -1
        self.count[slots] = 0

    def keep_better(self, slots: IntArray, index: IntArray, points: Points) -> None:
        """Where (error, flux) is smaller than that held at ``index``, put it in its place."""
        page, place = self._windows["page"][slots, index // PAGE], index % PAGE
        flux, error = self._points["flux"], self._points["error"]
        old_flux, old_error = flux[page, place], error[page, place]
        better = points.error < old_error
        better |= (points.error == old_error) & (points.flux < old_flux)
        flux[page[better], place[better]] = points.flux[better]
        error[page[better], place[better]] = points.error[better]

    def _pages(self, slots: IntArray, ordinal: IntArray) -> IntArray:
        """Page of each point; those that are missing are taken."""
        table = self._windows["page"]
        missing = np.flatnonzero(table[slots, ordinal] < 0)
        if len(missing):
            wanted = np.unique(slots[missing] * table.shape[1] + ordinal[missing])
            table[wanted // table.shape[1], wanted % table.shape[1]] = self._take(len(wanted))
        return np.asarray(table[slots, ordinal], np.int64)

    def _take(self, n: int) -> IntArray:
        reused = [self._free.pop() for _ in range(min(n, len(self._free)))]
        return np.concatenate([np.array(reused, np.int64), self._points.grow(n - len(reused))])
