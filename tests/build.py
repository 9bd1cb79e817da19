"""One builder for each record of the tests: give what a test is about, the rest is plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_avro
from broker_filter.config import Settings
from broker_filter.decode.avro.container import MAGIC
from broker_filter.decode.avro.primitives import write_long
from broker_filter.decode.native import encode_photometry
from broker_filter.schemas import schema_folder, schema_header, schema_id
from broker_filter.types import Message, Photometry, StarId

if TYPE_CHECKING:
    from broker_filter.inference.zoo import Card

__all__ = ["alert", "alert_sample", "card", "container", "message", "photometry", "settings"]

_NAMES = {"survey": "test", "band": "r", "source": ""}
_COLUMNS = {
    "flux": 1000.0,
    "flux_err": 10.0,
    "flags": 0,
    "ref_flux": np.nan,
    "ref_flux_err": np.nan,
}


def photometry(
    mjd: ArrayLike = 60_000.0, star: StarId | Sequence[StarId] = "star", **changes: Any
) -> Photometry:
    """Epochs of one message: 1000 +- 10 nJy, no flag, reference not known.

    Parameters
    ----------
    mjd : float or array
        Times; one is that of all stars.
    star : str, int or sequence of these
        One is that of all epochs.
    **changes
        Any field of `Photometry`; a number in place of a column holds for all epochs.
    """
    stars = [star] if isinstance(star, str | int) else list(star)
    times = np.atleast_1d(np.asarray(mjd, dtype=np.float64))
    n = max(len(times), len(stars)) if len(times) and len(stars) else 0
    columns = {
        name: _column(changes.pop(name, plain), n, np.uint32 if name == "flags" else np.float64)
        for name, plain in _COLUMNS.items()
    }
    return Photometry(
        **_NAMES | changes,
        star=stars if len(stars) == n else stars * n,
        mjd_tai=_column(times, n, np.float64),
        **columns,
    )


def _column(values: ArrayLike, n: int, dtype: type) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, dtype=dtype), n).copy()


def message(
    value: bytes | Photometry | None = b"",
    offset: int = 0,
    *,
    schema: str | None = None,
    **changes: Any,
) -> Message:
    """A message of partition 0 of topic epochs; Photometry is written as our own format.

    Parameters
    ----------
    value : bytes or Photometry, optional
    offset : int
    schema : str, optional
        Format to name in a header.
    **changes
        Any field of `Message`.
    """
    if isinstance(value, Photometry):
        value = encode_photometry(value)
    headers = () if schema is None else (schema_header(schema),)
    plain = Message("epochs", 0, offset, None, value, headers=headers)
    return replace(plain, **changes)


def container(schema: bytes, *blocks: tuple[int, bytes], codec: str | None = None) -> bytes:
    """An Avro container, right or wrong: of each block the records it claims, and its bytes."""
    meta = {"avro.schema": schema} | ({} if codec is None else {"avro.codec": codec.encode()})
    head = b"".join(_sized(key.encode()) + _sized(text) for key, text in meta.items())
    sync = bytes(range(16))
    value = MAGIC + write_long(len(meta)) + head + b"\0" + sync
    return value + b"".join(write_long(n) + _sized(data) + sync for n, data in blocks)


def _sized(data: bytes) -> bytes:
    return write_long(len(data)) + data


def settings(**sections: Any) -> Settings:
    """Settings of a filter whose broker nobody reaches, but for the sections given."""
    kafka = {"bootstrap_servers": "127.0.0.1:1", "input_topics": ["epochs"]}
    kafka |= sections.pop("kafka", {})
    return Settings.model_validate({"kafka": kafka, **sections})


def alert_sample() -> bytes:
    """The filed sample of today's alert schema, Avro."""
    return (schema_folder() / schema_id("alert") / "sample.avro").read_bytes()


def alert(**changes: Any) -> Alert:
    """The alert of the filed sample, but for the fields given."""
    return replace(from_avro(alert_sample()), **changes)


def card(model_id: str) -> Card:
    """The card of an entry of the zoo that was not trained."""
    from broker_filter.inference.zoo import Card  # torch, which few tests need

    return Card(
        model_id=model_id,
        summary="untrained",
        created="2026-01-01T00:00:00+00:00",
        inputs={},
        outputs={},
        training={},
        evaluation={},
        limits=["all"],
        runtime={},
        gate={"log10_k": 2.5},
    )
