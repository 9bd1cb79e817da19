"""Send photometry to the topic that a filter reads.

>>> publish(exposure, "localhost:9092", "photometry")  # doctest: +SKIP
3
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

import numpy as np

from broker_filter.decode.native import encode_photometry
from broker_filter.errors import SchemaError
from broker_filter.kafka.sink import open_sink
from broker_filter.schemas import schema_header
from broker_filter.types import FloatArray, Photometry

__all__ = ["EPOCHS_PER_MESSAGE", "publish"]

EPOCHS_PER_MESSAGE = 10_000
"""At 20 bytes an epoch far below the megabyte that brokers take by default."""

_COLUMNS = ("mjd_tai", "flux", "flux_err", "flags", "ref_flux", "ref_flux_err")


def publish(
    photometry: Photometry | Iterable[Photometry],
    bootstrap_servers: str = "localhost:9092",
    topic: str = "photometry",
    client_config: Mapping[str, str | int | float | bool] | None = None,
) -> int:
    """Send photometry, and return once the brokers have all of it.

    Each message (schema ``photometry``) holds epochs of one star and has the star as its key, so
    that all messages of a star come to one partition in their order.

    Parameters
    ----------
    photometry : Photometry or iterable of Photometry
        Of one star or many; ``same_epoch_s`` is not sent, since the times of our own format are
        mid-exposure and agree from message to message.
    bootstrap_servers : str
        ``host:port[,host:port...]``.
    topic : str
        It must exist, unless the brokers make topics by themselves.
    client_config : mapping, optional
        Further librdkafka properties, such as ``{"security.protocol": "SASL_SSL", ...}``.

    Returns
    -------
    int
        The number of messages.

    Raises
    ------
    SchemaError
        Columns differ in length, there is no epoch, or a star's id is empty or too long; what came
        before in the iterable has been sent.
    ConfigError
        No broker answers within 10 s, there is no such topic, or login, properties or a message
        are refused.
    TransientError
        The brokers went away before they had everything.
    """
    items = (photometry,) if isinstance(photometry, Photometry) else photometry
    headers = (schema_header("photometry"),)
    sent = 0
    with closing(open_sink(bootstrap_servers, topic, client_config)) as sink:
        sink.require({topic: "topic"})
        for one in items:
            for part in _by_star(one):
                key = str(part.star[0]).encode()
                sink.produce(topic, key, encode_photometry(part), headers)
                sent += 1
    return sent


def _by_star(photometry: Photometry) -> Iterator[Photometry]:
    """Part photometry so that each part fits one message: one star, one reference flux."""
    _check_columns(photometry)
    references = zip(_known(photometry.ref_flux), _known(photometry.ref_flux_err), strict=True)
    rows_of: dict[object, list[int]] = {}
    for row, key in enumerate(zip(photometry.star, references, strict=True)):
        rows_of.setdefault(key, []).append(row)
    for rows in rows_of.values():
        for start in range(0, len(rows), EPOCHS_PER_MESSAGE):
            yield photometry.take(np.array(rows[start : start + EPOCHS_PER_MESSAGE]))


def _known(column: FloatArray) -> list[float | None]:
    """The values of a column, with None for NaN, which differs from itself."""
    return [None if math.isnan(value) else value for value in column.tolist()]


def _check_columns(photometry: Photometry) -> None:
    name = f"photometry of {photometry.survey} {photometry.band}"
    n = len(photometry)
    if not n:
        raise SchemaError(f"{name}: there is no epoch")
    for column in _COLUMNS:
        if (shape := np.shape(getattr(photometry, column))) != (n,):
            raise SchemaError(f"{name}: star has {n} entries, {column} has shape {shape}")
