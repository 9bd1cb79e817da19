"""Certified K and the fits behind it: when a window is fitted, and what counts of it since."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

from broker_filter.alerts.alert import CertifiedK
from broker_filter.alerts.certifications import Certification, is_due, may_tell
from broker_filter.alerts.parts import Noise
from broker_filter.errors import ModelError
from broker_filter.inference.scorer import Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.candidate import Candidate
from broker_filter.pipeline.event_epochs import with_history_of
from broker_filter.pipeline.lost_evaluations import LostEvaluations
from broker_filter.pipeline.options import AssessmentOptions
from broker_filter.types import Fit, NotFitted, StarEpochs

__all__ = ["Certified", "Certifier"]


@dataclass(frozen=True, slots=True)
class Certified:
    """The certification that counts for a window, and its fit where it was made just now."""

    certification: Certification | None = None
    fit: Fit | NotFitted | None = None

    @property
    def is_owed(self) -> bool:
        """Whether a certification was due, and could not be had: there was nothing to fit."""
        return self.certification is None and self.fit is not None

    @property
    def claim(self) -> CertifiedK | None:
        """The certification as alerts carry it; none of epochs that cannot be fitted."""
        found = self.certification
        if found is None or found.effective_sample_size == 0:
            return None
        return CertifiedK(
            found.log10_k, found.log10_k_error, found.effective_sample_size, found.count
        )

    @property
    def noise(self) -> Noise | None:
        """The family that K holds against, and the constant star of it nearest to the data."""
        fit = self.fit
        if not isinstance(fit, Fit) or fit.robust is None:
            return None
        main = max(range(len(fit.sources)), key=lambda i: fit.sources[i].n)
        nearest = fit.robust.noise[main]
        return Noise(
            error_scale=nearest.scale,
            red_noise=nearest.red_noise * nearest.median_error,
            error_scale_min=nearest.scale_bounds[0],
            error_scale_max=nearest.scale_bounds[1],
            red_noise_max=nearest.red_noise_bound * nearest.median_error,
            red_noise_time=nearest.tau if nearest.red_noise > 0 else None,
            baseline_error=nearest.baseline_error,
            nights=nearest.nights,
            taken_from="history" if nearest.nights else "survey",
        )


class Certifier:
    """Fits windows and events.

    Parameters
    ----------
    scorer : Scorer
    options : AssessmentOptions
    lost : LostEvaluations
        Takes fits that fail where an alert can do without.
    metrics : Metrics
    """

    def __init__(
        self, scorer: Scorer, options: AssessmentOptions, lost: LostEvaluations, metrics: Metrics
    ) -> None:
        self._scorer, self._options = scorer, options
        self._lost, self._metrics = lost, metrics

    def certified(self, window: Candidate) -> Certified:
        """The certification that counts now: the last one of the window, or a new one.

        None once the network's K has fallen so far below the trigger that it decides by itself, if
        the matched filter does not object, and where none is wanted.
        """
        known, key = window.memory.certifications, window.key
        rule = self._options.rule
        last, own = known.get(key), window.certification
        if not self._options.certified:
            return Certified()
        if rule.forgets(window.log10_k) and not window.stands_out:
            if own is None:
                known.pop(key, None)
            else:
                known[key] = own.voided
            return Certified()
        # Where the window before had a certificate that counts, one of this takes its place.
        moved_on = own is None and last is not None and not last.is_void
        if own is None and not moved_on:
            known.pop(key, None)
        triggered = window.log10_k >= rule.certify_from or window.stands_out
        worth_it = moved_on or triggered
        if worth_it and self._is_due(window):
            return self._certify(window)
        return Certified(None if own is None or own.is_void else own)

    def _is_due(self, window: Candidate) -> bool:
        """Whether to certify a window: an open event's only where that could lead to an alert."""
        own, log10_k = window.certification, window.log10_k
        if not is_due(own, log10_k, window.start, window.last_mjd):
            return False
        if own is None or not window.is_open:
            return True
        return may_tell(own, log10_k, self._options.rule.threshold)

    def with_fit(self, window: Candidate, found: Certified) -> Certified:
        """The same with a fit of the window as it is: an alert's K and samples are of one run."""
        if found.certification is None or found.fit is not None:
            return found
        try:
            return self._certify(window)
        except Exception as error:  # noqa: BLE001  the alert can do without
            self._lost.note(window, error, "certified")
            return found

    def fit_of_event(
        self, window: Candidate, found: Certified, *, ended: bool
    ) -> Fit | NotFitted | None:
        """The fit for an alert: of the whole event in all bands, where the window holds less.

        A final is of a window that may hold nothing of its event any more, and has such a fit too.
        """
        epochs = window.memory.epochs[window.key]
        more = len(epochs) > int(window.batch.n[window.row])
        wanted = found.fit is not None or (ended and self._options.certified)
        if not (wanted and more):
            return found.fit
        try:
            fit = self._fit(window, epochs, "event")
        except Exception as error:  # noqa: BLE001  the alert has the window's fit
            self._lost.note(window, error, "event")
            return found.fit
        return fit if isinstance(fit, Fit) else found.fit

    def _certify(self, window: Candidate) -> Certified:
        """Fit a window; its K counts as one more certification.

        Where there is no fit, no K was looked at: nothing is counted, and the next evaluation of
        the window tries again.
        """
        epochs = window.batch.epochs(window.row)
        if window.key in window.memory.events:  # not from nights of the event itself
            epochs = with_history_of(epochs, window.memory.epochs.get(window.key))
        fit = self._fit(window, epochs, "certified")
        known = window.memory.certifications
        before = window.certification
        if isinstance(fit, NotFitted):
            self._metrics.inc("looks_without_fit_total")
            return Certified(None if before is None or before.is_void else before, fit)
        k = fit.robust or fit
        if not math.isfinite(k.log10_k):
            raise ModelError(f"the fit gave log10 K = {k.log10_k}")
        certification = Certification(
            window.start,
            1 if before is None else before.count + 1,
            window.log10_k,
            k.log10_k,
            k.log10_k_error,
            k.effective_sample_size,
            window.last_mjd if before is None else min(before.first_mjd, window.last_mjd),
            window.last_mjd,
        )
        known[window.key] = certification
        self._metrics.inc("looks_total")
        return Certified(certification, fit)

    def _fit(
        self, window: Candidate, epochs: StarEpochs, stage: Literal["certified", "event"]
    ) -> Fit | NotFitted:
        """Fit the epochs of a window, or of its whole event, and note how long that took."""
        began = time.perf_counter()
        fit = self._scorer.fit(
            epochs,
            window.start,
            window.scored,
            window.row,
            window.seed(self._options.seed),
            samples=self._options.samples,
            whole_event=stage == "event",
        )
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage=stage)
        return fit
