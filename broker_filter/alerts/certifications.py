"""Looks at a window with certified K, and what each may claim.

One certified K obeys P(K >= k | no event) <= 1/k, at any moment that the data themselves choose. A
window that is looked at again and again has more chances to be wrong, so look j is charged by the
weight 1 / (j (j + 1)). These weights sum to one: over all looks at one window together the bound
holds as for a single one. Looks are spaced by growth of the network's K, so that they stay few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from broker_filter.alerts.lifecycle import EventKey
from broker_filter.errors import StateError
from broker_filter.state.columns import Column, Columns, arrays_of, packed_keys, unpacked_keys

__all__ = [
    "LOOK_FACTOR",
    "LOOK_STEP",
    "Look",
    "budget_threshold",
    "is_due",
    "looks_from_columns",
    "looks_to_columns",
]

LOOK_STEP = 1.0
"""How far the network's log10 K must grow before the next look."""

LOOK_FACTOR = 1.25
"""How many times that of the last look it must be as well: K of a bright event grows and grows."""


@dataclass(frozen=True, slots=True)
class Look:
    """The last look at a window.

    Parameters
    ----------
    window_start : float, MJD TAI
        Which of the star's windows it was.
    count : int
        The how manieth look at that window, from 1.
    network_log10_k : float
        log10 K of the network at that moment.
    log10_k, log10_k_error, effective_sample_size : float
        The certificate.
    """

    window_start: float
    count: int
    network_log10_k: float
    log10_k: float
    log10_k_error: float
    effective_sample_size: float

    @property
    def charged(self) -> float:
        """What the look may claim: log10 of K / (j (j + 1))."""
        return self.log10_k - math.log10(self.count * (self.count + 1))


def is_due(look: Look | None, log10_k: float, window_start: float) -> bool:
    """Whether the network's ``log10_k`` deserves another look at the window."""
    if look is None or look.window_start != window_start:
        return True
    last = look.network_log10_k
    return log10_k >= max(last + LOOK_STEP, LOOK_FACTOR * last)


def budget_threshold(stars: int, false_alarms_per_night: float, window_days: float) -> float:
    """The certified log10 K that keeps to a budget.

    A window moves on after a quarter of its length T, and each has one chance of at most 1/k, so
    that N stars give at most N / (k T / 4) false alarms a day.
    """
    return math.log10(stars / (false_alarms_per_night * window_days / 4))


_NUMBERS: Final = (
    "window_start",
    "count",
    "network_log10_k",
    "log10_k",
    "log10_k_error",
    "effective_sample_size",
)


def looks_to_columns(looks: Mapping[EventKey, Look]) -> dict[str, Column]:
    """Write looks as columns for a snapshot."""
    return {
        **packed_keys(looks),
        **{
            name: np.array([getattr(look, name) for look in looks.values()], np.float64)
            for name in _NUMBERS
        },
    }


def looks_from_columns(columns: Columns) -> dict[EventKey, Look]:
    """Read what `looks_to_columns` wrote.

    Raises
    ------
    StateError
        If columns are missing or of different lengths.
    """
    try:
        arrays = arrays_of(columns)
        rows = zip(*(arrays[name].tolist() for name in _NUMBERS), strict=True)
        return {
            key: Look(start, int(count), *rest)
            for key, (start, count, *rest) in zip(unpacked_keys(arrays), rows, strict=True)
        }
    except (LookupError, ValueError, TypeError) as error:
        raise StateError(f"the looks of the snapshot cannot be used: {error!r}") from error
