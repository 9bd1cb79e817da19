"""What a recovery compares: the truth of an injection, and alerts from a file or a topic."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_filter.alerts.codec import from_message, to_json_dict
from broker_filter.client.read import read_records
from broker_filter.errors import ConfigError, PoisonMessage
from broker_filter.kafka.properties import Properties
from broker_filter.kafka.ranges import SCHEME, messages_of, offsets_of
from broker_filter.observe.text import printable
from broker_filter.replay.topic_range import parse_range

__all__ = ["Event", "InjectedEvents", "Sighting", "read_alerts", "read_truth"]

_log = logging.getLogger(__name__)

MAX_LINE = 64 << 20
"""Characters of a line: an alert with 20,000 samples has two million."""


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
class InjectedEvents:
    """The events that were injected, and how many windows of other stars there were."""

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


def read_truth(path: Path) -> InjectedEvents:
    """Read what an injection wrote.

    Raises
    ------
    ConfigError
        The file cannot be read, or is something else; the message names the line.
    """
    run: tuple[int, float, float] | None = None
    events: dict[str, Event] = {}
    for number, line in _json_lines(path):
        try:
            if line["kind"] == "run":
                windows, *others = (
                    _finite(line[name])
                    for name in ("untouched_windows", "window_days", "detectable_snr")
                )
                run = int(windows), others[0], others[1]
            else:
                event = _event(line)
                events[event.star] = _combined(event, events.get(event.star))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{path}:{number}: not a line of a truth file: {error}") from None
    if run is None:
        raise ConfigError(f"{path}: has no line of kind 'run': is it a truth file?")
    return InjectedEvents(events, *run)


def _event(line: Mapping[str, Any]) -> Event:
    may_lack = ("first_detectable_mjd",)
    numbers = {
        name: None if line[name] is None and name in may_lack else _finite(line[name])
        for name in Event.__dataclass_fields__
        if name != "star"
    }
    return Event(star=str(line["star"]), **numbers)  # type: ignore[arg-type]


def _finite(value: float) -> float:
    if isinstance(value, str) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return value


def _combined(event: Event, other: Event | None) -> Event:
    """One event seen in two bands."""
    if other is None:
        return event
    best = max(event, other, key=lambda one: one.snr)
    first = [t for t in (event.first_detectable_mjd, other.first_detectable_mjd) if t is not None]
    fields = {name: getattr(best, name) for name in Event.__dataclass_fields__}
    return Event(**fields | {"first_detectable_mjd": min(first, default=None)})


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            lines = iter(lambda: file.readline(MAX_LINE + 1), "")
            for number, text in enumerate(lines, 1):
                if len(text) > MAX_LINE:
                    raise ValueError(f"a line of more than {MAX_LINE} characters")
                if text.strip():
                    yield number, json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: not JSON lines: {error}") from None


def read_alerts(source: str, config: Properties | None = None) -> Iterator[Sighting]:
    """Read alerts, each once.

    Parameters
    ----------
    source : str
        A file of JSON lines as ``broker-filter subscribe --json`` prints them; an Avro container,
        or a folder of such, as ``subscribe --avro`` saves them; or ``kafka://HOST:PORT/TOPIC``.
    config : Properties, optional
        Of the Kafka client, for a topic: its login.

    Raises
    ------
    ConfigError
        The source does not exist, or holds something else.
    TransientError
        As from the topic.
    """
    seen: set[str] = set()
    for place, record in _records(source, config):
        try:
            one = _sighting(record)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{place}: not an alert: {error!r}") from None
        if one.alert_id not in seen:
            seen.add(one.alert_id)
            yield one


def _records(source: str, config: Properties | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    path = Path(source)
    if source.startswith(SCHEME):
        yield from _of_topic(source, config)
    elif path.is_dir() or path.suffix == ".avro":
        for file in sorted(path.glob("*.avro")) if path.is_dir() else [path]:
            yield from ((str(file), record) for record in read_records(file))
    else:
        for number, line in _json_lines(path):
            yield f"{path}:{number}", line


def _of_topic(source: str, config: Properties | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for part in offsets_of(parse_range(source), config):
        for message in messages_of(part, config):
            try:
                alert = from_message(message)
            except PoisonMessage as error:  # as subscribers do
                place = f"{part.name}, offset {message.offset}"
                _log.warning("%s is not an alert (%s)", place, printable(error, 500))
                continue
            yield part.name, to_json_dict(alert)


def _sighting(record: Mapping[str, Any]) -> Sighting:
    received = record["receivedMs"]
    return Sighting(
        alert_id=str(record["alertId"]),
        star=str(record["starId"]),
        state=str(record["state"]),
        last_epoch_mjd=_finite(float(record["lastEpochMjdTai"])),
        log10_threshold=_finite(float(record["log10KThreshold"])),
        received_ms=None if received is None else int(received),
        created_ms=int(record["createdMs"]),
    )
