"""How far new epochs can have raised the significance of each window since it was read.

One more epoch, z errors above the quiet star, raises S^2 of any template of an event by z^2 at
most. For the likelihood ratio of all epochs is that of the earlier ones times that of the new one,
and this is largest where the event passes through it. So as long as the sum of these z^2 is small,
a window that was settled when it was read stays settled, and need not be read again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled
from broker_filter.state.columns import Column
from broker_filter.types import IntArray
from broker_filter.windows.arrays import grown
from broker_filter.windows.epochs import Epochs

__all__ = ["News"]

SHARE: Final = 0.1
"""A window that was seen to be far from quiet is news again when its S^2 has grown by so much."""


class News:
    """What is left until each window of one store is news.

    Parameters
    ----------
    rise : float
        By how much S^2 must be able to have risen; infinite: nothing is ever news.

    Attributes
    ----------
    left : ndarray, shape (windows or more,), float32
        What of it is left; infinite for windows that were not read.
    """

    def __init__(self, rise: float = math.inf) -> None:
        self._rise = rise
        self.left = np.zeros(0, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return self.left.nbytes

    def add_rows(self, n_rows: int) -> None:
        """Make room for windows 0 to ``n_rows - 1``, none of them read yet."""
        self.left = grown(self.left, n_rows, np.inf)

    def keep(self, slots: IntArray) -> None:
        """Make ``slots`` the only windows, numbered from 0."""
        self.left = self.left[slots]

    def add(
        self,
        epochs: Epochs,
        newest: NDArray[np.float64],
        track: IntArray,
        quiet: NDArray[np.float32],
        unit: NDArray[np.float32],
    ) -> None:
        """Count epochs that are newer than all that their windows hold.

        Parameters
        ----------
        epochs : Epochs
            In any order.
        newest : ndarray, shape (windows or more,), float64
            Newest epoch of each window so far.
        track : ndarray, shape (len(epochs),), int64
            Of each epoch.
        quiet, unit : ndarray, shape (tracks or more,), float32
            Flux of the quiet star in the source's own unit and factor on its errors, of each track
            when it was last read; NaN where it was not.
        """
        if math.isfinite(self._rise):
            of = epochs.slot, epochs.time, epochs.flux, epochs.error
            _add(*of, newest, track, quiet, unit, self.left)

    def note(
        self,
        slots: IntArray,
        flux: NDArray[np.floating[Any]],
        error: NDArray[np.floating[Any]],
        n: IntArray,
    ) -> None:
        """Note that windows were read; rows as of `WindowBatch`, none where n is 0."""
        if math.isfinite(self._rise):
            _note(slots, flux, error, n, self._rise, self.left)

    def of(self, slots: IntArray) -> NDArray[np.bool_]:
        """Which windows are news."""
        if not math.isfinite(self._rise):
            return np.zeros(len(slots), np.bool_)
        return np.asarray(self.left[slots] <= 0)

    def state(self, size: int) -> dict[str, Column]:
        """A copy, as columns for a snapshot."""
        return {"news_left": self.left[:size].copy()}

    def restore(self, columns: Mapping[str, NDArray[Any]], size: int) -> None:
        """Take over what `state` gave; older snapshots know of no news.

        Raises
        ------
        ValueError
            It is not of ``size`` windows.
        """
        left = columns.get("news_left", np.full(size, np.inf, np.float32))
        if len(left) != size:
            raise ValueError(f"news of {len(left)} windows, and there are {size}")
        self.left[:size] = left


@compiled
def _add(
    slot: IntArray,
    time: NDArray[np.float64],
    flux: NDArray[np.float32],
    error: NDArray[np.float32],
    newest: NDArray[np.float64],
    track: IntArray,
    quiet: NDArray[np.float32],
    unit: NDArray[np.float32],
    left: NDArray[np.float32],
) -> None:
    """As `News.add`; an epoch below the quiet star raises nothing."""
    for i in range(len(slot)):
        of = track[i]
        z = (np.float64(flux[i]) - quiet[of]) / (np.float64(error[i]) * unit[of])
        if z > 0 and time[i] > newest[slot[i]]:
            left[slot[i]] -= z * z


@compiled
def _note(
    slots: IntArray,
    flux: NDArray[np.floating[Any]],
    error: NDArray[np.floating[Any]],
    n: IntArray,
    rise: float,
    left: NDArray[np.float32],
) -> None:
    """As `News.note`: of chance alone half of the epochs are above the quiet star."""
    for i in range(len(slots)):
        above = -0.5 * n[i]
        for j in range(n[i]):
            z = (np.float64(flux[i, j]) - 1) / error[i, j]
            if z > 0:
                above += z * z
        left[slots[i]] = max(rise, SHARE * above) if n[i] > 0 else np.inf
