"""Metrics, health and logs.

`METRICS` is the one table of all metrics; the Prometheus objects and the table in the README come
from it. Labels are bounded: never a star or an alert.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self, TextIO, cast

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from broker_filter.errors import ConfigError

__all__ = [
    "METRICS",
    "Health",
    "Metric",
    "Metrics",
    "ObserveServer",
    "configure_logging",
    "markdown_table",
]

PREFIX = "broker_filter_"
STALL_S = 30.0
MAX_TEXT = 2000

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LATENCY = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_COUNTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
_FRACTIONS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_LOG10_K = (-20.0, -10.0, -5.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: what it counts, and what to do about it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    action: str
    buckets: tuple[float, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric(
        "records_consumed_total",
        "counter",
        ("topic",),
        "messages taken from the input topics",
        "flat while the survey observes: check the broker, the group and /readyz",
    ),
    Metric(
        "records_dead_total",
        "counter",
        ("reason",),
        "messages that could not be used, sent to the dead-letter topic",
        "above 1 % of the consumed: read the dead letters; a schema has probably changed",
    ),
    Metric(
        "points_inserted_total",
        "counter",
        ("outcome",),
        "epochs by what became of them: inserted, duplicate, late, or rejected and why",
        "many rejected: check flag_mask, mjd_min and mjd_max against the survey",
    ),
    Metric(
        "windows",
        "gauge",
        (),
        "windows in memory",
        "grows without end: stars are not shared out by partition, or ids are not stable",
    ),
    Metric(
        "window_store_bytes",
        "gauge",
        (),
        "memory of all windows",
        "near the pod's limit: add members to the group",
    ),
    Metric(
        "batch_windows",
        "histogram",
        (),
        "windows per batch",
        "small while lag grows: raise batch.max_wait_s",
        _COUNTS,
    ),
    Metric(
        "batch_fill_ratio",
        "histogram",
        (),
        "points over padded points per batch",
        "low: windows are short for their buckets",
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    ),
    Metric(
        "inference_seconds",
        "histogram",
        ("stage",),
        "time of a batch per stage: evidence, posterior",
        "high: fewer alert.posterior_samples, more model.threads, or a GPU",
        _SECONDS,
    ),
    Metric(
        "gpu_queue_batches",
        "gauge",
        (),
        "batches that wait for the network",
        "at batch.queue_depth for 10 minutes: the network is too slow for the stream",
    ),
    Metric(
        "alerts_published_total",
        "counter",
        ("schema",),
        "alerts published",
        "far above the usual rate: look at log_bayes_factor for a change of the input",
    ),
    Metric(
        "consumer_lag_records",
        "gauge",
        ("topic", "partition"),
        "messages between our position and the end of the partition",
        "grows: add members, up to the number of partitions",
    ),
    Metric(
        "event_to_alert_seconds",
        "histogram",
        (),
        "time from a message's Kafka timestamp to its alert",
        "p99 above 2 s: look at the lag, the queue and batch.max_wait_s",
        _LATENCY,
    ),
    Metric(
        "last_record_timestamp_seconds",
        "gauge",
        (),
        "Kafka timestamp of the newest message, Unix time",
        "two cadences old in season: the source has stopped",
    ),
    Metric(
        "snapshot_age_seconds",
        "gauge",
        (),
        "age of the oldest snapshot of our partitions",
        "above three intervals: check the snapshot store",
    ),
    Metric(
        "snapshot_seconds",
        "histogram",
        (),
        "time to write a snapshot",
        "near kafka.max_poll_interval_ms: more, smaller partitions",
        _LATENCY,
    ),
    Metric(
        "restore_seconds",
        "histogram",
        (),
        "time to load a snapshot and replay up to now",
        "long: shorten the snapshot interval",
        _LATENCY,
    ),
    Metric(
        "rebalances_total",
        "counter",
        ("kind",),
        "partitions changes: assigned, revoked, lost",
        "frequent, or any lost: members restart or poll too rarely",
    ),
    Metric(
        "backpressure_seconds_total",
        "counter",
        (),
        "time during which intake was paused for the network",
        "grows steadily: as gpu_queue_batches",
    ),
    Metric(
        "posterior_support_fraction",
        "histogram",
        (),
        "share of posterior samples inside the prior",
        "below 0.99: the light curves are unlike those of the training",
        _FRACTIONS,
    ),
    Metric(
        "log_bayes_factor",
        "histogram",
        (),
        "log10 K of the evaluated windows",
        "shifts: instrument, calibration or model has changed; compare with the model card",
        _LOG10_K,
    ),
    Metric(
        "build_info",
        "gauge",
        ("version", "model"),
        "always 1; the labels name what runs",
        "two values at once: a roll-out is under way",
    ),
)


def markdown_table() -> str:
    """Return the table of all metrics, in Markdown, for the README."""
    rows = [
        f"| `{PREFIX}{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.meaning} | {m.action} |"
        for m in METRICS
    ]
    head = ["| metric | type | labels | meaning | what to do |", "|---|---|---|---|---|"]
    return "\n".join(head + rows)


class Metrics:
    """The values of all metrics of one process; instances know nothing of each other.

    Names are those of `METRICS`, without the prefix. All methods may be called from any thread and
    raise KeyError for a name that is not in the table, ValueError for labels that do not fit it.

    Attributes
    ----------
    registry : CollectorRegistry
        Holds these metrics alone.
    """

    def __init__(self) -> None:
        self._table = {metric.name: metric for metric in METRICS}
        self._values: dict[str, dict[tuple[str, ...], Any]] = {name: {} for name in self._table}
        self._lock = threading.Lock()
        for metric in METRICS:
            if not metric.labels:
                self._values[metric.name][()] = _zero(metric)
        self.registry = CollectorRegistry()
        self.registry.register(cast("Any", self))

    def inc(self, name: str, amount: float = 1.0, **labels: object) -> None:
        """Add to a counter."""
        if amount < 0:
            raise ValueError(f"counter {name} cannot go down by {amount}")
        metric, key = self._find(name, "counter", labels)
        with self._lock:
            values = self._values[metric.name]
            values[key] = values.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: object) -> None:
        """Set a gauge."""
        metric, key = self._find(name, "gauge", labels)
        with self._lock:
            self._values[metric.name][key] = float(value)

    def observe(self, name: str, values: ArrayLike, **labels: object) -> None:
        """Add one value, or an array of any shape, to a histogram; NaN is left out."""
        metric, key = self._find(name, "histogram", labels)
        data = np.asarray(values, dtype=np.float64).ravel()
        data = data[~np.isnan(data)]
        bins = np.searchsorted(metric.buckets, data, side="left")  # a bucket holds its bound
        with self._lock:
            counts, total = self._values[metric.name].get(key) or _zero(metric)
            counts = counts + np.bincount(bins, minlength=len(counts))
            total += float(data[np.isfinite(data)].sum())
            self._values[metric.name][key] = (counts, total)

    def forget(self, name: str, **labels: object) -> None:
        """Drop one series, such as that of a partition that went to another member."""
        metric = self._table[name]
        with self._lock:
            self._values[name].pop(_label_values(metric, labels), None)

    def value(self, name: str, **labels: object) -> float:
        """Return a counter, a gauge, or how many values a histogram holds; 0 before the first."""
        metric = self._table[name]
        value = self._values[name].get(_label_values(metric, labels), 0.0)
        return float(value[0].sum() if isinstance(value, tuple) else value)

    def total(self, name: str) -> float:
        """Return the sum of a counter over all its labels."""
        with self._lock:
            return float(sum(self._values[name].values()))

    def collect(self) -> Iterator[Family]:
        """Yield all metrics; called by the registry at each scrape."""
        with self._lock:
            snapshot = {name: dict(values) for name, values in self._values.items()}
        for name, values in snapshot.items():
            yield _family(self._table[name], values)

    def _find(
        self, name: str, kind: str, labels: Mapping[str, object]
    ) -> tuple[Metric, tuple[str, ...]]:
        metric = self._table[name]
        if metric.kind != kind:
            raise ValueError(f"{name} is a {metric.kind}, not a {kind}")
        return metric, _label_values(metric, labels)


def _label_values(metric: Metric, labels: Mapping[str, object]) -> tuple[str, ...]:
    if set(labels) != set(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {tuple(labels)}")
    return tuple(str(labels[label]) for label in metric.labels)


def _zero(metric: Metric) -> Any:  # noqa: ANN401  a number, or counts and their sum
    if metric.kind == "histogram":
        return np.zeros(len(metric.buckets) + 1, dtype=np.int64), 0.0
    return 0.0


def _family(metric: Metric, values: Mapping[tuple[str, ...], Any]) -> Family:
    name = PREFIX + metric.name
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.meaning, labels=metric.labels)
        bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
        for key, (counts, total) in values.items():
            cumulative = np.cumsum(counts).tolist()
            histogram.add_metric(key, list(zip(bounds, cumulative, strict=True)), total)
        return histogram
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(name, metric.meaning, labels=metric.labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


class Health:
    """Whether the main loop turns, and whether all is there that work needs.

    Parameters
    ----------
    needs : tuple of str
        What must be there before the process is ready.
    clock : callable
        Monotonic time in seconds.
    stall_s : float
        Longest time that one turn of the main loop may take.
    """

    def __init__(
        self,
        needs: tuple[str, ...] = ("model", "partitions", "broker"),
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = STALL_S,
    ) -> None:
        self._clock = clock
        self._stall_s = stall_s
        self._turned = clock()
        self._there = dict.fromkeys(needs, False)

    def beat(self) -> None:
        """Say that the main loop has turned."""
        self._turned = self._clock()

    def set_ready(self, need: str, ready: bool = True) -> None:
        """Say that something needed is there, or no longer; KeyError if it is not of the needs."""
        if need not in self._there:
            raise KeyError(need)
        self._there[need] = ready

    def missing(self) -> list[str]:
        """Return what is needed and not there."""
        return [need for need, there in self._there.items() if not there]

    def stalled_s(self) -> float:
        """Return the seconds since the last turn, 0 while they are within the limit."""
        passed = self._clock() - self._turned
        return passed if passed > self._stall_s else 0.0


Answer = tuple[int, str, bytes]


class ObserveServer:
    """HTTP server of /metrics, /healthz and /readyz, in threads of its own.

    Parameters
    ----------
    metrics : Metrics
    health : Health
    host : str
    port : int
        0 takes a free one.

    Attributes
    ----------
    port : int
        The port that it listens on.

    Raises
    ------
    ConfigError
        Where it cannot listen there.
    """

    def __init__(self, metrics: Metrics, health: Health, host: str, port: int) -> None:
        routes = {
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry)),
            "/healthz": lambda: _healthz(health),
            "/readyz": lambda: _readyz(health),
        }
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(routes))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on metrics.host = {host}, metrics.port = {port}:"
                f" {error.strerror}; choose another port, or 0 for a free one"
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="observe", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _healthz(health: Health) -> Answer:
    stalled = health.stalled_s()
    text = f"main loop has not turned for {stalled:.0f} s" if stalled else "ok"
    return (503 if stalled else 200), "text/plain", f"{text}\n".encode()


def _readyz(health: Health) -> Answer:
    missing = health.missing()
    text = f"waiting for {', '.join(missing)}" if missing else "ok"
    return (503 if missing else 200), "text/plain", f"{text}\n".encode()


def _handler(routes: Mapping[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0  # a client that sends nothing must not hold its thread

        def do_GET(self) -> None:
            route = routes.get(self.path.partition("?")[0])
            status, kind, body = route() if route else (404, "text/plain", b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep scrapes out of the log."""

    return Handler


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_SECRET = re.compile(r"password|secret|token|credential", re.IGNORECASE)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and what the call gave as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _bounded(record.getMessage()),
            **_extra(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-8 * MAX_TEXT :]
        return json.dumps(line, ensure_ascii=False)


class _TextFormatter(logging.Formatter):
    """The same for people: time, level, event, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_iso(record.created), record.levelname.lower(), _bounded(record.getMessage())]
        words += [f"{key}={value}" for key, value in _extra(record).items()]
        lines = [" ".join(words)]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: "**********" if _SECRET.search(key) else _plain(value)
        for key, value in vars(record).items()
        if key not in _STANDARD
    }


def _plain(value: object) -> object:
    """Turn anything into what JSON can hold, bounded in length."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return _bounded(str(value))


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text)} characters)"


def configure_logging(
    level: str,
    format: Literal["json", "text"],  # noqa: A002
    stream: TextIO | None = None,
) -> None:
    """Send the logs of this package to a stream (stderr by default); a second call replaces it.

    Give what a line should carry as ``extra``: topic, partition, offset, alert_id, model_id,
    duration_s and the like. Fields whose names speak of secrets are masked.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    logger = logging.getLogger("broker_filter")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
