"""What the network's posterior says of an event in a few numbers, kept to see it move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.parts import QUANTILES, UNITS, physical
from broker_filter.state.columns import Column

__all__ = ["Estimate", "estimates_from_columns", "estimates_to_columns"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Medians and errors of the parameters `UNITS`, in this order.

    Parameters
    ----------
    medians, sigmas : tuple of float
        t0 in MJD TAI, tE in days; sigmas are half of the 68 % intervals.
    """

    medians: tuple[float, ...]
    sigmas: tuple[float, ...]

    @classmethod
    def of(cls, samples: NDArray[np.floating[Any]], window_start: float) -> Estimate:
        """Of samples, shape (S, 5), columns `PARAMETERS`, of a window that starts at an MJD TAI."""
        columns = physical(samples, window_start)
        levels = [QUANTILES[name] for name in ("p16", "median", "p84")]
        low, median, high = np.quantile([columns[name] for name in UNITS], levels, axis=1)
        return cls(tuple(median.tolist()), tuple(((high - low) / 2).tolist()))

    def is_far_from(self, other: Estimate) -> bool:
        """Whether a median is more than one sigma of ``other`` away from that of ``other``."""
        rows = zip(self.medians, other.medians, other.sigmas, strict=True)
        return any(abs(median - former) > sigma for median, former, sigma in rows)


_NONE = Estimate(*2 * ((math.nan,) * len(UNITS),))


def estimates_to_columns(estimates: Sequence[Estimate | None]) -> dict[str, Column]:
    """Columns of shape (n, 5), float64; NaN where there is no estimate."""
    known = [_NONE if estimate is None else estimate for estimate in estimates]
    shape = len(known), len(UNITS)
    return {
        "estimate_medians": np.array([one.medians for one in known], np.float64).reshape(shape),
        "estimate_sigmas": np.array([one.sigmas for one in known], np.float64).reshape(shape),
    }


def estimates_from_columns(arrays: Mapping[str, NDArray[Any]], n: int) -> list[Estimate | None]:
    """Read what `estimates_to_columns` wrote; none of an older version's columns.

    Raises
    ------
    ValueError
        The columns are not of n events and five parameters.
    """
    if "estimate_medians" not in arrays:
        return [None] * n
    medians, sigmas = (
        arrays[name].reshape(n, len(UNITS)).tolist()
        for name in ("estimate_medians", "estimate_sigmas")
    )
    pairs = zip(medians, sigmas, strict=True)
    return [None if math.isnan(of[0]) else Estimate(tuple(of), tuple(by)) for of, by in pairs]
