"""One answer of an HTTP server, whole and within a time, or a `TransientError`.

Time and size of an answer are bounded as a whole: a timeout on each read alone lets a server that
sends a byte now and then hold up its caller for ever.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from socket import socket
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import (
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from broker_filter.errors import TransientError

__all__ = ["Answer", "get", "json_object", "send"]

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, reason, body and headers (names in lower case) of an answer.

    A body that is too long is cut behind its bound.
    """

    status: int
    reason: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def get(
    url: str,
    headers: Mapping[str, str],
    *,
    login: str | None = None,
    timeout_s: float,
    max_bytes: int,
) -> Answer:
    """Get a page; blocks for ``timeout_s`` at most, the look-up of the host's name excepted.

    Parameters
    ----------
    url : str
        With http or https; redirects to either are followed.
    headers : mapping of str to str
    login : str, optional
        Value of the header Authorization.
    timeout_s : float
        For the whole answer, redirects included.
    max_bytes : int
        Up to one more is read.

    Raises
    ------
    TransientError
        The server cannot be reached, sends no HTTP, is too slow, or ends too early.
    """
    deadline, address = time.monotonic() + timeout_s, url
    for _ in range(1 + MAX_REDIRECTS):
        try:
            request = Request(address, headers=dict(headers))  # noqa: S310  see _opener
            answer, elsewhere = _ask(request, login, deadline, max_bytes)
            if elsewhere is None:
                return answer
            address = urljoin(address, elsewhere)
        except (OSError, HTTPException, ValueError) as error:
            raise _away(url, error) from error
        if not address.startswith(("http://", "https://")):
            raise TransientError(f"{url} leads to {address!r:.200}, which is no page")
        login = None  # another host has no business with the password
    raise TransientError(f"{url} leads from page to page, {MAX_REDIRECTS} times and more")


def send(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    method: str = "POST",
    login: str | None = None,
    timeout_s: float,
    max_bytes: int,
) -> Answer:
    """Send a body, and get the answer; parameters and blocking as of `get`.

    A redirect is an answer like any other: what is sent goes to the given server alone.

    Raises
    ------
    TransientError
        As `get`. The server may have taken the body nevertheless, if the answer was lost.
    """
    deadline = time.monotonic() + timeout_s
    request = Request(url, body, dict(headers), method=method)  # noqa: S310  see _opener
    try:
        return _ask(request, login, deadline, max_bytes)[0]
    except (OSError, HTTPException, ValueError) as error:
        raise _away(url, error) from error


def _ask(
    request: Request, login: str | None, deadline: float, max_bytes: int
) -> tuple[Answer, str | None]:
    """An answer, and where it leads to if it is no answer itself."""
    if login is not None:
        request.add_header("Authorization", login)
    timeout_s = max(deadline - time.monotonic(), 0.001)
    with _opener(deadline).open(request, timeout=timeout_s) as answer:
        elsewhere = answer.headers["Location"] if answer.status in _REDIRECTS else None
        named = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status, answer.reason, _body(answer, max_bytes), named), elsewhere


def _away(url: str, error: Exception) -> TransientError:
    if isinstance(error, URLError):
        return TransientError(f"{url} cannot be reached: {error.reason}")
    return TransientError(f"{url} gives no whole answer of HTTP: {error!r:.200}")


def _body(answer: HTTPResponse, max_bytes: int) -> bytes:
    body = answer.read(max_bytes + 1)
    if answer.length and len(body) <= max_bytes:
        raise HTTPException(f"it ends {answer.length} bytes before its end")
    return body


def _opener(deadline: float) -> OpenerDirector:
    """What opens pages of http and https and nothing else, until a time (monotonic, seconds)."""

    class Http(HTTPHandler):
        def do_open(self, http_class: Any, req: Request, **more: Any) -> HTTPResponse:  # noqa: ANN401
            return super().do_open(_timed(http_class, deadline), req, **more)

    class Https(HTTPSHandler):
        def do_open(self, http_class: Any, req: Request, **more: Any) -> HTTPResponse:  # noqa: ANN401
            return super().do_open(_timed(http_class, deadline), req, **more)

    opener = OpenerDirector()
    for handler in (ProxyHandler(), UnknownHandler(), Http(), Https()):
        opener.add_handler(handler)
    return opener


def _timed(http_class: Any, deadline: float) -> Callable[..., Any]:  # noqa: ANN401  two classes
    """Connections whose answers end at a time."""

    class Response(HTTPResponse):
        def __init__(self, sock: socket, *args: Any, **more: Any) -> None:  # noqa: ANN401
            super().__init__(sock, *args, **more)
            self.fp = io.BufferedReader(_Until(sock, self.fp.detach(), deadline))

    def connect(host: str, **more: Any) -> Any:  # noqa: ANN401
        connection = http_class(host, **more)
        connection.response_class = Response
        return connection

    return connect


class _Until(io.RawIOBase):
    """What a socket sends, until a time.

    Parameters
    ----------
    sock : socket
        Its timeout is set before each read.
    raw : RawIOBase
        Reads from it.
    deadline : float
        `time.monotonic`, seconds.
    """

    def __init__(self, sock: socket, raw: io.RawIOBase, deadline: float) -> None:
        self._sock, self._raw, self._deadline = sock, raw, deadline

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401  any buffer
        """Read what there is, at least a byte; none at the end."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        self._sock.settimeout(left)
        read: int | None = self._raw.readinto(buffer)
        return read

    def close(self) -> None:
        """Close the socket's reader."""
        self._raw.close()
        super().close()


def json_object(body: bytes) -> dict[str, Any]:
    """A JSON object, empty where a body is none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
