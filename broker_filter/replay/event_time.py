"""When a message happened: a look at the one field of a packet that holds its time.

The time places a message in a replay, so it is that of the exposure which triggered the packet, as
the packet states it: for ZTF the start of the exposure, for the others its middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.avro.schema import WriterSchema
from broker_filter.decode.decoder import READERS
from broker_filter.decode.framing import MAX_SCHEMAS, Unframer
from broker_filter.decode.registry import SchemaLookup
from broker_filter.decode.selection import Selection, select
from broker_filter.decode.surveys.registry import event_times
from broker_filter.errors import PoisonMessage
from broker_filter.photometry.times import to_mjd_tai
from broker_filter.photometry.usable import Limits
from broker_filter.schemas import SCHEMA_HEADER
from broker_filter.types import Message

__all__ = ["EventTimes", "selection", "time_of", "time_reader"]


@cache
def selection() -> Selection:
    """The fields in which packets of any survey hold their time: see `Survey.event_time`."""
    fields = event_times()
    return {
        outer: {name: "f8" for record, name in fields if record == outer}
        for outer in dict.fromkeys(record for record, _ in fields)
    }


_LIMITS: Final = Limits()


class EventTimes:
    """When messages happened; schemas are parsed once.

    Parameters
    ----------
    source : SchemaLookup, optional
        Knows the schemas of packets that carry only a number.
    """

    def __init__(self, source: SchemaLookup = lambda _: None) -> None:
        self._unframer = Unframer(source)
        self._reader = lru_cache(MAX_SCHEMAS)(time_reader)

    def __call__(self, message: Message) -> float:
        """When a message happened, MJD TAI.

        Parameters
        ----------
        message : Message
            A packet, or photometry of our own format with its header.

        Raises
        ------
        PoisonMessage
            It cannot be read, has no such field (``no_event_time``), or an absurd time
            (``time_out_of_range``).
        TransientError
            A schema registry cannot be reached.
        """
        for name, schema in message.headers:
            if name == SCHEMA_HEADER and schema in READERS:
                value = message.value or b""
                return float(READERS[schema](value, max_bytes=len(value)).mjd_tai.max())
        framed = self._unframer.unframe(message)
        if isinstance(framed, dict):
            return time_of(select(framed, selection()))
        block = next((block for count, block in framed.blocks if count), None)
        if block is None:
            raise PoisonMessage("no_event_time", "it holds no record")
        return time_of(self._reader(framed.schema).read_from(block, 0)[0])


def time_reader(schema: WriterSchema) -> RecordReader:
    """Make what reads `selection` of a record and stops there, before history and cutouts."""
    fields = schema.root["fields"]
    found = [i for i, one in enumerate(fields) if one["name"] in selection()]
    start = {**schema.root, "fields": fields[: max(found, default=-1) + 1]}
    return RecordReader(replace(schema, root=start), selection())


def time_of(record: Mapping[str, Any]) -> float:
    """Find the time in what `selection` selects of a packet, MJD TAI.

    Raises
    ------
    PoisonMessage
        ``no_event_time`` or ``time_out_of_range``.
    """
    for (outer, name), system in event_times().items():
        value = (record[outer] or {}).get(name, math.nan)
        if not math.isnan(value):
            return _plausible(float(to_mjd_tai(np.array([value]), system)[0]), f"{outer}.{name}")
    paths = ", ".join(".".join(path) for path in event_times())
    raise PoisonMessage("no_event_time", f"the packet has none of {paths}")


def _plausible(mjd: float, name: str) -> float:
    if not _LIMITS.mjd_min <= mjd <= _LIMITS.mjd_max:
        raise PoisonMessage("time_out_of_range", f"{name} gives MJD {mjd:.10g}")
    return mjd
