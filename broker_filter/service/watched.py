"""Both halves of the service in one thread, without a broker, for notes of what the scorer says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from broker_filter.config import Settings
from broker_filter.inference.scorer import Scorer
from broker_filter.inference.zoo import Entry
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.core import Pipeline
from broker_filter.service.assembly import make_assessment, make_intake

__all__ = ["watched_pipeline"]

Watch = TypeVar("Watch")


def watched_pipeline(
    settings: Settings, entry: Entry, metrics: Metrics, watch: Callable[[Scorer], Watch]
) -> tuple[Pipeline, Watch]:
    """A pipeline as the settings say, and what stands in its scorer's place.

    Parameters
    ----------
    settings : Settings
        Those of a service, whose broker is not looked for.
    entry : Entry
    metrics : Metrics
    watch : callable
        Makes of the scorer what notes its results; all else it must leave to the scorer.
    """
    watches: list[Watch] = []

    def watched(scorer: Scorer) -> Scorer:
        watches.append(watch(scorer))
        return cast("Scorer", watches[0])

    assessment = make_assessment(settings, entry, metrics, watched)
    return Pipeline(make_intake(settings, entry, metrics), assessment), watches[0]
