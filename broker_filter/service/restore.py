"""Where a partition that comes to us begins, found in a thread of its own.

Three positions of a partition matter: where its state was saved, what its group has committed, and
what the topic still holds::

    low watermark ... snapshot ... committed offset ... end
                      └── silent ──┘└───── live ──────┘

From the snapshot to the committed offset messages rebuild windows and events without any output;
past it they count. Without a usable snapshot the silence begins `REPLAYED_WINDOWS` before the
committed offset, by the timestamps of the topic: baselines rest on the epochs before a window. An
event that was open longer than that begins anew, with another id.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
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
from broker_filter.types import Partition

__all__ = ["UNREACHABLE_S", "Restorer", "Start", "find_start", "with_topic_id"]

_log = logging.getLogger(__name__)

REPLAYED_WINDOWS = 2.0
"""So much of the topic makes up for a snapshot, in lengths of a window."""

TOPIC_PART, ID = "topic", "id"  # a column of a snapshot

UNREACHABLE_S = 20.0
"""How long a snapshot store that does not answer is waited for, before the topic is replayed."""


@dataclass(frozen=True, slots=True)
class Start:
    """How one partition begins.

    Parameters
    ----------
    partition : Partition
    state : PartitionState or None
        Windows and events at ``offset``; None starts without.
    offset : int
        First message to read.
    live_from : int
        First message that counts; those before it are silent.
    outcome : str
        ``snapshot``, ``new`` (nothing was committed), ``disabled`` (no snapshots are kept), or why
        the snapshot could not be used.
    age_s : float
        Age of the snapshot, in seconds.
    """

    partition: Partition
    state: PartitionState | None
    offset: int
    live_from: int
    outcome: str
    age_s: float = 0.0


def find_start(
    partition: Partition,
    progress: Progress,
    store: SnapshotStore | None,
    window_days: float,
    reset: Literal["earliest", "latest"],
    backoff: Backoff | None = None,
) -> Start:
    """Find out how a partition begins; blocks for as long as broker and store take.

    Parameters
    ----------
    partition : Partition
    progress : Progress
        What the group has committed and the topic holds.
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
        The committed offset lies beyond the end of the topic, or the snapshot is of a topic of the
        same name that is gone.
    TransientError
        The broker does not answer.
    """
    committed = progress.committed(partition)
    low, high = progress.span(partition)
    if committed is not None and committed > high:
        raise StateError(
            f"{_name(partition)}: the group's committed offset {committed} lies beyond the end"
            f" {high}: the topic was made anew, or has lost messages. Take another kafka.group_id,"
            " or reset the group's offsets (kafka-consumer-groups.sh --reset-offsets)"
        )
    backoff = backoff or Backoff(UNREACHABLE_S)
    start = _from_snapshot(partition, store, window_days, committed, high, backoff)
    if isinstance(start, str):
        start = _from_topic(partition, progress, window_days, committed, start, reset)
    elif not _same_topic(start, progress.topic_id(partition[0])):
        raise made_anew(partition[0])
    return _within(start, low)


def _from_snapshot(
    partition: Partition,
    store: SnapshotStore | None,
    window_days: float,
    committed: int | None,
    high: int,
    backoff: Backoff,
) -> Start | str:
    """The start that a snapshot gives, or why there is none."""
    if store is None:
        return "disabled"
    while True:
        try:
            manifest, state = store.load(
                partition, window_days=window_days, at_most=high if committed is None else committed
            )
        except SnapshotError as error:
            try:
                if error.reason != "unreachable":
                    backoff.succeeded()
                    raise
                time.sleep(backoff.failed(error))
            except SnapshotError:
                _report_unusable(partition, error, committed)
                return error.reason
        else:
            backoff.succeeded()
            # A group whose offsets have expired goes on from its snapshot.
            live_from = state.offset if committed is None else committed
            age_s = max(0.0, time.time() - manifest.created)
            return Start(partition, state, state.offset, live_from, "snapshot", age_s)


def _same_topic(start: Start, topic_id: str) -> bool:
    """Whether a snapshot is of the topic that is there; one without an id may be."""
    saved = {} if start.state is None else arrays_of(start.state.part(TOPIC_PART))
    written = bytes(saved[ID].tobytes()).decode() if ID in saved else ""
    return not (written and topic_id) or written == topic_id


def with_topic_id(state: PartitionState, topic_id: str) -> PartitionState:
    """A state that names the topic that it is of, so that a new one of that name is noticed."""
    if not topic_id:
        return state
    column = np.frombuffer(topic_id.encode(), np.uint8)
    return replace(state, columns={**state.columns, **prefixed(TOPIC_PART, {ID: column})})


def _report_unusable(partition: Partition, error: SnapshotError, committed: int | None) -> None:
    if committed is not None or error.reason != "missing":
        _log.warning(
            "%s; %s is replayed from the topic instead",
            error,
            _name(partition),
            extra={"event": "snapshot_unusable", "reason": error.reason, **_where(partition)},
        )


def _from_topic(
    partition: Partition,
    progress: Progress,
    window_days: float,
    committed: int | None,
    reason: str,
    reset: Literal["earliest", "latest"],
) -> Start:
    if committed is not None:
        offset = progress.before(partition, committed, REPLAYED_WINDOWS * window_days)
        return Start(partition, None, offset, committed, reason)
    offset = progress.span(partition)[0 if reset == "earliest" else 1]
    outcome = "new" if reason in ("missing", "disabled") else reason
    return Start(partition, None, offset, offset, outcome)


def _within(start: Start, low: int) -> Start:
    """Begin no earlier than the topic does; what retention took is said loudly."""
    if start.offset >= low:
        return start
    lost = max(0, low - start.live_from)
    _log.error(
        "%s: messages %d to %d were deleted by the topic's retention%s; windows are incomplete."
        " Keep more of the topic, or save snapshots more often (snapshot.interval_s)",
        _name(start.partition),
        start.offset,
        low - 1,
        f", {lost} of them never read" if lost else "",
        extra={"event": "input_truncated", "count": low - start.offset, **_where(start.partition)},
    )
    live_from = max(low, start.live_from)
    return Start(start.partition, start.state, low, live_from, "truncated", start.age_s)


def _name(partition: Partition) -> str:
    return f"{partition[0]}[{partition[1]}]"


def _where(partition: Partition) -> dict[str, object]:
    return {"topic": partition[0], "partition": partition[1]}


class Restorer:
    """Finds starts in the background, one after the other.

    Parameters
    ----------
    find : callable
        Gives the start of a partition, from a snapshot if there is one and the second argument is
        true; runs in the thread. A TransientError is tried again.
    limit_s : float
        How long.
    """

    def __init__(self, find: Callable[[Partition, bool], Start], limit_s: float) -> None:
        self._find, self._limit_s = find, limit_s
        self._tickets: dict[Partition, int] = {}
        self._drawn = 0
        self._todo: queue.Queue[tuple[Partition, bool, int] | None] = queue.Queue()
        self._done: queue.Queue[tuple[int, Start | BaseException]] = queue.Queue()
        self._thread = threading.Thread(target=self._loop, name="restore", daemon=True)
        self._thread.start()

    def begin(self, partitions: Iterable[Partition], *, snapshots: bool = True) -> None:
        """Find the starts of partitions, anew where that is under way. Never blocks."""
        for partition in sorted(partitions):
            self._drawn += 1
            self._tickets[partition] = self._drawn
            self._todo.put((partition, snapshots, self._drawn))

    def cancel(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that went."""
        for partition in partitions:
            self._tickets.pop(partition, None)

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
            del self._tickets[start.partition]
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

    def _try(self, partition: Partition, snapshots: bool, ticket: int) -> None:
        backoff = Backoff(self._limit_s)
        while self._tickets.get(partition) == ticket:
            try:
                return self._done.put((ticket, self._find(partition, snapshots)))
            except TransientError as error:
                time.sleep(backoff.failed(error))
        return None
