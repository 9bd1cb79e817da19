"""The main loop around source, pipeline and delivery.

The main thread polls, decodes, fills windows and publishes; a `Worker` evaluates, a `Restorer`
finds where new partitions begin, a `SnapshotWriter` saves. One turn of the loop::

    poll ─▶ inbox ─▶ intake ─▶ worker ─▶ outbox ─▶ delivery (messages and offsets together)
                                                      └─▶ snapshots of what is committed

Nothing is committed before its alerts are out. Where the way out fails, the same parcel is tried
again; where partitions go before it succeeds, what is not out is dropped and read again from the
committed offset, with the state restored as on a start (`Service._rewind`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from functools import partial

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import to_message
from broker_filter.config import Settings
from broker_filter.errors import StateError, TransientError
from broker_filter.kafka.delivery import Delivery, Outbox, Parcel, Patience
from broker_filter.kafka.source import OnChange, Source
from broker_filter.observe.metrics import Health, Metrics
from broker_filter.pipeline.assessment import Assessment, Outputs
from broker_filter.pipeline.intake import Intake
from broker_filter.service.dead_letters import encode_dead_letter
from broker_filter.service.guard import StreamGuard
from broker_filter.service.report import Reporter, fields
from broker_filter.service.restore import Restorer, Start
from broker_filter.service.snapshots import SnapshotWriter
from broker_filter.service.worker import Worker
from broker_filter.state.partition import ShardState, SnapshotError
from broker_filter.types import DeadLetter, Message, OutgoingMessage, Partition

__all__ = ["MakeSource", "Service"]

MakeSource = Callable[[OnChange, OnChange, OnChange], Source]
"""Opens a source, given what to call with partitions that come, go, or are lost."""

_log = logging.getLogger(__name__)

POLL_S = 0.1
MAX_POLL_MESSAGES = 10_000
SLICE_BYTES = 64 << 20
"""Messages are taken in slices, so that a backlog of large ones cannot fill the memory."""
OUTBOX_BYTES = 32 << 20
ALERT_S = 0.5
"""An alert does not wait longer for the next commit."""
COMMIT_S = 5.0
"""Longest time between two commits, whatever the settings: a transaction has to stay small."""
PAUSE_S = 5.0
"""Pausing throws away what was fetched ahead, so intake waits this long for the network first."""
REPORT_S = 2.0
STOP_S = 20.0
SAVE_S = 5.0
"""Share of `STOP_S` that is kept for the last snapshots."""
CLOSE_S = 5.0
"""For the piece of work that runs when the service fails."""
REVOKE_SHARE = 0.2
"""Share of ``kafka.max_poll_interval_ms`` that settling partitions that go may take."""


class Service:
    """The main loop.

    Parameters
    ----------
    settings : Settings
    make_source : callable
        See `MakeSource`.
    delivery : Delivery
    intake, assessment
        The two halves of the pipeline; the second is used by the worker thread only.
    restorer : Restorer
    snapshots : SnapshotWriter or None
    metrics, health
        What the outside may see.
    """

    def __init__(
        self,
        settings: Settings,
        make_source: MakeSource,
        delivery: Delivery,
        intake: Intake,
        assessment: Assessment,
        restorer: Restorer,
        snapshots: SnapshotWriter | None,
        metrics: Metrics,
        health: Health,
    ) -> None:
        self._settings, self._delivery = settings, delivery
        self._intake, self._assessment = intake, assessment
        self._restorer, self._snapshots = restorer, snapshots
        self._metrics, self._health = metrics, health
        self._reporter = Reporter(metrics)
        self._worker = Worker(settings.batch.queue_depth)
        self._guard = StreamGuard(
            settings.dead_letters.max_ratio, settings.dead_letters.max_consecutive
        )
        self._stop = threading.Event()
        self._failed = self._drained = False
        self._inbox: deque[Message] = deque()
        self._letters: list[DeadLetter] = []
        self._outbox, self._parcel = Outbox(), _NO_PARCEL
        self._alerts: list[Alert] = []  # those in the outbox
        self._sealed: list[Alert] = []  # those in the parcel
        self._patience = Patience(settings.kafka.delivery_timeout_s)
        self._era = 0  # results of work from before a rewind are void
        self._returning: set[Partition] = set()
        self._capturing: set[Partition] = set()
        self._captured: dict[Partition, ShardState] = {}
        self._assigned_at: dict[Partition, float] = {}
        self._behind_since: float | None = None
        self._last_commit = self._last_report = time.monotonic()
        self._source = make_source(self._gain, self._give_up, self._lose)

    def stop(self) -> None:
        """Ask the loop to drain and end; may be called from a signal handler or a thread."""
        self._stop.set()

    def run(self) -> None:
        """Turn until `stop`; then finish what was taken, commit, save and close.

        Raises
        ------
        BrokerFilterError
            Whatever no retry can mend; nothing that is not delivered has been committed.
        """
        self._worker.start()
        self._worker.submit(self._assessment.warm_up, lambda _: self._health.set_ready("model"))
        self._health.set_ready("broker")
        try:
            while not self._stop.is_set():
                self._turn()
            self._drain()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._close()
        _log.info("stopped", extra={"event": "stopped"})

    def _turn(self) -> None:
        self._health.beat()
        self._poll()
        self._begin_restored()
        self._take()
        self._worker.serve()
        self._deliver()
        self._save()
        self._report()

    # Intake

    def _poll(self) -> None:
        """Take new messages, or while behind none: wait for the worker, and at length pause."""
        began = time.monotonic()
        if not self._inbox and not self._patience.failing():
            self._behind_since = None
            self._source.resume()
        else:
            self._behind_since = self._behind_since or began
            if began - self._behind_since < PAUSE_S and not self._patience.failing():
                self._worker.serve(POLL_S)
                self._metrics.inc("backpressure_seconds_total", time.monotonic() - began)
                return
            self._source.pause()
        # Partitions may come and go in here, and the inbox with them: so it is looked up after.
        messages = self._source.poll(MAX_POLL_MESSAGES, POLL_S)
        self._inbox += messages
        if self._behind_since is not None:
            self._metrics.inc("backpressure_seconds_total", time.monotonic() - began)

    def _take(self) -> None:
        """Put messages into the windows, slice by slice, as long as the worker keeps up."""
        while True:
            if self._intake.due(time.monotonic()) and not self._worker.full():
                self._submit()
            if not self._inbox or self._worker.full() or self._patience.failing():
                return
            messages = self._slice()
            dead = self._intake.take(messages, time.monotonic())
            self._letters += dead
            self._reporter.taken(messages, dead)
            self._guard.count(messages, dead)

    def _slice(self) -> list[Message]:
        messages: list[Message] = []
        size = 0
        while self._inbox and size < SLICE_BYTES:
            messages.append(self._inbox.popleft())
            size += len(messages[-1].value or b"")
        return messages

    def _submit(self, capture: Collection[Partition] = ()) -> None:
        work = self._intake.flush(capture)
        if work is None:
            return
        letters, self._letters = self._letters, []
        self._capturing.update(capture)
        self._worker.submit(
            lambda: self._assessment.assess(work, round(1000 * time.time())),
            partial(self._pack, self._era, letters),
        )
        self._metrics.set("gpu_queue_batches", self._worker.waiting())

    # Delivery

    def _pack(self, era: int, letters: list[DeadLetter], outputs: Outputs) -> None:
        """Put what one piece of work gave into the outbox."""
        if era != self._era:
            return
        kafka = self._settings.kafka
        now, topic = time.time(), kafka.dead_letter_topic
        messages: list[OutgoingMessage] = [
            encode_dead_letter(letter, now, topic=topic) for letter in letters
        ]
        messages += [to_message(alert, kafka.alert_topic) for alert in outputs.alerts]
        self._outbox.add(messages, outputs.offsets)
        self._alerts += outputs.alerts
        self._captured |= outputs.captured

    def _deliver(self, *, last: bool = False) -> None:
        """Have out what is due, or with ``last`` all there is, if the broker is willing."""
        if self._parcel is _NO_PARCEL:
            if not last and (self._outbox.empty() or not self._due()):
                return
            self._parcel = self._outbox.seal()
            self._sealed, self._alerts = self._alerts, []
        if not self._patience.ready():
            return
        try:
            self._delivery.deliver(self._parcel, self._source, last=last)
        except TransientError as error:
            if not self._patience.failing():
                _log.warning("%s; trying again", error, extra={"event": "delivery_failed"})
                self._health.set_ready("broker", ready=False)
            self._patience.failed(error)
            return
        self._last_commit, self._parcel = time.monotonic(), _NO_PARCEL
        if self._patience.failing():
            _log.info("delivery goes on", extra={"event": "delivery_resumed"})
            self._health.set_ready("broker")
            self._patience.succeeded()
        self._reporter.published(self._sealed)
        self._sealed = []

    def _due(self) -> bool:
        waited = time.monotonic() - self._last_commit
        return (
            waited >= min(self._settings.kafka.commit_interval_s, COMMIT_S)
            or (len(self._outbox) > 0 and waited >= ALERT_S)
            or self._outbox.nbytes >= OUTBOX_BYTES
        )

    # Snapshots

    def _save(self) -> None:
        """Take a copy of the partition whose turn it is, and hand over copies now committed."""
        if self._snapshots is None:
            return
        for partition, state in list(self._captured.items()):
            committed = self._source.committed(partition)
            if committed is not None and committed >= state.offset:
                self._snapshots.submit(state, committed)
                del self._captured[partition]
                self._capturing.discard(partition)
        if not self._capturing and not self._worker.full():
            due = self._snapshots.due()
            if due is not None:
                self._submit([due])

    # Partitions that come and go

    def _gain(self, partitions: frozenset[Partition]) -> None:
        self._metrics.inc("rebalances_total", kind="assigned")
        self._assigned_at |= dict.fromkeys(partitions, time.monotonic())
        self._restorer.begin(partitions)

    def _begin_restored(self) -> None:
        """Have partitions begin whose state has been found."""
        if self._parcel is _NO_PARCEL and self._returning:
            self._restorer.begin(self._returning)
            self._returning = set()
        for start in self._restorer.finished():
            self._begin(start)
        if not self._inbox:
            positions = self._source.positions()
            for partition, live_from in self._intake.replaying().items():
                if positions.get(partition, -1) >= live_from:
                    self._intake.live(partition)

    def _begin(self, start: Start) -> None:
        where = start.partition
        began = self._assigned_at.pop(where, None)
        try:
            self._intake.restore(where, start.state, live_from=start.live_from, began=began)
        except SnapshotError as error:
            _log.warning("%s; the topic is replayed instead", error, extra=fields(where))
            self._restorer.begin([where], snapshots=False)
            return
        self._worker.submit(lambda: self._assessment.restore(where, start.state))
        self._source.start(where, start.offset, start.live_from)
        if self._snapshots is not None:
            self._snapshots.follow(where, start.age_s)
        self._metrics.inc("restores_total", outcome=start.outcome)
        _log.info(
            "%s[%d] begins at offset %d (%s), silent up to %d",
            *where,
            start.offset,
            start.outcome,
            start.live_from,
            extra={"event": "restored", "outcome": start.outcome, **fields(where)},
        )

    def _give_up(self, gone: frozenset[Partition]) -> None:
        """Settle and save what was taken from partitions that go, then forget them."""
        # After a failure something may be lost on its way out: the next owner reads it again.
        if not self._failed and not self._drained:
            budget = REVOKE_SHARE * self._settings.kafka.max_poll_interval_ms / 1000
            deadline = time.monotonic() + budget
            if self._settle(gone, deadline):
                self._save_all(deadline)
            else:
                _log.warning("not settled within %.0f s: rewinding", budget, extra=_REWOUND)
                self._rewind(gone)
        self._forget(gone, "revoked")

    def _lose(self, gone: frozenset[Partition]) -> None:
        """Forget partitions that others own already; nothing of them may go out."""
        in_flight = self._worker.busy() or self._parcel is not _NO_PARCEL
        if in_flight or not self._outbox.empty():
            self._rewind(gone)
        self._forget(gone, "lost")

    def _forget(self, gone: frozenset[Partition], kind: str) -> None:
        self._restorer.cancel(gone)
        self._returning -= gone
        self._capturing -= gone
        self._inbox = deque(m for m in self._inbox if (m.topic, m.partition) not in gone)
        self._letters = [
            letter
            for letter in self._letters
            if (letter.message.topic, letter.message.partition) not in gone
        ]
        self._intake.drop(gone)
        self._worker.submit(lambda: self._assessment.drop(gone))
        if self._snapshots is not None:
            self._snapshots.forget(gone)
        self._metrics.inc("rebalances_total", kind=kind)
        self._reporter.forget(gone)
        for partition in gone:
            self._captured.pop(partition, None)
            self._assigned_at.pop(partition, None)

    def _rewind(self, gone: Collection[Partition]) -> None:
        """Drop all that is not out: partitions that stay start anew from what is committed."""
        self._era += 1
        self._inbox.clear()
        self._outbox.clear()
        self._letters, self._alerts, self._sealed, self._captured = [], [], [], {}
        self._capturing.clear()
        if self._parcel is not _NO_PARCEL:
            # A commit may be under way: it is ended before anything is read again.
            self._parcel = self._parcel.emptied()
        kept = self._source.assigned().difference(gone)
        self._source.hold(kept)
        self._intake.drop(kept)
        self._returning |= kept

    # The end

    def _drain(self) -> None:
        """Finish what was taken, publish, commit and save it."""
        _log.info("draining", extra={"event": "draining"})
        deadline = time.monotonic() + STOP_S
        if not self._settle(self._intake.partitions(), deadline - SAVE_S):
            raise StateError(
                f"not all that was taken could be settled within {STOP_S - SAVE_S:g} s of the stop;"
                " the next start reads it again"
            )
        self._save_all(deadline)
        self._drained = True

    def _settle(self, partitions: Collection[Partition], deadline: float) -> bool:
        """Finish what was taken, with copies of partitions; whether all is out in time."""
        wanted = set(partitions) if self._snapshots is not None else set()
        self._submit(wanted.intersection(self._intake.partitions()) - set(self._intake.replaying()))
        while time.monotonic() < deadline:
            self._health.beat()
            if self._worker.busy():
                self._worker.serve(POLL_S)
                continue
            self._deliver(last=True)
            if self._parcel is _NO_PARCEL and self._outbox.empty():
                return True
            time.sleep(POLL_S)
        return False

    def _save_all(self, deadline: float) -> None:
        """Write the copies that were taken, as far as time allows: what is not can be replayed."""
        self._save()
        if self._snapshots is None:
            return
        if not self._snapshots.wait(max(0.0, deadline - time.monotonic())):
            _log.warning("snapshots not written in time", extra={"event": "snapshot_late"})

    def _close(self) -> None:
        self._worker.close(CLOSE_S)
        self._restorer.close()
        self._source.close()
        if self._snapshots is not None:
            self._snapshots.close(POLL_S)
        # After a failure its own error must reach the caller, not what the delivery says besides.
        with suppress(TransientError, StateError) if self._failed else nullcontext():
            self._delivery.close()

    def _report(self) -> None:
        replaying = self._restorer.waiting() or self._returning or self._intake.replaying()
        self._health.set_ready("partitions", bool(self._source.assigned()) and not replaying)
        now = time.monotonic()
        if now - self._last_report < REPORT_S:
            return
        self._last_report = now
        self._intake.report()
        if self._snapshots is not None:
            self._snapshots.report()
        self._metrics.set("gpu_queue_batches", self._worker.waiting())
        self._reporter.group(self._source)


_NO_PARCEL = Parcel(0)
_REWOUND = {"event": "rewound"}
