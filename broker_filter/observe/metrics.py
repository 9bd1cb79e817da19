"""Metrics, health and logs: what the outside may see of a running filter."""

from __future__ import annotations

import json
import logging
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, BytesIO
from typing import Any, Literal, Self, TextIO, cast

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from broker_filter.errors import ConfigError
from broker_filter.observe.table import METRICS, PREFIX, Metric, markdown_table

__all__ = [
    "METRICS",
    "Health",
    "Metric",
    "Metrics",
    "ObserveServer",
    "configure_logging",
    "markdown_table",
]

_log = logging.getLogger(__name__)

STALL_S = 30.0
START_S = 300.0
MAX_TEXT = 2000
MAX_SERIES = 4096
MAX_REQUEST_BYTES = 8192
MAX_REQUEST_S = 5.0
MAX_REQUESTS = 16


class Metrics:
    """The values of all metrics of one process; instances know nothing of each other.

    Names are those of `METRICS`, without the prefix. All methods may be called from any thread and
    raise KeyError for a name that is not in the table, ValueError for labels that do not fit it.
    A metric holds `MAX_SERIES` combinations of labels; any further ones count as ``other``.

    Attributes
    ----------
    registry : CollectorRegistry
        Holds these metrics and those of the process.
    """

    def __init__(self) -> None:
        self._table = {metric.name: metric for metric in METRICS}
        self._values: dict[str, dict[tuple[str, ...], Any]] = {}
        self._lock = threading.Lock()
        for metric in METRICS:
            keys = [(value,) for value in metric.known] if metric.labels else [()]
            self._values[metric.name] = {key: _zero(metric) for key in keys}
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
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
        key = _label_values(metric, labels)
        series = self._values[name]
        full = len(series) >= MAX_SERIES and key not in series
        return metric, ("other",) * len(key) if full else key


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
        # As Prometheus 3 writes them: "1.0", so that queries with le work on every version.
        bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
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
    start_s : float
        Longest time up to the first turn: models load before it.
    """

    def __init__(
        self,
        needs: tuple[str, ...] = ("model", "partitions", "broker"),
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = STALL_S,
        start_s: float = START_S,
    ) -> None:
        self._clock = clock
        self._stall_s = stall_s
        self._limit_s = start_s
        self._turned = clock()
        self._there = dict.fromkeys(needs, False)

    def beat(self) -> None:
        """Say that the main loop has turned."""
        self._turned, self._limit_s = self._clock(), self._stall_s

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
        return passed if passed > self._limit_s else 0.0


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
            self._server = _Server(host, port, _handler(routes))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on metrics.host = {host}, metrics.port = {port}:"
                f" {error.strerror}; choose another port, or 0 for a free one"
            ) from None
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


class _Server(ThreadingHTTPServer):
    """At most `MAX_REQUESTS` at a time, each in a thread; one too many is cut off."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *_: object) -> None:
        """Log what went wrong, unless the client hung up or was too slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            _log.exception("observe_failed")


def _handler(routes: Mapping[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            # A time limit per read would let a slow client hold its thread for hours.
            self.rfile = BufferedReader(BytesIO(_read_head(self.connection)))
            self.handle_one_request()

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


def _read_head(connection: socket.socket) -> bytes:
    """The head of a request; nothing if it is longer or slower than the limits."""
    head, end = b"", time.monotonic() + MAX_REQUEST_S
    while b"\r\n\r\n" not in head:
        connection.settimeout(max(0.001, end - time.monotonic()))
        part = connection.recv(MAX_REQUEST_BYTES)
        head += part
        if not part or len(head) > MAX_REQUEST_BYTES:
            return b""
    connection.settimeout(MAX_REQUEST_S)
    return head


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_SECRET = re.compile(r"password|secret|token|credential", re.IGNORECASE)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and what the call gave as ``extra``.

    A line that names its event there has a sentence for people beside it, as ``message``.
    """

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        line = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _bounded(text),
            **_extra(record),
        }
        if getattr(record, "event", text) != text:
            line["message"] = _bounded(text, 8 * MAX_TEXT)  # it may be the stacks of all threads
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


def _bounded(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


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
