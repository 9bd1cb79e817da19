"""One picture of an injection run: efficiency against tE, rho, signal-to-noise and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from broker_filter.client.figure import Axes, open_figure

__all__ = ["plot_recovery"]

_LABELS: Final = {"tE": r"$t_E$ (d)", "rho": r"$\rho$", "snr": "signal-to-noise"}


def plot_recovery(found: Mapping[str, Any], path: Path) -> None:
    """Draw a report of `broker_filter.recovery.efficiency.report`.

    Parameters
    ----------
    found : mapping
    path : Path
        Its ending gives the format, such as ``.png``.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    with open_figure(path, 9, 6.5) as figure:
        panels = figure.subplots(2, 2, sharey=True)
        for axes, (name, bins) in zip(panels.flat, found["efficiency"].items(), strict=False):
            low = [one["low"] or 0.3 * (one["high"] or 1) for one in bins]
            high = [one["high"] or 3 * one["low"] for one in bins]
            centre = np.sqrt(np.multiply(low, high))
            _points(axes, centre, bins, (centre - low, high - centre))
            axes.set_xscale("log")
            axes.set_xlabel(_LABELS[name])
        last = panels.flat[3]
        times = [one["tE_after_peak"] for one in found["from_peak"]]
        _points(last, times, found["from_peak"], None)
        last.set_xlabel(r"time after the peak ($t_E$); detectable events")
        for axes in panels[:, 0]:
            axes.set_ylabel("share recovered")
            axes.set_ylim(-0.03, 1.03)


def _points(axes: Axes, x: Any, shares: Sequence[Mapping[str, Any]], width: Any) -> None:  # noqa: ANN401
    known = [one["share"] is not None for one in shares]
    share = np.array([one["share"] or 0.0 for one in shares])
    low = share - [one["low68"] for one in shares]
    high = np.array([one["high68"] for one in shares]) - share
    error = np.maximum([low, high], 0.0)[:, known]
    wide = None if width is None else np.asarray(width)[:, known]
    axes.errorbar(np.asarray(x)[known], share[known], error, wide, fmt="o", ms=4)
    axes.grid(alpha=0.25)
