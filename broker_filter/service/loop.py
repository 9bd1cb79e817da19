"""The main loop around source, pipeline and delivery.

The main thread polls, decodes, fills windows and publishes; a `Worker` evaluates, a `Restorer`
finds where new partitions begin, a `SnapshotWriter` saves. One pass of the loop::

    poll ─▶ inbox ─▶ intake ─▶ worker ─▶ outgoing ─▶ delivery (messages and offsets together)
                                                        └─▶ snapshots of what is committed

Messages of topics that share their stars come into the inbox in order of time (`TimeOrder`).

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

from broker_filter.alerts.framing import BARE, Framing
from broker_filter.config import Settings
from broker_filter.errors import StateError, TransientError
from broker_filter.kafka.delivery import Delivery
from broker_filter.kafka.source import OnChange, Source
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.assessment import Assessment, Outputs
from broker_filter.pipeline.batcher import Work
from broker_filter.pipeline.intake import Intake
from broker_filter.service.assignments import Assignments
from broker_filter.service.dead_letters import StreamGuard
from broker_filter.service.outgoing import Outgoing
from broker_filter.service.pace import Pace
from broker_filter.service.report import Reporter
from broker_filter.service.restore import Restorer
from broker_filter.service.snapshots import Captures, SnapshotWriter
from broker_filter.service.time_order import TimeOrder
from broker_filter.service.topics import IdsOf, TopicWatch
from broker_filter.service.worker import Worker
from broker_filter.types import KeyOf, Message, Partition, StateKey

__all__ = ["MakeSource", "Service"]

MakeSource = Callable[[OnChange, OnChange, OnChange], Source]
"""Opens a source, given what to call with partitions that come, go, or are lost."""

_log = logging.getLogger(__name__)

POLL_S = 0.1
MAX_POLL_MESSAGES = 10_000
SLICE_BYTES, SLICE_MESSAGES = 64 << 20, 2048
"""Messages are taken in slices, so that a backlog of large ones cannot fill the memory, and none
brings too many windows at a time."""
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
    topic_ids_of : callable
        See `broker_filter.service.topics`.
    key_of : callable
        Says which partitions share their stars, as ``intake`` does.
    stop : Event, optional
        Set by `stop`, for those that wait within a turn.
    framing : Framing
        Of the alerts.
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
        topic_ids_of: IdsOf = lambda _: {},
        key_of: KeyOf = lambda partition: partition,
        stop: threading.Event | None = None,
        framing: Framing = BARE,
    ) -> None:
        self._settings = settings
        self._intake, self._assessment = intake, assessment
        self._metrics, self._health = metrics, health
        self._reporter = Reporter(metrics)
        self._worker = Worker(settings.batch.queue_depth)
        self._pace = Pace(settings.batch.flush_windows)
        self._topics = TopicWatch(topic_ids_of)
        self._captures = Captures(snapshots, self._topics.id_of)
        self._outgoing = Outgoing(settings.kafka, delivery, self._reporter, framing)
        self._assignments = Assignments(
            intake, assessment, self._worker, restorer, self._captures, metrics, key_of
        )
        self._guard = StreamGuard(
            settings.dead_letters.max_ratio, settings.dead_letters.max_consecutive
        )
        self._stop = stop or threading.Event()
        self._failed = self._drained = False
        self._unusable: StateError | None = None  # the stream as a whole
        self._key_of, self._order = key_of, TimeOrder(key_of)
        self._inbox: deque[Message] = deque()
        self._behind_since: float | None = None
        self._last_report = time.monotonic()
        self._source = make_source(self._assignments.gain, self._give_up, self._lose)

    def stop(self) -> None:
        """Let the loop drain and end; may be called from a signal handler or a thread."""
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
            self._turn_until_stop()
        except BaseException:
            self._failed = True
            raise
        finally:
            self._close()
        _log.info("stopped", extra={"event": "stopped"})

    def _turn_until_stop(self) -> None:
        try:
            while not self._stop.is_set() and self._unusable is None:
                self._turn()
        except TransientError as error:
            if not self._stop.is_set():
                raise
            # Part of a slice may be in the windows, which therefore are not saved.
            self._abandon(str(error))
        else:
            self._drain()

    def _turn(self) -> None:
        self._health.beat()
        self._poll()
        self._begin_restored()
        self._take()
        self._worker.serve()
        self._outgoing.deliver(self._source)
        self._save()
        self._report()

    # Intake

    def _poll(self) -> None:
        """Take new messages, or while behind none: wait for the worker, and at length pause."""
        began = time.monotonic()
        if not self._inbox and not self._outgoing.failing():
            self._behind_since = None
            self._source.resume()
        else:
            self._behind_since = self._behind_since or began
            if began - self._behind_since < PAUSE_S and not self._outgoing.failing():
                self._worker.serve(POLL_S)
                self._metrics.inc("backpressure_seconds_total", time.monotonic() - began)
                return
            self._source.pause()
        # Partitions may come and go in here, and the inbox with them: so it is looked up after.
        messages = self._source.poll(MAX_POLL_MESSAGES, POLL_S)
        self._inbox += self._order.sort(
            messages, self._source.assigned(), self._source.at_end(), self._intake.replaying()
        )
        self._source.rest(self._order.ahead())
        if self._behind_since is not None:
            self._metrics.inc("backpressure_seconds_total", time.monotonic() - began)

    def _take(self) -> None:
        """Put messages into the windows, slice by slice, as long as the worker keeps up."""
        while True:
            due = self._intake.due(time.monotonic(), self._pace.windows)
            if due and not self._worker.full():
                self._submit(self._captures.due())
            if not self._inbox or self._worker.full() or self._outgoing.failing():
                return
            messages = self._slice()
            dead = self._intake.take(messages, time.monotonic())
            self._outgoing.set_aside(dead)
            self._reporter.taken(messages, dead)
            try:
                self._guard.count(messages, dead)
            except StateError as error:
                self._unusable = error
                return

    def _begin_restored(self) -> None:
        self._assignments.begin_restored(self._source, settled=not self._outgoing.in_flight())
        if not self._inbox:
            self._assignments.note_live(self._source, self._order.waiting())

    def _slice(self) -> list[Message]:
        messages: list[Message] = []
        size, most = 0, self._pace.windows if self._pace.is_slow else SLICE_MESSAGES
        while self._inbox and size < SLICE_BYTES and len(messages) < most:
            messages.append(self._inbox.popleft())
            size += len(messages[-1].value or b"")
        return messages

    def _submit(self, capture: Collection[StateKey] = ()) -> None:
        """Hand what was gathered to the worker, with copies of some states."""
        work = self._intake.flush(capture)
        if work is None:
            return
        self._captures.expect(capture)
        self._worker.submit(
            lambda: self._assess(work),
            self._outgoing.receiver(lambda outputs: self._captures.take(outputs.captured)),
        )
        self._metrics.set("gpu_queue_batches", self._worker.waiting())

    def _assess(self, work: Work) -> Outputs:
        """Runs in the worker's thread."""
        began = time.monotonic()
        outputs = self._assessment.assess(work, round(1000 * time.time()))
        self._pace.note(len(work.windows or ()), time.monotonic() - began)
        return outputs

    def _save(self) -> None:
        """Hand over copies that are committed, and copy the state whose turn it is.

        In a backlog the worker is always full by now; then copies go along with its work.
        """
        self._captures.hand_over(self._source.committed)
        if not self._worker.full() and (due := self._captures.due()):
            self._submit(due)

    # Partitions that go

    def _give_up(self, gone: frozenset[Partition]) -> None:
        """Settle and save what was taken from partitions that go, then forget them."""
        # After a failure something may be lost on its way out: the next owner reads it again.
        if not self._failed and not self._drained:
            budget = REVOKE_SHARE * self._settings.kafka.max_poll_interval_ms / 1000
            deadline = time.monotonic() + budget
            if self._settle({self._key_of(where) for where in gone}, deadline):
                self._save_all(deadline)
            else:
                _log.warning(
                    "not settled within %.0f s: rewinding", budget, extra={"event": "rewound"}
                )
                self._rewind(gone)
        self._forget(gone, "revoked")

    def _lose(self, gone: frozenset[Partition]) -> None:
        """Forget partitions that others own already; nothing of them may go out."""
        if self._worker.busy() or not self._outgoing.empty():
            self._rewind(gone)
        self._forget(gone, "lost")

    def _forget(self, gone: frozenset[Partition], kind: str) -> None:
        self._inbox = deque(m for m in self._inbox if (m.topic, m.partition) not in gone)
        self._order.drop(gone)
        self._outgoing.drop(gone)
        self._assignments.forget(gone, kind)
        self._reporter.forget(gone)

    def _rewind(self, gone: Collection[Partition]) -> None:
        """Drop all that is not out: partitions that stay start anew from what is committed."""
        self._inbox.clear()
        self._order.clear()
        self._outgoing.rewind()
        self._captures.clear()
        kept = self._source.assigned().difference(gone)
        self._source.hold(kept)
        self._reporter.forget(kept)
        self._assignments.return_later(kept)

    # The end

    def _drain(self) -> None:
        """Finish what was taken, publish, commit and save it.

        A stream that is bad as a whole is an error only now, when its dead letters are out and
        their offsets committed: the next start does not meet the same messages again.
        """
        _log.info("draining", extra={"event": "draining"})
        deadline = time.monotonic() + STOP_S
        if self._settle(self._intake.keys(), deadline - SAVE_S):
            self._save_all(deadline)
            self._drained = True
        else:
            limit = f"{STOP_S - SAVE_S:g} s of the stop"
            self._abandon(f"not all that was taken could be settled within {limit}")
        if self._unusable is not None:
            raise self._unusable

    def _abandon(self, text: str) -> None:
        """Leave what is not settled to the next start, which reads it again.

        Nothing of it is committed, so to stop in the middle of a backlog loses nothing. A way out
        that is shut is an error all the same.
        """
        if self._outgoing.failing():
            raise StateError(f"{text}, because nothing goes out; the next start reads it again")
        _log.warning("%s: the next start reads it again", text, extra={"event": "abandoned"})
        self._failed = True  # partitions are given up as they are

    def _settle(self, keys: Collection[StateKey], deadline: float) -> bool:
        """Finish what was taken, with copies of states; whether all is out in time."""
        wanted = set(keys) if self._captures.wanted else set()
        replaying = {self._key_of(where) for where in self._intake.replaying()}
        self._submit(wanted.intersection(self._intake.keys()) - replaying)
        while time.monotonic() < deadline:
            self._health.beat()
            if self._worker.busy():
                self._worker.serve(POLL_S)
                self._outgoing.deliver(self._source)  # what is done is settled, come what may
                continue
            self._outgoing.deliver(self._source, last=True)
            if self._outgoing.empty():
                return True
            time.sleep(POLL_S)
        return False

    def _save_all(self, deadline: float) -> None:
        """Write the copies that were taken, as far as time allows: what is not can be replayed."""
        self._save()
        if not self._captures.wait(max(0.0, deadline - time.monotonic())):
            _log.warning("snapshots not written in time", extra={"event": "snapshot_late"})

    def _close(self) -> None:
        self._worker.close(CLOSE_S)
        self._assignments.close()
        self._topics.close()
        self._source.close()
        self._captures.close(POLL_S)
        # After a failure its own error must reach the caller, not what the delivery says besides.
        with suppress(TransientError, StateError) if self._failed else nullcontext():
            self._outgoing.close()

    def _report(self) -> None:
        live = bool(self._source.assigned()) and not self._assignments.replaying()
        self._health.set_ready("partitions", live)
        self._health.set_ready("broker", self._source.reachable() and not self._outgoing.failing())
        now = time.monotonic()
        if now - self._last_report < REPORT_S:
            return
        self._last_report = now
        self._intake.report()
        self._captures.report()
        self._metrics.set("gpu_queue_batches", self._worker.waiting())
        self._reporter.group(self._source)
        self._topics.follow({topic for topic, _ in self._source.assigned()})
        self._topics.check()
