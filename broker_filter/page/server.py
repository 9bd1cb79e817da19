"""The page's HTTP server, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from broker_filter.errors import ConfigError

__all__ = ["PageServer"]

MAX_HEAD_BYTES = 16 << 10
MAX_CONNECTIONS = 64
STOP_S = 3


class PageServer:
    """Serves an application until it is closed.

    Parameters
    ----------
    app : ASGIApp
    host : str
    port : int
        0 takes a free one.

    Attributes
    ----------
    address : str
        Where it is, for a browser.

    Raises
    ------
    ConfigError
        It cannot listen there.
    """

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._socket = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        # Beside the main thread uvicorn leaves signals alone.
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop after the requests that are under way; a second call does nothing."""
        self._server.should_exit = True
        self._thread.join(2 * STOP_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((address[0], port), family=family, backlog=MAX_CONNECTIONS)
    except (OSError, OverflowError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {said}; try --port 0") from None
