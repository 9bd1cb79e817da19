"""Blocks: neighbouring fields of one fixed size, taken from a record as one piece of bytes.

Surveys write their measurements in stretches of floats, and their flags in stretches of booleans,
mostly all of them nullable. A stretch is one group of an expression and one entry of a row; the
columns of all its fields come out of one array of structures, without a Python object a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.avro.values import NULL, Remembered, Value
from broker_filter.decode.selection import DTYPES

__all__ = ["Block"]


class Block:
    """How the bytes of neighbouring fields become columns.

    Parameters
    ----------
    names : tuple of str or None
        Of the fields; None for those that are not wanted.
    value : Value
        Of each of them, of a fixed size.
    present : int or None
        Branch of the value where the fields may be null.
    """

    def __init__(self, names: tuple[str | None, ...], value: Value, present: int | None) -> None:
        self.names, self.present, self._value = names, present, value
        self._tag = b"" if present is None else write_long(present)
        self._item = len(self._tag) + np.dtype(value.dtype).itemsize
        self._dtype = np.dtype(
            {
                "names": ["value"],
                "formats": [value.dtype],
                "offsets": [len(self._tag)],
                "itemsize": self._item,
            }
        )
        self._size = self._item * len(names)
        self._padded = Remembered(self._pad)

    @property
    def fits(self) -> bool:
        """Whether `NULL` differs from all values."""
        return self._size != len(NULL)

    def whole(self, inner: Sequence[bytes]) -> bytes:
        """The bytes of the block from those of its values, `NULL` where there is none."""
        return b"".join([self._tag + self._or_null(raw) for raw in inner])

    def columns(self, raws: Sequence[bytes]) -> dict[str, NDArray[Any]]:
        """The wanted columns, shape (len(raws),) each, of the bytes of the block in each row.

        Rows may be shorter by what is null in them, and `NULL` where there is no record.
        """
        packed, size, padded = b"".join(raws), self._size, self._padded
        if len(packed) != size * len(raws):
            packed = b"".join([raw if len(raw) == size else padded[raw] for raw in raws])
        table = np.frombuffer(packed, self._dtype).reshape(len(raws), len(self.names))
        columns: NDArray[Any] = table["value"].T.astype(DTYPES[self._value.leaf], order="C")
        return {name: columns[i] for i, name in enumerate(self.names) if name is not None}

    def _pad(self, raw: bytes) -> bytes:
        """Put what stands for null in the place of what is null."""
        if raw == NULL:
            return self.whole([NULL] * len(self.names))
        inner, at, tag = [], 0, self._tag
        while at < len(raw):
            there = raw.startswith(tag, at)
            inner.append(raw[at + len(tag) : at + self._item] if there else NULL)
            at += self._item if there else len(tag)
        return self.whole(inner)

    def _or_null(self, raw: bytes) -> bytes:
        return self._value.null if raw == NULL else raw
