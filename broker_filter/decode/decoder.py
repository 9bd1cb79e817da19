"""From a message to photometry: find out how it is framed and written, then read it.

Our own two formats say what they are in the message header ``schema``, or the topic's setting does;
they come first, and cost nothing else. All others are survey packets:
`broker_filter.decode.framing` finds the schema and the records, `broker_filter.decode.avro.reader`
reads of them what the survey's adapter in ``surveys/`` selects, and the adapter makes photometry of
it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, Literal, Protocol, TypeAlias

from broker_filter.config import Packets
from broker_filter.decode.avro.lists import Known
from broker_filter.decode.avro.reader import RecordReader
from broker_filter.decode.avro.schema import WriterSchema
from broker_filter.decode.framing import Framed, Unframer
from broker_filter.decode.native import decode_block, decode_photometry
from broker_filter.decode.selection import Packet, select
from broker_filter.decode.surveys.registry import adapter_for, surveys
from broker_filter.decode.surveys.survey import Survey
from broker_filter.errors import PoisonMessage, SchemaError
from broker_filter.schemas import MAX_MESSAGE_BYTES, SCHEMA_HEADER, schema_header
from broker_filter.types import Message, Photometry, StarId

__all__ = [
    "FRAMINGS",
    "READERS",
    "Decoder",
    "Format",
    "FormatReader",
    "Framing",
    "Tracked",
    "from_header",
]

Format = Literal["photometry", "photometry_block", "auto"]
"""How the messages of a topic are written; ``auto`` finds out message by message."""

Framing = Callable[[Message], tuple[bytes, bytes] | None]
"""From a message with a value to (schema such as ``b"photometry/1/0"``, record), or None where the
message is not framed in this way."""

MAX_RECORDS: Final = 1000
"""Most records that a container may hold."""

_MAX_PLANS: Final = 64


class FormatReader(Protocol):
    """Turns the record of one schema into photometry; raises PoisonMessage and nothing else."""

    def __call__(self, value: bytes, *, max_bytes: int) -> Photometry:
        """Read one record of at most ``max_bytes``."""


class Tracked(Protocol):
    """From when on epochs of a star are wanted, where the star is known already."""

    def __call__(
        self, survey: str, star: StarId, look_back_days: float = math.inf
    ) -> Mapping[str, float]:
        """By band, MJD TAI from which on epochs are wanted; other bands are wanted whole."""


@cache
def _reader_key(name: str) -> bytes:
    return schema_header(name)[1]


_SINGLE_STAR: Final = _reader_key("photometry")

READERS: Mapping[bytes, FormatReader] = {
    _SINGLE_STAR: decode_photometry,
    _reader_key("photometry_block"): decode_block,
}
"""Our own schemas, as the header names them."""


def from_header(message: Message) -> tuple[bytes, bytes] | None:
    """Take the schema from the message header ``schema``; the record is the whole value."""
    for name, content in message.headers:
        if name == SCHEMA_HEADER:
            return content or b"", message.value or b""
    return None


FRAMINGS: Sequence[Framing] = (from_header,)
"""How a message of ours may say what it is; tried in turn, the first that knows it wins."""

Plan: TypeAlias = tuple[Survey, RecordReader]


class Decoder:
    """Decodes the messages of all input topics.

    Parameters
    ----------
    default : "photometry", "photometry_block" or "auto"
        Format of messages that do not say themselves how they are written.
    topics : dict of str to format
        The same for single topics, before ``default``.
    max_bytes : int
        Longer messages are refused unread.
    framings : sequence of `Framing`
        Ways in which a message may say that it is one of ours.
    unframer : Unframer, optional
        Finds the records of survey packets.
    options : Packets, optional
        How survey packets are read.
    look_back_days : float
        Of a star that is tracked, epochs that are older than its newest by more are not read.
        Whatever it is, epochs are read only where a window could take them.

    Raises
    ------
    ConfigError
        A survey of another package cannot be loaded.
    """

    def __init__(
        self,
        default: Format = "auto",
        *,
        topics: Mapping[str, Format] | None = None,
        max_bytes: int = MAX_MESSAGE_BYTES,
        framings: Sequence[Framing] = FRAMINGS,
        unframer: Unframer | None = None,
        options: Packets | None = None,
        look_back_days: float = math.inf,
    ) -> None:
        self._default = default
        self._topics = dict(topics or {})
        self._max_bytes = max_bytes
        self._framings = tuple(framings)
        self._unframer = unframer or Unframer(max_bytes=max_bytes)
        self._options = options or Packets()
        self._look_back_days = look_back_days
        self._plan = lru_cache(_MAX_PLANS)(_make_plan)
        surveys()  # so that one that cannot be loaded ends the start, not the first packet

    def decode(self, message: Message, tracked: Tracked | None = None) -> Packet:
        """Read one message.

        Parameters
        ----------
        message : Message
        tracked : Tracked, optional
            Known stars, of whose packets only what is new is read.

        Raises
        ------
        PoisonMessage
            ``empty`` (no value), ``unknown_format`` (a schema that is not known, or a message that
            looks like none that can be read), ``unknown_survey`` (a packet for which there is no
            adapter), and whatever unframer, readers and adapters raise.
        TransientError
            The packet's schema cannot be had now.
        """
        if not message.value:
            raise PoisonMessage("empty", "the message has no value")
        if framed := self._framed(message):
            return self._ours(*framed)
        found = self._unframer.unframe(message)
        if isinstance(found, Framed):
            return _together(self._packets(found, tracked))
        survey = _survey("", found)
        return survey.read(select(found, survey.selection), self._options)

    def single_star(self, message: Message) -> bool:
        """Whether header or topic say that a message is a ``photometry`` one, of a usual length.

        Its record is the whole value. Whether it is one at all, `decode` finds out.
        """
        if not message.value or len(message.value) > self._max_bytes:
            return False
        framed = self._framed(message)
        return framed is not None and framed[0] == _SINGLE_STAR and framed[1] is message.value

    def _framed(self, message: Message) -> tuple[bytes, bytes] | None:
        """Schema and record of a message that is one of ours by its framing or its topic."""
        for framing in self._framings:
            if framed := framing(message):
                return framed
        expected = self._topics.get(message.topic, self._default)
        return None if expected == "auto" else (_reader_key(expected), message.value or b"")

    def _ours(self, schema: bytes, record: bytes) -> Packet:
        reader = READERS.get(schema)
        if reader is None:
            known = ", ".join(key.decode() for key in READERS)
            raise PoisonMessage(
                "unknown_format", f"schema {_shown(schema)} is not known; known: {known}"
            )
        return Packet((reader(record, max_bytes=self._max_bytes),))

    def _packets(self, framed: Framed, tracked: Tracked | None) -> Iterable[Packet]:
        if sum(count for count, _ in framed.blocks) > MAX_RECORDS:
            raise PoisonMessage("too_many_items", f"more than {MAX_RECORDS} records in a container")
        survey, reader = self._plan(framed.schema)
        known = None if tracked is None else self._known(survey, tracked)
        for count, data in framed.blocks:
            at = 0
            for _ in range(count):
                record, at = reader.read_from(data, at, known)
                yield survey.read(record, self._options)
            if at != len(data):
                raise PoisonMessage(
                    "trailing_bytes",
                    f"{framed.schema.name} ends at byte {at} of {len(data)}",
                )

    def _known(self, survey: Survey, tracked: Tracked) -> Known | None:
        star_of, look_back_days = survey.star_of, self._look_back_days
        if star_of is None:
            return None

        def known(record: Mapping[str, Any]) -> Mapping[str, float]:
            return tracked(survey.name, star_of(record), look_back_days)

        return known


def _make_plan(schema: WriterSchema) -> Plan:
    survey = _survey(schema.name, schema.field_names)
    try:
        return survey, RecordReader(schema, survey.selection)
    except SchemaError as error:
        raise PoisonMessage("bad_schema", str(error)) from error


def _survey(schema_name: str, field_names: Iterable[str]) -> Survey:
    survey = adapter_for(schema_name, frozenset(field_names))
    if survey is None:
        raise PoisonMessage(
            "unknown_survey",
            f"no adapter for {schema_name[:80] or 'JSON'} with the fields "
            f"{', '.join(sorted(field_names))[:200]}",
        )
    return survey


def _together(packets: Iterable[Packet]) -> Packet:
    """One packet of several."""
    photometry: list[Photometry] = []
    rejected: Counter[str] = Counter()
    for packet in packets:
        photometry += packet.photometry
        rejected.update(packet.rejected)
    return Packet(tuple(photometry), rejected)


def _shown(schema: bytes) -> str:
    return repr(schema[:80].decode(errors="replace"))
