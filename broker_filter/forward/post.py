"""One message to a web server, and what its answer means for the alert."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Self

from broker_filter.config.fields import SAFE_URL
from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.forward.target import Busy, Options
from broker_filter.http import Answer, get, json_object, send
from broker_filter.observe.text import printable

__all__ = ["Server"]

MAX_ANSWER_BYTES: Final = 1 << 20
LONGEST_PAUSE_S: Final = 300.0
_LOGIN: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_LATER: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY}


@dataclass(frozen=True, slots=True)
class Server:
    """A web server that takes messages.

    Parameters
    ----------
    url : str
        Paths are appended to it.
    login : str or None
        Header Authorization.
    timeout_s : float
        For one answer.
    hidden : tuple of str
        What no message of ours may show.
    """

    url: str = field(repr=False)
    login: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    hidden: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, options: Options, scheme: str, url: str = "") -> Self:
        """The server that options name, ``url`` where they name none; scheme of the login.

        Raises
        ------
        ConfigError
            The address is not one of http or https, or the secret would go there in clear.
        """
        address = (options.url or url).rstrip("/")
        if not address.startswith(("http://", "https://")):
            raise ConfigError(f"--url {address!r} must begin with https:// or http://")
        if options.secret is not None and not SAFE_URL.match(address + "/"):
            raise ConfigError("--url must begin with https://, since the secret goes there")
        if options.secret is None:
            return cls(address, timeout_s=options.timeout_s)
        login = f"{scheme} {options.secret}"
        return cls(address, login, options.timeout_s, (options.secret,))

    def post(
        self, path: str, payload: Mapping[str, Any], *, key: str = "", method: str = "POST"
    ) -> dict[str, Any]:
        """Send JSON; gives the answer, empty where it is no JSON object.

        Parameters
        ----------
        path : str
        payload : mapping
        key : str, optional
            Of the alert, sent as ``Idempotency-Key``.
        method : str

        Raises
        ------
        PoisonMessage
            ``refused``: the server will never take this message.
        ConfigError
            It refuses the login, or there is nothing at this address.
        TransientError
            It cannot be reached, is busy, or its answer was lost.
        """
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        body = json.dumps(payload, allow_nan=False).encode()
        try:
            answer = send(
                self.url + path, body, headers,
                method=method, login=self.login, timeout_s=self.timeout_s,
                max_bytes=MAX_ANSWER_BYTES,
            )  # fmt: skip
        except TransientError as error:
            raise TransientError(self._shown(error)) from None
        return self._taken(answer)

    def get(self, path: str) -> dict[str, Any]:
        """Ask for JSON; raises as `post`."""
        try:
            answer = get(
                self.url + path, {"Accept": "application/json"},
                login=self.login, timeout_s=self.timeout_s, max_bytes=MAX_ANSWER_BYTES,
            )  # fmt: skip
        except TransientError as error:
            raise TransientError(self._shown(error)) from None
        return self._taken(answer)

    def _taken(self, answer: Answer) -> dict[str, Any]:
        if 200 <= answer.status < 300:
            return json_object(answer.body)
        said = self._shown(f"{answer.status} {answer.reason}: {answer.body[:300]!r}")
        where = self._shown(self.url)
        if answer.status in _LOGIN:
            raise ConfigError(f"{where} refuses the login: {said}")
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE):
            raise ConfigError(f"{where} takes no such messages: {said}")
        if 300 <= answer.status < 400:
            raise ConfigError(f"{where} has moved; give its new address: {said}")
        if answer.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            raise Busy(f"{where} is busy: {said}", _pause(answer))
        if answer.status in _LATER or answer.status >= 500:
            raise TransientError(f"{where} fails: {said}")
        raise PoisonMessage("refused", f"{where} answers {said}")

    def _shown(self, text: object) -> str:
        shown = str(text)
        for secret in self.hidden:
            shown = shown.replace(secret, "***")
        return printable(shown, 500)


def _pause(answer: Answer) -> float:
    given = answer.headers.get("retry-after", "")
    return min(float(given), LONGEST_PAUSE_S) if given.isdecimal() else 0.0
