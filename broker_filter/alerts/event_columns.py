"""Events, and how many each star has had, as columns for a snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.alert import CertifiedK
from broker_filter.alerts.estimate import estimates_from_columns, estimates_to_columns
from broker_filter.alerts.lifecycle import EventKey, EventState
from broker_filter.state.columns import (
    Column,
    Columns,
    arrays_of,
    packed,
    packed_keys,
    reading,
    unpacked,
    unpacked_keys,
)

__all__ = [
    "counts_from_columns",
    "counts_to_columns",
    "events_from_columns",
    "events_to_columns",
]

_NUMBERS: Final = ("opened_mjd", "alerted_mjd", "alerted_log10_k", "seen_mjd", "t0")
_LATER: Final = {"tE": math.nan, "updates": 0, "best_log10_k": math.nan}
_CERTIFIED: Final = ("log10_k", "log10_k_error", "effective_sample_size", "look")
"""Columns that older snapshots lack: of these an event has the defaults, and no certificate."""


def events_to_columns(events: Mapping[EventKey, EventState]) -> dict[str, Column]:
    """Write event states as columns for a snapshot."""
    states = events.values()
    numbers = {
        name: np.array([getattr(state, name) for state in states], np.float64)
        for name in (*_NUMBERS, *_LATER)
    }
    certified = {
        f"best_certified_{name}": np.array(
            [getattr(state.best_certified, name, math.nan) for state in states], np.float64
        )
        for name in _CERTIFIED
    }
    return {
        **packed_keys(events),
        **packed("opened_by", [state.opened_by for state in states]),
        "closed": np.array([state.closed for state in states], np.bool_),
        **numbers,
        **certified,
        **estimates_to_columns([state.estimate for state in states]),
    }


def events_from_columns(columns: Columns) -> dict[EventKey, EventState]:
    """Read what `events_to_columns` wrote; what older versions did not write has its default.

    Raises
    ------
    StateError
        If columns are missing or of different lengths.
    """
    with reading("events"):
        arrays = arrays_of(columns)
        keys = list(unpacked_keys(arrays))
        return dict(zip(keys, _states(arrays, len(keys)), strict=True))


def counts_to_columns(counts: Mapping[EventKey, tuple[int, float]]) -> dict[str, Column]:
    """Write how many events each star and band has had, and when the last opened, as columns."""
    return {
        **packed_keys(counts),
        "events": np.array([count for count, _ in counts.values()], np.int64),
        "opened_mjd": np.array([opened for _, opened in counts.values()], np.float64),
    }


def counts_from_columns(columns: Columns) -> dict[EventKey, tuple[int, float]]:
    """Read what `counts_to_columns` wrote; snapshots of older versions have none.

    Raises
    ------
    StateError
        If columns are missing or of different lengths.
    """
    if not columns:
        return {}
    with reading("counts"):
        arrays = arrays_of(columns)
        events, opened = arrays["events"].tolist(), arrays["opened_mjd"].tolist()
        counts = zip(events, opened, strict=True)
        return dict(zip(unpacked_keys(arrays), counts, strict=True))


def _states(arrays: Mapping[str, NDArray[Any]], n: int) -> Iterator[EventState]:
    def column(name: str, default: float) -> list[float]:
        return arrays[name].tolist() if name in arrays else [default] * n

    numbers = zip(*(arrays[name].tolist() for name in _NUMBERS), strict=True)
    later = zip(*(column(name, default) for name, default in _LATER.items()), strict=True)
    certified = zip(
        *(column(f"best_certified_{name}", math.nan) for name in _CERTIFIED), strict=True
    )
    rest = zip(unpacked("opened_by", arrays), arrays["closed"].tolist(), strict=True)
    estimates = estimates_from_columns(arrays, n)
    rows = zip(numbers, later, certified, estimates, rest, strict=True)
    for basic, (tE, updates, best_log10_k), best, estimate, (opened_by, closed) in rows:
        yield EventState(
            **dict(zip(_NUMBERS, basic, strict=True)),
            opened_by=opened_by,
            closed=closed,
            tE=tE,
            updates=int(updates),
            best_log10_k=best_log10_k,
            best_certified=_certified(best),
            estimate=estimate,
        )


def _certified(numbers: tuple[float, ...]) -> CertifiedK | None:
    """The certificate of a row of `_CERTIFIED`; None where it has none."""
    log10_k, error, effective, look = numbers
    return None if math.isnan(look) else CertifiedK(log10_k, error, effective, int(look))
