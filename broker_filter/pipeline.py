"""The pure core: messages in, alerts, dead letters and committable offsets out.

No Kafka, no files, no threads, no clock: time comes in as an argument. It has two halves, so that a
service may run them in two threads::

    Intake      decode -> photometry -> window -> batch          owns the windows
    Assessment  evidence -> life cycle -> posterior -> alert     owns the events

`Pipeline` runs one after the other; tests and the replay of small archives use it as it is.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from broker_filter.alert import Alert, Magnification, ProcessingTimes, Provenance, build_alert
from broker_filter.batcher import Batcher, Work
from broker_filter.decode import Decoder
from broker_filter.errors import PoisonMessage
from broker_filter.lifecycle import EventState, decide, with_peak
from broker_filter.observe import Metrics
from broker_filter.photometry import Limits, accept
from broker_filter.schedule import Schedule, concatenate, waves
from broker_filter.scorer import Scored, Scorer
from broker_filter.types import DeadLetter, Message, Partition, Photometry, StarId, WindowBatch
from broker_filter.window import WindowStore

__all__ = ["Assessment", "AssessmentOptions", "Intake", "Outputs", "Pipeline"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one piece of work gave; the offsets may be committed once the alerts are delivered."""

    alerts: list[Alert] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    offsets: dict[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Shard:
    """Windows of one partition and when they were last looked at."""

    store: WindowStore
    schedule: Schedule


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
        pieces: dict[Partition, list[Photometry]] = {}
        offsets: dict[Partition, int] = {}
        for message in messages:
            where = (message.topic, message.partition)
            offsets[where] = message.next_offset
            try:
                pieces.setdefault(where, []).append(self._decoder.decode(message))
            except PoisonMessage as error:
                self._metrics.inc("records_dead_total", reason=error.reason)
                dead.append(DeadLetter(message, error.reason, error.detail))
        for topic, count in Counter(message.topic for message in messages).items():
            self._metrics.inc("records_consumed_total", count, topic=topic)
        if offsets:
            self._batcher.note_offsets(offsets, now)
        received_ms = max((message.timestamp_ms for message in messages), default=0)
        for partition, decoded in pieces.items():
            self._insert(self._shard(partition), decoded, now, received_ms)
        return dead

    def due(self, now: float) -> bool:
        """Whether the windows gathered should be evaluated now."""
        return self._batcher.due(now)

    def flush(self) -> Work | None:
        """Hand over what was gathered, with the offsets that it settles; None if there is none."""
        return self._batcher.flush()

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget the windows of partitions that others own now."""
        for partition in partitions:
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

    def _insert(
        self, shard: _Shard, decoded: list[Photometry], now: float, received_ms: int
    ) -> None:
        """Insert wave by wave: a due window is read before its star's next message comes."""
        for wave in waves(decoded):
            for piece in concatenate(wave):
                slots = shard.store.insert(self._usable(piece))
                due = shard.schedule.due(shard.store, slots)
                if len(due):
                    self._batcher.add(shard.store.read(due), now, received_ms)
        for outcome, count in shard.store.take_counts().items():
            self._metrics.inc("points_inserted_total", count, outcome=outcome)

    def _shard(self, partition: Partition) -> _Shard:
        if partition not in self._shards:
            self._shards[partition] = _Shard(self._make_store(), self._make_schedule())
        return self._shards[partition]


@dataclass(frozen=True, slots=True)
class AssessmentOptions:
    """How windows become alerts: threshold in log10 K, prior odds, samples and their seed."""

    threshold: float
    prior_odds: float
    samples: int = 1000
    seed: int = 0


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
        self._events: dict[tuple[str, StarId, str], EventState] = {}

    def assess(self, work: Work, now_ms: int) -> Outputs:
        """Evaluate one piece of work; blocks for as long as the network takes.

        Parameters
        ----------
        work : Work
            Windows in the order in which they became due.
        now_ms : int
            Wall clock, ms since 1970 UTC, for the alerts' processing times.
        """
        batch = work.windows
        if batch is None:
            return Outputs(offsets=work.offsets)
        began = time.perf_counter()
        scored = self._scorer.score(batch)
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage="evidence")
        self._metrics.observe("batch_windows", len(batch))
        self._metrics.observe("batch_fill_ratio", batch.n.sum() / max(batch.mjd_tai.size, 1))
        self._metrics.observe("log_bayes_factor", scored.log10_k)
        return Outputs(alerts=self._decide(work, batch, scored, now_ms), offsets=work.offsets)

    def _decide(self, work: Work, batch: WindowBatch, scored: Scored, now_ms: int) -> list[Alert]:
        """Only rows above the threshold or of an open event can change anything."""
        alerts = []
        for row, key in enumerate(zip(batch.survey, batch.star, batch.band, strict=True)):
            if scored.log10_k[row] >= self._options.threshold or key in self._events:
                received_ms = work.received_ms[row] if work.received_ms else 0
                times = ProcessingTimes(received_ms or None, now_ms, now_ms)
                alert = self._look(batch, scored, row, key, times)
                alerts += [alert] if alert else []
        return alerts

    def _look(
        self,
        batch: WindowBatch,
        scored: Scored,
        row: int,
        key: tuple[str, StarId, str],
        times: ProcessingTimes,
    ) -> Alert | None:
        state, kind = decide(
            self._events.get(key),
            float(scored.log10_k[row]),
            float(batch.mjd_tai[row, batch.n[row] - 1]),
            float(batch.t_start[row]),
            self._options.threshold,
            window_days=self._provenance.window_days,
            model_id=self._provenance.model_id,
        )
        alert = None
        if state is not None and kind is not None:
            began = time.perf_counter()
            alert = build_alert(
                batch,
                row,
                event=state,
                state=kind,
                log10_k=float(scored.log10_k[row]),
                threshold=self._options.threshold,
                prior_odds=self._options.prior_odds,
                samples=self._scorer.posterior(
                    scored, row, self._options.samples, self._seed(key, batch, row)
                ),
                magnification=self._magnification,
                provenance=self._provenance,
                times=times,
            )
            state = with_peak(state, alert.t0_mjd_tai)
            passed = time.perf_counter() - began
            self._metrics.observe("inference_seconds", passed, stage="posterior")
        if state is None:
            self._events.pop(key, None)
        else:
            self._events[key] = state
        return alert

    def _seed(self, key: tuple[str, StarId, str], batch: WindowBatch, row: int) -> int:
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

    def step(self, messages: Sequence[Message], now: float, *, flush: bool = False) -> Outputs:
        """Take messages and evaluate what is due, or everything with ``flush``."""
        dead = self.intake.take(messages, now)
        work = self.intake.flush() if flush or self.intake.due(now) else None
        if work is None:
            return Outputs(dead_letters=dead)
        done = self.assessment.assess(work, round(1000 * now))
        return Outputs(done.alerts, dead, done.offsets)
