"""A VOEvent broker, by the VOEvent Transport Protocol (IVOA, 2017).

One connection an event: a length of four bytes and the packet, then the broker's receipt. The
packet's identifier is that of the alert, the same each time, by which brokers pass over what they
have seen.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from broker_filter.alerts.alert import Alert
from broker_filter.client.voevent import AUTHORITY, ivorn, voevent
from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.forward.target import Options
from broker_filter.observe.text import printable

__all__ = ["VOEventBroker"]

PORT: Final = 8098
MAX_RECEIPT_BYTES: Final = 1 << 16
_LENGTH: Final = struct.Struct(">I")
_SEEN: Final = re.compile(r"seen|duplicate|already", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VOEventBroker:
    """A broker at ``vtp://HOST[:PORT]``; the topic is the authority of the identifiers."""

    options: Options

    def __post_init__(self) -> None:
        self.options.need("url")
        self._address()

    def _address(self) -> tuple[str, int]:
        try:
            parts = urlsplit(self.options.url)
            if parts.scheme == "vtp" and parts.hostname:
                return parts.hostname, parts.port or PORT
        except ValueError:  # of the port
            pass
        raise ConfigError(f"--url {self.options.url!r} is not vtp://HOST:PORT")

    def send(self, alert: Alert, earlier: Sequence[str] = ()) -> str:
        """See `Target.send`."""
        authority = self.options.topic or AUTHORITY
        packet = voevent(alert, authority, earlier)
        try:
            receipt = self._exchange(packet)
        except OSError as error:
            raise TransientError(f"{self.options.url}: {error}") from error
        _taken(receipt, self.options.url)
        return ivorn(alert, authority)

    def _exchange(self, packet: bytes) -> bytes:
        """Send a packet and read the receipt, within the time."""
        end = time.monotonic() + self.options.timeout_s
        with socket.create_connection(self._address(), self.options.timeout_s) as wire:
            wire.sendall(_LENGTH.pack(len(packet)) + packet)
            (length,) = _LENGTH.unpack(_read(wire, _LENGTH.size, end))
            if length > MAX_RECEIPT_BYTES:
                raise TransientError(f"{self.options.url}: a receipt of {length} bytes")
            return _read(wire, length, end)

    def close(self) -> None:
        """See `Target.close`."""


def _read(wire: socket.socket, length: int, end: float) -> bytes:
    """So many bytes, until a time (monotonic, seconds)."""
    data = b""
    while len(data) < length:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the receipt takes too long")
        wire.settimeout(left)
        if not (more := wire.recv(length - len(data))):
            raise ConnectionError("the connection ended before the receipt")
        data += more
    return data


def _taken(receipt: bytes, url: str) -> None:
    """Check that a receipt is an ``ack``, or says that the packet is known."""
    # A receipt with entities of its own could ask for gigabytes.
    if b"<!" in receipt.replace(b"<!--", b""):
        raise TransientError(f"{url} sends a receipt with a document type")
    try:
        root = ET.fromstring(receipt)  # noqa: S314  no entities, see above
    except ET.ParseError as error:
        raise TransientError(f"{url} sends no receipt: {error}") from error
    role = root.get("role")
    said = printable(" ".join("".join(root.itertext()).split()), 300)
    if role == "ack" or (role == "nak" and _SEEN.search(said)):
        return
    if role == "nak":
        raise PoisonMessage("refused", f"{url} answers: {said}")
    raise TransientError(f"{url} sends a receipt of role {printable(role)}")
