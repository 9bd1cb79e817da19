"""``broker-filter recovery``: what of an injection the filter found, when, and what else it found.

The truth is what ``broker-filter replay --inject`` wrote; the alerts come from a file or a topic.
An event counts as recovered where a *new* or *update* alert of its star came while it lasted: from
5 tE before its peak until 5 tE after it, or one window if that is longer. A *new* alert of a star
that was left alone is a false alarm (unless the star has an event of its own).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import fastavro
import numpy as np

from broker_filter.errors import ConfigError
from broker_filter.intervals import counts, wilson

__all__ = [
    "Event",
    "Sighting",
    "Truth",
    "add_arguments",
    "read_alerts",
    "read_truth",
    "report",
    "run",
]

LASTS: Final = 5.0  # tE before and after the peak
QUARTER: Final = 4
EDGES: Final[Mapping[str, Sequence[float]]] = {
    "tE": (0, 0.1, 0.3, 1, 3, 10, 30, 100, math.inf),
    "rho": (0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, math.inf),
    "snr": (0, 5, 8, 12, 17, 25, 50, 100, math.inf),
}
FROM_PEAK: Final = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 5.0)
"""Times at which the share of events that are known by then is told, in tE after the peak."""


@dataclass(frozen=True, slots=True)
class Event:
    """One star's injected event.

    Parameters
    ----------
    star : str
    t0, tE, u0, rho, f_s : float
        MJD TAI, days, Einstein radii; ``f_s`` of the band with the highest signal-to-noise.
    snr : float
        The highest of all bands.
    first_detectable_mjd : float or None
        The earliest of all bands.
    """

    star: str
    t0: float
    u0: float
    tE: float  # noqa: N815  the field's own name for it
    rho: float
    f_s: float
    snr: float
    first_detectable_mjd: float | None


@dataclass(frozen=True, slots=True)
class Truth:
    """The events, and how much else was looked at."""

    events: Mapping[str, Event]
    untouched_windows: int
    window_days: float
    detectable_snr: float


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is needed of one alert."""

    alert_id: str
    star: str
    state: str
    last_epoch_mjd: float
    log10_threshold: float
    received_ms: int | None
    created_ms: int


def read_truth(path: Path) -> Truth:
    """Read what an injection wrote.

    Raises
    ------
    ConfigError
        The file cannot be read, or is something else; the message names the line.
    """
    run: Mapping[str, Any] | None = None
    events: dict[str, Event] = {}
    names = set(Event.__dataclass_fields__)
    for number, line in _json_lines(path):
        try:
            if line["kind"] == "run":
                run = line
            else:
                event = Event(**{name: line[name] for name in names})
                events[event.star] = _combined(event, events.get(event.star))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: not a line of a truth file: {error}") from None
    if run is None:
        raise ConfigError(f"{path}: has no line of kind 'run': is it a truth file?")
    return Truth(events, run["untouched_windows"], run["window_days"], run["detectable_snr"])


def _combined(event: Event, other: Event | None) -> Event:
    """One event seen in two bands."""
    if other is None:
        return event
    best = max(event, other, key=lambda one: one.snr)
    first = [t for t in (event.first_detectable_mjd, other.first_detectable_mjd) if t is not None]
    fields = {name: getattr(best, name) for name in Event.__dataclass_fields__}
    return Event(**fields | {"first_detectable_mjd": min(first, default=None)})


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield number, json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON lines: {error}") from None


def read_alerts(source: str) -> Iterator[Sighting]:
    """Read alerts, each once.

    Parameters
    ----------
    source : str
        A file of JSON lines as ``broker-filter subscribe --json`` prints them; an Avro container,
        or a folder of such, as ``subscribe --avro`` saves them; or ``kafka://HOST:PORT/TOPIC``.

    Raises
    ------
    ConfigError
        The source does not exist, or holds something else.
    TransientError
        As from the topic.
    """
    seen: set[str] = set()
    for place, record in _records(source):
        try:
            one = _sighting(record)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{place}: not an alert: {error!r}") from None
        if one.alert_id not in seen:
            seen.add(one.alert_id)
            yield one


def _records(source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    from broker_filter.topic_range import SCHEME

    path = Path(source)
    if source.startswith(SCHEME):
        yield from _of_topic(source)
    elif path.is_dir() or path.suffix == ".avro":
        for file in sorted(path.glob("*.avro")) if path.is_dir() else [path]:
            try:
                with file.open("rb") as stream:
                    yield from ((str(file), record) for record in fastavro.reader(stream))
            except (ValueError, EOFError, IndexError, OSError) as error:
                raise ConfigError(f"{file}: not an Avro container: {error}") from None
    else:
        for number, line in _json_lines(path):
            yield f"{path}:{number}", line


def _of_topic(source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    from broker_filter.schema import decode_strict
    from broker_filter.topic_range import parse_range, partitions_of

    for partition in partitions_of(parse_range(source), lambda _: 0.0):
        for record in partition.read(lambda _: None):
            yield partition.name, decode_strict("alert", record.value)


def _sighting(record: Mapping[str, Any]) -> Sighting:
    received = record["receivedMs"]
    return Sighting(
        alert_id=str(record["alertId"]),
        star=str(record["starId"]),
        state=str(record["state"]),
        last_epoch_mjd=float(record["lastEpochMjdTai"]),
        log10_threshold=float(record["log10KThreshold"]),
        received_ms=None if received is None else int(received),
        created_ms=int(record["createdMs"]),
    )


def report(
    truth: Truth, alerts: Iterable[Sighting], log10_k: float | None = None
) -> dict[str, Any]:
    """Compare alerts with the truth.

    Parameters
    ----------
    truth : Truth
    alerts : iterable of Sighting
    log10_k : float, optional
        Threshold for the bound on false alarms; by default the lowest that the alerts name.

    Returns
    -------
    dict
        Ready for JSON: ``events``, ``efficiency`` in bins, ``from_peak``, ``false_alarms`` and
        ``latency``. Intervals hold 68.3 %.
    """
    told = [one for one in alerts if one.state in ("new", "update")]
    found: dict[str, Sighting] = {}
    for one in sorted(told, key=lambda alert: alert.last_epoch_mjd):
        event = truth.events.get(one.star)
        if event and _during(event, one.last_epoch_mjd, truth.window_days):
            found.setdefault(one.star, one)
    events = list(truth.events.values())
    detectable = [event for event in events if event.first_detectable_mjd is not None]
    elsewhere = {one.star for one in told} & truth.events.keys() - found.keys()
    return {
        "events": {
            "injected": _share(events, found),
            "detectable": _share(detectable, found),
            "detectable_snr": truth.detectable_snr,
            "alerted_at_another_time_only": len(elsewhere),
        },
        "efficiency": {name: _in_bins(name, events, found) for name in EDGES},
        "from_peak": [_by_then(x, detectable, found) for x in FROM_PEAK],
        "false_alarms": _false_alarms(truth, told, log10_k),
        "latency": _latency(detectable, found),
    }


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
    """Share of events that are known by so many tE after their peak."""
    known = {
        event.star: found[event.star]
        for event in events
        if event.star in found and found[event.star].last_epoch_mjd <= event.t0 + after * event.tE
    }
    return {"tE_after_peak": after} | _share(events, known)


def _false_alarms(truth: Truth, told: Sequence[Sighting], log10_k: float | None) -> dict[str, Any]:
    """False alarms per star-day, beside what K promises.

    One window anchored to the grid of T/4 is one sequential test, in which an exact K exceeds k
    with a probability of at most 1/k (Ville's inequality): at most 1 / (k T/4) per star-day.
    """
    false = [one for one in told if one.state == "new" and one.star not in truth.events]
    days = truth.untouched_windows * truth.window_days / QUARTER
    low, high = counts(len(false))
    lowest = min((one.log10_threshold for one in told), default=None)
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
        one.last_epoch_mjd - event.first_detectable_mjd
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter recovery``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Compare alerts with the events that `broker-filter replay --inject` put in: efficiency\n"
        "against tE, rho, signal-to-noise and time from the peak, false alarms of untouched stars\n"
        "beside what K promises, and latency."
    )
    parser.epilog = (
        "example:\n"
        "  broker-filter subscribe --json --from-beginning --timeout 60 > alerts.jsonl\n"
        "  broker-filter recovery inject.truth.jsonl alerts.jsonl --plot recovery.png"
    )
    parser.add_argument("truth", type=Path, metavar="TRUTH", help="what --inject wrote")
    parser.add_argument(
        "alerts", metavar="ALERTS", help="JSON lines, Avro file or folder, kafka://HOST:PORT/TOPIC"
    )
    parser.add_argument(
        "--log10-k",
        type=float,
        metavar="X",
        help="threshold for the bound on false alarms (default: the lowest in the alerts)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the efficiency (PNG)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Do ``broker-filter recovery``; the report goes to stdout.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError, TransientError
        As `read_truth` and `read_alerts`; matplotlib is missing for ``--plot``.
    """
    found = report(read_truth(args.truth), read_alerts(args.alerts), args.log10_k)
    if args.plot:
        from broker_filter.recovery_plot import plot_recovery

        plot_recovery(found, args.plot)
    text = json.dumps(found, allow_nan=False) if args.json else format_report(found)
    sys.stdout.write(text + "\n")
    return 0


def format_report(found: Mapping[str, Any]) -> str:
    """Write a report as a table for people."""
    lines = [f"{'':24}{'found':>7}{'of':>7}   share   68 % interval"]
    lines += [_row(f"{name} events", found["events"][name]) for name in ("injected", "detectable")]
    for name, bins in found["efficiency"].items():
        lines.append(f"by {name}")
        lines += [_row(f"  {_bin(one)}", one) for one in bins]
    lines.append("detectable events known by, in tE after the peak")
    lines += [_row(f"  {one['tE_after_peak']:+g}", one) for one in found["from_peak"]]
    return "\n".join([*lines, _false_line(found["false_alarms"]), _latency_line(found["latency"])])


def _row(name: str, one: Mapping[str, Any]) -> str:
    share = "      -" if one["share"] is None else f"{100 * one['share']:5.1f} %"
    return (
        f"{name:24}{one['found']:7}{one['n']:7} {share}   "
        f"{100 * one['low68']:.1f} to {100 * one['high68']:.1f} %"
    )


def _bin(one: Mapping[str, Any]) -> str:
    return (
        f"{one['low']:g} and more" if one["high"] is None else f"{one['low']:g} to {one['high']:g}"
    )


def _false_line(one: Mapping[str, Any]) -> str:
    head = (
        f"false alarms: {one['alerts']} of {one['stars']} stars in {one['star_days']:g} star-days"
    )
    if one["log10_k"] is None or one["per_star_day"] is None:
        return head
    return (
        f"{head}: {one['per_star_day']:.2g} a star-day ({one['low68']:.2g} to {one['high68']:.2g});"
        f" a K of 10^{one['log10_k']:g} promises at most {one['bound_per_star_day']:.2g}"
        f" ({one['bound_alerts']:.2g} alerts)"
    )


def _latency_line(one: Mapping[str, Any]) -> str:
    days, seconds = one["days"], one["processing_s"]
    text = (
        "latency: no event found"
        if days is None
        else (
            f"latency from the first detectable epoch to the alert's: median {days['median']:.3g} d"
            f" ({days['p16']:.3g} to {days['p84']:.3g}), {one['before_detectable']} before it"
        )
    )
    if seconds is not None:
        text += (
            f"; from epoch to alert median {seconds['median']:.3g} s, p99 {seconds['p99']:.3g} s"
        )
    return text
