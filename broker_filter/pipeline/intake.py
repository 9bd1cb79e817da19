"""First half of the pipeline: messages become windows, and windows that are due become work.

decode -> photometry -> window -> batch. No Kafka, no clock: time comes in as an argument. The state
is kept by partition, or pattern and number; see `broker_filter.pipeline.core` for how the two
halves share it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from broker_filter.decode.decoder import Decoder
from broker_filter.observe.metrics import Metrics
from broker_filter.photometry.usable import Limits, accept
from broker_filter.pipeline.batcher import Batcher, Origin, Work
from broker_filter.pipeline.reading import MessageReader, Piece
from broker_filter.state.partition import PartitionState, SnapshotError, damage_of, prefixed
from broker_filter.types import (
    DeadLetter,
    IntArray,
    KeyOf,
    Message,
    Partition,
    Photometry,
    StateKey,
    WindowBatch,
    runs_of,
)
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from broker_filter.windows.waves import concatenate, waves

__all__ = ["Intake"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    """What is kept by one key: windows, when they were last due, and up to which messages.

    Messages before ``live_from`` of their partition are silent; ``restoring_since`` is when the
    restore began, as long as it has not come to an end.
    """

    store: WindowStore
    schedule: Schedule
    offsets: dict[Partition, int] = field(default_factory=dict)
    live_from: dict[Partition, int] = field(default_factory=dict)
    restoring_since: float | None = None
    has_shed: bool = False

    def silent(self) -> dict[Partition, int]:
        """Partitions that are silent still, and from which offset on they are live."""
        return {p: n for p, n in self.live_from.items() if self.offsets.get(p, 0) < n}

    def move(self, partition: Partition, offset: int) -> None:
        """Move an offset on, never back."""
        self.offsets[partition] = max(self.offsets.get(partition, 0), offset)


def _itself(partition: Partition) -> StateKey:
    return partition


class Intake:
    """First half: decodes messages, fills the windows, gathers those that are due.

    Parameters
    ----------
    decoder : Decoder
    limits : Limits
        What an epoch must satisfy.
    batcher : Batcher
    make_store : callable
        Makes the window store of a partition that is new.
    make_schedule : callable
        Makes its schedule.
    metrics : Metrics
    key_of : callable
        Says where the state of a partition's stars is kept: by itself, unless topics share them.
    """

    def __init__(
        self,
        decoder: Decoder,
        limits: Limits,
        batcher: Batcher,
        make_store: Callable[[], WindowStore],
        make_schedule: Callable[[], Schedule],
        metrics: Metrics,
        key_of: KeyOf = _itself,
    ) -> None:
        self._reader = MessageReader(decoder, metrics)
        self._limits, self._batcher = limits, batcher
        self._make_store, self._make_schedule = make_store, make_schedule
        self._metrics, self._key_of = metrics, key_of
        self._kept: dict[StateKey, _Kept] = {}

    def take(self, messages: Sequence[Message], now: float) -> list[DeadLetter]:
        """Put messages into the windows; those that cannot be used come back.

        Parameters
        ----------
        messages : sequence of Message
            In order of offset within each partition, and of time among those that share a state.
        now : float
            Any monotonic clock, in seconds; it only decides when a batch has waited long enough.
        """
        dead: list[DeadLetter] = []
        offsets: dict[Partition, int] = {}
        groups: dict[tuple[StateKey, bool], list[Message]] = {}
        received_ms = max((message.timestamp_ms for message in messages), default=0)
        consumed: Counter[str] = Counter()
        for where, run in runs_of(messages):
            consumed[where[0]] += len(run)
            key = self._key_of(where)
            live_from = self._pass(key, where, run)
            silent = bisect_right(run, live_from, key=lambda message: message.next_offset)
            if silent:
                groups.setdefault((key, True), []).extend(run[:silent])
            if silent < len(run):
                groups.setdefault((key, False), []).extend(run[silent:])
                offsets[where] = run[-1].next_offset
        pieces = {
            (key, is_silent): self._reader.read(
                group, self._kept[key].store.wanted_from, [] if is_silent else dead
            )
            for (key, is_silent), group in groups.items()
        }
        for letter in dead:
            self._metrics.inc("records_dead_total", reason=letter.reason)
        for topic, count in consumed.items():
            self._metrics.inc("records_consumed_total", count, topic=topic)
        if offsets:
            self._batcher.note_offsets(offsets, now)
        # By one key the silent messages come first, as they did when they counted.
        for (key, is_silent), read in pieces.items():
            origin = Origin(key, received_ms, is_silent)
            self._insert(self._kept_of(key), groups[key, is_silent], read, now, origin)
        self._note_live(now)
        return dead

    def put(self, key: StateKey, parts: Sequence[Photometry], now: float) -> None:
        """Put epochs into the windows that need not be decoded, as those of one message.

        Parameters
        ----------
        key : (str, int)
        parts : sequence of Photometry
            Of one star, such as its bands.
        now : float
            As of `take`.
        """
        self._insert_waves(self._kept_of(key), [parts], now, Origin(key))

    def _pass(self, key: StateKey, partition: Partition, run: Sequence[Message]) -> int:
        """Move a partition's offset past messages; from which offset on they are live."""
        # Messages read again, after a failed commit say, are in the state already.
        kept = self._kept_of(key)
        kept.move(partition, run[-1].next_offset)
        return kept.live_from.get(partition, 0)

    def due(self, now: float, most: int | None = None) -> bool:
        """Whether the windows gathered should be evaluated now; ``most`` as of `Batcher.due`."""
        return self._batcher.due(now, most)

    def flush(self, capture: Collection[StateKey] = ()) -> Work | None:
        """Hand over what was gathered, with the offsets that it settles; None if there is none.

        Parameters
        ----------
        capture : collection of (str, int)
            Keys whose state goes along, as a copy taken now; those without are left out.
        """
        work = self._batcher.flush()
        captured = {key: self._copy(key) for key in capture if key in self._kept}
        return replace(work or Work(None, {}), captured=captured) if captured else work

    def _copy(self, key: StateKey) -> PartitionState:
        kept = self._kept[key]
        columns = prefixed("window", kept.store.state())
        columns |= prefixed("schedule", kept.schedule.state())
        return PartitionState(key, dict(kept.offsets), kept.store.window_days, "", columns)

    def restore(
        self,
        key: StateKey,
        state: PartitionState | None,
        offsets: Mapping[Partition, int],
        live_from: Mapping[Partition, int],
        began: float | None = None,
    ) -> None:
        """Begin partitions of one key where a state was taken, or with no windows.

        Parameters
        ----------
        key : (str, int)
        state : PartitionState or None
        offsets : mapping of Partition to int
            The next message of each of the partitions.
        live_from : mapping of Partition to int
            The committed offsets: messages before them are silent.
        began : float
            When the restore began, by the clock of `take`; with it the time from then until all
            are live becomes a metric.

        Raises
        ------
        SnapshotError
            ``window`` where the state's windows are of another length, ``damaged`` where its
            columns contradict each other. What is kept by the key is then as it was.
        """
        kept = _Kept(self._make_store(), self._make_schedule())
        if state is not None:
            _check_window(state, kept.store)
            with damage_of(f"the snapshot of {key}"):
                kept.store.restore(state.part("window"))
                kept.schedule.restore(kept.store, state.part("schedule"))
        kept.offsets, kept.live_from = dict(offsets), dict(live_from)
        kept.restoring_since = began
        self._kept[key] = kept

    def keys(self) -> list[StateKey]:
        """Those that have a state."""
        return list(self._kept)

    def replaying(self) -> dict[Partition, int]:
        """Partitions that are silent still, and from which offset on they are live."""
        return {p: n for kept in self._kept.values() for p, n in kept.silent().items()}

    def live(self, partition: Partition) -> None:
        """Say that the consumer has come to ``live_from``.

        Needed where the offsets before it hold no message (marks of transactions, compaction).
        """
        kept = self._kept_of(self._key_of(partition))
        kept.move(partition, kept.live_from.get(partition, 0))

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that went.

        Windows go, those gathered included, with the last of the partitions that share them: a
        topic that is deleted leaves its stars to the others.
        """
        gone = set(partitions)
        empty = set()
        for partition in gone:
            if kept := self._kept.get(key := self._key_of(partition)):
                kept.offsets.pop(partition, None)
                kept.live_from.pop(partition, None)
                if not kept.offsets:
                    empty.add(key)
        self._batcher.drop(gone, empty)
        for key in empty:
            del self._kept[key]

    def report(self) -> None:
        """Set the gauges of the windows."""
        stores = [kept.store for kept in self._kept.values()]
        self._metrics.set("windows", sum(map(len, stores)))
        held = [part.nbytes for kept in self._kept.values() for part in (kept.store, kept.schedule)]
        self._metrics.set("window_store_bytes", sum(held))

    def _usable(self, photometry: Photometry) -> Photometry:
        """The epochs that can be used; the others are counted by reason."""
        accepted = accept(photometry, self._limits)
        for reason, count in accepted.rejected.items():
            self._metrics.inc("points_inserted_total", count, outcome=reason)
        return accepted.photometry

    def _note_live(self, now: float) -> None:
        """Note how long the restores took that have come to their end."""
        for kept in self._kept.values():
            if kept.restoring_since is not None and not kept.silent():
                self._metrics.observe("restore_seconds", now - kept.restoring_since)
                kept.restoring_since = None

    def _insert(
        self,
        kept: _Kept,
        messages: Sequence[Message],
        pieces: Sequence[Piece],
        now: float,
        origin: Origin,
    ) -> None:
        """Insert messages; near ``max_stars`` one by one, so that polls do not decide who goes."""
        if kept.store.has_room(sum(len(part) for piece in pieces for part in piece.parts)):
            self._insert_waves(kept, [piece.parts for piece in pieces], now, origin)
            return
        shed = False
        piece_of = {id(message): piece for piece in pieces for message in piece.messages}
        for message in messages:
            if (piece := piece_of.get(id(message))) is None:
                continue
            parts = piece.parts
            # What is wanted of a star that was dropped has changed.
            if shed or len(piece.messages) > 1:
                parts = self._reader.again(message, kept.store.wanted_from)
            self._insert_waves(kept, [parts], now, origin)
            shed |= self._shed(kept, origin.key, now)

    def _shed(self, kept: _Kept, key: StateKey, now: float) -> bool:
        """Drop the quietest windows where there are too many; whether there were."""
        shed = kept.store.shed()
        if shed is None:
            return False
        kept.schedule.keep(shed.kept)
        self._batcher.forget(key, shed.gone, now)
        self._metrics.inc("windows_dropped_total", shed.quiet, kind="quiet")
        self._metrics.inc("windows_dropped_total", shed.observed, kind="observed")
        if not kept.has_shed:
            _log.warning(
                "%s[%d] has more than window.max_stars windows: the quietest are dropped, %d of"
                " them without an epoch for the length of a window, %d with",
                *(*key, shed.quiet, shed.observed),
                extra={"event": "windows_dropped"},
            )
        kept.has_shed = True
        return True

    def _insert_waves(
        self, kept: _Kept, packets: list[Sequence[Photometry]], now: float, origin: Origin
    ) -> None:
        """Insert wave by wave: a due window is read before its star's next message comes."""
        for wave in waves(packets):
            moved = [kept.store.insert(self._usable(piece)) for piece in concatenate(wave)]
            due = kept.schedule.due(kept.store, _each_once(moved))
            if len(due):
                windows = kept.store.read(due)
                self._batcher.add(windows, now, origin, *_others(kept, windows))
        for outcome, count in kept.store.take_counts().items():
            self._metrics.inc("points_inserted_total", count, outcome=outcome)

    def _kept_of(self, key: StateKey) -> _Kept:
        if key not in self._kept:
            self._kept[key] = _Kept(self._make_store(), self._make_schedule())
        return self._kept[key]


def _each_once(slots: list[IntArray]) -> IntArray:
    return slots[0] if len(slots) == 1 else np.unique(np.concatenate(slots))


def _others(kept: _Kept, windows: WindowBatch) -> tuple[WindowBatch | None, IntArray]:
    """Windows of the same stars in other bands that have enough epochs, and whose they are."""
    owner, sibling = kept.store.siblings(windows.slot)
    enough = kept.store.count[sibling] >= kept.schedule.min_points
    owner, sibling = owner[enough], sibling[enough]
    if not len(sibling):
        return None, owner
    # Each is read once, though two owners may have the same sibling; then it is a row of each.
    others = kept.store.read(np.unique(sibling), count=False)
    readable = np.isin(sibling, others.slot)
    owner, sibling = owner[readable], sibling[readable]
    return others.take(np.searchsorted(others.slot, sibling)), owner


def _check_window(state: PartitionState, store: WindowStore) -> None:
    if state.window_days != store.window_days:
        raise SnapshotError(
            "window",
            f"the snapshot of {state.key} has windows of {state.window_days:g} days, made for"
            f" model {state.model_id}, and this model has {store.window_days:g}: the topic must be"
            " replayed from one window back",
        )
