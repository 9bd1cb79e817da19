"""The pure core: messages in, alerts, dead letters and committable offsets out.

No Kafka, no files, no threads, no clock: time comes in as an argument. It has two halves, so that a
service may run them in two threads::

    Intake      decode -> photometry -> window -> batch          owns the windows
    Assessment  evidence -> life cycle -> posterior -> alert     owns the events

`Pipeline` runs one after the other; tests and the replay of small archives use it as it is.

State is kept per partition and is one state only together: `Intake.flush` copies windows and
schedule at the one moment when no window waits to be looked at, the copy travels with the work,
and `Assessment.assess` adds the events as they are after it. A partition restored at an offset
below the committed one is *silent* up to the latter: its messages move windows and events on as
they did, and give no alert, no dead letter and no offset.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from broker_filter.alert import (
    Alert,
    CertifiedK,
    Magnification,
    OtherBand,
    ProcessingTimes,
    Provenance,
    build_alert,
)
from broker_filter.batcher import Batcher, Origin, Work
from broker_filter.columns import Column
from broker_filter.decode import Decoder
from broker_filter.errors import PoisonMessage
from broker_filter.lifecycle import (
    HYSTERESIS,
    EventKey,
    EventState,
    decide,
    events_from_columns,
    events_to_columns,
    with_peak,
)
from broker_filter.looks import Look, is_due, looks_from_columns, looks_to_columns
from broker_filter.observe import Metrics
from broker_filter.photometry import Limits, accept
from broker_filter.schedule import Schedule, concatenate, waves
from broker_filter.scorer import Scored, Scorer
from broker_filter.shard_state import ShardState, SnapshotError, damage_of, prefixed
from broker_filter.types import (
    DeadLetter,
    IntArray,
    Message,
    Partition,
    Photometry,
    WindowBatch,
)
from broker_filter.window import WindowStore

__all__ = ["Assessment", "AssessmentOptions", "Intake", "Outputs", "Pipeline"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one piece of work gave; the offsets may be committed once the alerts are delivered.

    ``captured`` are whole states of partitions after this work; a snapshot of one may be written
    once the offsets are committed.
    """

    alerts: list[Alert] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    offsets: dict[Partition, int] = field(default_factory=dict)
    captured: dict[Partition, ShardState] = field(default_factory=dict)


@dataclass(slots=True)
class _Shard:
    """Windows of one partition, when they were last looked at, and up to which message.

    Messages before ``live_from`` are silent; ``restoring_since`` is when its restore began, as long
    as it has not come to an end.
    """

    store: WindowStore
    schedule: Schedule
    offset: int = 0
    live_from: int = 0
    restoring_since: float | None = None


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
    """

    def __init__(
        self,
        decoder: Decoder,
        limits: Limits,
        batcher: Batcher,
        make_store: Callable[[], WindowStore],
        make_schedule: Callable[[], Schedule],
        metrics: Metrics,
    ) -> None:
        self._decoder, self._limits, self._batcher = decoder, limits, batcher
        self._make_store, self._make_schedule = make_store, make_schedule
        self._metrics = metrics
        self._shards: dict[Partition, _Shard] = {}

    def take(self, messages: Sequence[Message], now: float) -> list[DeadLetter]:
        """Put messages into the windows; those that cannot be used come back.

        Parameters
        ----------
        messages : sequence of Message
            In order of offset within each partition.
        now : float
            Any monotonic clock, in seconds; it only decides when a batch has waited long enough.
        """
        dead: list[DeadLetter] = []
        packets: dict[tuple[Partition, bool], list[Sequence[Photometry]]] = {}
        offsets: dict[Partition, int] = {}
        received_ms = max((message.timestamp_ms for message in messages), default=0)
        for message in messages:
            where = (message.topic, message.partition)
            silent = self._pass(where, message)
            if not silent:
                offsets[where] = message.next_offset
            try:
                packet = self._decoder.decode(message, self._shards[where].store.wanted_from)
                packets.setdefault((where, silent), []).append(packet.photometry)
                for reason, count in packet.rejected.items():
                    self._metrics.inc("points_inserted_total", count, outcome=reason)
            except PoisonMessage as error:
                if not silent:
                    self._metrics.inc("records_dead_total", reason=error.reason)
                    dead.append(DeadLetter(message, error.reason, error.detail))
        for topic, count in Counter(message.topic for message in messages).items():
            self._metrics.inc("records_consumed_total", count, topic=topic)
        if offsets:
            self._batcher.note_offsets(offsets, now)
        # Of one partition the silent messages come first, as they did in its topic.
        for (where, silent), group in packets.items():
            self._insert(self._shard(where), group, now, Origin(where, received_ms, silent))
        self._note_live(now)
        return dead

    def _pass(self, partition: Partition, message: Message) -> bool:
        """Move a partition's offset past a message; whether that message is silent."""
        shard = self._shard(partition)
        # Messages read again, after a failed commit say, are in the state already.
        shard.offset = max(shard.offset, message.next_offset)
        return message.next_offset <= shard.live_from

    def due(self, now: float) -> bool:
        """Whether the windows gathered should be evaluated now."""
        return self._batcher.due(now)

    def flush(self, capture: Collection[Partition] = ()) -> Work | None:
        """Hand over what was gathered, with the offsets that it settles; None if there is none.

        Parameters
        ----------
        capture : collection of (str, int)
            Partitions whose state goes along, as a copy taken now; those without are left out.
        """
        work = self._batcher.flush()
        captured = {p: self._copy(p) for p in capture if p in self._shards}
        return replace(work or Work(None, {}), captured=captured) if captured else work

    def _copy(self, partition: Partition) -> ShardState:
        shard = self._shards[partition]
        columns = prefixed("window", shard.store.state())
        columns |= prefixed("schedule", shard.schedule.state())
        return ShardState(partition, shard.offset, shard.store.window_days, "", columns)

    def restore(
        self,
        partition: Partition,
        state: ShardState | None,
        *,
        live_from: int,
        began: float | None = None,
    ) -> None:
        """Begin a partition where a state was taken, or with no windows.

        Parameters
        ----------
        partition : (str, int)
            Its next message is that at ``state.offset``.
        state : ShardState or None
        live_from : int
            The committed offset: messages before it are silent.
        began : float
            When the restore began, by the clock of `take`; with it the time from then until the
            partition is live is told to the metrics.

        Raises
        ------
        SnapshotError
            ``window`` where the state's windows are of another length, ``damaged`` where its
            columns contradict each other. The partition is then as it was.
        """
        shard = _Shard(self._make_store(), self._make_schedule())
        if state is not None:
            _check_window(state, shard.store)
            with damage_of(f"the snapshot of {partition}"):
                shard.store.restore(state.part("window"))
                shard.schedule.restore(shard.store, state.part("schedule"))
            shard.offset = state.offset
        shard.live_from, shard.restoring_since = live_from, began
        self._shards[partition] = shard

    def partitions(self) -> list[Partition]:
        """Those that have a state."""
        return list(self._shards)

    def replaying(self) -> dict[Partition, int]:
        """Partitions that are silent still, and from which offset on they are live."""
        return {p: shard.live_from for p, shard in self._shards.items() if _silent(shard)}

    def live(self, partition: Partition) -> None:
        """Say that the consumer has come to ``live_from``.

        Needed where the offsets before it hold no message (marks of transactions, compaction).
        """
        shard = self._shard(partition)
        shard.offset = max(shard.offset, shard.live_from)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget the windows of partitions that others own now, those gathered included."""
        gone = set(partitions)
        self._batcher.drop(gone)
        for partition in gone:
            self._shards.pop(partition, None)

    def report(self) -> None:
        """Set the gauges of the windows."""
        stores = [shard.store for shard in self._shards.values()]
        self._metrics.set("windows", sum(map(len, stores)))
        self._metrics.set("window_store_bytes", sum(store.nbytes for store in stores))

    def _usable(self, photometry: Photometry) -> Photometry:
        """The epochs that can be used; the others are counted by reason."""
        accepted = accept(photometry, self._limits)
        for reason, count in accepted.rejected.items():
            self._metrics.inc("points_inserted_total", count, outcome=reason)
        return accepted.photometry

    def _note_live(self, now: float) -> None:
        """Tell how long the restores took that have come to their end."""
        for shard in self._shards.values():
            if shard.restoring_since is not None and not _silent(shard):
                self._metrics.observe("restore_seconds", now - shard.restoring_since)
                shard.restoring_since = None

    def _insert(
        self, shard: _Shard, packets: list[Sequence[Photometry]], now: float, origin: Origin
    ) -> None:
        """Insert wave by wave: a due window is read before its star's next message comes."""
        for wave in waves(packets):
            moved = [shard.store.insert(self._usable(piece)) for piece in concatenate(wave)]
            due = shard.schedule.due(shard.store, _each_once(moved))
            if len(due):
                windows = shard.store.read(due)
                self._batcher.add(windows, now, origin, *_others(shard, windows))
        for outcome, count in shard.store.take_counts().items():
            self._metrics.inc("points_inserted_total", count, outcome=outcome)

    def _shard(self, partition: Partition) -> _Shard:
        if partition not in self._shards:
            self._shards[partition] = _Shard(self._make_store(), self._make_schedule())
        return self._shards[partition]


def _each_once(slots: list[IntArray]) -> IntArray:
    return slots[0] if len(slots) == 1 else np.unique(np.concatenate(slots))


def _others(shard: _Shard, windows: WindowBatch) -> tuple[WindowBatch | None, IntArray]:
    """Windows of the same stars in other bands that have enough epochs, and whose they are."""
    owner, sibling = shard.store.siblings(windows.slot)
    enough = shard.store.count[sibling] >= shard.schedule.min_points
    owner, sibling = owner[enough], sibling[enough]
    if not len(sibling):
        return None, owner
    # One row for each owner, though two of them may have the same sibling.
    others = shard.store.read(sibling, count=False)
    readable = np.isin(sibling, others.slot)
    return others, owner[readable]


def _silent(shard: _Shard) -> bool:
    return shard.offset < shard.live_from


def _check_window(state: ShardState, store: WindowStore) -> None:
    if state.window_days != store.window_days:
        raise SnapshotError(
            "window",
            f"the snapshot of {state.partition} has windows of {state.window_days:g} days, made for"
            f" model {state.model_id}, and this model has {store.window_days:g}: the topic must be"
            " replayed from one window back",
        )


@dataclass(frozen=True, slots=True)
class AssessmentOptions:
    """How windows become alerts.

    Parameters
    ----------
    threshold : float
        In log10 K: of the network, or certified.
    prior_odds : float
    samples, seed : int
        Of the posterior.
    trigger : float, optional
        log10 K of the network from which on certified K decides; None leaves it to the network.
    """

    threshold: float
    prior_odds: float
    samples: int = 1000
    seed: int = 0
    trigger: float | None = None


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is remembered of the stars of one partition: open events, and looks at windows."""

    events: dict[EventKey, EventState] = field(default_factory=dict)
    looks: dict[EventKey, Look] = field(default_factory=dict)

    def knows(self, key: EventKey) -> bool:
        return key in self.events or key in self.looks


class Assessment:
    """Second half: evaluates windows and decides which of them are alerts.

    Parameters
    ----------
    scorer : Scorer
    options : AssessmentOptions
    magnification : Magnification
        Forward model for the median curve.
    provenance : Provenance
        Model and software, for every alert.
    metrics : Metrics
    """

    def __init__(
        self,
        scorer: Scorer,
        options: AssessmentOptions,
        magnification: Magnification,
        provenance: Provenance,
        metrics: Metrics,
    ) -> None:
        self._scorer, self._options = scorer, options
        self._magnification, self._provenance = magnification, provenance
        self._metrics = metrics
        self._memories: defaultdict[Partition, _Memory] = defaultdict(_Memory)

    def assess(self, work: Work, now_ms: int) -> Outputs:
        """Evaluate one piece of work; blocks for as long as the network takes.

        Parameters
        ----------
        work : Work
            Windows in the order in which they became due.
        now_ms : int
            Wall clock, ms since 1970 UTC, for the alerts' processing times.
        """
        alerts = [] if work.windows is None else self._evaluate(work, work.windows, now_ms)
        captured = {p: self._complete(state) for p, state in work.captured.items()}
        return Outputs(alerts=alerts, offsets=work.offsets, captured=captured)

    def _complete(self, state: ShardState) -> ShardState:
        """A state with the events as they are now."""
        columns = {**state.columns, **self.state(state.partition)}
        return replace(state, columns=columns, model_id=self._provenance.model_id)

    def state(self, partition: Partition) -> dict[str, Column]:
        """The events of a partition and the looks at its windows as columns for a snapshot."""
        memory = self._memories.get(partition, _Memory())
        return {
            **prefixed("event", events_to_columns(memory.events)),
            **prefixed("look", looks_to_columns(memory.looks)),
        }

    def restore(self, partition: Partition, state: ShardState | None) -> None:
        """Begin a partition with the events of a state, or with none.

        Events that another model opened stay open: their id remembers that model, and what this one
        finds is told as their update, retraction or final.

        While it is called, no work of this partition may be under way in another thread.

        Raises
        ------
        SnapshotError
            ``damaged`` where columns are missing or contradict each other.
        """
        self.drop([partition])
        if state is not None:
            with damage_of(f"the snapshot of {partition}"):
                self._memories[partition] = _Memory(
                    events_from_columns(state.part("event")),
                    looks_from_columns(state.part("look")),
                )

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget the events of partitions that others own now; see `restore` on threads."""
        for partition in partitions:
            self._memories.pop(partition, None)

    def _evaluate(self, work: Work, batch: WindowBatch, now_ms: int) -> list[Alert]:
        began = time.perf_counter()
        scored = self._scorer.score(batch)
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage="evidence")
        self._metrics.observe("batch_windows", len(batch))
        self._metrics.observe("batch_fill_ratio", batch.n.sum() / max(batch.mjd_tai.size, 1))
        self._metrics.observe("log_bayes_factor", scored.log10_k)
        return self._decide(work, batch, scored, now_ms)

    def _decide(self, work: Work, batch: WindowBatch, scored: Scored, now_ms: int) -> list[Alert]:
        """Only rows above the trigger or of an open event can change anything."""
        options = self._options
        trigger = options.threshold if options.trigger is None else options.trigger
        alerts = []
        keys = zip(batch.survey, batch.star, batch.band, strict=True)
        for row, (key, origin) in enumerate(zip(keys, work.origins, strict=True)):
            memory = self._memories[origin.partition]
            if scored.log10_k[row] >= trigger or memory.knows(key):
                times = ProcessingTimes(origin.received_ms or None, now_ms, now_ms)
                look = self._certify(batch, scored, row, key, memory.looks, trigger)
                alert = self._look(work, batch, scored, row, key, memory.events, look, times)
                # A silent alert was needed all the same: its peak decides how the event ends.
                if alert is not None and not origin.silent:
                    alerts.append(alert)
        return alerts

    def _look(
        self,
        work: Work,
        batch: WindowBatch,
        scored: Scored,
        row: int,
        key: EventKey,
        events: dict[EventKey, EventState],
        look: Look | None,
        times: ProcessingTimes,
    ) -> Alert | None:
        log10_k = float(scored.log10_k[row])
        if self._options.trigger is not None and look is not None:
            log10_k = look.charged
        state, kind = decide(
            events.get(key),
            log10_k,
            float(batch.mjd_tai[row, batch.n[row] - 1]),
            float(batch.t_start[row]),
            self._options.threshold,
            window_days=self._provenance.window_days,
            model_id=self._provenance.model_id,
        )
        alert = None
        if state is not None and kind is not None:
            began = time.perf_counter()
            samples = self._scorer.posterior(
                scored, row, self._options.samples, self._seed(key, batch, row)
            )
            usable = np.isfinite(samples).all(axis=1).mean()
            self._metrics.observe("posterior_support_fraction", usable)
            alert = build_alert(
                batch,
                row,
                event=state,
                state=kind,
                log10_k=float(scored.log10_k[row]),
                threshold=self._options.threshold,
                prior_odds=self._options.prior_odds,
                samples=samples,
                magnification=self._magnification,
                provenance=self._provenance,
                times=times,
                certified=None
                if look is None
                else CertifiedK(
                    look.log10_k, look.log10_k_error, look.effective_sample_size, look.count
                ),
                other_bands=self._other_bands(work, row),
            )
            state = with_peak(state, alert.t0_mjd_tai)
            passed = time.perf_counter() - began
            self._metrics.observe("inference_seconds", passed, stage="posterior")
        if state is None:
            events.pop(key, None)
        else:
            events[key] = state
        return alert

    def _other_bands(self, work: Work, row: int) -> tuple[OtherBand, ...]:
        """What the network says of the star's windows in its other bands."""
        rows = np.flatnonzero(work.owner == row)
        if work.others is None or not len(rows):
            return ()
        others = work.others.take(rows)
        columns = zip(others.band, self._scorer.score(others).log10_k, others.n, strict=True)
        return tuple(
            OtherBand(band, float(log10_k), int(n), float(others.mjd_tai[i, n - 1]))
            for i, (band, log10_k, n) in enumerate(columns)
        )

    def _certify(
        self,
        batch: WindowBatch,
        scored: Scored,
        row: int,
        key: EventKey,
        looks: dict[EventKey, Look],
        trigger: float,
    ) -> Look | None:
        """The look at a window that counts now: the last one, or a new one where K has grown.

        None once the network's K has fallen so far below the trigger that it speaks for itself.
        """
        log10_k, start = float(scored.log10_k[row]), float(batch.t_start[row])
        if log10_k < trigger - HYSTERESIS:
            looks.pop(key, None)
            return None
        last = looks.get(key)
        if log10_k >= trigger and is_due(last, log10_k, start):
            began = time.perf_counter()
            found = self._scorer.certify(batch, scored, row, self._seed(key, batch, row))
            count = last.count + 1 if last is not None and last.window_start == start else 1
            looks[key] = Look(
                start,
                count,
                log10_k,
                found.log10_k,
                found.log10_k_error,
                found.effective_sample_size,
            )
            passed = time.perf_counter() - began
            self._metrics.observe("inference_seconds", passed, stage="certified")
        return looks.get(key)

    def _seed(self, key: EventKey, batch: WindowBatch, row: int) -> int:
        """A seed from star and last epoch, so that a replay draws the same samples."""
        name = f"{self._options.seed}:{key}:{batch.mjd_tai[row, batch.n[row] - 1]:.8f}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


class Pipeline:
    """Both halves in one thread.

    Parameters
    ----------
    intake, assessment
        The two halves.
    """

    def __init__(self, intake: Intake, assessment: Assessment) -> None:
        self.intake, self.assessment = intake, assessment

    def step(
        self,
        messages: Sequence[Message],
        now: float,
        *,
        flush: bool = False,
        capture: Collection[Partition] = (),
    ) -> Outputs:
        """Take messages and evaluate what is due, or everything with ``flush`` or ``capture``."""
        dead = self.intake.take(messages, now)
        must = flush or bool(capture) or self.intake.due(now)
        work = self.intake.flush(capture) if must else None
        if work is None:
            return Outputs(dead_letters=dead)
        return replace(self.assessment.assess(work, round(1000 * now)), dead_letters=dead)

    def restore(self, partition: Partition, state: ShardState | None, *, live_from: int) -> None:
        """Begin a partition in both halves; see `Intake.restore`."""
        self.intake.restore(partition, state, live_from=live_from)
        self.assessment.restore(partition, state)
