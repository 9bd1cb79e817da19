"""Second half of the pipeline: windows are judged, and some become alerts.

evidence -> life cycle -> posterior -> alert. No Kafka, no clock: time comes in as an argument. The
state is kept per partition; see `broker_filter.pipeline.core` for how the two halves share it.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from broker_filter.alerts.alert import (
    Alert,
    CertifiedK,
    Magnification,
    OtherBand,
    ProcessingTimes,
    Provenance,
    build_alert,
)
from broker_filter.alerts.certifications import Look, is_due, looks_from_columns, looks_to_columns
from broker_filter.alerts.lifecycle import (
    HYSTERESIS,
    EventKey,
    EventState,
    decide,
    events_from_columns,
    events_to_columns,
    with_peak,
)
from broker_filter.inference.scorer import Scored, Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.batcher import Work
from broker_filter.state.columns import Column
from broker_filter.state.partition import ShardState, damage_of, prefixed
from broker_filter.types import DeadLetter, Partition, WindowBatch

__all__ = ["Assessment", "AssessmentOptions", "Outputs"]


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
    certified : bool
        Whether alerts carry certified K, also where the network decides.
    """

    threshold: float
    prior_odds: float
    samples: int = 1000
    seed: int = 0
    trigger: float | None = None
    certified: bool = True


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

    def warm_up(self) -> None:
        """Make the network ready; belongs into the thread that will call `assess`."""
        self._scorer.warm_up()

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
        keys = list(zip(batch.survey, batch.star, batch.band, strict=True))
        memories = [self._memories[origin.partition] for origin in work.origins]
        above = scored.log10_k >= trigger
        opening = {keys[row] for row in np.flatnonzero(above)}
        pairs = enumerate(zip(keys, memories, strict=True))
        rows = [row for row, (key, memory) in pairs if key in opening or memory.knows(key)]
        siblings = _Siblings(work, rows, self._scorer)
        alerts = []
        for row in rows:
            key, memory, origin = keys[row], memories[row], work.origins[row]
            if not (above[row] or memory.knows(key)):
                continue
            times = ProcessingTimes(origin.received_ms or None, now_ms, now_ms)
            look = self._certify(batch, scored, row, key, memory.looks, trigger)
            alert = self._look(siblings, batch, scored, row, key, memory.events, look, times)
            # A silent alert was needed all the same: its peak decides how the event ends.
            if alert is not None and not origin.silent:
                alerts.append(alert)
        return alerts

    def _look(
        self,
        siblings: _Siblings,
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
                other_bands=siblings.of(row),
            )
            state = with_peak(state, alert.t0_mjd_tai)
            passed = time.perf_counter() - began
            self._metrics.observe("inference_seconds", passed, stage="posterior")
        if state is None:
            events.pop(key, None)
        else:
            events[key] = state
        return alert

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

        None once the network's K has fallen so far below the trigger that it speaks for itself,
        and where none is wanted.
        """
        log10_k, start = float(scored.log10_k[row]), float(batch.t_start[row])
        if not self._options.certified or log10_k < trigger - HYSTERESIS:
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


class _Siblings:
    """What the network says of the windows of the same stars in their other bands.

    They are scored when the first alert asks for some, those of all rows together.

    Parameters
    ----------
    work : Work
    rows : sequence of int
        Of the windows that may alert.
    scorer : Scorer
    """

    def __init__(self, work: Work, rows: Sequence[int], scorer: Scorer) -> None:
        self._work, self._rows, self._scorer = work, rows, scorer

    def of(self, row: int) -> tuple[OtherBand, ...]:
        """The other bands of one window."""
        return self._found.get(row, ())

    @cached_property
    def _found(self) -> dict[int, tuple[OtherBand, ...]]:
        wanted = np.flatnonzero(np.isin(self._work.owner, self._rows))
        if self._work.others is None or not len(wanted):
            return {}
        others = self._work.others.take(wanted)
        found: dict[int, tuple[OtherBand, ...]] = {}
        columns = zip(others.band, self._scorer.score(others).log10_k, others.n, strict=True)
        for i, (band, log10_k, n) in enumerate(columns):
            other = OtherBand(band, float(log10_k), int(n), float(others.mjd_tai[i, n - 1]))
            owner = int(self._work.owner[wanted[i]])
            found[owner] = (*found.get(owner, ()), other)
        return found
