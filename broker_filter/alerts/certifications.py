"""Certifications of a window: when its K is certified, and what each certificate may claim.

One certified K obeys P(K >= k | no event) <= 1/k, at any moment that the data themselves choose. A
window that is certified again and again has more chances to be wrong, so certification j is charged
by the weight 1 / (j (j + 1)). These weights sum to one: over all certifications of one window
together the bound holds as for a single one. They are spaced by growth of the network's K and by
the time since the first, so that they stay few: K against a family of noise may grow where the
network's does not, as when a second night shows what a first one could have had wrong. Once the
network's K has fallen below the trigger the last certificate is void, but it still counts: the
count of one window does not begin anew. A certificate of another window says nothing of the one
that has taken its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broker_filter.alerts.lifecycle import EventKey, has_grown
from broker_filter.state.columns import (
    Column,
    Columns,
    arrays_of,
    packed_keys,
    reading,
    unpacked_keys,
)

__all__ = [
    "GROWTH_FACTOR",
    "GROWTH_STEP",
    "LATER_DAYS",
    "Certification",
    "certifications_from_columns",
    "certifications_to_columns",
    "is_due",
    "may_tell",
]

GROWTH_STEP = 1.0
"""How far the network's log10 K must grow before the next certification."""

GROWTH_FACTOR = 1.25
"""How many times that of the last one it must be as well: K of a bright event grows and grows."""


LATER_DAYS = 1.0
"""Days after the first certification of a window from which on time alone calls for another."""

NEAR_END = 10.0
"""How far above the threshold a certificate must be for its event to be far from its end."""


@dataclass(frozen=True, slots=True)
class Certification:
    """The last certification of a window.

    Parameters
    ----------
    window_start : float, MJD TAI
        Which of the star's windows it was.
    count : int
        Which certification of that window it is, from 1.
    network_log10_k : float
        log10 K of the network at that moment; minus infinity once it has fallen since.
    log10_k, log10_k_error, effective_sample_size : float
        The certificate.
    first_mjd, last_mjd : float, MJD TAI
        Last epoch at the first certification of the window, and at this one; infinity where an
        older version did not note it.
    """

    window_start: float
    count: int
    network_log10_k: float
    log10_k: float
    log10_k_error: float
    effective_sample_size: float
    first_mjd: float = math.inf
    last_mjd: float = math.inf

    @property
    def charged(self) -> float:
        """What the certificate may claim: log10 of K / (j (j + 1))."""
        return self.log10_k - math.log10(self.count * (self.count + 1))

    @property
    def voided(self) -> Certification:
        """The same after the network's K has fallen: it counts, and the next one is due."""
        return replace(self, network_log10_k=-math.inf)

    @property
    def is_void(self) -> bool:
        """Whether it counts alone, and claims nothing any more."""
        return self.network_log10_k == -math.inf


def is_due(last: Certification | None, log10_k: float, window_start: float, mjd: float) -> bool:
    """Whether a window calls for another certification.

    Parameters
    ----------
    last : Certification or None
        Of the star.
    log10_k : float
        Of the network.
    window_start, mjd : float, MJD TAI
        Of the window, and its last epoch.
    """
    if last is None or last.window_start != window_start:
        return True
    before = last.network_log10_k
    if log10_k >= max(before + GROWTH_STEP, GROWTH_FACTOR * before):
        return True
    return mjd - last.first_mjd >= max(LATER_DAYS, 2 * (last.last_mjd - last.first_mjd))


def may_tell(last: Certification, log10_k: float, threshold: float) -> bool:
    """Whether another certification of an open event could lead to an alert of it.

    K of both kinds is of the same epochs. Where that of the network has neither grown by what an
    update takes nor fallen, the certified one far from the end has hardly done so; alerts for any
    other reason are fitted when they are due, and each new window, of which alone there can be a
    final, is certified at once.

    Parameters
    ----------
    last : Certification
        Of the same window.
    log10_k : float
        Of the network.
    threshold : float
        Certified log10 K from which on events open.
    """
    before = last.network_log10_k
    fallen = log10_k <= min(before - GROWTH_STEP, before / GROWTH_FACTOR)
    return has_grown(before, log10_k) or fallen or last.log10_k < threshold + NEAR_END


_NUMBERS: Final = (
    "window_start",
    "count",
    "network_log10_k",
    "log10_k",
    "log10_k_error",
    "effective_sample_size",
)


_LATER: Final = ("first_mjd", "last_mjd")
"""Columns that older snapshots lack."""


def certifications_to_columns(
    found: Mapping[EventKey, Certification],
) -> dict[str, Column]:
    """Write certifications as columns for a snapshot."""
    return {
        **packed_keys(found),
        **{
            name: np.array([getattr(one, name) for one in found.values()], np.float64)
            for name in (*_NUMBERS, *_LATER)
        },
    }


def certifications_from_columns(columns: Columns) -> dict[EventKey, Certification]:
    """Read what `certifications_to_columns` wrote.

    Raises
    ------
    StateError
        If columns are missing or of different lengths.
    """
    with reading("certifications"):
        arrays = arrays_of(columns)
        numbers = [arrays[name].tolist() for name in _NUMBERS]
        unknown = [math.inf] * len(numbers[0])
        numbers += [arrays[name].tolist() if name in arrays else unknown for name in _LATER]
        rows = zip(*numbers, strict=True)
        return {
            key: Certification(start, int(count), *rest)
            for key, (start, count, *rest) in zip(unpacked_keys(arrays), rows, strict=True)
        }
