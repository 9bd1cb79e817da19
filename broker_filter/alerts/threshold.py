"""Which log10 K makes an alert: threshold, trigger, hysteresis and budget in one rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from broker_filter.config import AlertSettings

__all__ = [
    "CERTIFIED_THRESHOLD",
    "HYSTERESIS",
    "MAX_UPDATES",
    "Rule",
    "budget_threshold",
    "make_rule",
]

HYSTERESIS: Final = 1.0
"""How far log10 K must fall below the threshold before an event ends, if nothing else is said."""

CERTIFIED_THRESHOLD: Final = 3.0
"""Charged log10 K that is certified, from which on an event opens if nothing else is said."""

MAX_UPDATES: Final = 20
"""Most updates of one event, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When log10 K opens an event, and when it ends it.

    Parameters
    ----------
    threshold : float
        log10 K from which on an event opens: of the network, or certified where ``trigger`` is
        given.
    trigger : float, optional
        log10 K of the network from which on certified K decides; None leaves it to the network.
    hysteresis : float
        How far log10 K must fall below the threshold before an event ends, so that noise in K does
        not open and end events in turn.
    max_updates : int
        Most updates of one event.
    """

    threshold: float
    trigger: float | None = None
    hysteresis: float = HYSTERESIS
    max_updates: int = MAX_UPDATES

    @property
    def certified_decides(self) -> bool:
        """Whether it is certified K that must pass the threshold."""
        return self.trigger is not None

    @property
    def certify_from(self) -> float:
        """log10 K of the network from which on a window is worth a certificate."""
        return self.threshold if self.trigger is None else self.trigger

    def opens(self, log10_k: float) -> bool:
        """Whether a star without an event gets one."""
        return log10_k >= self.threshold

    def ends(self, log10_k: float) -> bool:
        """Whether an open event comes to its end."""
        return log10_k < self.threshold - self.hysteresis

    def forgets(self, network_log10_k: float) -> bool:
        """Whether the network's K is so low that the last certificate of the window is void."""
        return network_log10_k < self.certify_from - self.hysteresis


def make_rule(settings: AlertSettings, *, card_threshold: float, window_days: float) -> Rule:
    """The rule that the settings describe.

    Parameters
    ----------
    settings : AlertSettings
    card_threshold : float
        log10 K on the model's card; taken where the network decides and the settings name no value.
    window_days : float, days
        Length of the model's window, for the budget.
    """
    certified = settings.decide_on == "certified"
    if settings.log10_k is not None:
        threshold = settings.log10_k
    elif settings.stars is not None and settings.false_alarms_per_night is not None:
        windows = settings.stars * settings.bands
        threshold = budget_threshold(windows, settings.false_alarms_per_night, window_days)
    else:
        threshold = CERTIFIED_THRESHOLD if certified else card_threshold
    trigger = settings.trigger_log10_k if certified else None
    return Rule(threshold, trigger, max_updates=settings.max_updates)


def budget_threshold(windows: int, false_alarms_per_night: float, window_days: float) -> float:
    """The certified log10 K that keeps to a budget of false alarms.

    A window moves on after a quarter of its length T, and each has one chance of at most 1/k, so
    that N of them at a time give at most N / (k T / 4) false alarms a day. A star has a window in
    each of its bands.
    """
    return math.log10(windows / (false_alarms_per_night * window_days / 4))
