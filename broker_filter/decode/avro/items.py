"""The items of a list, taken from their bytes into columns by one compiled loop.

The loop follows *steps*, one for each field of an item, which are made once for a schema. A column
is a row of *cells* of 64 bits. The cell of a text is its number among the unlike ones that were
met, and two more rows hold where each of these begins and ends: bands, which come again and again,
are decoded once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled, inlined
from broker_filter.types import IntArray

__all__ = ["ROWS_OF_TEXT", "Kind", "no_texts", "take_items"]

ROWS_OF_TEXT: Final = 3
"""Rows of cells that a column of texts takes: numbers, and where each text begins and ends."""


class Kind(IntEnum):
    """What a step does; all but three make a cell of what they pass over."""

    FIXED = 0  # any bytes of a fixed size, which are passed over; as those to BOOLEAN
    FLOAT = 1
    DOUBLE = 2
    BOOLEAN = 3
    NUMBER = 4  # an integer, which is passed over
    WHOLE = 5
    AS_FLOAT = 6
    SYMBOL = 7  # of an enum, with its bytes as a text
    SIZED = 8  # bytes behind their length, which are passed over
    TEXT = 9


_FLOAT, _DOUBLE, _BOOLEAN = int(Kind.FLOAT), int(Kind.DOUBLE), int(Kind.BOOLEAN)
_WHOLE, _AS_FLOAT = int(Kind.WHOLE), int(Kind.AS_FLOAT)
_SYMBOL, _SIZED, _TEXT = int(Kind.SYMBOL), int(Kind.SIZED), int(Kind.TEXT)
_SLOTS: Final = 64
_TRUNCATED: Final = -1
_BAD: Final = -2


def no_texts(columns: int) -> IntArray:
    """The texts that were met of each column, where none were; `take_items` adds to them."""
    met = np.full((columns, _SLOTS + 1), -1)
    met[:, _SLOTS] = 0  # how many
    return met


def take_items(
    value: NDArray[np.uint8],
    at: int,
    rows: tuple[int, int],
    steps: IntArray,
    cells: IntArray,
    met: IntArray,
) -> int:
    """Take items that lie one behind the other.

    Parameters
    ----------
    value : ndarray, shape (bytes,), uint8
    at : int
        Where the first item begins.
    rows : (int, int)
        Place of its cells, and of those behind the last item's.
    steps : ndarray, shape (fields, 5), int64
        Of each field of an item: its `Kind`; its size, or of a text its row in ``met``; the branch
        at which it is there, -1 if it cannot be null; its row in ``cells``, -1 if it is passed
        over; and the cell that stands for null.
    cells : ndarray, shape (columns, n), int64
        Changed in place: bits of a float64, an int64, 0 for False, or the number of a text.
    met : ndarray
        From `no_texts`; changed in place.

    Returns
    -------
    int
        Where the last item ends.

    Raises
    ------
    IndexError
        The bytes end before.
    ValueError
        They cannot be such items.
    """
    end = int(_take(value, at, *rows, steps, cells, cells.view(np.float64), met))
    if end == _TRUNCATED:
        raise IndexError
    if end < 0:
        raise ValueError(f"no number, length or branch of a union at byte {_BAD - end}")
    return end


@inlined
def _short(byte: Any) -> Any:  # noqa: ANN401  numba's own integers
    """The integer of one byte."""
    return (np.int64(byte) >> 1) ^ -(np.int64(byte) & 1)


@inlined
def _number(value: NDArray[np.uint8], at: int) -> tuple[Any, int]:
    """As `read_long`, but an error is a negative end."""
    raw, shift, start = np.uint64(0), np.uint64(0), at
    while at < len(value):
        byte = np.uint64(value[at])
        raw |= (byte & np.uint64(0x7F)) << shift
        at += 1
        if byte <= np.uint64(0x7F):
            if shift == np.uint64(63) and byte > np.uint64(1):
                return np.int64(0), _BAD - start
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
        if shift > np.uint64(63):
            return np.int64(0), _BAD - start
    return np.int64(0), _TRUNCATED


@inlined
def _forward(value: NDArray[np.uint8], at: int, size: int) -> int:
    if size < 0:
        return _BAD - at
    return at + size if size <= len(value) - at else _TRUNCATED


@inlined
def _bits(value: NDArray[np.uint8], at: int, size: int) -> Any:  # noqa: ANN401
    """Some bytes as one number, lowest first."""
    bits = np.uint64(0)
    for i in range(size):
        bits |= np.uint64(value[at + i]) << np.uint64(8 * i)
    return bits


@inlined
def _text(
    value: NDArray[np.uint8], start: int, end: int, cells: IntArray, column: int, met: IntArray
) -> Any:  # noqa: ANN401
    """The number of a text; one that takes another's slot is met anew when it comes again."""
    slot = (31 * (end - start) + value[end - 1]) % _SLOTS
    known = met[slot]
    if known >= 0 and cells[column + 2, known] - cells[column + 1, known] == end - start:
        at, back = start, cells[column + 1, known] - start
        while at < end and value[at] == value[at + back]:
            at += 1
        if at == end:
            return known
    number = met[_SLOTS]
    met[slot], met[_SLOTS] = number, number + 1
    cells[column + 1, number], cells[column + 2, number] = start, end
    return number


@compiled
def _take(
    value: NDArray[np.uint8],
    at: int,
    first: int,
    end: int,
    steps: IntArray,
    cells: IntArray,
    reals: NDArray[np.float64],
    met: IntArray,
) -> int:
    for row in range(first, end):
        for step in range(len(steps)):
            kind, size, present = steps[step, 0], steps[step, 1], steps[step, 2]
            column = steps[step, 3]
            # Numbers of one byte are read here: passing arrays to a function takes its time.
            if present >= 0:
                if at < len(value) and value[at] <= 0x7F:
                    branch, at = _short(value[at]), at + 1
                else:
                    branch, at = _number(value, at)
                    if at < 0:
                        return at
                if branch != present:
                    if branch != 1 - present:
                        return _BAD - at
                    if column >= 0:
                        cells[column, row] = steps[step, 4]
                    continue
            start, number = at, size
            if kind > _BOOLEAN:
                if at < len(value) and value[at] <= 0x7F:
                    number, at = _short(value[at]), at + 1
                else:
                    number, at = _number(value, at)
            if at >= 0 and (kind <= _BOOLEAN or kind >= _SIZED):
                at = _forward(value, at, number)
            if at < 0:
                return at
            if column < 0:
                continue
            if kind == _FLOAT:
                reals[column, row] = np.uint32(_bits(value, start, 4)).view(np.float32)
            elif kind == _DOUBLE:
                cells[column, row] = _bits(value, start, 8)
            elif kind == _BOOLEAN:
                cells[column, row] = value[start]
            elif kind == _WHOLE:
                cells[column, row] = number
            elif kind == _AS_FLOAT:
                reals[column, row] = number
            else:
                cells[column, row] = _text(value, start, at, cells, column, met[size])
    return at
