"""A window that may change an event, and what is kept of its star between evaluations."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from broker_filter.alerts.certifications import (
    Certification,
    certifications_from_columns,
    certifications_to_columns,
)
from broker_filter.alerts.event_columns import (
    counts_from_columns,
    counts_to_columns,
    events_from_columns,
    events_to_columns,
)
from broker_filter.alerts.lifecycle import EventKey, EventState
from broker_filter.inference.scorer import Scored
from broker_filter.pipeline.event_epochs import epochs_from_columns, epochs_to_columns
from broker_filter.state.columns import Column, Columns, arrays_of, reading
from broker_filter.state.partition import PartitionState, prefixed
from broker_filter.types import StarEpochs, WindowBatch

__all__ = ["Candidate", "Memory"]

STARTS_KEPT: Final = 8
"""A star is in the windows of four starts at a time."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept of the stars of one state: events, their epochs, certifications, counts.

    It holds stars alone that have a window: what `WindowStore.shed` drops is forgotten here too.

    Parameters
    ----------
    events : dict of EventKey to EventState
        Those that are open or may return.
    epochs : dict of EventKey to StarEpochs
        Of these events.
    certifications : dict of EventKey to Certification
    counts : dict of EventKey to (int, float)
        Events of each star and band so far that were more than noise, and when the last of them
        opened (MJD TAI).
    opened : dict of float to int
        By the start of the window (MJD TAI) that opened them, events of all stars; of the latest
        starts alone, and where a false discovery rate is asked for.
    """

    events: dict[EventKey, EventState] = field(default_factory=dict)
    epochs: dict[EventKey, StarEpochs] = field(default_factory=dict)
    certifications: dict[EventKey, Certification] = field(default_factory=dict)
    counts: dict[EventKey, tuple[int, float]] = field(default_factory=dict)
    opened: dict[float, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: PartitionState) -> Memory:
        """Read what `columns` wrote; raises what their readers raise where it is damaged."""
        return cls(
            events_from_columns(state.part("event")),
            epochs_from_columns(state.part("epochs")),
            certifications_from_columns(state.part("look")),
            counts_from_columns(state.part("count")),
            _opened_from_columns(state.part("opened")),
        )

    def columns(self) -> dict[str, Column]:
        """All of it, as columns for a snapshot."""
        return {
            **prefixed("event", events_to_columns(self.events)),
            **prefixed("epochs", epochs_to_columns(self.epochs)),
            **prefixed("look", certifications_to_columns(self.certifications)),
            **prefixed("count", counts_to_columns(self.counts)),
            **prefixed("opened", _opened_to_columns(self.opened)),
        }

    def earlier_events(self, key: EventKey, opened_mjd: float) -> int:
        """Events of this star and band before the one that opened then."""
        count, last = self.counts.get(key, (0, math.nan))
        return count - (last == opened_mjd)

    def count(self, key: EventKey, opened_mjd: float) -> None:
        """Count the event that opened then, once."""
        self.counts[key] = (self.earlier_events(key, opened_mjd) + 1, opened_mjd)

    def note_opened(self, start: float) -> None:
        """Count an event that a window with this start has opened."""
        self.opened[start] = self.opened.get(start, 0) + 1
        while len(self.opened) > STARTS_KEPT:
            del self.opened[min(self.opened)]

    def holds(self, key: EventKey) -> bool:
        """Whether there is anything about a star and band."""
        return key in self.events or key in self.certifications

    def forget(self, key: EventKey) -> bool:
        """Let go of a star and band whose window was dropped; whether its event was open."""
        event = self.events.pop(key, None)
        self.epochs.pop(key, None)
        self.certifications.pop(key, None)
        self.counts.pop(key, None)
        return event is not None and not event.closed


def _opened_to_columns(opened: Mapping[float, int]) -> dict[str, Column]:
    return {
        "start": np.array(list(opened), np.float64),
        "events": np.array(list(opened.values()), np.int64),
    }


def _opened_from_columns(columns: Columns) -> dict[float, int]:
    """Nothing where a snapshot is older than these columns: then a few events open later."""
    if not columns:
        return {}
    with reading("opened events"):
        arrays = arrays_of(columns)
        return dict(zip(arrays["start"].tolist(), arrays["events"].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One window of a batch that may change an event."""

    batch: WindowBatch
    scored: Scored
    row: int
    key: EventKey
    memory: Memory
    stands_out: bool = False
    """Whether the matched filter alone calls for a look."""

    @property
    def log10_k(self) -> float:
        """Of the network."""
        return float(self.scored.log10_k[self.row])

    @property
    def start(self) -> float:
        """MJD TAI."""
        return float(self.batch.t_start[self.row])

    @property
    def last_mjd(self) -> float:
        """Last epoch, MJD TAI."""
        return float(self.batch.mjd_tai[self.row, self.batch.n[self.row] - 1])

    @property
    def is_open(self) -> bool:
        """Whether its star has an event that has not ended."""
        event = self.memory.events.get(self.key)
        return event is not None and not event.closed

    @property
    def certification(self) -> Certification | None:
        """The last one of this very window."""
        found = self.memory.certifications.get(self.key)
        return found if found is not None and found.window_start == self.start else None

    def seed(self, base: int) -> int:
        """A seed from star and last epoch, so that a replay draws the same samples."""
        name = f"{base}:{self.key}:{self.last_mjd:.8f}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
