"""An alert in words, for somebody who decides on follow-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker_filter.alerts.alert import Alert

__all__ = ["in_words"]

_RIVALS: Final[Mapping[str, str]] = {
    "flare": "a flare",
    "outburst": "an outburst",
    "periodic": "a periodic variable",
    "smooth": "a smooth variation",
    "trend": "a trend",
    "dip": "a dip",
    "anomalous": "an anomalous lens",
}
"""Rivals that are light of another kind than noise, by name."""


def in_words(alert: Alert) -> str:
    """What it is, where it stands, and by how much the data say so.

    Such as "microlensing, rising, peaks in 0.4 d (+-0.1) at I = 17.9; log10 K 41 against noise, 18
    against a flare". The time to the peak counts from the last epoch and has a 1-sigma error, the
    magnitude is AB, and of the rivals the one that comes nearest is named. What is not known is
    left out.
    """
    what = "event" if alert.verdict is None else alert.verdict.verdict
    where = ", ".join((what, *_peak(alert)))
    log10_k = alert.log10_k if alert.certified is None else alert.certified.log10_k
    return ", ".join((f"{where}; log10 K {log10_k:.3g} against noise", *_nearest_rival(alert)))


def _peak(alert: Alert) -> tuple[str, ...]:
    if (days := alert.days_to_peak) is None:
        return ()
    t0 = alert.interval("t0")
    ago = "" if days > 0 else " ago"
    when = f"{abs(days):.1f} d{ago} (+-{(t0.p84 - t0.p16) / 2:.1g})"
    magnitude = alert.magnitude_peak
    band = "magnitude" if alert.magnitude_band in ("", "-") else f"{alert.magnitude_band} ="
    at = "" if magnitude is None else f" at {band} {magnitude:.1f}"
    return ("rising", f"peaks in {when}{at}") if days > 0 else ("falling", f"peaked {when}{at}")


def _nearest_rival(alert: Alert) -> tuple[str, ...]:
    known = [rival for rival in alert.rivals if rival.name in _RIVALS]
    if not known:
        return ()
    nearest = min(known, key=lambda rival: rival.log10_k)
    return (f"{nearest.log10_k:.3g} against {_RIVALS[nearest.name]}",)
