"""Partitions that come to us and go: found, begun, given up, forgotten."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection

from broker_filter.kafka.source import Source
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.assessment import Assessment
from broker_filter.pipeline.intake import Intake
from broker_filter.service.report import fields
from broker_filter.service.restore import Restorer, Start
from broker_filter.service.snapshots import Captures
from broker_filter.service.worker import Worker
from broker_filter.state.partition import SnapshotError
from broker_filter.types import KeyOf, Partition, StateKey

__all__ = ["Assignments"]

_log = logging.getLogger(__name__)


class Assignments:
    """Our partitions, from the moment that they are assigned until others own them.

    Parameters
    ----------
    intake, assessment
        The two halves of the pipeline, which hold the partitions' state.
    worker : Worker
        Runs the second.
    restorer : Restorer
        Finds where a partition begins.
    captures : Captures
        Copies of partitions that are to become snapshots.
    metrics : Metrics
    key_of : callable
        Says which partitions share their stars: they begin together.
    """

    def __init__(
        self,
        intake: Intake,
        assessment: Assessment,
        worker: Worker,
        restorer: Restorer,
        captures: Captures,
        metrics: Metrics,
        key_of: KeyOf,
    ) -> None:
        self._intake, self._assessment, self._worker = intake, assessment, worker
        self._restorer, self._captures, self._metrics = restorer, captures, metrics
        self._key_of = key_of
        self._ours: defaultdict[StateKey, set[Partition]] = defaultdict(set)
        self._returning: set[StateKey] = set()
        self._assigned_at: dict[StateKey, float] = {}

    def gain(self, partitions: frozenset[Partition]) -> None:
        """Have the starts of new partitions found."""
        self._metrics.inc("rebalances_total", kind="assigned")
        for partition in partitions:
            self._ours[self._key_of(partition)].add(partition)
        keys = {self._key_of(partition) for partition in partitions}
        self._assigned_at |= dict.fromkeys(keys, time.monotonic())
        self._find(keys)

    def return_later(self, partitions: Collection[Partition]) -> None:
        """Forget the windows of partitions that stay: they start anew from what is committed."""
        self._intake.drop(partitions)
        self._returning |= {self._key_of(partition) for partition in partitions}

    def begin_restored(self, source: Source, *, settled: bool) -> None:
        """Have partitions begin whose start has been found.

        Parameters
        ----------
        source : Source
        settled : bool
            Whether no delivery is under way: before that, what is committed may still change.
        """
        if settled and self._returning:
            self._find(self._returning)
            self._returning = set()
        for start in self._restorer.finished():
            self._begin(start, source)

    def _find(self, keys: Collection[StateKey], *, snapshots: bool = True) -> None:
        wanted = {key: self._ours[key] for key in keys if key in self._ours}
        self._restorer.begin(wanted, snapshots=snapshots)

    def note_live(self, source: Source, waiting: Collection[Partition] = ()) -> None:
        """Count partitions as live whose last silent offsets hold no message.

        Those with messages ``waiting`` to be taken are left out.
        """
        positions = source.positions()
        for partition, live_from in self._intake.replaying().items():
            if positions.get(partition, -1) >= live_from and partition not in waiting:
                self._intake.live(partition)

    def _begin(self, start: Start, source: Source) -> None:
        key = start.key
        began = self._assigned_at.pop(key, None)
        try:
            self._intake.restore(key, start.state, start.offsets, start.live_from, began)
        except SnapshotError as error:
            _log.warning("%s; the topic is replayed instead", error, extra=fields(key))
            self._find([key], snapshots=False)
            return
        self._worker.submit(lambda: self._assessment.restore(key, start.state))
        self._captures.follow(key, start.age_s)
        self._metrics.inc("restores_total", outcome=start.outcome)
        for where, offset in start.offsets.items():
            source.start(where, offset, start.live_from[where])
            _log.info(
                "%s[%d] begins at offset %d (%s), silent up to %d",
                *where,
                offset,
                start.outcome,
                start.live_from[where],
                extra={"event": "restored", "outcome": start.outcome, **fields(where)},
            )

    def replaying(self) -> bool:
        """Whether any partition is not live yet."""
        return bool(self._restorer.waiting() or self._returning or self._intake.replaying())

    def forget(self, gone: frozenset[Partition], kind: str) -> None:
        """Drop partitions that go (``kind``: revoked or lost), and states that none is left of.

        Where others that share a state stay, as where a topic is deleted, so does the state.
        """
        emptied = self._leave(gone)
        self._restorer.cancel(emptied)
        touched = {self._key_of(partition) for partition in gone}
        self._find(touched & self._restorer.searched())
        self._returning -= emptied
        self._intake.drop(gone)
        self._worker.submit(lambda: self._assessment.drop(emptied))
        self._captures.forget(emptied)
        self._metrics.inc("rebalances_total", kind=kind)
        for key in emptied:
            self._assigned_at.pop(key, None)

    def _leave(self, gone: frozenset[Partition]) -> set[StateKey]:
        """Strike partitions off; gives the keys that none is left of."""
        emptied = set()
        for partition in gone:
            ours = self._ours[key := self._key_of(partition)]
            ours.discard(partition)
            if not ours:
                emptied.add(key)
                del self._ours[key]
        return emptied

    def close(self) -> None:
        """End the search for starts."""
        self._restorer.close()
