"""Partitions that come to us and go: found, begun, given up, forgotten."""

from __future__ import annotations

import logging
import time
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
from broker_filter.types import Partition

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
    """

    def __init__(
        self,
        intake: Intake,
        assessment: Assessment,
        worker: Worker,
        restorer: Restorer,
        captures: Captures,
        metrics: Metrics,
    ) -> None:
        self._intake, self._assessment, self._worker = intake, assessment, worker
        self._restorer, self._captures, self._metrics = restorer, captures, metrics
        self._returning: set[Partition] = set()
        self._assigned_at: dict[Partition, float] = {}

    def gain(self, partitions: frozenset[Partition]) -> None:
        """Have the starts of new partitions found."""
        self._metrics.inc("rebalances_total", kind="assigned")
        self._assigned_at |= dict.fromkeys(partitions, time.monotonic())
        self._restorer.begin(partitions)

    def return_later(self, partitions: Collection[Partition]) -> None:
        """Forget the windows of partitions that stay: they start anew from what is committed."""
        self._intake.drop(partitions)
        self._returning |= set(partitions)

    def begin_restored(self, source: Source, *, settled: bool) -> None:
        """Have partitions begin whose start has been found.

        Parameters
        ----------
        source : Source
        settled : bool
            Whether no delivery is under way: before that, what is committed may still change.
        """
        if settled and self._returning:
            self._restorer.begin(self._returning)
            self._returning = set()
        for start in self._restorer.finished():
            self._begin(start, source)

    def note_live(self, source: Source) -> None:
        """Count partitions as live whose last silent offsets hold no message."""
        positions = source.positions()
        for partition, live_from in self._intake.replaying().items():
            if positions.get(partition, -1) >= live_from:
                self._intake.live(partition)

    def _begin(self, start: Start, source: Source) -> None:
        where = start.partition
        began = self._assigned_at.pop(where, None)
        try:
            self._intake.restore(where, start.state, live_from=start.live_from, began=began)
        except SnapshotError as error:
            _log.warning("%s; the topic is replayed instead", error, extra=fields(where))
            self._restorer.begin([where], snapshots=False)
            return
        self._worker.submit(lambda: self._assessment.restore(where, start.state))
        source.start(where, start.offset, start.live_from)
        self._captures.follow(where, start.age_s)
        self._metrics.inc("restores_total", outcome=start.outcome)
        _log.info(
            "%s[%d] begins at offset %d (%s), silent up to %d",
            *where,
            start.offset,
            start.outcome,
            start.live_from,
            extra={"event": "restored", "outcome": start.outcome, **fields(where)},
        )

    def replaying(self) -> bool:
        """Whether any partition is not live yet."""
        return bool(self._restorer.waiting() or self._returning or self._intake.replaying())

    def forget(self, gone: frozenset[Partition], kind: str) -> None:
        """Drop the state of partitions that go: ``kind`` is revoked or lost."""
        self._restorer.cancel(gone)
        self._returning -= gone
        self._intake.drop(gone)
        self._worker.submit(lambda: self._assessment.drop(gone))
        self._captures.forget(gone)
        self._metrics.inc("rebalances_total", kind=kind)
        for partition in gone:
            self._assigned_at.pop(partition, None)

    def close(self) -> None:
        """End the search for starts."""
        self._restorer.close()
