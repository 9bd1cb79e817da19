"""Who may see the page, and what a browser may do with it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker_filter.errors import ConfigError

__all__ = ["Guard", "check_bind", "is_loopback", "same_origin"]

HEADERS: Final[Mapping[str, str]] = {
    # Nothing but our own files; no script, style or event handler inside a page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # A page elsewhere is not to learn which star was looked at.
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LEAST_CHARACTERS: Final = 12
"""Of a password."""
REFUSED_S: Final = 0.5
"""An answer to a wrong password takes so long."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address can be this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def same_origin(headers: Headers) -> bool:
    """Whether a browser says that a form came from our own page."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    if (origin := headers.get("origin")) is not None:
        return urlsplit(origin).netloc == headers.get("host")
    return True  # no browser of today; the form's token still stands


@dataclass(frozen=True, slots=True)
class Guard:
    """Middleware: a password where there is one, else this machine alone; headers on all answers.

    Parameters
    ----------
    app : ASGIApp
    password : str
        Of HTTP's basic authentication, with any user name; empty for none.
    """

    app: ASGIApp
    password: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = await self._refusal(scope["path"], Headers(scope=scope))
        await (answer or self.app)(scope, receive, with_headers)

    async def _refusal(self, path: str, headers: Headers) -> PlainTextResponse | None:
        if path == "/healthz":
            return None
        if not self.password:
            # A page elsewhere could name itself by an address of this machine.
            host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
            return None if is_loopback(host) else PlainTextResponse("unknown host\n", 421)
        given = _password(headers.get("authorization", ""))
        if secrets.compare_digest(given.encode(), self.password.encode()):
            return None
        if given:
            await asyncio.sleep(REFUSED_S)
        ask = {"WWW-Authenticate": 'Basic realm="broker-filter", charset="UTF-8"'}
        return PlainTextResponse("a password is needed\n", 401, ask)


def _password(authorization: str) -> str:
    """What stands in a header ``Basic user:password`` or ``Bearer password``; else nothing."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return given
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def check_bind(host: str, password: str) -> None:
    """Refuse to serve others without a password, or with a short one.

    Raises
    ------
    ConfigError
        The host is not this machine alone, and there is no password; or it is too short.
    """
    if not password and not is_loopback(host):
        raise ConfigError(
            f"--host {host} serves other machines too: give a password in"
            " BROKER_FILTER_PAGE_PASSWORD, or a file that holds it with --password-file"
        )
    if password and len(password) < LEAST_CHARACTERS:
        raise ConfigError(f"the page's password has fewer than {LEAST_CHARACTERS} characters")
