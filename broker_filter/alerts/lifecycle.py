"""The life of an event: which evaluations of a window become alerts, and of which kind.

The window of one (star, band) is evaluated again and again. An event opens when K passes the
threshold and then gives an alert rarely: when K has grown much, when the event has become twice as
old (its posterior is another by then), and once more when it ends::

      no event ── new ──▶ open ◀─┐
        ▲  ▲              │ │ └──┴─ update
        │  └─ retraction ─┘ │
        └────── final ──────┘

    new         log10 K >= threshold
    update      log10 K >= that of the last alert + 1, and 1.5 times it; or log10 K >= threshold and
                the event twice as old as at the last alert: after 0.25, 0.5, 1, 2, 4, 8 days
    retraction  log10 K < threshold - 1, with the peak still well inside the window
    final       log10 K < threshold - 1, with the peak before the window or in its oldest quarter;
                or nothing seen of the star for as long as a window holds, unless log10 K is above
                the threshold again within two windows: then it is one event with a gap in its data.
                A final after a longer gap may bear a high log10 K: that of the new light, which
                opens an event of its own at the next epoch

Between threshold - 1 and the threshold an open event stays open and a closed one closed
(hysteresis), so that noise in K does not open and retract in turn. A pass after the end opens a new
event.

At most one alert comes from one last epoch, since the alert's id is made from it: a second
evaluation of the same epochs (late data, say) waits for the next epoch. No clock is read; the same
evaluations give the same alerts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broker_filter.alerts.threshold import Rule
from broker_filter.errors import ModelError, StateError
from broker_filter.state.columns import (
    Column,
    Columns,
    arrays_of,
    packed,
    packed_keys,
    unpacked,
    unpacked_keys,
)
from broker_filter.types import AlertState, StarId

__all__ = [
    "FIRST_UPDATE_DAYS",
    "LONGEST_GAP",
    "UPDATE_FACTOR",
    "UPDATE_STEP",
    "EventKey",
    "EventState",
    "decide",
    "events_from_columns",
    "events_to_columns",
    "with_peak",
]

UPDATE_STEP = 1.0
"""How far log10 K must grow beyond the last alert's before the next."""

UPDATE_FACTOR = 1.5
"""How many times the last alert's log10 K it must be as well."""

FIRST_UPDATE_DAYS = 0.25
"""Age at which an event gives its first update for its age alone."""

LONGEST_GAP = 2.0
"""Longest gap in the data of one event, in lengths of a window."""

EventKey = tuple[str, StarId, str]
"""Survey, star and band: what an event state belongs to."""

_TIMES: Final = ("opened_mjd", "alerted_mjd", "alerted_log10_k", "seen_mjd", "t0")


@dataclass(frozen=True, slots=True)
class EventState:
    """What one (star, band) must remember between evaluations; all it holds fits a snapshot row.

    Parameters
    ----------
    opened_mjd : float, MJD TAI
        Last epoch of the first alert: with star, band and model it names the event.
    opened_by : str
        Model of the first alert, so that the event keeps its id when the model changes.
    alerted_mjd : float, MJD TAI
        Last epoch of the last alert.
    alerted_log10_k : float
        log10 K of the last alert.
    seen_mjd : float, MJD TAI
        Last epoch of the last evaluation.
    t0 : float, MJD TAI
        Median time of the peak in the last new or update alert; NaN until set by `with_peak`.
    closed : bool
        The event has ended. A closed state is kept until the star's next epoch only.
    """

    opened_mjd: float
    opened_by: str
    alerted_mjd: float
    alerted_log10_k: float
    seen_mjd: float
    t0: float = math.nan
    closed: bool = False


def decide(
    state: EventState | None,
    log10_k: float,
    mjd_last: float,
    window_start: float,
    rule: Rule,
    *,
    window_days: float,
    model_id: str,
) -> tuple[EventState | None, AlertState | None]:
    """Take one evaluation into account.

    Parameters
    ----------
    state : EventState or None
        As the last evaluation left it; None for a star without an event.
    log10_k : float
        The network's, or what a certificate may claim where ``rule.certified_decides``.
    rule : Rule
    mjd_last, window_start : float, MJD TAI
        Last epoch in the window, and where the window starts.
    window_days : float, days
        Length of the window.
    model_id : str
        Model that gave ``log10_k``.

    Returns
    -------
    state : EventState or None
        To be kept for the next evaluation (after `with_peak`, where an alert is published).
    alert : "new", "update", "retraction", "final" or None
        The alert to publish, if any; its ids come from the returned state, which is then not None.

    Raises
    ------
    ModelError
        ``log10_k`` is NaN.
    """
    if math.isnan(log10_k):
        raise ModelError(f"model {model_id} gave log10 K = NaN for the window ending {mjd_last!r}")
    if state is not None and mjd_last <= state.alerted_mjd:
        return state, None
    if state is None or state.closed:
        if not rule.opens(log10_k):
            return None, None
        return EventState(mjd_last, model_id, mjd_last, log10_k, mjd_last), "new"
    alert = _next_alert(state, log10_k, mjd_last, window_start, rule, window_days)
    if alert is None:
        return replace(state, seen_mjd=max(mjd_last, state.seen_mjd)), None
    return _alerted(state, log10_k, mjd_last, closed=alert != "update"), alert


def _next_alert(
    state: EventState,
    log10_k: float,
    mjd_last: float,
    window_start: float,
    rule: Rule,
    window_days: float,
) -> AlertState | None:
    """The alert that an open event gives at a new epoch, if any."""
    # None of the epochs behind the event is in the window. Where K is high all the same and the gap
    # short, it is one long event with a gap in its data; after a longer gap it is another one.
    gap = mjd_last - state.seen_mjd
    goes_on = rule.opens(log10_k) and gap <= LONGEST_GAP * window_days
    if state.seen_mjd < window_start and not goes_on:
        return "final"
    if rule.ends(log10_k):
        return "final" if state.t0 < window_start + window_days / 4 else "retraction"
    last = state.alerted_log10_k
    grown = log10_k >= max(last + UPDATE_STEP, UPDATE_FACTOR * last)
    older = rule.opens(log10_k) and _twice_as_old(state, mjd_last)
    return "update" if grown or older else None


def _twice_as_old(state: EventState, mjd_last: float) -> bool:
    age, alerted_age = mjd_last - state.opened_mjd, state.alerted_mjd - state.opened_mjd
    return age >= max(FIRST_UPDATE_DAYS, 2 * alerted_age)


def _alerted(state: EventState, log10_k: float, mjd_last: float, *, closed: bool) -> EventState:
    return replace(
        state, alerted_mjd=mjd_last, alerted_log10_k=log10_k, seen_mjd=mjd_last, closed=closed
    )


def with_peak(state: EventState, t0: float) -> EventState:
    """Remember where the alert just made has its peak.

    Parameters
    ----------
    state : EventState
        As `decide` returned it.
    t0 : float, MJD TAI
        Median of the alert's posterior. A closed event keeps the peak it had, since its window may
        no longer hold the event.
    """
    return state if state.closed else replace(state, t0=t0)


def events_to_columns(events: Mapping[EventKey, EventState]) -> dict[str, Column]:
    """Write event states as columns for a snapshot."""
    states = events.values()
    numbers = {
        name: np.array([getattr(state, name) for state in states], np.float64) for name in _TIMES
    }
    return {
        **packed_keys(events),
        **packed("opened_by", [state.opened_by for state in states]),
        "closed": np.array([state.closed for state in states], np.bool_),
        **numbers,
    }


def events_from_columns(columns: Columns) -> dict[EventKey, EventState]:
    """Read what `events_to_columns` wrote.

    Raises
    ------
    StateError
        If columns are missing or of different lengths.
    """
    try:
        arrays = arrays_of(columns)
        numbers = zip(*(arrays[name].tolist() for name in _TIMES), strict=True)
        rest = zip(unpacked("opened_by", arrays), arrays["closed"].tolist(), strict=True)
        return {
            key: EventState(
                opened_by=opened_by, closed=closed, **dict(zip(_TIMES, row, strict=True))
            )
            for key, row, (opened_by, closed) in zip(
                unpacked_keys(arrays), numbers, rest, strict=True
            )
        }
    except (LookupError, ValueError, TypeError) as error:
        raise StateError(f"the events of the snapshot cannot be used: {error!r}") from error
