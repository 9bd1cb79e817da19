"""Second half of the pipeline: windows are judged, and some become alerts.

evidence -> life cycle -> posterior -> alert. No Kafka, no clock: time comes in as an argument. The
state is kept by partition, or pattern and number; see `broker_filter.pipeline.core` for how the two
halves share it.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.build import (
    Common,
    Evaluation,
    ProcessingTimes,
    Provenance,
    build_alert,
    refitted,
)
from broker_filter.alerts.curves import Magnification
from broker_filter.alerts.estimate import Estimate
from broker_filter.alerts.lifecycle import (
    EventKey,
    EventState,
    decide,
    evidence_of,
    published,
)
from broker_filter.alerts.threshold import Rule
from broker_filter.inference.scorer import Scored, Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.batcher import Work
from broker_filter.pipeline.by_star import Drops, EachStar, Star, by_star
from broker_filter.pipeline.candidate import Candidate, Memory
from broker_filter.pipeline.certifier import Certified, Certifier
from broker_filter.pipeline.event_epochs import extended
from broker_filter.pipeline.judge import Case, Judge, Judgement
from broker_filter.pipeline.lost_evaluations import LostEvaluations
from broker_filter.pipeline.options import AssessmentOptions
from broker_filter.pipeline.other_bands import OtherBands
from broker_filter.state.columns import Column
from broker_filter.state.partition import PartitionState, damage_of
from broker_filter.types import (
    AlertState,
    DeadLetter,
    Fit,
    NotFitted,
    Partition,
    StateKey,
    WindowBatch,
)

__all__ = ["Assessment", "Outputs"]

Samples = NDArray[np.float32]
"""Of the network's posterior, shape (S, 5), columns `PARAMETERS`."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one piece of work gave; the offsets may be committed once the alerts are delivered.

    ``captured`` are whole states after this work; a snapshot of one may be written
    once the offsets are committed. ``cases`` are by alert; see `Assessment.judge_later`.
    """

    alerts: list[Alert] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    offsets: dict[Partition, int] = field(default_factory=dict)
    captured: dict[StateKey, PartitionState] = field(default_factory=dict)
    cases: dict[UUID, Case] = field(default_factory=dict)


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
    surveys : mapping of str to Provenance, optional
        Of the surveys (in lower case) that have a model of their own.
    each_star : EachStar, optional
    """

    def __init__(
        self,
        scorer: Scorer,
        options: AssessmentOptions,
        magnification: Magnification,
        provenance: Provenance,
        metrics: Metrics,
        surveys: Mapping[str, Provenance] | None = None,
        each_star: EachStar = map,
    ) -> None:
        self._scorer, self._options = scorer, options
        self._rule, self._provenance, self._metrics = options.rule, provenance, metrics
        self._surveys = surveys or {}
        self._common = Common(provenance, options.rule.threshold, options.prior_odds, magnification)
        self._lost = LostEvaluations(metrics)
        self._certifier = Certifier(scorer, options, self._lost, metrics)
        judge = options.judge
        least = options.rule.threshold
        self._judge = None if judge is None else Judge(scorer, judge, metrics, least)
        self._memories: defaultdict[StateKey, Memory] = defaultdict(Memory)
        self._each_star = each_star
        self._cases: dict[UUID, Case] | None = None

    def judge_later(self) -> None:
        """Leave rivals and verdicts out of alerts, for callers that need those of few of them.

        They are had by `judge` of a case of `Outputs.cases`, with the number of events of the same
        star and band before it that were judged to be established, and by `with_judgement`.
        The lives of events then follow the fits of all epochs: where such a fit is of a wrong
        epoch, an event may have other updates, and end by a retraction in place of a final.
        """
        self._cases = {}

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
        if work.windows is None:
            for star in Drops(work.forgotten).rest():
                self._forget(star)
        captured = {key: self._complete(state) for key, state in work.captured.items()}
        cases, self._cases = self._cases or {}, None if self._cases is None else {}
        return Outputs(alerts=alerts, offsets=work.offsets, captured=captured, cases=cases)

    def _complete(self, state: PartitionState) -> PartitionState:
        """A state with the events as they are now."""
        columns = {**state.columns, **self.state(state.key)}
        return replace(state, columns=columns, model_id=self._provenance.model_id)

    def state(self, key: StateKey) -> dict[str, Column]:
        """Events and certifications, as columns for a snapshot."""
        return self._memories.get(key, Memory()).columns()

    def restore(self, key: StateKey, state: PartitionState | None) -> None:
        """Begin with the events of a state, or with none.

        Events that another model opened stay open: their id is of that model, and what this one
        finds becomes their update, retraction or final.

        While it is called, no work of this key may be under way in another thread.

        Raises
        ------
        SnapshotError
            ``damaged`` where columns are missing or contradict each other.
        """
        self.drop([key])
        if state is not None:
            with damage_of(f"the snapshot of {key}"):
                self._memories[key] = Memory.of(state)

    def drop(self, keys: Iterable[StateKey]) -> None:
        """Forget the events of states that others own now; see `restore` on threads."""
        for key in keys:
            self._memories.pop(key, None)

    def _evaluate(self, work: Work, batch: WindowBatch, now_ms: int) -> list[Alert]:
        keys = list(zip(batch.survey, batch.star, batch.band, strict=True))
        memories = [self._memories[origin.key] for origin in work.origins]
        began = time.perf_counter()
        scored, held, stands_out = self._score(batch, keys, memories)
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage="evidence")
        self._metrics.observe("batch_windows", len(batch))
        self._metrics.observe("batch_fill_ratio", batch.n.sum() / max(batch.mjd_tai.size, 1))
        rows = np.flatnonzero(held).tolist()
        return self._decide(work, batch, scored, rows, stands_out, now_ms)

    def _score(
        self, batch: WindowBatch, keys: Sequence[EventKey], memories: Sequence[Memory]
    ) -> tuple[Scored, NDArray[np.bool_], NDArray[np.bool_]]:
        """K by the network of windows that can change anything; those of events, and those apart.

        Of events are those of stars that have one, or get one with an earlier row; the scan settles
        none of them. Apart stand those that the matched filter alone calls for.
        """
        held = np.array([memory.holds(key) for memory, key in zip(memories, keys, strict=True)])
        ceiling = self._ceiling(batch)
        stands_out = ceiling >= self._rule.matched
        seen = held | stands_out
        seen |= ceiling >= self._rule.certify_from if self._options.cascade else True
        scored = self._scorer.score(batch) if seen.all() else self._scorer.score(batch, seen)
        above = np.flatnonzero((scored.log10_k >= self._rule.certify_from) | stands_out)
        opened = {keys[row]: row for row in reversed(above.tolist())}
        held |= [opened.get(key, row + 1) <= row for row, key in enumerate(keys)]
        if (late := held & ~seen).any():
            self._scorer.add(scored, batch, late)
        seen |= held
        self._metrics.observe("log_bayes_factor", scored.log10_k[seen])
        self._metrics.inc("windows_settled_total", int((~seen).sum()))
        return scored, held, stands_out

    def _ceiling(self, batch: WindowBatch) -> NDArray[np.float64]:
        """The log10 K that the matched filter allows each window, where a rule depends on it."""
        matched = self._rule.matched
        least = min(self._rule.certify_from, matched) if self._options.cascade else matched
        if least == math.inf:
            return np.full(len(batch), -math.inf)
        began = time.perf_counter()
        ceiling = self._scorer.ceiling(batch, least)
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage="scan")
        return ceiling

    def _decide(
        self,
        work: Work,
        batch: WindowBatch,
        scored: Scored,
        rows: Sequence[int],
        stands_out: NDArray[np.bool_],
        now_ms: int,
    ) -> list[Alert]:
        """Take up windows of events; no other can change anything."""
        keys = list(zip(batch.survey, batch.star, batch.band, strict=True))
        memories = [self._memories[origin.key] for origin in work.origins]
        triggered = (scored.log10_k >= self._rule.certify_from) | stands_out
        others = OtherBands(work, rows, self._scorer)
        drops = Drops(work.forgotten)
        stars = [(origin.key, key) for origin, key in zip(work.origins, keys, strict=True)]

        def take_up(row: int) -> Alert | None:
            key, memory, origin = keys[row], memories[row], work.origins[row]
            if drops.before(stars[row], row):
                self._forget(stars[row])
            # An earlier row of the same star may have opened its event, or ended it.
            if not (triggered[row] or memory.holds(key)):
                return None
            window = Candidate(batch, scored, row, key, memory, bool(stands_out[row]))
            times = ProcessingTimes(origin.received_ms or None, now_ms, now_ms)
            alert = self._take_safely(window, others, times)
            # A silent alert was needed all the same: its peak decides how the event ends.
            return None if origin.silent else alert

        if self._rule.discovery is None:
            alerts = by_star(take_up, rows, [stars[row] for row in rows], self._each_star)
        else:  # the events of all stars are counted, in their order
            alerts = [take_up(row) for row in rows]
        for star in drops.rest():
            self._forget(star)
        return [alert for alert in alerts if alert is not None]

    def _forget(self, star: Star) -> None:
        """Let go of a star whose window was dropped, so that memory is bounded.

        An open event ends without an alert, as there is no window to say it of; it is counted. So
        does the event of a star that is never observed again.
        """
        state, key = star
        self._metrics.inc("events_dropped_total", self._memories[state].forget(key))

    def _take_safely(
        self, window: Candidate, others: OtherBands, times: ProcessingTimes
    ) -> Alert | None:
        """As `_take`; what fails for one window loses that evaluation and leaves its event."""
        before = window.memory.events.get(window.key)
        try:
            certified = self._certified(window)
            if certified is None:
                return None
            alert = self._take(window, certified, others, times)
        except Exception as error:  # noqa: BLE001  whatever one star causes
            if before is None:
                window.memory.events.pop(window.key, None)
            else:
                window.memory.events[window.key] = before
            self._lost.note(window, error, "decision")
            return None
        self._lost.end_row()
        return alert

    def _certified(self, window: Candidate) -> Certified | None:
        """What counts of a window's certified K; None where it failed and had to decide.

        Where the network decides, an alert can do without.
        """
        try:
            return self._certifier.certified(window)
        except Exception as error:  # noqa: BLE001  whatever one star causes
            self._lost.note(window, error, "certified")
            return None if self._rule.certified_decides else Certified()

    def _take(
        self, window: Candidate, certified: Certified, others: OtherBands, times: ProcessingTimes
    ) -> Alert | None:
        """Move the event of one window on; the alert that this gives, if any."""
        if self._rule.certified_decides and certified.is_owed:
            return None  # the event stays as it is until there is a K
        memory, key = window.memory, window.key
        drawn, rule = cache(lambda: self._drawn(window)), self._rule_of(window)
        event, kind = self._moved_on(window, certified, drawn, rule)
        if event is None or kind == "new":
            memory.epochs.pop(key, None)
        if event is None:
            memory.events.pop(key, None)
            return None
        self._remember(window, others)
        alert = None
        if kind is not None:
            common = replace(
                self._common, provenance=self._provenance_of(window), threshold=rule.threshold
            )
            alert = self._alert(window, others, certified, event, kind, times, drawn(), common)
            estimate = Estimate.of(drawn(), window.start)
            t0, t_einstein = alert.t0_mjd_tai, alert.interval("tE").median
            event = published(event, t0, t_einstein, alert.log10_k, alert.certified, estimate)
        if self._rule.discovery is not None and not (window.is_open or event.closed):
            memory.note_opened(window.start)
        memory.events[key] = event
        return alert

    def _moved_on(
        self, window: Candidate, certified: Certified, drawn: Callable[[], Samples], rule: Rule
    ) -> tuple[EventState | None, AlertState | None]:
        """The event after this window, and the kind of alert that is due."""
        log10_k = window.log10_k
        if self._rule.certified_decides and (found := certified.certification) is not None:
            # What was opened once has passed the bound; its later looks open nothing.
            log10_k = found.log10_k if window.is_open else found.charged
        return decide(
            window.memory.events.get(window.key),
            log10_k,
            window.last_mjd,
            window.start,
            rule,
            window_days=self._provenance.window_days,
            model_id=self._provenance_of(window).model_id,
            estimate=lambda: Estimate.of(drawn(), window.start),
        )

    def _rule_of(self, window: Candidate) -> Rule:
        """What K must pass: an open event the threshold, another what is needed to open one."""
        if window.is_open:
            return self._rule
        return self._rule.after(window.memory.opened.get(window.start, 0))

    def _provenance_of(self, window: Candidate) -> Provenance:
        return self._surveys.get(window.key[0].lower(), self._provenance)

    def _remember(self, window: Candidate, others: OtherBands) -> None:
        """Add what the window holds, and the star's other bands, to the epochs of its event."""
        known = extended(window.memory.epochs.get(window.key), window.batch, window.row)
        for batch, row in others.windows_of(window.row):
            known = extended(known, batch, row)
        window.memory.epochs[window.key] = known

    def _alert(
        self,
        window: Candidate,
        others: OtherBands,
        certified: Certified,
        event: EventState,
        kind: AlertState,
        times: ProcessingTimes,
        drawn: Samples,
        common: Common,
    ) -> Alert:
        certified = self._certifier.with_fit(window, certified)
        fit = self._certifier.fit_of_event(window, certified, ended=kind == "final")
        log10_k, claim = evidence_of(event, kind, window.log10_k, certified.claim)
        found = Evaluation(
            event,
            kind,
            log10_k,
            claim,
            others.of(window.row),
            fit=fit,
            epochs=window.memory.epochs.get(window.key),
            noise=certified.noise,
            log10_k_lookalikes=self._scorer.log10_k_lookalikes(window.scored, window.row),
        )
        alert = build_alert(window.batch, window.row, found, drawn, times, common)
        case = self._case(window, event, fit)
        return alert if case is None else self._judged(alert, case)

    def _case(
        self, window: Candidate, event: EventState, fit: Fit | NotFitted | None
    ) -> Case | None:
        """What the event is judged by; an event without a fit is not judged."""
        if self._judge is None or not isinstance(fit, Fit):
            return None
        return Case(window, event.opened_mjd, window.memory.epochs[window.key], fit)

    def _judged(self, alert: Alert, case: Case) -> Alert:
        """Say what else an event could be, unless that is left for later, and count the event."""
        if self._cases is not None:
            self._cases[alert.alert_id] = case
            return alert
        memory, key, opened = case.window.memory, case.window.key, case.opened_mjd
        judged = self.judge(case, memory.earlier_events(key, opened))
        alert = self.with_judgement(alert, case, judged)
        if judged.established:
            memory.count(key, opened)
        return alert

    def judge(self, case: Case, earlier_events: int) -> Judgement:
        """What else an event could be; nothing where that fails, as an alert can do without."""
        assert self._judge is not None  # noqa: S101  there would be no case
        window, seed = case.window, case.window.seed(self._options.seed)
        try:
            return self._judge.judge(window, case.epochs, case.fit, seed, earlier_events)
        except Exception as error:  # noqa: BLE001  whatever one star causes
            self._lost.note(window, error, "rivals")
            return Judgement()

    def with_judgement(self, alert: Alert, case: Case, judged: Judgement) -> Alert:
        """An alert with rivals, verdict and, where wrong epochs are left out, the fit of the rest.

        Parameters
        ----------
        alert, case : Alert, Case
            Of `Outputs`.
        judged : Judgement
            Of that case.
        """
        alert = replace(alert, rivals=judged.rivals, verdict=judged.verdict)
        if (refit := judged.refit) is None:
            return alert
        window, magnification = case.window, self._common.magnification
        return refitted(
            alert, window.batch, window.row, case.epochs, refit.fit, refit.left_out, magnification
        )

    def _drawn(self, window: Candidate) -> Samples:
        began = time.perf_counter()
        samples, seed = self._options.samples, window.seed(self._options.seed)
        drawn = self._scorer.posterior(window.scored, window.row, samples, seed)
        usable = np.isfinite(drawn).all(axis=1).mean()
        self._metrics.observe("posterior_support_fraction", usable)
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage="posterior")
        return drawn
