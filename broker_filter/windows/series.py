"""Light curves side by side, as padded rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import FloatArray, IntArray

__all__ = ["Series"]


@dataclass(frozen=True, slots=True)
class Series:
    """Light curves of tracks as padded rows, in order of time.

    Parameters
    ----------
    time : ndarray, shape (B, N), float64, MJD TAI
    flux, error : ndarray, shape (B, N), float32 or float64
        In the source's own unit, or in units of its baseline once it is read.
    n : ndarray, shape (B,), int64
        Epochs of each row; what is in the columns beyond them has no meaning.
    """

    time: FloatArray
    flux: NDArray[np.floating[Any]]
    error: NDArray[np.floating[Any]]
    n: IntArray

    def take(self, rows: IntArray) -> Series:
        """Some of the rows, ascending and each once, no wider than they need."""
        if len(rows) == len(self.n):
            return self
        n = self.n[rows]
        width = int(n.max(initial=1))
        return Series(
            *(self.time[rows, :width], self.flux[rows, :width], self.error[rows, :width]), n
        )
