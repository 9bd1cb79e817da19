"""How alerts are framed, as the settings say; a schema registry gives the schema's number."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from broker_filter.alerts.framing import Framing, schema_text
from broker_filter.backoff import Backoff
from broker_filter.config import Kafka
from broker_filter.decode.registry import basic_login
from broker_filter.errors import ConfigError, TransientError
from broker_filter.http import Answer, send

__all__ = ["make_framing"]

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20
_REFUSED: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}


def make_framing(kafka: Kafka, sleep: Callable[[float], None] = time.sleep) -> Framing:
    """The framing of alerts; blocks while a registry is asked for the schema's number.

    Raises
    ------
    ConfigError
        The registry refuses the login, or holds a schema that ours does not fit.
    TransientError
        It does not answer within ``kafka.connect_timeout_s``.
    """
    url, number = kafka.alert_schema_registry, kafka.alert_schema_id
    if url is not None:
        backoff = Backoff(kafka.connect_timeout_s, first_s=0.5)
        while number is None:
            try:
                number = _register(kafka, url)
            except TransientError as error:
                sleep(backoff.failed(error))
    return Framing(kafka.alert_framing, number)


def _register(kafka: Kafka, registry: str) -> int:
    """File the current schema, which does nothing where it is filed already; gives its number."""
    url = f"{registry.rstrip('/')}/subjects/{kafka.alert_topic}-value/versions"
    login = None
    if (file := kafka.alert_schema_registry_login_file) is not None:
        login = basic_login(file, "alert_schema_registry_login_file")
    answer = send(
        url,
        json.dumps({"schema": schema_text()}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        login=login, timeout_s=TIMEOUT_S, max_bytes=MAX_BYTES,
    )  # fmt: skip
    if answer.status == HTTPStatus.OK:
        return _number(answer, url)
    problem = f"{url} answers {answer.status} {answer.reason}: {answer.body[:200]!r}"
    if answer.status in _REFUSED:
        raise ConfigError(f"{problem}; see alert_schema_registry and its login file")
    if answer.status in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
        raise ConfigError(f"{problem}; the alert's schema does not fit what is filed there")
    raise TransientError(problem)


def _number(answer: Answer, url: str) -> int:
    try:
        number = json.loads(answer.body)["id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        number = None
    if not isinstance(number, int) or not 0 <= number < 1 << 32:
        raise TransientError(f"{url} gives no number of a schema: {answer.body[:200]!r}")
    return number
