"""An alert as one line of text, and its K as a formula of matplotlib."""

from __future__ import annotations

from broker_filter.alerts.alert import Alert, mjd_to_datetime
from broker_filter.alerts.parts import Interval
from broker_filter.alerts.words import in_words
from broker_filter.observe.text import printable

__all__ = ["format_alert", "log10_k_formula"]


def format_alert(alert: Alert) -> str:
    """Write one line: time (TAI), state, star, K, what is known of the star, and parameters.

    Certified K has its standard error (dex), magnitudes are those of the model at the last epoch
    and at its peak (AB), the position is in degrees (ICRS), the time to the peak counts from the
    last epoch, and parameters have 68 % intervals; the end is the whole in words. What is not known
    is left out.
    """
    when = mjd_to_datetime(alert.last_epoch_mjd_tai).isoformat(timespec="seconds")
    parts = [
        f"{when} TAI",
        f"{alert.state:<10}",
        f"{alert.star_id} {alert.band}",
        f"log10 K {alert.log10_k:.2f}",
        _certified(alert),
        f"P(event) {_probability(alert.p_event)}",
        "" if alert.verdict is None else alert.verdict.verdict,
        _magnitudes(alert),
        "" if alert.ra is None or alert.dec is None else f"at {alert.ra:.5f} {alert.dec:+.5f}",
        _peak(alert),
        *(_interval(entry) for entry in alert.summary if entry.name != "u0"),
        f"({in_words(alert)})",
    ]
    return printable("  ".join(part for part in parts if part))


def _certified(alert: Alert) -> str:
    if (certified := alert.certified) is None:
        return ""
    return f"certified {certified.log10_k:.2f} +-{certified.log10_k_error:.2f}"


def _probability(value: float) -> str:
    """Two digits, but never a certainty that the number itself is not."""
    return ">0.99" if value > 0.99 else f"{value:.2g}"


def _magnitudes(alert: Alert) -> str:
    if alert.magnitude_now is None:
        return ""
    peak = "" if alert.magnitude_peak is None else f" peak {alert.magnitude_peak:.2f}"
    return f"mag {alert.magnitude_now:.2f}{peak}"


def _peak(alert: Alert) -> str:
    if (days := alert.days_to_peak) is None:
        return ""
    return f"peak in {days:.2f} d" if days > 0 else f"peak {abs(days):.2f} d ago"


def _interval(entry: Interval) -> str:
    median, up, down = entry.rounded()
    return f"{entry.name} {median} +{up} -{down}" + (" d" if entry.unit == "d" else "")


def log10_k_formula(alert: Alert) -> str:
    """Certified K with its error where there is one, else the network's, as a formula."""
    if (certified := alert.certified) is None:
        return rf"$\log_{{10}}K = {alert.log10_k:.2f}$"
    return rf"$\log_{{10}}K = {certified.log10_k:.2f} \pm {certified.log10_k_error:.2f}$"
