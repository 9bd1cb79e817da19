"""How windows become alerts."""

from __future__ import annotations

from dataclasses import dataclass

from broker_filter.alerts.threshold import Rule
from broker_filter.pipeline.judge import JudgeOptions

__all__ = ["AssessmentOptions"]


@dataclass(frozen=True, slots=True)
class AssessmentOptions:
    """How windows become alerts.

    Parameters
    ----------
    rule : Rule
        Which log10 K opens and ends an event.
    prior_odds : float
        Of an event in one window, before any data.
    samples : int
        Of the posterior, for each alert.
    seed : int
        Of these samples.
    certified : bool
        Whether alerts carry certified K, also where the network decides.
    cascade : bool
        Whether the network is left out where the matched filter alone settles a window.
    judge : JudgeOptions or None
        How alerts with a fit are judged; None for alerts without rivals and verdict.
    """

    rule: Rule
    prior_odds: float
    samples: int = 1000
    seed: int = 0
    certified: bool = True
    cascade: bool = False
    judge: JudgeOptions | None = None
