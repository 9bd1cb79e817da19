"""What sky.json holds: labelled stars by class and survey, and published events one by one."""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from scipy.stats import chi2

from broker_filter.alerts.verdict import LENSES, VERDICTS
from broker_filter.config import AlertSettings
from broker_filter.inference import zoo
from broker_filter.observe.text import aligned_table
from model_zoo.evaluate.labels import LabelledStar
from model_zoo.evaluate.measure.cuts import CUTS
from model_zoo.evaluate.measure.point_lens import GOOD_CHI2, LEAST_DELTA_CHI2
from model_zoo.evaluate.sky_records import AlertRecord, StarRecord, WindowRecord

__all__ = ["BRIGHT", "read_causes", "sky_table", "summary"]

EVENT: Final = "microlensing"
QUIET: Final = "quiet"
FAR: Final = 5.0
"""Einstein times and, on top, one window from the peak, beyond which the star of an event is quiet.
"""
CAUSES: Final = Path(__file__).parent / "sky_causes.csv"
"""False alarms that were looked at by eye, and what they come from."""
TRIGGER: Final = AlertSettings().trigger_log10_k
BRIGHT: Final = 625.0
"""Delta chi2 of the best point lens in any window, a signal-to-noise of 25, that makes a star one
of the bright ones."""


def read_causes(path: Path = CAUSES) -> list[dict[str, str]]:
    """A table of false alarms: star, mjd, log10_k, verdict and cause, all as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary(
    records: Sequence[StarRecord],
    entry_of: Callable[[LabelledStar], zoo.Entry],
    causes: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """What sky.json holds.

    Parameters
    ----------
    records : sequence of StarRecord
    entry_of : callable
        The entry that a star went through: how long its windows are, and from which log10 K of its
        network on a window would alert by the network alone.
    causes : sequence of mapping
        Rows of `read_causes`.
    """
    stars = {one.star.name: one.star for one in records}
    entries = {star.survey: entry_of(star) for star in stars.values()}
    groups: defaultdict[tuple[str, str], list[StarRecord]] = defaultdict(list)
    for one in records:
        if one.problem:
            continue
        for kind, part in _by_class(one, entry_of(one.star).window_days):
            groups[kind, one.star.survey].append(part)
    return {
        "models": {survey: entry.model_id for survey, entry in sorted(entries.items())},
        "stars": len(records),
        "classes": [
            _class_row(kind, survey, part, entry_of(part[0].star))
            for (kind, survey), part in sorted(groups.items())
        ],
        "events": [
            _event_row(one, entry_of(one.star).window_days)
            for one in records
            if one.star.kind == EVENT and one.star.t0 is not None and not one.problem
        ],
        "looked_at": [
            {**row, "class": stars[row["star"]].kind} for row in causes if row["star"] in stars
        ],
        "unreadable": [
            {"name": one.star.name, "problem": one.problem} for one in records if one.problem
        ],
    }


def _by_class(one: StarRecord, window_days: float) -> list[tuple[str, StarRecord]]:
    """The star under its class; that of an event of known length far from it as a quiet one."""
    star = one.star
    if star.kind != EVENT or star.t0 is None or star.tE is None:
        return [(star.kind, one)]
    far = FAR * star.tE + window_days

    def part(*, near: bool) -> StarRecord:
        def kept(mjd: float) -> bool:
            return (abs(mjd - cast("float", star.t0)) <= far) == near

        windows = [w for w in one.windows if kept(w.last)]
        share = len(windows) / max(len(one.windows), 1)
        alerts = [a for a in one.alerts if kept(a.mjd)]
        return StarRecord(star, one.years * share, windows, alerts)

    return [(EVENT, part(near=True)), (QUIET, part(near=False))]


def _class_row(
    kind: str, survey: str, records: Sequence[StarRecord], entry: zoo.Entry
) -> dict[str, Any]:
    windows = [window for one in records for window in one.windows]
    certified, white = (
        [k for k in (getattr(w, name) for w in windows) if k is not None]
        for name in ("certified", "white")
    )
    alerts = [alert for one in records for alert in one.alerts]
    years = sum(one.years for one in records)
    events = [event for one in records for event in _events(one)]
    return {
        "class": kind,
        "survey": survey,
        "stars": len(records),
        "windows": len(windows),
        "windows_begun": sum(_begun(one, entry.window_days / 4) for one in records),
        "star_years": round(years, 3),
        "triggered": sum(window.network >= TRIGGER for window in windows),
        "network_above": sum(window.network >= entry.threshold for window in windows),
        "certified_above_3": sum(k > 3 for k in certified),
        "certified_above_6_6": sum(k > 6.6 for k in certified),
        "highest_certified": round(max(certified), 2) if certified else None,
        "white_above_3": sum(k > 3 for k in white),
        "cuts": {name: sum(name in w.cuts for w in windows) for name in CUTS},
        "searches": _searches(windows),
        "events": len(events),
        "events_called_lens": sum(any(a.verdict in LENSES for a in event) for event in events),
        "events_per_star_year": round(len(events) / years, 4) if years else None,
        "events_per_star_year_below": round(_upper_limit(len(events)) / years, 4)
        if years
        else None,
        "verdicts": dict(sorted(Counter(alert.verdict for alert in alerts).items())),
        "stars_with_verdict_microlensing": sum(
            any(alert.verdict in LENSES for alert in one.alerts) for one in records
        ),
        "bright_stars": _last_verdicts([one for one in records if _is_bright(one)]),
    }


def _begun(one: StarRecord, days: float) -> int:
    """In how many stretches of so many days, a new window in each, the star was evaluated."""
    return len({math.floor(window.last / days) for window in one.windows})


def _events(one: StarRecord) -> list[list[AlertRecord]]:
    """The alerts of each event."""
    events: defaultdict[str, list[AlertRecord]] = defaultdict(list)
    for alert in one.alerts:
        events[alert.event].append(alert)
    return list(events.values())


def _is_bright(one: StarRecord) -> bool:
    return any(w.point_lens is not None and w.point_lens[0] >= BRIGHT for w in one.windows)


def _last_verdicts(records: Sequence[StarRecord]) -> dict[str, int]:
    """How many stars end as what: the last verdict of each, or "none"."""
    said = ([a.verdict for a in one.alerts if a.verdict != "none"] for one in records)
    return dict(sorted(Counter(words[-1] if words else "none" for words in said).items()))


def _searches(windows: Sequence[WindowRecord]) -> dict[str, dict[str, int]]:
    """How many windows other searches pass, of those that were shown to them."""
    lenses = [w.point_lens for w in windows if w.point_lens is not None]
    above = [chi2 for delta_chi2, chi2 in lenses if delta_chi2 >= LEAST_DELTA_CHI2]
    peaks = [w.wavelet for w in windows if w.wavelet is not None]
    return {
        "point_lens": {"passed": len(above), "of": len(lenses)},
        "good_point_lens": {"passed": sum(c <= GOOD_CHI2 for c in above), "of": len(lenses)},
        "microwavelet": {"passed": sum(peaks), "of": len(peaks)},
    }


def _upper_limit(count: int, confidence: float = 0.95) -> float:
    """Of a Poisson mean."""
    return float(chi2.ppf(confidence, 2 * count + 2) / 2)


def _event_row(one: StarRecord, window_days: float) -> dict[str, Any]:
    """What the filter found of one published event; its verdict is that of the last alert."""
    star = one.star
    far = math.inf if star.tE is None else FAR * star.tE + window_days
    near = [a for a in one.alerts if abs(a.mjd - (star.t0 or 0.0)) <= far]
    said = [a for a in near if a.verdict != "none"]
    last = said[-1] if said else None
    return {
        "name": star.name,
        "survey": star.survey,
        "found": bool(near),
        "first_alert_mjd": near[0].mjd if near else None,
        "t0": last and last.t0[1],
        "t0_p16": last and last.t0[0],
        "t0_p84": last and last.t0[2],
        "tE": last and last.tE,
        "published_t0": star.t0,
        "published_tE": star.tE,
        "verdict": last.verdict if last else "none",
        "verdicts": dict(Counter(alert.verdict for alert in near)),
    }


def sky_table(found: Mapping[str, Any]) -> str:
    """The classes of sky.json and their verdicts, for a terminal."""
    head = ("class", "survey", "stars", "windows", "network", "K > 3", *VERDICTS)
    rows = (
        (
            *(row["class"], row["survey"], str(row["stars"]), str(row["windows"])),
            *(str(row["network_above"]), str(row["certified_above_3"])),
            *(str(row["verdicts"].get(name, 0)) for name in VERDICTS),
        )
        for row in found["classes"]
    )
    return aligned_table(head, rows)
