"""Second half of the pipeline: windows are judged, and some become alerts.

evidence -> life cycle -> posterior -> alert. No Kafka, no clock: time comes in as an argument. The
state is kept by partition, or pattern and number; see `broker_filter.pipeline.core` for how the two
halves share it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from broker_filter.alerts.alert import Alert, CertifiedK, OtherBand
from broker_filter.alerts.build import (
    Common,
    Evaluation,
    ProcessingTimes,
    Provenance,
    build_alert,
)
from broker_filter.alerts.certifications import (
    Certification,
    certifications_from_columns,
    certifications_to_columns,
    is_due,
)
from broker_filter.alerts.curves import Magnification
from broker_filter.alerts.lifecycle import (
    EventKey,
    EventState,
    decide,
    events_from_columns,
    events_to_columns,
    evidence_of,
    published,
)
from broker_filter.alerts.parts import Noise
from broker_filter.alerts.threshold import Rule
from broker_filter.errors import ModelError
from broker_filter.inference.noise_family import NoiseFamily
from broker_filter.inference.scorer import Scored, Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.batcher import Work
from broker_filter.pipeline.event_epochs import (
    epochs_from_columns,
    epochs_to_columns,
    extended,
)
from broker_filter.state.columns import Column
from broker_filter.state.partition import PartitionState, damage_of, prefixed
from broker_filter.types import (
    DeadLetter,
    Fit,
    NotFitted,
    Partition,
    StarEpochs,
    StateKey,
    WindowBatch,
)

__all__ = ["Assessment", "AssessmentOptions", "Outputs"]

_log = logging.getLogger(__name__)

MAX_LOST_IN_A_ROW: Final = 1000
"""So many failed evaluations without one that works are no star's fault: the process ends."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one piece of work gave; the offsets may be committed once the alerts are delivered.

    ``captured`` are whole states after this work; a snapshot of one may be written
    once the offsets are committed.
    """

    alerts: list[Alert] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    offsets: dict[Partition, int] = field(default_factory=dict)
    captured: dict[StateKey, PartitionState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssessmentOptions:
    """How windows become alerts.

    Parameters
    ----------
    rule : Rule
        Which log10 K opens and ends an event.
    prior_odds : float
    samples, seed : int
        Of the posterior.
    certified : bool
        Whether alerts carry certified K, also where the network decides.
    """

    rule: Rule
    prior_odds: float
    samples: int = 1000
    seed: int = 0
    certified: bool = True


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is kept of the stars of one state: open events, their epochs, certifications."""

    events: dict[EventKey, EventState] = field(default_factory=dict)
    epochs: dict[EventKey, StarEpochs] = field(default_factory=dict)
    certifications: dict[EventKey, Certification] = field(default_factory=dict)

    def holds(self, key: EventKey) -> bool:
        """Whether there is anything about a star and band."""
        return key in self.events or key in self.certifications


@dataclass(frozen=True, slots=True)
class _Window:
    """One window of a batch that may change an event."""

    batch: WindowBatch
    scored: Scored
    row: int
    key: EventKey
    memory: _Memory

    @property
    def log10_k(self) -> float:
        """Of the network."""
        return float(self.scored.log10_k[self.row])

    @property
    def start(self) -> float:
        """MJD TAI."""
        return float(self.batch.t_start[self.row])

    @property
    def last_mjd(self) -> float:
        """Last epoch, MJD TAI."""
        return float(self.batch.mjd_tai[self.row, self.batch.n[self.row] - 1])


@dataclass(frozen=True, slots=True)
class _Look:
    """The certification that counts for a window, and its fit where it was made just now."""

    certification: Certification | None = None
    fit: Fit | NotFitted | None = None


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
        self._rule, self._provenance, self._metrics = options.rule, provenance, metrics
        self._common = Common(provenance, options.rule.threshold, options.prior_odds, magnification)
        self._lost_in_a_row = 0
        self._memories: defaultdict[StateKey, _Memory] = defaultdict(_Memory)

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
        captured = {key: self._complete(state) for key, state in work.captured.items()}
        return Outputs(alerts=alerts, offsets=work.offsets, captured=captured)

    def _complete(self, state: PartitionState) -> PartitionState:
        """A state with the events as they are now."""
        columns = {**state.columns, **self.state(state.key)}
        return replace(state, columns=columns, model_id=self._provenance.model_id)

    def state(self, key: StateKey) -> dict[str, Column]:
        """Events and certifications, as columns for a snapshot."""
        memory = self._memories.get(key, _Memory())
        return {
            **prefixed("event", events_to_columns(memory.events)),
            **prefixed("epochs", epochs_to_columns(memory.epochs)),
            **prefixed("look", certifications_to_columns(memory.certifications)),
        }

    def restore(self, key: StateKey, state: PartitionState | None) -> None:
        """Begin with the events of a state, or with none.

        Events that another model opened stay open: their id remembers that model, and what this one
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
                self._memories[key] = _Memory(
                    events_from_columns(state.part("event")),
                    epochs_from_columns(state.part("epochs")),
                    certifications_from_columns(state.part("look")),
                )

    def drop(self, keys: Iterable[StateKey]) -> None:
        """Forget the events of states that others own now; see `restore` on threads."""
        for key in keys:
            self._memories.pop(key, None)

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
        keys = list(zip(batch.survey, batch.star, batch.band, strict=True))
        memories = [self._memories[origin.key] for origin in work.origins]
        above = scored.log10_k >= self._rule.certify_from
        opening = {keys[row] for row in np.flatnonzero(above)}
        pairs = enumerate(zip(keys, memories, strict=True))
        rows = [row for row, (key, memory) in pairs if key in opening or memory.holds(key)]
        siblings = _Siblings(work, rows, self._scorer)
        alerts = []
        for row in rows:
            # An earlier row of the same star may have opened its event, or ended it.
            if not (above[row] or memories[row].holds(keys[row])):
                continue
            window = _Window(batch, scored, row, keys[row], memories[row])
            times = ProcessingTimes(work.origins[row].received_ms or None, now_ms, now_ms)
            alert = self._take_safely(window, siblings, times)
            # A silent alert was needed all the same: its peak decides how the event ends.
            if alert is not None and not work.origins[row].silent:
                alerts.append(alert)
        return alerts

    def _take_safely(
        self, window: _Window, siblings: _Siblings, times: ProcessingTimes
    ) -> Alert | None:
        """As `_take`; what fails for one window loses that evaluation and leaves its event."""
        before = window.memory.events.get(window.key)
        try:
            alert = self._take(window, siblings, times)
        except Exception as error:  # noqa: BLE001  whatever one star causes
            if before is None:
                window.memory.events.pop(window.key, None)
            else:
                window.memory.events[window.key] = before
            self._note_loss(window, error, "decision")
            return None
        self._lost_in_a_row = 0
        return alert

    def _note_loss(self, window: _Window, error: Exception, stage: str) -> None:
        """Count and log what failed for one window; raise it where every window fails."""
        self._metrics.inc("evaluations_lost_total", stage=stage)
        survey, star, band = window.key
        about = {"event": "evaluation_lost", "stage": stage, "star": str(star), "band": band}
        _log.error(
            "%s of the window of star %r in %s at MJD %.5f failed: %s: %s",
            *(stage, star, f"{survey} {band}", window.last_mjd, type(error).__name__, error),
            exc_info=error,
            extra=about,
        )
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= MAX_LOST_IN_A_ROW:
            raise error

    def _take(self, window: _Window, siblings: _Siblings, times: ProcessingTimes) -> Alert | None:
        """Move the event of one window on; the alert that this gives, if any."""
        try:
            look = self._look(window)
        except Exception as error:  # noqa: BLE001  the alert can do without
            self._note_loss(window, error, "certified")
            if self._rule.certified_decides:
                return None
            look = _Look()
        events, key = window.memory.events, window.key
        log10_k = window.log10_k
        if self._rule.certified_decides and look.certification is not None:
            log10_k = look.certification.charged
        event, kind = decide(
            events.get(key),
            log10_k,
            window.last_mjd,
            window.start,
            self._rule,
            window_days=self._provenance.window_days,
            model_id=self._provenance.model_id,
        )
        if event is None:
            events.pop(key, None)
            window.memory.epochs.pop(key, None)
            return None
        if kind == "new":
            window.memory.epochs.pop(key, None)
        self._remember(window, siblings)
        alert = None
        if kind is not None:
            look = self._with_fit(window, look)
            log10_k, claim = evidence_of(event, kind, window.log10_k, _claim(look.certification))
            others = siblings.of(window.row)
            found = Evaluation(
                event,
                kind,
                log10_k,
                claim,
                others,
                fit=self._fit_of_event(window, look, ended=kind == "final"),
                epochs=window.memory.epochs.get(key),
                noise=_noise(look.fit, self._scorer.family),
            )
            alert = self._build(window, found, times)
            event = published(
                event,
                alert.t0_mjd_tai,
                alert.interval("tE").median,
                alert.log10_k,
                alert.certified,
            )
        events[key] = event
        return alert

    def _remember(self, window: _Window, siblings: _Siblings) -> None:
        """Add what the window holds, and the star's other bands, to the epochs of its event."""
        known = extended(window.memory.epochs.get(window.key), window.batch, window.row)
        for batch, row in siblings.windows_of(window.row):
            known = extended(known, batch, row)
        window.memory.epochs[window.key] = known

    def _fit_of_event(self, window: _Window, look: _Look, *, ended: bool) -> Fit | NotFitted | None:
        """The fit for an alert: of the whole event in all bands, where the window holds less.

        A final is of a window that may hold nothing of its event any more, and has such a fit too.
        """
        epochs = window.memory.epochs[window.key]
        more = len(epochs) > int(window.batch.n[window.row])
        wanted = look.fit is not None or (ended and self._options.certified)
        if not (wanted and more):
            return look.fit
        try:
            fit = self._fit(window, epochs, "event")
        except Exception as error:  # noqa: BLE001  the alert has the window's fit
            self._note_loss(window, error, "event")
            return look.fit
        return fit if isinstance(fit, Fit) else look.fit

    def _fit(
        self, window: _Window, epochs: StarEpochs, stage: Literal["certified", "event"]
    ) -> Fit | NotFitted:
        """Fit the epochs of a window, or of its whole event, and note how long that took."""
        began = time.perf_counter()
        fit = self._scorer.fit(
            epochs,
            window.start,
            window.scored,
            window.row,
            self._seed(window),
            samples=self._options.samples,
            whole_event=stage == "event",
        )
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage=stage)
        return fit

    def _build(self, window: _Window, found: Evaluation, times: ProcessingTimes) -> Alert:
        began = time.perf_counter()
        samples = self._scorer.posterior(
            window.scored, window.row, self._options.samples, self._seed(window)
        )
        usable = np.isfinite(samples).all(axis=1).mean()
        self._metrics.observe("posterior_support_fraction", usable)
        alert = build_alert(window.batch, window.row, found, samples, times, self._common)
        passed = time.perf_counter() - began
        self._metrics.observe("inference_seconds", passed, stage="posterior")
        return alert

    def _look(self, window: _Window) -> _Look:
        """The certification that counts now: the last one of the window, or a new one.

        None once the network's K has fallen so far below the trigger that it decides by itself, and
        where none is wanted.
        """
        known, key = window.memory.certifications, window.key
        last = known.get(key)
        if last is not None and last.window_start != window.start:
            del known[key]
        if not self._options.certified:
            return _Look()
        if self._rule.forgets(window.log10_k):
            if key in known:
                known[key] = known[key].voided
            return _Look()
        # Where the window before had a certificate that counts, one of this takes its place.
        moved_on = last is not None and key not in known and not last.is_void
        worth_it = moved_on or window.log10_k >= self._rule.certify_from
        if worth_it and is_due(last, window.log10_k, window.start):
            return self._new_look(window)
        found = known.get(key)
        return _Look(None if found is None or found.is_void else found)

    def _with_fit(self, window: _Window, look: _Look) -> _Look:
        """The same with a fit of the window as it is: an alert's K and samples are of one run."""
        if look.certification is None or look.fit is not None:
            return look
        try:
            return self._new_look(window)
        except Exception as error:  # noqa: BLE001  the alert can do without
            self._note_loss(window, error, "certified")
            return look

    def _new_look(self, window: _Window) -> _Look:
        """Fit a window; its K counts as one more certification."""
        fit = self._fit(window, window.batch.epochs(window.row), "certified")
        # Epochs that say nothing leave the odds as they are.
        found = (0.0, 0.0, 0.0)
        if isinstance(fit, Fit):
            k = fit.robust or fit
            found = (k.log10_k, k.log10_k_error, k.effective_sample_size)
        if not math.isfinite(found[0]):
            raise ModelError(f"the fit gave log10 K = {found[0]}")
        known = window.memory.certifications
        count = known[window.key].count + 1 if window.key in known else 1
        certification = Certification(window.start, count, window.log10_k, *found)
        known[window.key] = certification
        return _Look(certification, fit)

    def _seed(self, window: _Window) -> int:
        """A seed from star and last epoch, so that a replay draws the same samples."""
        name = f"{self._options.seed}:{window.key}:{window.last_mjd:.8f}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def _claim(found: Certification | None) -> CertifiedK | None:
    """A certification as alerts carry it; none of epochs that cannot be fitted."""
    if found is None or found.effective_sample_size == 0:
        return None
    return CertifiedK(found.log10_k, found.log10_k_error, found.effective_sample_size, found.count)


def _noise(fit: Fit | NotFitted | None, family: NoiseFamily | None) -> Noise | None:
    """The family that K holds against, and the constant star in it that the data are nearest to."""
    if not isinstance(fit, Fit) or fit.robust is None or family is None:
        return None
    main = max(range(len(fit.sources)), key=lambda i: fit.sources[i].n)
    nearest = fit.robust.noise[main]
    return Noise(
        error_scale=nearest.scale,
        red_noise=nearest.red_noise * nearest.median_error,
        error_scale_min=family.scale[0],
        error_scale_max=family.scale[1],
        red_noise_max=family.red_noise * nearest.median_error,
        red_noise_time=nearest.tau if nearest.red_noise > 0 else None,
    )


class _Siblings:
    """The network's K of the windows of the same stars in their other bands.

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

    def windows_of(self, row: int) -> Iterator[tuple[WindowBatch, int]]:
        """The windows of the other bands of one window: a batch and a row of it for each."""
        if self._work.others is not None:
            for other in np.flatnonzero(self._work.owner == row).tolist():
                yield self._work.others, other

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
