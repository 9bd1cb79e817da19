"""The bytes of alerts: Avro of ``schemas/alert``, Kafka messages, and JSON.

The current version is written; all that are filed of its major version are read: by the schema
with which they were written, with defaults for the fields that it does not have.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broker_filter.alerts.alert import (
    QUANTILES,
    UNITS,
    Alert,
    CertifiedK,
    Interval,
    OtherBand,
)
from broker_filter.errors import PoisonMessage
from broker_filter.schemas import (
    SCHEMA_HEADER,
    current_version,
    decode_strict,
    encode,
    known_versions,
    schema_header,
)
from broker_filter.types import PARAMETERS, Message, OutgoingMessage

__all__ = [
    "from_avro",
    "from_message",
    "from_record",
    "to_avro",
    "to_json_dict",
    "to_message",
    "to_record",
]

_SHAPED = {
    "alert_id",
    "event_id",
    "other_bands",
    "certified",
    "parameters",
    "samples",
    "summary",
    "covariance",
    "mjd_tai",
    "flux",
    "sigma",
}
# All others go into the record as they are, under their own name in camelCase.
_PLAIN = tuple(field.name for field in fields(Alert) if field.name not in _SHAPED)
_CERTIFIED = {
    "log10KCertified": "log10_k",
    "log10KCertifiedError": "log10_k_error",
    "certifiedEffectiveSampleSize": "effective_sample_size",
    "certifiedLook": "look",
}
_INTERVAL = ("name", "unit", *QUANTILES)
_OTHER_BAND = tuple(field.name for field in fields(OtherBand))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def to_record(alert: Alert) -> dict[str, Any]:
    """Make the record of the schema: camelCase names, columns as little-endian bytes."""
    return {
        "alertId": str(alert.alert_id),
        "eventId": str(alert.event_id),
        "otherBands": [
            {_camel(name): getattr(one, name) for name in _OTHER_BAND} for one in alert.other_bands
        ],
        **{_camel(name): getattr(alert, name) for name in _PLAIN},
        **{key: getattr(alert.certified, name, None) for key, name in _CERTIFIED.items()},
        "posterior": {
            "parameters": list(alert.parameters),
            "shape": list(alert.samples.shape),
            "samples": _pack(alert.samples, "<f4"),
            "summary": [{key: getattr(one, key) for key in _INTERVAL} for one in alert.summary],
            "covariance": alert.covariance.ravel().tolist(),
        },
        "lightCurve": {
            "mjdTai": _pack(alert.mjd_tai, "<f8"),
            "flux": _pack(alert.flux, "<f4"),
            "sigma": _pack(alert.sigma, "<f4"),
        },
    }


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
    """Read an alert from a topic, in the version that its header ``schema`` names.

    Raises
    ------
    PoisonMessage
        ``unknown_format`` for a version that is not known here, and what `from_avro` raises.
    """
    schema = dict(message.headers).get(SCHEMA_HEADER, b"").decode(errors="replace")
    version = schema.removeprefix("alert/") or None
    if version not in (None, current_version("alert")) and version not in known_versions("alert"):
        known = ", ".join(f"alert/{known}" for known in known_versions("alert"))
        raise PoisonMessage(
            "unknown_format", f"schema {schema[:80]!r} is not known; known: {known}"
        )
    return from_avro(message.value or b"", version)


def from_record(record: Mapping[str, Any]) -> Alert:
    """Read a record of the current schema.

    Raises
    ------
    ValueError
        Its columns contradict the numbers that describe them.
    """
    posterior, curve, n = record["posterior"], record["lightCurve"], record["nEpochs"]
    samples = _unpack("samples", posterior["samples"], "<f4", posterior["shape"])
    if samples.ndim != 2 or samples.shape[1] != len(posterior["parameters"]):
        raise ValueError(
            f"samples of shape {samples.shape} for {len(posterior['parameters'])} names"
        )
    if missing := set(PARAMETERS) - set(posterior["parameters"]):
        raise ValueError(f"samples lack {', '.join(sorted(missing))}")
    if missing := set(UNITS) - {entry["name"] for entry in posterior["summary"]}:
        raise ValueError(f"summary lacks {', '.join(sorted(missing))}")
    return Alert(
        alert_id=uuid.UUID(record["alertId"]),
        event_id=uuid.UUID(record["eventId"]),
        other_bands=tuple(
            OtherBand(*(one[_camel(name)] for name in _OTHER_BAND)) for one in record["otherBands"]
        ),
        certified=_certified(record),
        parameters=tuple(posterior["parameters"]),
        samples=samples,
        summary=tuple(Interval(**entry) for entry in posterior["summary"]),
        covariance=np.array(posterior["covariance"]).reshape(3, 3),
        mjd_tai=_unpack("mjdTai", curve["mjdTai"], "<f8", [n]),
        flux=_unpack("flux", curve["flux"], "<f4", [n]),
        sigma=_unpack("sigma", curve["sigma"], "<f4", [n]),
        **{name: record[_camel(name)] for name in _PLAIN},
    )


def _certified(record: Mapping[str, Any]) -> CertifiedK | None:
    values = {name: record[key] for key, name in _CERTIFIED.items()}
    return None if None in values.values() else CertifiedK(**values)


def _pack(column: ArrayLike, dtype: str) -> bytes:
    return np.asarray(column, dtype).tobytes()


def _unpack(name: str, column: bytes, dtype: str, shape: list[int]) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if min(shape, default=-1) < 0 or len(column) != size * math.prod(shape):
        raise ValueError(f"{name}: {len(column)} bytes do not hold {shape} numbers of {size} bytes")
    return np.frombuffer(column, dtype).reshape(shape).astype(np.dtype(dtype).newbyteorder("="))


def to_message(alert: Alert, topic: str) -> OutgoingMessage:
    """Make a Kafka message, keyed by star, with headers by which subscribers filter undecoded.

    Raises
    ------
    SchemaError
        A field does not fit the schema.
    """
    headers = (
        schema_header("alert"),
        ("alertId", str(alert.alert_id).encode()),
        ("state", alert.state.encode()),
        ("log10K", repr(alert.log10_k).encode()),
        ("modelId", alert.model_id.encode()),
    )
    return OutgoingMessage(topic, str(alert.star_id).encode(), to_avro(alert), headers)


def to_json_dict(alert: Alert, *, arrays: bool = False) -> dict[str, Any]:
    """Turn the alert into JSON types, under the schema's names.

    Parameters
    ----------
    arrays : bool
        Also the samples and the light curve, as lists of numbers; without them the entry
        ``lightCurve`` and ``posterior.samples`` are left out.
    """
    record = to_record(alert)
    if arrays:
        record["posterior"]["samples"] = alert.samples.tolist()
        record["lightCurve"] = {
            "mjdTai": alert.mjd_tai.tolist(),
            "flux": alert.flux.tolist(),
            "sigma": alert.sigma.tolist(),
        }
    else:
        del record["posterior"]["samples"], record["lightCurve"]
    return record
