"""The life of an event: which evaluations of a window become alerts, and of which kind.

The window of one (star, band) is evaluated again and again. An event opens when K passes the
threshold and then gives an alert rarely: when K has grown much, when its peak has passed, day by
day while it is magnified, when it has become twice as old, when its parameters have moved, and when
it ends::

      no event ── new ──▶ open ◀─┐
        ▲                 │ │ └──┴─ update
        │    retraction ──┤ │
        │    or final     ▼ │ update, where K is back
        └─ a window's ── ended
           length later

    new         log10 K >= threshold
    update      of an open event, where log10 K >= that of the last alert + 1, and 1.5 times it; or
                log10 K >= threshold and the event twice as old as at the last alert (after 0.25,
                0.5, 1, 2, 4, 8 days), its peak passed since, within tE of its peak a tenth of tE
                since and at least a day, or a median of the network's posterior more than one sigma
                of then from what it was then (at least a twentieth of tE since, and no more once
                half of the most updates are sent). A quarter of them is kept for age, and for after
                the peak.
                And of an ended event, where log10 K >= threshold within a window's length T of its
                end: an event that falls and returns is the same event. At most so many of all
                kinds (`Rule.max_updates`)
    retraction  log10 K < threshold - 1, with the peak still well inside the window
    final       log10 K < threshold - 1, with the peak before the window or in its oldest quarter;
                or nothing seen of the star for as long as a window holds, unless log10 K is above
                the threshold again within two windows or 150 days, whichever is more: then it is
                one event with a gap in its data, such as that between two seasons

Between threshold - 1 and the threshold an open event stays open and an ended one ended
(hysteresis), so that noise in K does not open and retract in turn. A pass later than T after the
end, or after a longer gap in the data, opens a new event.

The K of a final is the highest of the event's alerts (`evidence_of`), from the window that still
held the peak; that of the window at its end is of other light.

At most one alert comes from one last epoch, since the alert's id is made from it: a second
evaluation of the same epochs (late data, say) waits for the next epoch. No clock is read; the same
evaluations give the same alerts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from broker_filter.alerts.alert import CertifiedK
from broker_filter.alerts.estimate import Estimate
from broker_filter.alerts.threshold import Rule
from broker_filter.errors import ModelError
from broker_filter.types import AlertState, StarId

__all__ = [
    "FIRST_UPDATE_DAYS",
    "LONGEST_GAP",
    "MAGNIFIED_DAYS",
    "EventKey",
    "EventState",
    "decide",
    "evidence_of",
    "has_grown",
    "published",
]

UPDATE_STEP = 1.0
"""How far log10 K must grow beyond the last alert's before the next."""

UPDATE_FACTOR = 1.5
"""How many times the last alert's log10 K it must be as well."""

FIRST_UPDATE_DAYS = 0.25
"""Age at which an event gives its first update for its age alone."""

MAGNIFIED_DAYS, MAGNIFIED_SHARE = 1.0, 0.1
"""Least time between two updates of an event within tE of its peak, in days and in tE."""

MOVED_SHARE = 0.05
"""Least time before an update because parameters have moved, in tE."""

BEFORE_PEAK = 0.75
"""Share of the most updates that may be sent before the peak."""

LONGEST_GAP, SEASON_GAP_DAYS = 2.0, 150.0
"""Longest gap in the data of one event, in lengths of a window and in days, whichever is more."""

EventKey = tuple[str, StarId, str]
"""Survey, star and band: what an event state belongs to."""


@dataclass(frozen=True, slots=True)
class EventState:
    """What is kept of one (star, band) between evaluations; it fits a row of a snapshot.

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
        Median time of the peak in the last new or update alert; NaN until set by `published`.
    closed : bool
        The event has ended. An ended state is kept as long as the event may return.
    tE : float, days
        Median of the last new or update alert; NaN until set by `published`.
    updates : int
        How many have been sent.
    best_log10_k, best_certified : float, CertifiedK or None
        The network's K and the certified one of the alert whose network's K is the highest; NaN and
        None until set by `published`.
    estimate : Estimate or None
        Of the network, at the last new or update alert.
    """

    opened_mjd: float
    opened_by: str
    alerted_mjd: float
    alerted_log10_k: float
    seen_mjd: float
    t0: float = math.nan
    closed: bool = False
    tE: float = math.nan  # noqa: N815  the field's own name for it
    updates: int = 0
    best_log10_k: float = math.nan
    best_certified: CertifiedK | None = None
    estimate: Estimate | None = None


def decide(
    state: EventState | None,
    log10_k: float,
    mjd_last: float,
    window_start: float,
    rule: Rule,
    *,
    window_days: float,
    model_id: str,
    estimate: Callable[[], Estimate] | None = None,
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
    estimate : callable, optional
        Gives the network's estimate of this window, where it matters.

    Returns
    -------
    state : EventState or None
        To be kept for the next evaluation (after `published`, where an alert is published).
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
    if state is None or (state.closed and not _may_return(state, mjd_last, window_days)):
        if not rule.opens(log10_k):
            return None, None
        return EventState(mjd_last, model_id, mjd_last, log10_k, mjd_last), "new"
    alert: AlertState | None
    if state.closed:
        alert = "update" if rule.opens(log10_k) else None
    else:
        alert = _next_alert(state, log10_k, mjd_last, window_start, rule, window_days)
        if alert is None and rule.opens(log10_k) and state.updates < rule.max_updates // 2:
            alert = "update" if _has_moved(state, estimate, mjd_last) else None
    if alert == "update" and state.updates >= _most_updates(state, mjd_last, rule):
        alert = None
    if alert is not None:
        return _alerted(state, alert, log10_k, mjd_last, window_start), alert
    return state if state.closed else replace(state, seen_mjd=max(mjd_last, state.seen_mjd)), None


def _most_updates(state: EventState, mjd_last: float, rule: Rule) -> float:
    """All of them after the peak, and for age alone: the peak may not be where it seemed to be."""
    early = mjd_last < state.t0 and not _is_older(state, mjd_last)
    return rule.max_updates * (BEFORE_PEAK if early else 1.0)


def _longest_gap(window_days: float) -> float:
    return max(LONGEST_GAP * window_days, SEASON_GAP_DAYS)


def _may_return(state: EventState, mjd_last: float, window_days: float) -> bool:
    """Whether an event that has ended is still the same if K passes the threshold now."""
    unseen = mjd_last - state.seen_mjd
    return mjd_last - state.alerted_mjd <= window_days and unseen <= _longest_gap(window_days)


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
    goes_on = rule.opens(log10_k) and gap <= _longest_gap(window_days)
    if state.seen_mjd < window_start and not goes_on:
        return "final"
    if rule.ends(log10_k):
        return "final" if state.t0 < window_start + window_days / 4 else "retraction"
    grown = has_grown(state.alerted_log10_k, log10_k)
    return "update" if grown or (rule.opens(log10_k) and _is_news(state, mjd_last)) else None


def has_grown(before: float, log10_k: float) -> bool:
    """Whether log10 K has grown by what an update takes."""
    return log10_k >= max(before + UPDATE_STEP, UPDATE_FACTOR * before)


def _is_news(state: EventState, mjd_last: float) -> bool:
    """Whether the epochs since the last alert say more of the event than those before."""
    older = _is_older(state, mjd_last)
    peak_passed = state.alerted_mjd < state.t0 <= mjd_last
    magnified = abs(mjd_last - state.t0) < state.tE
    wait = max(MAGNIFIED_DAYS, MAGNIFIED_SHARE * state.tE)
    return older or peak_passed or (magnified and mjd_last - state.alerted_mjd >= wait)


def _is_older(state: EventState, mjd_last: float) -> bool:
    """Whether the event is twice as old as at the last alert."""
    age, alerted_age = mjd_last - state.opened_mjd, state.alerted_mjd - state.opened_mjd
    return age >= max(FIRST_UPDATE_DAYS, 2 * alerted_age)


def _has_moved(state: EventState, estimate: Callable[[], Estimate] | None, mjd_last: float) -> bool:
    """Whether the event's parameters are no longer what the last alert said."""
    if estimate is None or state.estimate is None:
        return False
    if mjd_last - state.alerted_mjd < MOVED_SHARE * state.tE:
        return False
    return estimate().is_far_from(state.estimate)


def _alerted(
    state: EventState, alert: AlertState, log10_k: float, mjd_last: float, window_start: float
) -> EventState:
    update = alert == "update"
    # An event that ends by a gap was last seen before it.
    unseen = state.seen_mjd < window_start and not update
    return replace(
        state,
        alerted_mjd=mjd_last,
        alerted_log10_k=log10_k,
        seen_mjd=state.seen_mjd if unseen else mjd_last,
        closed=not update,
        updates=state.updates + update,
    )


def published(
    state: EventState,
    t0: float,
    tE: float,
    log10_k: float,
    certified: CertifiedK | None,
    estimate: Estimate | None = None,
) -> EventState:
    """Note what the alert just made holds.

    Parameters
    ----------
    state : EventState
        As `decide` returned it.
    t0, tE : float, MJD TAI, days
        Medians of the alert's posterior.
    log10_k, certified : float, CertifiedK or None
        Its evidence: of the network, and certified.
    estimate : Estimate, optional
        Of the network.

    Returns
    -------
    EventState
        An ended event keeps what it had, since its window may no longer hold the event.
    """
    if state.closed:
        return state
    state = replace(state, t0=t0, tE=tE, estimate=estimate)
    if log10_k < state.best_log10_k:
        return state
    return replace(state, best_log10_k=log10_k, best_certified=certified)


def evidence_of(
    state: EventState, alert: AlertState, log10_k: float, certified: CertifiedK | None
) -> tuple[float, CertifiedK | None]:
    """The network's K and the certified one that an alert says.

    Parameters
    ----------
    state, alert : EventState, AlertState
        As `decide` returned them.
    log10_k, certified : float, CertifiedK or None
        Of the window now. A final takes those of the event's best alert in place of them, where
        they are known: the window holds other light by then.
    """
    if alert != "final" or math.isnan(state.best_log10_k):
        return log10_k, certified
    return state.best_log10_k, state.best_certified
