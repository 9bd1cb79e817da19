"""What the nights of a star say of its noise: how epochs scatter in a night, and nights as a whole.

Quoted errors are those of photons. Clouds, seeing and flat fields move a night as a whole, so that
the mean of a hundred epochs is not ten times better than each: it takes nights to see that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from broker_filter.types import FloatArray, IntArray

__all__ = ["NIGHT_GAP", "NightSums", "night_sums"]

NIGHT_GAP: Final = 0.3
"""Days without an epoch that part two nights."""
LONGEST: Final = 1.0
"""Days of observing without such a gap that count as one night."""
TOLERATED: Final = 3.0
"""A night, or an epoch in it, further off than this many sigma counts as if it were so far off."""
TRIAL: Final = 2.0
"""The scatter of a track's first nights is judged as if so many had been off by one error."""


@dataclass(frozen=True, slots=True)
class NightSums:
    """Sums over nights of each track, shape (n,), float64.

    Parameters
    ----------
    nights : ndarray
        How many.
    squares : ndarray, errors^2
        Of the offset of each night's mean from the level, in units of the error of one epoch.
    expected : ndarray
        The same if epochs were independent and their errors right: 1 / n of each night.
    within : ndarray, errors^2
        Squared residuals of epochs about the mean of their night.
    freedom : ndarray
        Epochs less nights: what ``within`` is if errors are right.
    """

    nights: FloatArray
    squares: FloatArray
    expected: FloatArray
    within: FloatArray
    freedom: FloatArray


def night_sums(
    group: IntArray,
    time: FloatArray,
    off: FloatArray,
    quoted: FloatArray,
    weight: FloatArray,
    scale: FloatArray,
    known: NightSums,
) -> NightSums:
    """What a few more nights of each track add to its sums.

    Parameters
    ----------
    group : ndarray, shape (p,), int64
        Track of each epoch, 0 to n - 1, in order.
    time : ndarray, shape (p,), float64, days
        In order within a track.
    off : ndarray, shape (p,), float64
        Flux less the level of its track.
    quoted, weight : ndarray, shape (p,), float64
        Inverse variances: of the quoted error, and less of it for outliers.
    scale : ndarray, shape (n,), float64
        Factor on the errors of each track, by which outliers are judged.
    known : NightSums
        Of the tracks so far.

    Notes
    -----
    One night that is far off (bad seeing, an event) counts no more than nine times the mean square
    so far. The median would do the same, but is no sum.
    """
    night = _nights(group, time)
    first = np.flatnonzero(np.diff(night, prepend=-1))
    of, m = group[first], len(first)

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(night, values, m), np.float64)

    n = total(np.ones(len(night)))
    error2 = n / total(quoted)
    mean = total(weight * off) / total(weight)
    rest = np.minimum(quoted * np.square(off - mean[night]), np.square(TOLERATED * scale[group]))
    so_far = (known.squares + TRIAL) / (known.nights + TRIAL)
    square = np.minimum(np.square(mean) / error2, TOLERATED**2 * so_far[of])

    def by_track(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(of, values, len(scale)), np.float64)

    return NightSums(*(by_track(each) for each in (np.ones(m), square, 1 / n, total(rest), n - 1)))


def _nights(group: IntArray, time: FloatArray) -> IntArray:
    """Number of the night of each epoch, shape (p,), from 0 on."""
    starts = np.diff(group, prepend=-1) != 0
    starts |= np.diff(time, prepend=time[:1]) > NIGHT_GAP
    run = np.cumsum(starts) - 1
    day = np.floor((time - time[starts][run]) / LONGEST).astype(np.int64)
    starts |= np.diff(day, prepend=0) != 0
    return np.cumsum(starts) - 1
