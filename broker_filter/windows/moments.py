"""When and by which source points were taken: stars of one exposure share what is known of it.

Many stars have points of one exposure, so a point holds the number of its exposure alone. That
takes two bytes, or four where there are too many exposures at a time. Where hardly any two points
share an exposure, each holds its own time and source. Two bytes come first; another form is chosen
when the table of exposures is full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled
from broker_filter.types import FloatArray, IntArray
from broker_filter.windows.arrays import lengthened, take, take_twice

__all__ = ["Moments", "OwnMoments", "SharedMoments"]

Codes = NDArray[np.uint16]
Decoded = tuple[FloatArray, Codes]
"""Time (float64, MJD TAI) and source of n points."""

LEAST: Final = 1 << 10
"""Exposures that a table has room for at least; a full one grows to at least twice those in use."""
SHORT: Final = 1 << 16
"""Exposures whose numbers fit into two bytes."""
SHARED: Final = 8
"""Points an exposure, where numbers take four bytes: with fewer each point holds its own time."""
BUCKETS: Final = 2  # for each exposure
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
SHIFT: Final = np.uint64(32)


class Moments(Protocol):
    """Times and sources of points, by index."""

    @property
    def columns(self) -> Sequence[NDArray[Any]]:
        """What is kept for each point, as long as there is room for points."""

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""

    def time(self, index: IntArray) -> FloatArray:
        """Times of points."""

    def source(self, index: IntArray) -> Codes:
        """Their sources."""

    def write(self, index: IntArray, time: FloatArray, source: Codes) -> bool:
        """Overwrite points; false, and nothing done, where there is no room for new exposures."""

    def roomier(self, time: FloatArray, source: Codes) -> Moments:
        """The same moments in columns of their own, with room for those of more points."""

    def resize(self, size: int, *, in_place: bool) -> None:
        """Make room for so many points; ``in_place`` as of `lengthened`."""

    def reader(self) -> Callable[[Sequence[NDArray[Any]], IntArray], Decoded]:
        """What decodes columns of this moment, whatever is written later."""


class OwnMoments:
    """Each point has a time and a source of its own.

    Parameters
    ----------
    time : ndarray, shape (n,), float64, MJD TAI
    source : ndarray, shape (n,), uint16
    """

    __slots__ = ("_source", "_time")

    def __init__(self, time: FloatArray, source: Codes) -> None:
        self._time, self._source = time, source

    @property
    def columns(self) -> Sequence[NDArray[Any]]:
        """Times and sources."""
        return self._time, self._source

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return self._time.nbytes + self._source.nbytes

    def time(self, index: IntArray) -> FloatArray:
        """Times of points."""
        return take(self._time, index)

    def source(self, index: IntArray) -> Codes:
        """Their sources."""
        return take(self._source, index)

    def write(self, index: IntArray, time: FloatArray, source: Codes) -> bool:
        """Overwrite points; there is always room."""
        self._time[index], self._source[index] = time, source
        return True

    def roomier(self, time: FloatArray, source: Codes) -> Moments:  # noqa: ARG002
        """These themselves: there is always room."""
        return self

    def resize(self, size: int, *, in_place: bool) -> None:
        """Make room for so many points."""
        self._time = lengthened(self._time, size, in_place=in_place)
        self._source = lengthened(self._source, size, in_place=in_place)

    def reader(self) -> Callable[[Sequence[NDArray[Any]], IntArray], Decoded]:
        """The columns are what is wanted."""
        return lambda columns, index: (columns[0][index], columns[1][index])


class SharedMoments:
    """Points that refer to a table of exposures.

    Parameters
    ----------
    code : ndarray, shape (n,), uint16 or uint32
        Exposure of each point.
    time, source : ndarray, shape (m,), float64 and uint16
        Exposures that are known.
    capacity : int
        Exposures that the table has room for; a power of two.
    """

    __slots__ = ("_buckets", "_code", "_size", "_source", "_time")

    def __init__(
        self, code: NDArray[Any], time: FloatArray, source: Codes, capacity: int = LEAST
    ) -> None:
        self._code, self._size = code, 0
        self._time, self._source = np.zeros(capacity), np.zeros(capacity, np.uint16)
        self._buckets = np.full(BUCKETS * capacity, -1, np.int32)
        self._find(time, source)

    @property
    def columns(self) -> Sequence[NDArray[Any]]:
        """Numbers of exposures."""
        return (self._code,)

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room and the table included."""
        table = self._time.nbytes + self._source.nbytes + self._buckets.nbytes
        return self._code.nbytes + table

    def time(self, index: IntArray) -> FloatArray:
        """Times of points."""
        return take_twice(self._time, self._code, index)

    def source(self, index: IntArray) -> Codes:
        """Their sources."""
        return take_twice(self._source, self._code, index)

    def write(self, index: IntArray, time: FloatArray, source: Codes) -> bool:
        """Overwrite points; false, and nothing done, where the table has no room."""
        code = self._find(time, source)
        if code is not None:
            self._code[index] = code
        return code is not None

    def roomier(self, time: FloatArray, source: Codes) -> Moments:
        """The same moments, with room for those of more points."""
        used = np.zeros(len(self._time), np.bool_)
        used[self._code] = True
        kept = np.flatnonzero(used)
        needed = len(kept) + len(np.unique(time + 1j * source))
        capacity = max(LEAST, 1 << (2 * needed).bit_length())
        if capacity > SHORT and len(self._code) + len(time) < SHARED * needed:
            return OwnMoments(self._time[self._code], self._source[self._code])
        number = (np.cumsum(used) - 1).astype(np.uint16 if capacity <= SHORT else np.uint32)
        return SharedMoments(number[self._code], self._time[kept], self._source[kept], capacity)

    def resize(self, size: int, *, in_place: bool) -> None:
        """Make room for so many points."""
        self._code = lengthened(self._code, size, in_place=in_place)

    def reader(self) -> Callable[[Sequence[NDArray[Any]], IntArray], Decoded]:
        """Looks up the exposures of now."""
        time, source = self._time.copy(), self._source.copy()
        return lambda columns, index: (time[columns[0][index]], source[columns[0][index]])

    def _find(self, time: FloatArray, source: Codes) -> NDArray[np.uint32] | None:
        """Numbers of exposures, new ones where they were not known; None if there is no room."""
        code = np.empty(len(time), np.uint32)
        bits = np.ascontiguousarray(time).view(np.int64)
        known = self._time.view(np.int64), self._source, self._size, self._buckets
        size = _number(bits, np.ascontiguousarray(source), *known, code)
        self._size = abs(size)
        return code if size >= 0 else None


@compiled
def _number(
    time: IntArray,
    source: Codes,
    known_time: IntArray,
    known_source: Codes,
    size: int,
    buckets: NDArray[np.int32],
    code: NDArray[np.uint32],
) -> int:
    """Write the number of each exposure to ``code``; how many are known, negative if too many.

    Times are compared as bits. A number stands in the first free bucket from its hash on.
    """
    last = 0
    for i in range(len(time)):
        t, s = time[i], source[i]
        if not (size > 0 and known_time[last] == t and known_source[last] == s):
            mixed = (np.uint64(t) ^ (np.uint64(s) << SHIFT)) * GOLDEN
            at = np.int64(mixed >> SHIFT) & (len(buckets) - 1)
            while True:
                last = buckets[at]
                if last < 0:
                    if size == len(known_time):
                        return -size
                    last = size
                    known_time[last], known_source[last] = t, s
                    buckets[at] = last
                    size += 1
                    break
                if known_time[last] == t and known_source[last] == s:
                    break
                at = (at + 1) & (len(buckets) - 1)
        code[i] = last
    return size
