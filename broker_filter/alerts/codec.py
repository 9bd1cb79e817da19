"""The bytes of alerts: Avro of ``schemas/alert``, Kafka messages, and JSON.

The current version is written; all that are filed of its major version are read: by the schema
with which they were written, with defaults for the fields that it does not have.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.framing import BARE, Framing, unframe
from broker_filter.alerts.record import from_record, to_record
from broker_filter.errors import PoisonMessage
from broker_filter.schemas import (
    SCHEMA_HEADER,
    current_version,
    decode_strict,
    encode,
    known_versions,
    schema_header,
)
from broker_filter.types import Headers, Message, OutgoingMessage

__all__ = ["from_avro", "from_message", "to_avro", "to_json_dict", "to_message"]


def to_avro(alert: Alert) -> bytes:
    """Write one record of the current schema, without a container.

    Raises
    ------
    SchemaError
        A field does not fit the schema.
    """
    return encode("alert", to_record(alert))


def from_avro(value: bytes, version: str | None = None) -> Alert:
    """Read what `to_avro` wrote.

    Parameters
    ----------
    value : bytes
    version : str, optional
        Of the schema, as the message's header has it; the current one if left out.

    Raises
    ------
    PoisonMessage
        The bytes are no such record, or its columns contradict the numbers that describe them.
    """
    record = decode_strict("alert", value, version, read_as=current_version("alert"))
    try:
        return from_record(record)
    except ValueError as error:
        raise PoisonMessage("columns", f"alert {record['alertId']!r:.60}: {error}") from error


def from_message(message: Message) -> Alert:
    """Read an alert from a topic, however it is framed.

    Its version is that of the container's schema, or that which the header ``schema`` names.

    Raises
    ------
    PoisonMessage
        ``unknown_format`` for a version that is not known here, and what `unframe` and `from_avro`
        raise.
    """
    record, version = unframe(message.value or b"")
    return from_avro(record, version or _named_version(message))


def _named_version(message: Message) -> str | None:
    schema = dict(message.headers).get(SCHEMA_HEADER, b"").decode(errors="replace")
    version = schema.removeprefix("alert/") or None
    if version not in (None, current_version("alert")) and version not in known_versions("alert"):
        known = ", ".join(f"alert/{known}" for known in known_versions("alert"))
        raise PoisonMessage(
            "unknown_format", f"schema {schema[:80]!r} is not known; known: {known}"
        )
    return version


def to_message(alert: Alert, topic: str, framing: Framing = BARE) -> OutgoingMessage:
    """Make a Kafka message, keyed by star, with headers by which subscribers filter undecoded.

    Parameters
    ----------
    alert : Alert
    topic : str
    framing : Framing
        What stands around the record.

    Raises
    ------
    SchemaError
        A field does not fit the schema.
    """
    headers: Headers = (
        schema_header("alert"),
        ("alertId", str(alert.alert_id).encode()),
        ("state", alert.state.encode()),
        ("log10K", repr(alert.log10_k).encode()),
        ("modelId", alert.model_id.encode()),
        *framing.headers,
    )
    if alert.verdict is not None:
        headers += (("verdict", alert.verdict.verdict.encode()),)
    value = framing.frame(to_avro(alert))
    return OutgoingMessage(topic, str(alert.star_id).encode(), value, headers)


def to_json_dict(
    alert: Alert, *, light_curve: bool = False, samples: bool = False
) -> dict[str, Any]:
    """Turn the alert into JSON types, under the schema's names; what is not finite is None.

    Parameters
    ----------
    light_curve : bool
        Also ``lightCurve`` and the curves of ``rivals``, as lists of numbers; else they are left
        out.
    samples : bool
        Also ``samples`` of ``posterior`` and ``network``, as lists of rows; else they are left out.
    """
    record = to_record(alert)
    _set_samples(record["posterior"], alert.samples if samples else None)
    if alert.network is not None:
        _set_samples(record["network"], alert.network.samples if samples else None)
    del record["lightCurve"]
    for one in record["rivals"]:
        del one["curve"]
    if light_curve:
        record["lightCurve"] = {
            "mjdTai": alert.mjd_tai.tolist(),
            "flux": alert.flux.tolist(),
            "sigma": alert.sigma.tolist(),
            "source": None if alert.source is None else alert.source.tolist(),
        }
        for one, rival in zip(record["rivals"], alert.rivals, strict=True):
            one["curve"] = None if rival.curve is None else rival.curve.tolist()
    finite: dict[str, Any] = _finite(record)
    return finite


def _finite(tree: Any) -> Any:  # noqa: ANN401  a tree of JSON types
    """The same with None for numbers that JSON does not have."""
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _set_samples(record: dict[str, Any], samples: NDArray[np.float32] | None) -> None:
    if samples is None:
        del record["samples"]
    else:
        record["samples"] = samples.tolist()
