"""What of an injection the filter found, when, and what else it found.

The truth is what ``broker-filter replay --inject`` wrote; the alerts come from a file or a topic.
An event counts as recovered where a *new* or *update* alert of its star came while it lasted: from
5 tE before its peak until 5 tE after it, or one window if that is longer. A *new* alert of a star
that was left alone is a false alarm (unless the star has an event of its own).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from broker_filter.recovery.config import QUARTER
from broker_filter.recovery.files import Event, InjectedEvents, Sighting

__all__ = ["count_interval", "report", "wilson"]

ONE_SIGMA: Final = 0.6826895  # of the intervals
LASTS: Final = 5.0  # tE before and after the peak
TIME_DIGITS: Final = 6  # the filter keeps epochs to 1e-6 d
EDGES: Final[Mapping[str, Sequence[float]]] = {
    "tE": (0, 0.1, 0.3, 1, 3, 10, 30, 100, math.inf),
    "rho": (0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, math.inf),
    "snr": (0, 5, 8, 12, 17, 25, 50, 100, math.inf),
}
FROM_PEAK: Final = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 5.0)
"""Times at which the share of events found by then is given, in tE after the peak."""


def report(
    truth: InjectedEvents, alerts: Iterable[Sighting], log10_k: float | None = None
) -> dict[str, Any]:
    """Compare alerts with the truth.

    Parameters
    ----------
    truth : InjectedEvents
    alerts : iterable of Sighting
    log10_k : float, optional
        Threshold for the bound on false alarms; by default the lowest that the alerts name.

    Returns
    -------
    dict
        Ready for JSON: ``events``, ``efficiency`` in bins, ``from_peak``, ``false_alarms`` and
        ``latency``. Intervals hold 68.3 %.
    """
    positive = [one for one in alerts if one.state in ("new", "update")]
    found: dict[str, Sighting] = {}
    for one in sorted(positive, key=lambda alert: alert.last_epoch_mjd):
        event = truth.events.get(one.star)
        if event and _during(event, one.last_epoch_mjd, truth.window_days):
            found.setdefault(one.star, one)
    events = list(truth.events.values())
    detectable = [event for event in events if event.first_detectable_mjd is not None]
    elsewhere = {one.star for one in positive} & truth.events.keys() - found.keys()
    return {
        "events": {
            "injected": _share(events, found),
            "detectable": _share(detectable, found),
            "detectable_snr": truth.detectable_snr,
            "alerted_at_another_time_only": len(elsewhere),
        },
        "efficiency": {name: _in_bins(name, events, found) for name in EDGES},
        "from_peak": [_by_then(x, detectable, found) for x in FROM_PEAK],
        "false_alarms": _false_alarms(truth, positive, log10_k),
        "latency": _latency(detectable, found),
    }


def wilson(found: int, n: int) -> tuple[float, float]:
    """68.3 % interval of a share of which ``found`` of ``n`` were seen; (0, 1) for none of none.

    Notes
    -----
    The score interval of Wilson 1927, JASA 22, 209.
    """
    from scipy.stats import binomtest  # here: it takes longer to load than all of the rest

    if not n:
        return 0.0, 1.0
    interval = binomtest(found, n).proportion_ci(ONE_SIGMA, "wilson")
    return float(interval.low), float(interval.high)


def count_interval(found: int) -> tuple[float, float]:
    """68.3 % interval of the expected number where ``found`` events were counted.

    Notes
    -----
    Exact for a Poisson distribution: Gehrels 1986, ApJ 303, 336, equations 1 and 2.
    """
    from scipy.stats import chi2

    miss = (1 - ONE_SIGMA) / 2
    low = float(chi2.ppf(miss, 2 * found)) / 2 if found else 0.0
    return low, float(chi2.isf(miss, 2 * found + 2)) / 2


def _during(event: Event, mjd: float, window_days: float) -> bool:
    long = LASTS * event.tE
    return event.t0 - long <= mjd <= event.t0 + max(long, window_days)


def _share(events: Sequence[Event], found: Mapping[str, Sighting]) -> dict[str, Any]:
    n, k = len(events), sum(event.star in found for event in events)
    low, high = wilson(k, n)
    return {"found": k, "n": n, "share": k / n if n else None, "low68": low, "high68": high}


def _in_bins(
    name: str, events: Sequence[Event], found: Mapping[str, Sighting]
) -> list[dict[str, Any]]:
    edges = EDGES[name]
    bins = []
    for low, high in pairwise(edges):
        inside = [event for event in events if low <= getattr(event, name) < high]
        if inside:
            ends = {"low": low, "high": high if math.isfinite(high) else None}
            bins.append(ends | _share(inside, found))
    return bins


def _by_then(
    after: float, events: Sequence[Event], found: Mapping[str, Sighting]
) -> dict[str, Any]:
    """Share of events found by so many tE after their peak."""
    known = {
        event.star: found[event.star]
        for event in events
        if event.star in found and found[event.star].last_epoch_mjd <= event.t0 + after * event.tE
    }
    return {"tE_after_peak": after} | _share(events, known)


def _false_alarms(
    truth: InjectedEvents, positive: Sequence[Sighting], log10_k: float | None
) -> dict[str, Any]:
    """False alarms per star-day, beside the bound that K gives.

    One window anchored to the grid of T/4 is one sequential test, in which an exact K exceeds k
    with a probability of at most 1/k (Ville's inequality): at most 1 / (k T/4) per star-day.
    """
    false = [one for one in positive if one.state == "new" and one.star not in truth.events]
    days = truth.untouched_windows * truth.window_days / QUARTER
    low, high = count_interval(len(false))
    lowest = min((one.log10_threshold for one in positive), default=None)
    threshold = log10_k if log10_k is not None else lowest
    bound = None if threshold is None else 10.0**-threshold
    return {
        "alerts": len(false),
        "stars": len({one.star for one in false}),
        "star_days": days,
        "per_star_day": len(false) / days if days else None,
        "low68": low / days if days else None,
        "high68": high / days if days else None,
        "log10_k": threshold,
        "bound_per_star_day": None if bound is None else bound / (truth.window_days / QUARTER),
        "bound_alerts": None if bound is None else bound * truth.untouched_windows,
    }


def _latency(events: Sequence[Event], found: Mapping[str, Sighting]) -> dict[str, Any]:
    """From the first detectable epoch to the epoch of the alert, and from there to the alert."""
    first = [(event, found[event.star]) for event in events if event.star in found]
    days = [
        round(one.last_epoch_mjd - event.first_detectable_mjd, TIME_DIGITS) + 0.0  # no -0.0
        for event, one in first
        if event.first_detectable_mjd is not None
    ]
    seconds = [
        (one.created_ms - one.received_ms) / 1000 for one in found.values() if one.received_ms
    ]
    return {
        "days": _quantiles(days),
        "days_in_tE": _quantiles([d / event.tE for d, (event, _) in zip(days, first, strict=True)]),
        "before_detectable": sum(d < 0 for d in days),
        "processing_s": _quantiles(seconds),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    names = {"p16": 0.16, "median": 0.5, "p84": 0.84, "p99": 0.99}
    found = np.quantile(values, list(names.values())).tolist()
    return dict(zip(names, found, strict=True)) | {"n": len(values)}
