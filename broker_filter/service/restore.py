"""Where partitions that come to us begin, found in a thread of its own.

Three positions of a partition matter: where its state was saved, what its group has committed, and
what the topic still holds::

    low watermark ... snapshot ... committed offset ... end
                      └── silent ──┘└───── live ──────┘

From the snapshot to the committed offset messages rebuild windows and events without any output;
past it they count. Without a usable snapshot the silence begins `REPLAYED_WINDOWS` before the
committed offset, by the timestamps of the topic: baselines rest on the epochs before a window. An
event that was open longer than that begins anew, with another id.

Partitions that share their stars have one snapshot, and begin together.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from broker_filter.backoff import Backoff
from broker_filter.errors import StateError, TransientError
from broker_filter.kafka.progress import Progress
from broker_filter.service.topics import made_anew
from broker_filter.state.columns import arrays_of
from broker_filter.state.partition import PartitionState, prefixed
from broker_filter.state.store import SnapshotError, SnapshotStore
from broker_filter.types import Partition, StateKey

__all__ = ["UNREACHABLE_S", "Restorer", "Start", "find_start", "with_topic_ids"]

_log = logging.getLogger(__name__)

REPLAYED_WINDOWS = 2.0
"""So much of the topic makes up for a snapshot, in lengths of a window."""

TOPIC_PART = "topic"  # columns of a snapshot: the id of each topic, by its name

UNREACHABLE_S = 20.0
"""How long a snapshot store that does not answer is waited for, before the topic is replayed."""


@dataclass(frozen=True, slots=True)
class Start:
    """How the partitions of one key begin.

    Parameters
    ----------
    key : (str, int)
    state : PartitionState or None
        Windows and events at ``offsets``; None starts without.
    offsets : dict of Partition to int
        First messages to read.
    live_from : dict of Partition to int
        First messages that count; those before them are silent.
    outcome : str
        ``snapshot``, ``new`` (nothing was committed), ``disabled`` (no snapshots are kept), or why
        the snapshot could not be used.
    age_s : float
        Age of the snapshot, in seconds.
    """

    key: StateKey
    state: PartitionState | None
    offsets: dict[Partition, int]
    live_from: dict[Partition, int]
    outcome: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Marks:
    """What the group has committed of a partition, and what its topic holds."""

    committed: int | None
    low: int
    high: int

    @property
    def most(self) -> int:
        """Highest offset that a snapshot may have."""
        return self.high if self.committed is None else self.committed


def find_start(
    key: StateKey,
    partitions: Collection[Partition],
    progress: Progress,
    store: SnapshotStore | None,
    window_days: float,
    reset: Literal["earliest", "latest"],
    backoff: Backoff | None = None,
) -> Start:
    """Find out how partitions begin; blocks for as long as broker and store take.

    Parameters
    ----------
    key : (str, int)
        Where their state is kept.
    partitions : collection of Partition
    progress : Progress
        What the group has committed and the topics hold.
    store : SnapshotStore or None
    window_days : float, days
        Length of a window; `REPLAYED_WINDOWS` of them make up for a snapshot.
    reset : "earliest" or "latest"
        Where a group begins that has neither an offset nor a snapshot.
    backoff : Backoff, optional
        With a store that does not answer. One that is shared waits once, not for each partition.

    Raises
    ------
    StateError
        A committed offset lies beyond the end of its topic, or the snapshot is of a topic of the
        same name that is gone.
    TransientError
        The broker does not answer.
    """
    marks = {where: _marks(where, progress) for where in sorted(partitions)}
    backoff = backoff or Backoff(UNREACHABLE_S)
    start = _from_snapshot(key, store, window_days, marks, backoff)
    if isinstance(start, str):
        start = _from_topics(key, progress, window_days, marks, start, reset)
    for topic in {topic for topic, _ in marks}:
        if not _same_topic(start, topic, progress.topic_id(topic)):
            raise made_anew(topic)
    return _within(start, marks)


def _marks(partition: Partition, progress: Progress) -> _Marks:
    committed = progress.committed(partition)
    low, high = progress.span(partition)
    if committed is not None and committed > high:
        raise StateError(
            f"{_name(partition)}: the group's committed offset {committed} lies beyond the end"
            f" {high}: the topic was made anew, or has lost messages. Take another kafka.group_id,"
            " or reset the group's offsets (kafka-consumer-groups.sh --reset-offsets)"
        )
    return _Marks(committed, low, high)


def _from_snapshot(
    key: StateKey,
    store: SnapshotStore | None,
    window_days: float,
    marks: Mapping[Partition, _Marks],
    backoff: Backoff,
) -> Start | str:
    """The start that a snapshot gives, or why there is none."""
    if store is None:
        return "disabled"
    at_most = {where: mark.most for where, mark in marks.items()}
    while True:
        try:
            manifest, state = store.load(key, window_days=window_days, at_most=at_most)
        except SnapshotError as error:
            try:
                if error.reason != "unreachable":
                    backoff.succeeded()
                    raise
                time.sleep(backoff.failed(error))
            except SnapshotError:
                new = all(mark.committed is None for mark in marks.values())
                _report_unusable(key, error, new=new)
                return error.reason
        else:
            backoff.succeeded()
            # A topic that the snapshot does not know has come since, and is read from its start.
            offsets = {where: state.offsets.get(where, marks[where].low) for where in marks}
            # A group whose offsets have expired goes on from its snapshot.
            live_from = {
                where: offsets[where] if mark.committed is None else mark.committed
                for where, mark in marks.items()
            }
            age_s = max(0.0, time.time() - manifest.created)
            return Start(key, state, offsets, live_from, "snapshot", age_s)


def _same_topic(start: Start, topic: str, topic_id: str) -> bool:
    """Whether a snapshot is of the topic that is there; one without an id may be."""
    saved = {} if start.state is None else arrays_of(start.state.part(TOPIC_PART))
    written = bytes(saved[topic].tobytes()).decode() if topic in saved else ""
    return not (written and topic_id) or written == topic_id


def with_topic_ids(state: PartitionState, topic_id: Callable[[str], str]) -> PartitionState:
    """A state that names the topics that it is of, so that new ones of their name are noticed."""
    ids = {topic: topic_id(topic) for topic, _ in state.offsets}
    columns = {topic: np.frombuffer(name.encode(), np.uint8) for topic, name in ids.items() if name}
    return replace(state, columns={**state.columns, **prefixed(TOPIC_PART, columns)})


def _report_unusable(key: StateKey, error: SnapshotError, *, new: bool) -> None:
    if not new or error.reason != "missing":
        _log.warning(
            "%s; %s is replayed from the topic instead",
            error,
            _name(key),
            extra={"event": "snapshot_unusable", "reason": error.reason, **_where(key)},
        )


def _from_topics(
    key: StateKey,
    progress: Progress,
    window_days: float,
    marks: Mapping[Partition, _Marks],
    reason: str,
    reset: Literal["earliest", "latest"],
) -> Start:
    committed = {p: mark.committed for p, mark in marks.items() if mark.committed is not None}
    if committed:
        # Topics of which nothing is committed have come since.
        offsets = {where: mark.low for where, mark in marks.items()}
        offsets |= progress.before(committed, REPLAYED_WINDOWS * window_days)
        return Start(key, None, offsets, {**offsets, **committed}, reason)
    offsets = {p: mark.low if reset == "earliest" else mark.high for p, mark in marks.items()}
    outcome = "new" if reason in ("missing", "disabled") else reason
    return Start(key, None, offsets, dict(offsets), outcome)


def _within(start: Start, marks: Mapping[Partition, _Marks]) -> Start:
    """Begin no earlier than the topics do; what retention took is said loudly."""
    cut = [where for where, mark in marks.items() if start.offsets[where] < mark.low]
    for where in cut:
        offset, low = start.offsets[where], marks[where].low
        lost = max(0, low - start.live_from[where])
        _log.error(
            "%s: messages %d to %d were deleted by the topic's retention%s; windows are incomplete."
            " Keep more of the topic, or save snapshots more often (snapshot.interval_s)",
            _name(where),
            offset,
            low - 1,
            f", {lost} of them never read" if lost else "",
            extra={"event": "input_truncated", "count": low - offset, **_where(where)},
        )
    if not cut:
        return start
    offsets = {where: max(mark.low, start.offsets[where]) for where, mark in marks.items()}
    live_from = {where: max(mark.low, start.live_from[where]) for where, mark in marks.items()}
    return replace(start, offsets=offsets, live_from=live_from, outcome="truncated")


def _name(partition: Partition) -> str:
    return f"{partition[0]}[{partition[1]}]"


def _where(partition: Partition) -> dict[str, object]:
    return {"topic": partition[0], "partition": partition[1]}


Find = Callable[[StateKey, Collection[Partition], bool], Start]
_Task = tuple[StateKey, Collection[Partition], bool, int]


class Restorer:
    """Finds starts in the background, one after the other.

    Parameters
    ----------
    find : callable
        Gives the start of a key and its partitions, from a snapshot if there is one and the last
        argument is true; runs in the thread. A TransientError is tried again.
    limit_s : float
        How long.
    """

    def __init__(self, find: Find, limit_s: float) -> None:
        self._find, self._limit_s = find, limit_s
        self._tickets: dict[StateKey, int] = {}
        self._drawn = 0
        self._todo: queue.Queue[_Task | None] = queue.Queue()
        self._done: queue.Queue[tuple[int, Start | BaseException]] = queue.Queue()
        self._thread = threading.Thread(target=self._loop, name="restore", daemon=True)
        self._thread.start()

    def begin(
        self, wanted: Mapping[StateKey, Collection[Partition]], *, snapshots: bool = True
    ) -> None:
        """Find the starts of partitions by key, anew where that is under way. Never blocks."""
        for key in sorted(wanted):
            self._drawn += 1
            self._tickets[key] = self._drawn
            self._todo.put((key, frozenset(wanted[key]), snapshots, self._drawn))

    def cancel(self, keys: Iterable[StateKey]) -> None:
        """Forget what went."""
        for key in keys:
            self._tickets.pop(key, None)

    def searched(self) -> set[StateKey]:
        """Keys whose start is still to come."""
        return set(self._tickets)

    def waiting(self) -> bool:
        """Whether any start is still to come."""
        return bool(self._tickets)

    def finished(self) -> list[Start]:
        """Starts found since the last call; raises what no further attempt can mend."""
        starts = []
        while not self._done.empty():
            ticket, start = self._done.get()
            if ticket not in self._tickets.values():
                continue
            if isinstance(start, BaseException):
                raise start
            del self._tickets[start.key]
            starts.append(start)
        return starts

    def close(self) -> None:
        """End the thread; what it is at is left behind."""
        self._tickets.clear()
        self._todo.put(None)

    def _loop(self) -> None:
        while (item := self._todo.get()) is not None:
            try:
                self._try(*item)
            except BaseException as error:  # noqa: BLE001  handed to the main thread
                self._done.put((item[-1], error))

    def _try(
        self, key: StateKey, partitions: Collection[Partition], snapshots: bool, ticket: int
    ) -> None:
        backoff = Backoff(self._limit_s)
        while self._tickets.get(key) == ticket:
            try:
                return self._done.put((ticket, self._find(key, partitions, snapshots)))
            except TransientError as error:
                time.sleep(backoff.failed(error))
        return None
