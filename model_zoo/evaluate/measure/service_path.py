"""Simulated stars on the service's own path: which looks it takes at them, and what K they have.

From photometry messages to the decision nothing is left out: baselines, error bars that are scaled,
histories, the matched filter before the network, the network's K as the trigger, and the charge of
each look. A star that nothing triggers has no look, and claims nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.certifications import Certification
from broker_filter.config import Settings
from broker_filter.inference.scorer import Scored, Scorer
from broker_filter.inference.zoo import Entry
from broker_filter.observe.metrics import Metrics
from broker_filter.replay.lightcurves.stream import LightCurves
from broker_filter.service.watched import watched_pipeline
from broker_filter.types import Fit, FloatArray, Message, NotFitted, Photometry, StarEpochs

__all__ = ["START", "Look", "ServicePath", "one_star"]

WHERE: Final = ("simulated", 0)
TOGETHER: Final = 1_000  # epochs a message at most
START: Final = 60_000.0
"""MJD TAI at which a window begins."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a window.

    Parameters
    ----------
    window_start : float, MJD TAI
    network : float
        log10 K.
    white, family : float
        log10 K after the charge, of white noise and of the family.
    """

    window_start: float
    network: float
    white: float
    family: float


class _Watch:
    """A scorer that notes the looks."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.looks: list[Look] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  all else is the scorer's
        return getattr(self._scorer, name)

    def fit(
        self,
        epochs: StarEpochs,
        t_start: float,
        scored: Scored,
        row: int,
        *seed: int,
        **options: Any,  # noqa: ANN401
    ) -> Fit | NotFitted:
        fit = self._scorer.fit(epochs, t_start, scored, row, *seed, **options)
        if isinstance(fit, Fit) and not options["whole_event"]:
            j = 1 + sum(look.window_start == t_start for look in self.looks)
            robust = fit.robust or fit
            claims = [
                Certification(t_start, j, 0.0, k.log10_k, 0.0, 1.0).charged for k in (fit, robust)
            ]
            self.looks.append(Look(t_start, float(scored.log10_k[row]), *claims))
        return fit


class ServicePath:
    """The service's two halves in one thread, for one star after the other.

    Parameters
    ----------
    entry : Entry
    every_days : float
        Days between two evaluations of a star.
    verdicts : bool
        Whether alerts have a verdict.

    Attributes
    ----------
    alerts : list of Alert
        Of the last star.
    """

    def __init__(self, entry: Entry, *, every_days: float = 1.0, verdicts: bool = False) -> None:
        self.alerts: list[Alert] = []
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap_servers": "localhost:9092", "input_topics": [WHERE[0]]},
                "schedule": {"every_days": every_days},
                "model": {"path": entry.path, "threads": 1},
                "alert": {"rivals": verdicts, "posterior_samples": 10},
            }
        )
        self._pipeline, self._watch = watched_pipeline(settings, entry, Metrics(), _Watch)

    def __call__(self, parts: Sequence[Photometry]) -> list[Look]:
        """Send one star through; its looks, in order."""
        self._watch.looks = []
        stream = LightCurves(_by_day(parts), epochs_per_message=TOGETHER)
        messages = [
            Message(*WHERE, i, record.key, record.value, headers=record.headers)
            for i, record in enumerate(stream.read(lambda _: None))
        ]
        try:
            self.alerts = list(self._pipeline.step(messages, 0.0, flush=True).alerts)
        finally:
            self._pipeline.intake.drop([WHERE])
            self._pipeline.assessment.drop([WHERE])
        return self._watch.looks


def _by_day(parts: Sequence[Photometry]) -> list[Photometry]:
    """A part for each source and day: windows are looked at with each message."""
    found = []
    for part in parts:
        day = np.floor(part.mjd_tai)
        found += [part.take(np.flatnonzero(day == each)) for each in np.unique(day)]
    return found


def one_star(
    t: FloatArray,
    flux: FloatArray,
    sigma: FloatArray,
    catalogue: tuple[float, float],
    *,
    survey: str,
    source: str = "",
) -> Photometry:
    """Photometry of one star from one source.

    Parameters
    ----------
    t : ndarray, shape (n,), days after `START`
    flux, sigma : ndarray, shape (n,), float64
    catalogue : (float, float)
        Flux and its error, in the same unit.
    survey, source : str
    """
    n = len(t)
    return Photometry(
        survey=survey,
        band="I",
        source=source,
        star=["star"] * n,
        mjd_tai=START + t,
        flux=flux,
        flux_err=sigma,
        flags=np.zeros(n, np.uint32),
        ref_flux=np.full(n, catalogue[0]),
        ref_flux_err=np.full(n, catalogue[1]),
    )
