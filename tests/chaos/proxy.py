"""A loopback proxy before a broker, that can cut the network: nothing passes, nothing is closed."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]

HOST = "127.0.0.1"
CHUNK = 1 << 16


class Proxy:
    """Passes connections of one port on to another.

    Parameters
    ----------
    port, target : int
        Ports of 127.0.0.1: ours, and where it leads.
    """

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._sockets = ExitStack()
        self._listener = self._sockets.enter_context(socket.create_server((HOST, port)))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.mend()
        self._sockets.close()

    def cut(self) -> None:
        """Let nothing pass, as where a cable is pulled: both sides wait in vain."""
        self._whole.clear()

    def mend(self) -> None:
        """Let pass again, what was under way at the cut first."""
        self._whole.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client = self._sockets.enter_context(self._listener.accept()[0])
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._whole.wait()
        try:
            server = self._sockets.enter_context(socket.create_connection((HOST, self._target)))
        except OSError:
            return client.close()
        threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
        return self._pump(client, server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._whole.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
