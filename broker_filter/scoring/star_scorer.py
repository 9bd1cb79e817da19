"""Scores one star: its epochs go through the service's pipeline, as a replay would send them."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.threshold import make_rule
from broker_filter.config import Settings
from broker_filter.errors import SchemaError
from broker_filter.inference.scorer import Scored, Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.photometry.usable import Limits, accept
from broker_filter.pipeline.assessment import Outputs
from broker_filter.replay.lightcurves.stream import LightCurves
from broker_filter.scoring.judged import JudgedAlerts
from broker_filter.scoring.result import Result
from broker_filter.service.entries import open_entry
from broker_filter.service.watched import watched_pipeline
from broker_filter.types import FloatArray, Message, Photometry, WindowBatch

__all__ = ["StarScorer", "scorer_of", "settings_for"]

WHERE: Final = ("score", 0)
_COUNTED: Final = ("duplicate", "late")


class StarScorer:
    """The filter of one model, for one star after the other.

    Parameters
    ----------
    settings : Settings
        Those of a service, whose broker is not looked for.
    """

    def __init__(self, settings: Settings) -> None:
        entry = open_entry(settings)
        self._metrics = Metrics()
        self._pipeline, self._watch = watched_pipeline(settings, entry, self._metrics, _Watch)
        self._pipeline.assessment.judge_later()
        chosen = settings.input
        self._limits = Limits(chosen.mjd_min, chosen.mjd_max, chosen.flag_mask)
        self._rule = make_rule(
            settings.alert, card_threshold=entry.threshold, window_days=entry.window_days
        )

    def __call__(self, parts: Sequence[Photometry], *, now: bool = False) -> Result:
        """Score the light curve of one star.

        Parameters
        ----------
        parts : sequence of Photometry
            One for each band and source.
        now : bool
            As of `broker_filter.score`.
        """
        star = parts[0].star[0]
        usable = [accept(part, self._limits) for part in parts]
        rejected = {
            why: sum(one.rejected.get(why, 0) for one in usable)
            for why in dict.fromkeys(why for one in usable for why in one.rejected)
        }
        before = self._counts()
        watch = self._watch
        watch.seen.clear()
        curves = [one.photometry for one in usable if len(one.photometry)]
        try:
            found = self._at_once(curves) if now else self._streamed(curves)
        finally:
            self._pipeline.intake.drop([WHERE])
            self._pipeline.assessment.drop([WHERE])
        rejected |= {
            why: int(n - before[why]) for why, n in self._counts().items() if n > before[why]
        }
        if found.dead_letters:
            raise SchemaError(f"the service would not take it: {found.dead_letters[0].detail}")
        epochs = sum(map(len, parts))
        judge, said = self._pipeline.assessment.judge, self._pipeline.assessment.with_judgement
        windows, alerts = watch.columns(), JudgedAlerts(found.alerts, found.cases, judge, said)
        rule = self._rule
        return Result(star, rule.threshold, rule.trigger, *windows, alerts, epochs, rejected)

    def _streamed(self, curves: list[Photometry]) -> Outputs:
        """A look after each epoch, as messages of one epoch give."""
        records = LightCurves(curves).read(lambda _: None)
        messages = [
            Message(*WHERE, i, record.key, record.value, headers=record.headers)
            for i, record in enumerate(records)
        ]
        return self._pipeline.step(messages, clock.time(), flush=True)

    def _at_once(self, curves: list[Photometry]) -> Outputs:
        """One look at all, as one packet with the star's history gives."""
        intake, now = self._pipeline.intake, clock.time()
        intake.put(WHERE, curves, now)
        work = intake.flush()
        return self._pipeline.assessment.assess(work, round(1000 * now)) if work else Outputs()

    def _counts(self) -> dict[str, float]:
        return {why: self._metrics.value("points_inserted_total", outcome=why) for why in _COUNTED}


class _Watch:
    """A scorer that remembers the windows and their K."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.seen: list[tuple[WindowBatch, Scored]] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  all else is the scorer's
        return getattr(self._scorer, name)

    def score(self, batch: WindowBatch, chosen: NDArray[np.bool_] | None = None) -> Scored:
        """As the scorer."""
        scored = self._scorer.score(batch, chosen)
        self.seen.append((batch, scored))
        return scored

    def columns(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Last epoch, start and log10 K of the windows that were due, the first batch of all."""
        if not self.seen:
            return np.empty(0), np.empty(0), np.empty(0)
        batch, scored = self.seen[0]
        last = batch.mjd_tai[np.arange(len(batch)), batch.n - 1]
        return last, batch.t_start.copy(), scored.log10_k


def settings_for(
    model: str | Path | None = None,
    *,
    cascade: bool = False,
    **sections: Any,  # noqa: ANN401
) -> Settings:
    """Settings of a filter without a broker; ``sections`` as in the settings' file."""
    key = "path" if isinstance(model, Path) else "id"
    chosen = {"cascade": cascade} | ({} if model is None else {key: model})
    kafka = {"bootstrap_servers": "localhost:9092", "input_topics": [WHERE[0]]}
    return Settings.model_validate({"kafka": kafka, "model": chosen, **sections})


@lru_cache(maxsize=2)
def scorer_of(model: str | Path | None, cascade: bool = False) -> StarScorer:
    """The scorer of a model, loaded once."""
    return StarScorer(settings_for(model, cascade=cascade))
