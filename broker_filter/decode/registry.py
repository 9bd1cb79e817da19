"""Where the schema comes from of packets that carry only its number.

Confluent's wire format puts a number before each record. What it stands for is known to a schema
registry, or from a folder of schemas filed ``MAJOR/MINOR`` as surveys publish them, whose number is
``100 MAJOR + MINOR`` by the custom of Rubin and others.
"""

from __future__ import annotations

import base64
import importlib.util
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

from broker_filter.backoff import Backoff
from broker_filter.decode.avro.schema import MAX_SCHEMA_BYTES, WriterSchema, load_folder, parse_json
from broker_filter.errors import ConfigError, SchemaError, TransientError
from broker_filter.http import get, json_object

__all__ = [
    "Registry",
    "SchemaLookup",
    "basic_login",
    "chained",
    "filed_schemas",
    "package_folder",
]

MAX_IDS: Final = 1000
"""Most numbers that are remembered, known or unknown: junk may name any."""

MAX_ANSWER_BYTES: Final = 2 * MAX_SCHEMA_BYTES
"""Longest answer of a registry: in JSON, each quote within a schema takes two bytes."""

TIMEOUT_S: Final = 10.0
"""Longest time that one answer may take, from the connection to its last byte."""

PATIENCE_S: Final = 60.0
STEP_S: Final = 1.0
_FORGET_S: Final = 300.0


SchemaLookup: TypeAlias = Callable[[int], WriterSchema | None]
"""Finds the schema of a number; None where there is none.

Raises SchemaError where there is one that is not a valid schema of a packet, TransientError where
it cannot be known now.
"""


def filed_schemas(
    folder: Path | None, ids: Mapping[int, Path] | None = None
) -> Mapping[int, WriterSchema]:
    """Read all schemas of a folder.

    Parameters
    ----------
    folder : Path, optional
        Holds ``[SURVEY/]MAJOR/MINOR/*.avsc`` at any depth.
    ids : mapping of int to Path, optional
        Folders of further schemas by number; they come before those of the same number.

    Returns
    -------
    mapping of int to WriterSchema

    Raises
    ------
    ConfigError
        A folder is missing, or two schemas would have the same number.
    SchemaError
        One of them is not valid.
    """
    found: dict[int, Path] = {}
    given = dict(ids or {})
    for version in sorted({path.parent for path in folder.rglob("*.avsc")}) if folder else ():
        number = _number_of(version)
        if number is None or number in given:
            continue
        if number in found:
            raise ConfigError(
                f"{found[number]} and {version} both have number {number}: say which by schema_ids"
            )
        found[number] = version
    missing = [str(path) for path in (folder, *given.values()) if path and not path.is_dir()]
    if missing:
        raise ConfigError(f"there is no folder of schemas {', '.join(missing)}")
    return {number: load_folder(version) for number, version in (found | given).items()}


def _number_of(version: Path) -> int | None:
    """Number of the schema in ``MAJOR/MINOR``; None where a folder is not named so."""
    major, minor = version.parent.name, version.name
    return 100 * int(major) + int(minor) if major.isdecimal() and minor.isdecimal() else None


def package_folder() -> Path | None:
    """Folder of the schemas in the package lsst-alert-packet, where that is installed."""
    try:
        spec = importlib.util.find_spec("lsst.alert.packet")
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "schema"
    return folder if folder.is_dir() else None


class Registry:
    """Looks up schemas in a registry, once for each number.

    A number that it does not hold is looked up again after five minutes. While it cannot be reached
    the caller waits: a packet must not become a dead letter because a server restarts.

    Parameters
    ----------
    url : str
        Such as ``https://registry.example.org``; ``/schemas/ids/N`` is appended.
    login_file : Path, optional
        Holds ``user:password`` on one line, where the registry needs a login.
    patience_s : float
        How long it may stay out of reach.
    timeout_s : float
        How long one answer may take.
    sleep, clock : callable
        As in `time`.
    waiting : callable
        Called before each attempt and every second of a pause: the caller waits for good reason. It
        may raise TransientError to wait no longer.

    Raises
    ------
    ConfigError
        The file of the login cannot be read, or holds none.
    """

    def __init__(
        self,
        url: str,
        *,
        login_file: Path | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        waiting: Callable[[], object] = lambda: None,
    ) -> None:
        self._waiting = waiting
        self._url = url.rstrip("/")
        self._login = None if login_file is None else basic_login(login_file)
        self._timeout_s = timeout_s
        self._patience_s, self._sleep, self._clock = patience_s, sleep, clock
        self._known: dict[int, WriterSchema] = {}
        self._unknown: dict[int, float] = {}

    def __call__(self, number: int) -> WriterSchema | None:
        """See `SchemaLookup`; blocks for as long as the registry is out of reach.

        Raises
        ------
        ConfigError
            The registry refuses the login, or needs one.
        """
        if number in self._known:
            return self._known[number]
        if self._clock() < self._unknown.get(number, -1.0):
            return None
        try:
            text = self._ask(number)
            schema = None if text is None else parse_json(text)
        except SchemaError:
            self._unknown[number] = self._clock() + _FORGET_S
            raise
        _forget_oldest(self._known if schema else self._unknown)
        if schema is None:
            self._unknown[number] = self._clock() + _FORGET_S
        else:
            self._known[number] = schema
        return schema

    def _ask(self, number: int) -> bytes | None:
        backoff = Backoff(self._patience_s, first_s=0.5, longest_s=10.0, clock=self._clock)
        while True:
            self._waiting()
            try:
                return self._get(number)
            except TransientError as error:
                self._pause(backoff.failed(error))

    def _pause(self, seconds: float) -> None:
        """Wait in short steps, between any of which the caller may end it."""
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            self._sleep(min(left, STEP_S))
            self._waiting()

    def _get(self, number: int) -> bytes | None:
        """Text of a schema, None where the registry says that there is none."""
        url = f"{self._url}/schemas/ids/{number}"
        accept = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        answer = get(
            url, accept, login=self._login, timeout_s=self._timeout_s, max_bytes=MAX_ANSWER_BYTES
        )
        if answer.status == HTTPStatus.OK:
            return _schema_text(answer.body, url)
        if answer.status == HTTPStatus.NOT_FOUND and _says_unknown(answer.body):
            return None
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ConfigError(
                f"{url} answers {answer.status} {answer.reason}: schema_registry_login_file"
                " must name a file that holds its user:password"
            )
        raise TransientError(f"{url} answers {answer.status} {answer.reason}{_shown(answer.body)}")


def basic_login(login_file: Path, setting: str = "schema_registry_login_file") -> str:
    """Header for a login, of the file that a setting names; it is never shown.

    Raises
    ------
    ConfigError
        The file cannot be read, or does not hold user:password.
    """
    problem = f"{setting} {login_file}: "
    try:
        login = login_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{problem}cannot be read: {reason}") from None
    user, colon, password = login.partition(":")
    if not (user and colon and password) or "\n" in login:
        raise ConfigError(f"{problem}does not hold user:password on one line")
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def _schema_text(body: bytes, url: str) -> bytes:
    """The schema in a registry's answer.

    Raises
    ------
    SchemaError
        There is one, which cannot be read.
    TransientError
        This is no answer of a registry, but of a proxy before it, say.
    """
    if len(body) > MAX_ANSWER_BYTES:
        raise SchemaError(f"{url} answers with more than {MAX_ANSWER_BYTES} bytes")
    answer = json_object(body)
    schema = answer.get("schema")
    if not isinstance(schema, str):
        raise TransientError(f"{url} does not answer as a schema registry does{_shown(body)}")
    if answer.get("references"):
        raise SchemaError(f"{url} is in several parts; only whole schemas can be read")
    try:
        return schema.encode()
    except UnicodeEncodeError as error:
        raise SchemaError(f"{url} answers with what is no text: {error}") from error


def _says_unknown(body: bytes) -> bool:
    """Whether a registry says that it has no such schema: any other server may answer 404, too."""
    code = json_object(body).get("error_code")
    return isinstance(code, int) and code // 100 == HTTPStatus.NOT_FOUND


def _shown(body: bytes) -> str:
    return f": {body[:80]!r}" if body else ", with nothing in it"


def _forget_oldest(remembered: dict[int, WriterSchema] | dict[int, float]) -> None:
    if len(remembered) >= MAX_IDS:
        del remembered[next(iter(remembered))]


def chained(*sources: SchemaLookup) -> SchemaLookup:
    """The first of several sources that knows a number."""

    def find(number: int) -> WriterSchema | None:
        found = (source(number) for source in sources)
        return next((schema for schema in found if schema is not None), None)

    return find
