"""How windows become alerts."""

from __future__ import annotations

from dataclasses import dataclass

from broker_filter.alerts.threshold import Rule

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
    """

    rule: Rule
    prior_odds: float
    samples: int = 1000
    seed: int = 0
    certified: bool = True
