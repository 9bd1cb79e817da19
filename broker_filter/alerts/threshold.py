"""Which log10 K makes an alert: threshold, trigger, hysteresis and budget in one rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from broker_filter.config import AlertSettings

__all__ = [
    "CERTIFIED_THRESHOLD",
    "HYSTERESIS",
    "MAX_UPDATES",
    "Discovery",
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
class Discovery:
    """A threshold that keeps the share of constant stars among the events that open.

    Of the windows that begin at one time, with K certified of each, e-BH takes the largest set in
    which every K is at least N / (rate times the size of the set). It has to know all of them
    first; here each is decided as it comes, by the number of events that have opened before it:
    e-LOND, with the same weight 1/N for every window.

    Parameters
    ----------
    rate : float
        Bound of the expected share.
    windows : int
        N: how many windows begin at one time, whether they are ever looked at or not.

    Notes
    -----
    Let R be the number of events in the end. A window that opens one as number r + 1 has
    K >= N / (rate (r + 1)) >= N / (rate R), so it adds at most rate K / N to the false share, and
    the expectation of K is at most 1 for a constant star: over N windows no more than ``rate``,
    however the windows depend on each other. Where each partition counts its own events alone, r
    is smaller than it could be, and the bound holds for all of them together.

    Wang & Ramdas 2022, J. R. Stat. Soc. B 84, 822 (e-BH); Xu & Ramdas 2024, AISTATS (e-LOND).
    """

    rate: float
    windows: int

    def threshold(self, opened: int) -> float:
        """log10 K from which on another event opens, after so many.

        More than N cannot open. Where they do, the stars were counted too low, and K must still be
        at least 1 / rate.
        """
        return math.log10(self.windows / (self.rate * min(opened + 1, self.windows)))


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
    matched : float
        log10 K that the matched filter allows, from which on certified K decides whatever the
        network says.
    hysteresis : float
        How far log10 K must fall below the threshold before an event ends, so that noise in K does
        not open and end events in turn.
    max_updates : int
        Most updates of one event.
    discovery : Discovery, optional
        What an event needs to open, in place of the threshold, which is left to open ones.
    """

    threshold: float
    trigger: float | None = None
    matched: float = math.inf
    hysteresis: float = HYSTERESIS
    max_updates: int = MAX_UPDATES
    discovery: Discovery | None = None

    @property
    def certified_decides(self) -> bool:
        """Whether it is certified K that must pass the threshold."""
        return self.trigger is not None

    @property
    def certify_from(self) -> float:
        """log10 K of the network from which on a window is worth a certificate."""
        return self.threshold if self.trigger is None else self.trigger

    def after(self, opened: int) -> Rule:
        """The same for a star without an open event, after so many that windows like its opened."""
        if self.discovery is None:
            return self
        return replace(self, threshold=self.discovery.threshold(opened))

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
    certified, discovery = settings.certified_decides, None
    windows = (settings.stars or 0) * settings.bands
    if settings.false_discovery_rate is not None:
        discovery = Discovery(settings.false_discovery_rate, windows)
    if settings.log10_k is not None:
        threshold = settings.log10_k
    elif settings.false_alarms_per_night is not None:
        threshold = budget_threshold(windows, settings.false_alarms_per_night, window_days)
    else:
        threshold = CERTIFIED_THRESHOLD if certified else card_threshold
    trigger = min(settings.trigger_log10_k, threshold) if certified else None
    matched = math.inf if settings.trigger_matched is None else settings.trigger_matched
    return Rule(
        threshold,
        trigger,
        matched if certified else math.inf,
        max_updates=settings.max_updates,
        discovery=discovery,
    )


def budget_threshold(windows: int, false_alarms_per_night: float, window_days: float) -> float:
    """The certified log10 K that keeps to a budget of false alarms.

    A window moves on after a quarter of its length T, and each has one chance of at most 1/k, so
    that N of them at a time give at most N / (k T / 4) false alarms a day. A star has a window in
    each of its bands.
    """
    return math.log10(windows / (false_alarms_per_night * window_days / 4))
