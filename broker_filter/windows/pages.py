"""Which pages of a flat array are in use: large ones, and small ones for rows of a few points.

A page is known by the number of the small page at its start, so a large one takes eight numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.windows.arrays import grown

__all__ = ["LARGE", "SMALL", "Pages"]

SMALL: Final = 8
"""Points of a small page."""

LARGE: Final = 64
"""Points of a large page."""


class Pages:
    """Pages given out and taken back; those taken back are given out first.

    Attributes
    ----------
    end : int
        Small pages that the array must have room for. The first large page is never given out.
    """

    __slots__ = ("_free", "_n_free", "end")

    def __init__(self) -> None:
        self.end = LARGE // SMALL
        self._free = {size: np.zeros(0, np.int32) for size in (SMALL, LARGE)}
        self._n_free = dict.fromkeys(self._free, 0)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(free.nbytes for free in self._free.values())

    @property
    def points_in_use(self) -> int:
        """Points that the pages given out have room for."""
        free = sum(size * n for size, n in self._n_free.items())
        return self.end * SMALL - LARGE - free

    def take(self, n: int, size: int) -> NDArray[np.int32]:
        """Numbers of ``n`` pages of a size."""
        free, n_free = self._free[size], self._n_free[size]
        again = min(n, n_free)
        self._n_free[size] -= again
        step = size // SMALL
        new = np.arange(n - again, dtype=np.int32) * step + self.end
        self.end += len(new) * step
        return np.concatenate([free[n_free - again : n_free], new.astype(np.int32)])

    def give_back(self, pages: NDArray[Any], size: int) -> None:
        """Take back pages of a size."""
        n_free = self._n_free[size]
        self._n_free[size] += len(pages)
        self._free[size] = grown(self._free[size], n_free + len(pages))
        self._free[size][n_free : n_free + len(pages)] = pages
