"""The HTTP server of /metrics, /healthz and /readyz."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from io import BufferedReader, BytesIO, StringIO
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from broker_filter.errors import ConfigError
from broker_filter.observe.health import Health

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["ObserveServer"]

_log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 8192
MAX_REQUEST_S = 5.0
MAX_CONNECTIONS = 16


class ObserveServer:
    """HTTP server in threads of its own.

    Parameters
    ----------
    registry : CollectorRegistry
        Served under /metrics.
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

    def __init__(self, registry: CollectorRegistry, health: Health, host: str, port: int) -> None:
        try:
            self._server = _Server(host, port)
        except (OSError, TypeError, UnicodeError) as error:  # the last two of what is no host
            said = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot listen on metrics.host = {host}, metrics.port = {port}: {said};"
                " choose another port, or 0 for a free one"
            ) from None
        self._server.set_app(_application(registry, health))
        self.port = self._server.server_port
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


def _application(registry: CollectorRegistry, health: Health) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app(registry)
    probes = {"/healthz": health.liveness, "/readyz": health.readiness}

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start)
        if path not in probes:
            return _text(start, "404 Not Found", "not found")
        good, sentence = probes[path]()
        return _text(start, "200 OK" if good else "503 Service Unavailable", sentence)

    def guarded(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            return _text(start, "405 Method Not Allowed", "only GET is served")
        try:
            return answer(environ, start)
        except Exception:  # noqa: BLE001  logged, where wsgiref would print it
            _log.exception("observe_failed")
            return _text(start, "500 Internal Server Error", "failed; the log says why")

    return guarded


def _text(start: StartResponse, status: str, text: str) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        # A time limit per read would let a slow client hold its thread for hours.
        self.rfile = BufferedReader(BytesIO(_read_head(self.connection)))

    def get_stderr(self) -> TextIO:
        """Leave out what wsgiref prints of a client that hung up; our own failures are logged."""
        return StringIO()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep scrapes out of the log."""


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


class _Server(ThreadingMixIn, WSGIServer):
    """At most `MAX_CONNECTIONS` at a time, each in a thread; one more cuts off the oldest.

    So slow clients, however many, keep no probe from its answer: a probe sends its request at
    once, and has its answer before it is the oldest.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # oldest first
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if not self._free.acquire(blocking=False):
            self._cut_off_oldest()
            self._free.acquire()
        with self._lock:
            self._open[request] = None
        super().process_request(request, client_address)

    def _cut_off_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._open), None)
            if oldest is not None:
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and leaves

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Close a connection, answered or not; called once for each."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)
        self._free.release()

    def handle_error(self, *_: object) -> None:
        """Log what went wrong, unless the client hung up or was too slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            _log.exception("observe_failed")
