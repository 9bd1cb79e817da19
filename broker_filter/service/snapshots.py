"""Copies of states taken by the main loop, and one thread that writes them as snapshots.

A state is that of a partition, or of all that share their stars with it. A snapshot that cannot be
written is counted, logged and tried again when its turn comes next. It never stops the filter: the
snapshots before it are still there, and a restart from them only takes longer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from broker_filter.observe.metrics import Metrics
from broker_filter.service.restore import with_topic_ids
from broker_filter.state.partition import PartitionState, SnapshotError
from broker_filter.state.store import SnapshotStore
from broker_filter.types import Partition, StateKey

__all__ = ["Captures", "SnapshotWriter"]

_log = logging.getLogger(__name__)


class SnapshotWriter:
    """Writes copies of states one at a time, and says whose turn it is.

    All methods are for the main loop and none of them waits for the store, save `wait` and `close`.

    Parameters
    ----------
    store : SnapshotStore
    metrics : Metrics
    interval_s : float, seconds
        From one snapshot of a state to the next.
    slow_s : float, seconds
        A write that takes longer is logged as slow, once.
    clock : callable
        Monotonic time in seconds.
    """

    def __init__(
        self,
        store: SnapshotStore,
        metrics: Metrics,
        *,
        interval_s: float,
        slow_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._metrics, self._clock = store, metrics, clock
        self._interval_s, self._slow_s = interval_s, slow_s
        self._turns: dict[StateKey, float] = {}
        self._saved: dict[StateKey, float] = {}
        self._expected: StateKey | None = None
        self._waiting: dict[StateKey, tuple[PartitionState, Mapping[Partition, int]]] = {}
        self._began: float | None = None
        self._slow_reported = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="snapshots", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def follow(self, key: StateKey, age_s: float = 0.0) -> None:
        """Take a state into care whose last snapshot is so old."""
        with self._changed:
            self._turns[key] = self._saved[key] = self._clock() - max(age_s, 0.0)

    def forget(self, keys: Iterable[StateKey]) -> None:
        """Leave states to others; their copies that wait are not written."""
        with self._changed:
            for key in keys:
                for held in (self._turns, self._saved, self._waiting):
                    held.pop(key, None)

    def due(self) -> StateKey | None:
        """The key of the state of which a copy should be taken now, if any; it is not given again.

        None while a copy is on its way, so that there is never more than one beside the windows.
        """
        now = self._clock()
        with self._changed:
            expected = self._turns.get(self._expected) if self._expected else None
            on_its_way = expected is not None and now - expected < self._interval_s
            if on_its_way or self._busy() or not self._turns:
                return None
            key = min(self._turns, key=lambda each: self._turns[each])
            if now - self._turns[key] < self._interval_s:
                return None
            self._turns[key], self._expected = now, key
            return key

    def submit(self, state: PartitionState, committed: Mapping[Partition, int]) -> None:
        """Hand over a copy to be written; one of the same key that waits is replaced.

        Parameters
        ----------
        state : PartitionState
        committed : mapping of Partition to int
            The group's offsets, not below the state's.
        """
        with self._changed:
            if state.key == self._expected:
                self._expected = None
            self._waiting[state.key] = (state, committed)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to write; False where the time was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy(), timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits and end the thread; False where the time was too short."""
        done = self.wait(timeout_s)
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        if done and self._thread.is_alive():
            self._thread.join(timeout_s)
        return done

    def report(self) -> None:
        """Set the age of the oldest snapshot, and say of a write that it is slow."""
        now = self._clock()
        with self._changed:
            age = now - min(self._saved.values(), default=now)
            slow = self._began is not None and now - self._began > self._slow_s
            report = slow and not self._slow_reported
            self._slow_reported = self._slow_reported or slow
        self._metrics.set("snapshot_age_seconds", age)
        if report:
            text = f"{self._store.url}: a snapshot takes more than {self._slow_s:g} s; is it slow?"
            _log.warning(text, extra={"event": "snapshot_slow"})

    def _busy(self) -> bool:
        return bool(self._waiting) or self._began is not None

    def _loop(self) -> None:
        while self._write_next():
            pass

    def _write_next(self) -> bool:
        """Wait for a copy and write it; it is let go of before the next is waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return False
            state, committed = self._waiting.pop(next(iter(self._waiting)))
            self._began, self._slow_reported = self._clock(), False
        began = self._began
        try:
            self._write(state, committed, began)
        finally:
            with self._changed:
                self._began = None
                self._changed.notify_all()
        return True

    def _write(
        self, state: PartitionState, committed: Mapping[Partition, int], began: float
    ) -> None:
        try:
            manifest = self._store.write(state, committed=committed)
        except SnapshotError as error:
            self._metrics.inc("snapshots_total", outcome="failed")
            _log.warning(error.detail, extra={"event": "snapshot_failed", "reason": error.reason})
            return
        passed = self._clock() - began
        self._metrics.inc("snapshots_total", outcome="written")
        self._metrics.observe("snapshot_seconds", passed)
        with self._changed:
            if state.key in self._saved:
                self._saved[state.key] = began
        about = {
            "event": "snapshot",
            "topic": manifest.topic,
            "partition": manifest.partition,
            "offset": manifest.offset,
            "bytes": manifest.bytes,
            "seconds": round(passed, 3),
        }
        _log.info("snapshot written", extra=about)


class Captures:
    """Copies of states on their way from the pipeline to the writer.

    A copy travels with a piece of work, and is handed over once the offsets of its messages are
    committed. Without a writer there are none.

    Parameters
    ----------
    writer : SnapshotWriter or None
    topic_id : callable
        Gives the id of a topic; empty where it is not known.
    """

    def __init__(self, writer: SnapshotWriter | None, topic_id: Callable[[str], str]) -> None:
        self._writer, self._topic_id = writer, topic_id
        self._expected: set[StateKey] = set()
        self._taken: dict[StateKey, PartitionState] = {}

    @property
    def wanted(self) -> bool:
        """Whether snapshots are kept at all."""
        return self._writer is not None

    def follow(self, key: StateKey, age_s: float) -> None:
        """See `SnapshotWriter.follow`."""
        if self._writer is not None:
            self._writer.follow(key, age_s)

    def expect(self, keys: Iterable[StateKey]) -> None:
        """Copies of states travel with a piece of work."""
        self._expected.update(keys)

    def take(self, states: Mapping[StateKey, PartitionState]) -> None:
        """That piece of work is done; ``states`` are the copies."""
        for key, state in states.items():
            self._taken[key] = with_topic_ids(state, self._topic_id)

    def hand_over(self, committed: Callable[[Partition], int | None]) -> None:
        """Give the writer the copies whose messages are committed.

        A topic that was deleted in the meantime has no offset any more, and none in the snapshot.
        """
        if self._writer is None:
            return
        for key, state in list(self._taken.items()):
            known = {p: offset for p in state.offsets if (offset := committed(p)) is not None}
            offsets = {p: state.offsets[p] for p in known}
            if known and all(known[p] >= offset for p, offset in offsets.items()):
                self._writer.submit(replace(state, offsets=offsets), known)
                del self._taken[key]
                self._expected.discard(key)

    def due(self) -> frozenset[StateKey]:
        """The key of the state to copy now, if any; none while a copy is on its way."""
        if self._writer is None or self._expected:
            return frozenset()
        key = self._writer.due()
        return frozenset() if key is None else frozenset([key])

    def forget(self, gone: Collection[StateKey]) -> None:
        """Leave states to others."""
        self._expected -= set(gone)
        self._taken = {key: state for key, state in self._taken.items() if key not in gone}
        if self._writer is not None:
            self._writer.forget(gone)

    def clear(self) -> None:
        """Forget the copies: what they hold is read again."""
        self._expected, self._taken = set(), {}

    def wait(self, timeout_s: float) -> bool:
        """See `SnapshotWriter.wait`."""
        return self._writer is None or self._writer.wait(timeout_s)

    def report(self) -> None:
        """See `SnapshotWriter.report`."""
        if self._writer is not None:
            self._writer.report()

    def close(self, timeout_s: float) -> None:
        """See `SnapshotWriter.close`."""
        if self._writer is not None:
            self._writer.close(timeout_s)
