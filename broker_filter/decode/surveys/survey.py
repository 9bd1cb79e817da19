"""What the filter must know of a survey to read its packets: one `Survey`, in one file.

A survey of this package is a module beside this one and a line in
`broker_filter.decode.surveys.registry`. One of another package is an entry point of the group
``broker_filter.surveys``, whose value is a `Survey`; ``decode/README.md`` shows one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from broker_filter.config import Packets
from broker_filter.decode.selection import Packet, Selection
from broker_filter.photometry.times import TimeSystem
from broker_filter.types import StarId

__all__ = ["EventTime", "Reader", "Survey"]

Reader: TypeAlias = Callable[[dict[str, Any], Packets], Packet]
"""From what was selected of a packet to its photometry."""

EventTime: TypeAlias = Mapping[tuple[str, str], TimeSystem]
"""Record of a packet and field in it that hold the time of the exposure, and its time system."""


@dataclass(frozen=True, slots=True)
class Survey:
    """How the packets of one survey are found, placed in time and read.

    Parameters
    ----------
    name : str
        Under which the photometry goes; no other survey has it.
    selection : Selection
        What is read of a packet.
    read : callable
        What makes photometry of that, with the settings ``input.packets``. Raises PoisonMessage
        where a packet contradicts itself, and nothing else.
    schema_name : str
        Regular expression of the full name of the packet's schema; empty where it has none.
    outline : frozenset of str
        Fields that identify its packets where the schema's name says nothing (JSON, Parquet);
        empty where they are never such.
    event_time : mapping of (str, str) to TimeSystem
        Where a packet holds the time of the exposure that triggered it, for a replay in order of
        time; the first that is there counts.
    cuts : frozenset of str
        Reasons for which it rejects epochs, of those that ``input.packets.ignored_cuts`` may name.
    star_of : callable, optional
        Star of a packet, from what stands before its lists. With it, epochs that a window has
        already are passed over unread, in the lists that have a time (MJD TAI) and a band as
        windows know them: see `broker_filter.decode.selection.Many`.
    """

    name: str
    selection: Selection
    read: Reader
    schema_name: str = ""
    outline: frozenset[str] = frozenset()
    event_time: EventTime = field(default_factory=dict)
    cuts: frozenset[str] = frozenset()
    star_of: Callable[[Mapping[str, Any]], StarId] | None = None
