"""A web server that stands in for a target: it keeps what came, and answers as it was bidden."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answer", "Request", "StandIn", "stand_in"]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """Status, body and headers; a connection that breaks off, hangs, or brings it twice."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    breaks: bool = False
    hangs: bool = False
    twice: bool = False


class StandIn(ThreadingHTTPServer):
    """A server whose answers are first those of ``script``, then those of ``answer``."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Request], Answer] = lambda _: Answer()) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.script: list[Answer] = []
        self.requests: list[Request] = []
        self.came, self.ended = threading.Condition(), threading.Event()

    def wait_for(self, count: int) -> None:
        """Wait until so many requests have come."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.requests) >= count, 60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, json.loads(body) if body else None)
        with self.server.came:
            self.server.requests.append(request)
            self.server.came.notify_all()
        script = self.server.script
        # The target has done its work before the answer is lost.
        usual = self.server.answer(request)
        answer = script.pop(0) if script else usual
        if answer.hangs:
            self.server.ended.wait(30)
        if answer.breaks or answer.hangs:
            self.close_connection = True
            return
        for _ in range(1 + answer.twice):
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    do_GET = do_PATCH = do_POST  # noqa: N815  the base class's names

    def log_message(self, *_: object) -> None: ...


@contextmanager
def stand_in(answer: Callable[[Request], Answer] = lambda _: Answer()) -> Iterator[StandIn]:
    """A server, from ``with`` to the end of the block."""
    with StandIn(answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
