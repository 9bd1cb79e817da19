"""What else an event could be: rivals of the lens for an alert, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.known_variables import KnownVariables
from broker_filter.alerts.parts import Rival, Verdict
from broker_filter.alerts.verdict import (
    LEAST_SCALE,
    Findings,
    Rates,
    Record,
    is_established,
    is_quiet,
    verdict_of,
)
from broker_filter.inference.anomaly import anomalous
from broker_filter.inference.evidence import LN_10
from broker_filter.inference.fit_epochs import usable_epochs, usable_rows
from broker_filter.inference.lens_coordinates import LENS
from broker_filter.inference.rival_grids import Found
from broker_filter.inference.rival_noise import NoisePrior
from broker_filter.inference.rivals import Comparison
from broker_filter.inference.scorer import Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.candidate import Candidate
from broker_filter.types import PARAMETERS, Fit, FloatArray, IntArray, NotFitted, StarEpochs

__all__ = ["Case", "Judge", "JudgeOptions", "Judgement", "Refit", "light_left", "spare_epochs"]

EXPLAINED: Final = 0.7
"""Share of the chi2 of a constant star that a lens must explain to be tried with a stretch left
out: a lens with an anomaly does."""

CLEAR: Final = 3.0 * LN_10
"""Lead over its rivals (natural log) of a lens that need not be tried so, if errors are right."""
ROUGH: Final = 1.3
"""Factor on the errors, in units of what the best rival needs, from which on a lens is rough."""

PEAK_IS_OVER: Final = 0.1
"""Einstein times after it."""

BELOW: Final = 0.3
"""How far below the baseline, in units of how far above it, a star goes that is no lens."""

WRONG_EPOCHS, TURNS = 2, 2
"""Most epochs that are left out as wrong at a time, and how often."""

LOG_TE: Final = PARAMETERS.index("log10_tE")
NEAR_EDGE: Final = 0.1
"""Dex below the longest tE of the prior from which on a longer lens is not excluded."""

OWN_PARAMETERS: Final = 2
"""Of a source: f_s and baseline."""

TIMES: Final = frozenset({"t_peak", "t_again", "t_start", "t_min", "t_step", "first", "last"})
"""Parameters that are times."""


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """How events are judged.

    Parameters
    ----------
    rates : Rates
    noise : NoisePrior
    known : KnownVariables
    """

    rates: Rates = field(default_factory=Rates)
    noise: NoisePrior = field(default_factory=NoisePrior)
    known: KnownVariables = field(default_factory=KnownVariables)


@dataclass(frozen=True, slots=True)
class Refit:
    """The fit of an event without wrong epochs, which are rows of all that were fitted."""

    fit: Fit
    left_out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an alert says of what else it could be, and whether there was an event at all.

    With ``refit`` all of it is of the event without wrong epochs, and so is the alert's fit.
    """

    rivals: tuple[Rival, ...] = ()
    verdict: Verdict | None = None
    established: bool = False
    refit: Refit | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What an event is judged by at one alert.

    Parameters
    ----------
    window : Candidate
    opened_mjd : float, MJD TAI
        When the event opened, which tells it from others of its star and band.
    epochs : StarEpochs
        All that the alert carries, of which ``fit`` is the fit.
    fit : Fit
    """

    window: Candidate
    opened_mjd: float
    epochs: StarEpochs
    fit: Fit


@dataclass(frozen=True, slots=True)
class _Event:
    """What is to be judged: see `Judge.judge`."""

    window: Candidate
    epochs: StarEpochs
    seed: int
    record: Record


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found of some rows of the epochs, and of which fit: lens, rivals, verdict."""

    rows: IntArray
    fit: Fit
    lens: Found
    models: Mapping[str, Found]
    findings: Findings
    verdict: Verdict


class Judge:
    """Compares fits with their rivals.

    Parameters
    ----------
    scorer : Scorer
    options : JudgeOptions
    metrics : Metrics
    threshold : float
        log10 K that an alert needs, and an event beside wrong epochs as well.
    """

    def __init__(
        self, scorer: Scorer, options: JudgeOptions, metrics: Metrics, threshold: float = 0.0
    ) -> None:
        self._scorer, self._options, self._metrics = scorer, options, metrics
        self._threshold = threshold

    def judge(
        self, window: Candidate, epochs: StarEpochs, fit: Fit, seed: int, earlier_events: int
    ) -> Judgement:
        """Rivals and verdict of one event.

        Parameters
        ----------
        window : Candidate
        epochs : StarEpochs
            All that the alert carries, of which ``fit`` is the fit.
        fit : Fit
        seed : int
            The same seed gives the same result.
        earlier_events : int
            Of the same star and band that were more than noise.
        """
        began = time.perf_counter()
        coordinates = window.batch.coordinates[window.row]
        label = self._options.known.label(window.batch.star[window.row], coordinates)
        event = _Event(window, epochs, seed, Record(earlier_events, label))
        usable = np.flatnonzero(usable_rows(epochs))
        found = self._found(event, usable, fit)
        found = self._beside_wrong_epochs(event, found) or found
        self._metrics.observe("inference_seconds", time.perf_counter() - began, stage="rivals")
        left_out = tuple(np.setdiff1d(usable, found.rows).tolist())
        return Judgement(
            _rivals(epochs, found),
            found.verdict,
            is_established(found.findings),
            Refit(found.fit, left_out) if left_out else None,
        )

    def _found(self, event: _Event, rows: IntArray, fit: Fit, left_out: int = 0) -> _Found:
        """Models and verdict of some epochs, of which ``fit`` is the fit."""
        usable = usable_epochs(event.epochs.take(rows))
        compared = self._scorer.compare(usable, fit, event.seed, self._options.noise)
        models = dict(compared.rivals)
        for name, found in self._anomalous(event, usable, fit, compared).items():
            if name not in models or found.log_p > models[name].log_p:
                models[name] = found
        findings = _findings(usable, fit, compared, models, left_out)
        verdict = verdict_of(findings, event.record, self._options.rates)
        return _Found(rows, fit, compared.lens.found, models, findings, verdict)

    def _beside_wrong_epochs(self, event: _Event, found: _Found) -> _Found | None:
        """What is found without wrong epochs, where there is an event beside them.

        A wrong epoch may weigh more than an event does, and no model but the artefact has any: the
        fit may be of that epoch alone. An artefact stays one unless its star, without the wrong
        epochs, is as far from noise and further wrong epochs as K has to be for an alert.
        """
        if not _may_be_artefact(found.verdict):
            return None
        for rest in self._rests(event, found):
            if is_established(rest.findings, self._threshold):
                return rest
            if is_quiet(rest.findings):
                return None
        return None

    def _rests(self, event: _Event, found: _Found) -> Iterator[_Found]:
        """What is found without wrong epochs, the fewest first: of two, one may be the peak."""
        usable, rest = len(found.rows), found
        for _ in range(TURNS):
            for right in _right_epochs(event.epochs, rest):
                fit = self._refit(event, event.epochs.take(right), found.fit)
                if not isinstance(fit, Fit) or fit.lenses is None:
                    return
                rest = self._found(event, right, fit, usable - len(right))
                yield rest

    def _refit(self, event: _Event, kept: StarEpochs, fit: Fit) -> Fit | NotFitted:
        """Fit some of the epochs of a fit."""
        window, row = event.window, event.window.row
        return self._scorer.fit(
            kept,
            fit.t_start,
            window.scored,
            row,
            event.seed,
            samples=len(fit.samples),
            whole_event=True,
        )

    def _anomalous(
        self, event: _Event, usable: StarEpochs, fit: Fit, compared: Comparison
    ) -> dict[str, Found]:
        """Models with a stretch left out, where a lens explains most but not all."""
        lens = compared.lens.found
        leads = lens.log_p >= compared.best_rival + CLEAR
        if leads and lens.scale <= ROUGH * max(compared.least_scale, LEAST_SCALE):
            return {}
        if _explained(usable, lens) < EXPLAINED:
            return {}

        def refit(kept: StarEpochs) -> Fit | NotFitted:
            return self._refit(event, kept, fit)

        prior = self._scorer.prior_of(usable.survey)
        noise, seed = self._options.noise, event.seed
        return anomalous(usable, fit.t_start, prior, compared, refit, noise, seed)


def _explained(epochs: StarEpochs, lens: Found) -> float:
    """Share of the chi2 of a constant star that the best lens takes away."""
    order = epochs.by_source
    off = (epochs.flux - 1)[order].astype(np.float64)
    sigma = epochs.sigma[order].astype(np.float64)
    before, after = (float(np.square(x / sigma).sum()) for x in (off, off - lens.curve))
    return 1 - after / before if before > 0 else 0.0


def _findings(
    usable: StarEpochs,
    fit: Fit,
    compared: Comparison,
    models: Mapping[str, Found],
    left_out: int,
) -> Findings:
    lens, theta = compared.lens.found, compared.lens.theta
    to_peak = float(fit.t_start + theta[0] - usable.mjd_tai.max())
    t_einstein = float(10 ** theta[LOG_TE])
    evidence = {name: (one.log_p - lens.log_p) / LN_10 for name, one in models.items()}
    smooth = compared.rivals["smooth"].curve
    return Findings(
        log10_evidence={"lens": 0.0, **evidence},
        scale=lens.scale,
        least_scale=min(one.scale for one in models.values()),
        goes_below=bool(-smooth.min() > BELOW * max(float(smooth.max()), 0.0)),
        days_to_peak=to_peak,
        t_einstein=t_einstein,
        light_left=light_left(usable, lens, -to_peak / t_einstein),
        p_value=float(fit.p_value),
        too_long=bool(theta[LOG_TE] > fit.longest - NEAR_EDGE),
        spare_epochs=spare_epochs(usable),
        left_out=left_out,
    )


def spare_epochs(epochs: StarEpochs) -> int:
    """How many more epochs there are than a lens has parameters.

    The first two of a source are spent on its own f_s and baseline: one that has no more says
    nothing of the shape. Epochs of one time are one.

    Parameters
    ----------
    epochs : StarEpochs
        Usable ones.
    """
    times = [np.unique(epochs.mjd_tai[epochs.source == i]) for i in range(len(epochs.sources))]
    return sum(max(len(t) - OWN_PARAMETERS, 0) for t in times) - LENS


def light_left(epochs: StarEpochs, lens: Found, since_peak: float) -> float:
    """Share of the light at the peak that is left at the last epoch, by the curve of a lens.

    In the source that saw the star first, whose baseline is known best.

    Parameters
    ----------
    epochs : StarEpochs
        Usable ones.
    lens : Found
        Of these.
    since_peak : float
        Einstein times; until a tenth of one all is left.
    """
    if since_peak < PEAK_IS_OVER:
        return 1.0
    first = epochs.source[int(epochs.mjd_tai.argmin())]
    light = lens.curve[epochs.source[epochs.by_source] == first]
    return float(max(light[-1], 0.0) / light.max()) if light.max() > 0 else 1.0


def _right_epochs(epochs: StarEpochs, found: _Found) -> list[IntArray]:
    """Rows without what the artefact calls wrong: one epoch or the other, and then both.

    The one that is further off goes first. None where those are more than `WRONG_EPOCHS`.
    """
    artefact, order = found.models["artefact"], found.rows[epochs.take(found.rows).by_source]
    wrong = np.array(artefact.wrong, np.int64)
    if len(wrong) > WRONG_EPOCHS:
        return []
    off = np.abs(artefact.curve[wrong]) / epochs.sigma[order[wrong]]
    chosen = [*wrong[np.argsort(-off)][:, None], wrong] if len(wrong) > 1 else [wrong]
    return [np.sort(np.delete(order, some)) for some in chosen]


def _may_be_artefact(verdict: Verdict) -> bool:
    """Whether that is the most probable class, be it the verdict or not."""
    probabilities = verdict.probabilities
    return max(probabilities, key=lambda name: probabilities[name]) == "artefact"


def _rivals(epochs: StarEpochs, found: _Found) -> tuple[Rival, ...]:
    """As alerts carry them, the most probable first, which alone has its curve."""
    lens, models, place = found.lens, found.models, _placer(epochs, found.rows)
    ranked = sorted(models, key=lambda name: -models[name].log_p)
    return tuple(
        Rival(
            name,
            (lens.log_p - models[name].log_p) / LN_10,
            float(np.hypot(lens.error, models[name].error)) / LN_10,
            {
                key: value + (found.fit.t_start if key in TIMES else 0.0)
                for key, value in models[name].parameters.items()
            },
            place(models[name].curve) if name == ranked[0] else None,
        )
        for name in ranked
    )


def _placer(epochs: StarEpochs, rows: IntArray) -> Callable[[FloatArray], NDArray[np.float32]]:
    """Puts a curve of some rows, source by source, where the epochs stand; 1 elsewhere."""
    order = rows[epochs.take(rows).by_source]

    def place(curve: FloatArray) -> NDArray[np.float32]:
        placed = np.ones(len(epochs), np.float32)
        placed[order] = 1 + curve
        return placed

    return place
