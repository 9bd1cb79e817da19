"""The picture of an alert's light curve: photometry, the fitted curve, and what it leaves over."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from broker_filter.alerts.alert import Alert, mjd_to_datetime
from broker_filter.alerts.curves import Magnification
from broker_filter.client.figure import DATA, INK, MODEL, Axes, open_figure
from broker_filter.client.shown import ShownCurve, bulk_limits, shown_curve
from broker_filter.client.text import log10_k_formula
from broker_filter.inference.magnification import magnification
from broker_filter.observe.text import plot_text
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.types import FloatArray

__all__ = ["plot_light_curve"]

_MJD_1970 = 40587.0
_COLOURS = (DATA, "#0f766e", "#7c3aed", "#b45309", "#be185d", "#1d4ed8", "#4d7c0f", "#0e7490")
LEAST_REACH = 4.0
"""Of the residuals' axis, in sigma."""


def plot_light_curve(
    alert: Alert, path: Path | str, magnify: Magnification = magnification
) -> None:
    """Draw the photometry, each source in its colour, with the fitted curve and its 68 % band.

    Points of other sources are moved to where the source that says most would see them, by their
    own share of lensed light. Below are the residuals. Points beyond the axes, which follow the
    bulk of the data, are marked at the edge.

    Parameters
    ----------
    alert : Alert
    path : Path or str
        Where the picture goes; its ending gives the format, such as ``.png``.
    magnify : Magnification

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    shown = shown_curve(alert, magnify)
    with open_figure(Path(path), 8, 5.4) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        seen = (alert.mjd_tai >= shown.limits[0]) & (alert.mjd_tai <= shown.limits[1])
        top.set_ylim(*bulk_limits(shown.flux[seen], shown.curve))
        bottom.set_ylim(*_residual_limits(shown.residual[seen]))
        _draw_points(alert, shown, top, bottom)
        times = _dates(shown.time)
        label = "median model" if alert.fit is None else "best fit"
        top.plot(times, shown.curve, color=MODEL, lw=1.6, label=label, zorder=4)
        top.fill_between(
            times, shown.low, shown.high, color=MODEL, alpha=0.3, lw=0, label="68 %", zorder=3
        )
        _draw_rival(alert, top)
        bottom.axhline(0, color=MODEL, lw=1.2, zorder=3)
        for axes in (top, bottom):
            axes.axvline(mjd_to_datetime(alert.last_epoch_mjd_tai), color=INK, lw=0.8, ls=":")
        _label(alert, shown, top, bottom)
        figure.align_ylabels((top, bottom))


def _dates(mjd: FloatArray) -> list[datetime]:
    return [mjd_to_datetime(day) for day in mjd.tolist()]


def _residual_limits(residual: FloatArray) -> tuple[float, float]:
    low, high = bulk_limits(residual, np.zeros(1))
    reach = 1.1 * max(LEAST_REACH, -low, high)
    return -reach, reach


def _draw_points(alert: Alert, shown: ShownCurve, top: Axes, bottom: Axes) -> None:
    """Flux and residuals, source by source."""
    source = np.zeros(alert.n_epochs, np.int16) if alert.source is None else alert.source
    for i in np.unique(source).tolist():
        mine, colour = source == i, _COLOURS[i % len(_COLOURS)]
        times = _dates(alert.mjd_tai[mine])
        label = _source_label(alert, i, len(times))
        _errorbar(top, times, shown.flux[mine], shown.sigma[mine], colour, label=label)
        residual = shown.residual[mine]
        _errorbar(bottom, times, residual, np.ones_like(residual), colour)


def _draw_rival(alert: Alert, top: Axes) -> None:
    """The curve of the most probable rival, in the source of most epochs."""
    drawn = next((rival for rival in alert.rivals if rival.curve is not None), None)
    if drawn is None or drawn.curve is None or not alert.n_epochs:
        return
    source = np.zeros(alert.n_epochs, np.int16) if alert.source is None else alert.source
    mine = source == np.bincount(source).argmax()
    times, label = _dates(alert.mjd_tai[mine]), plot_text(f"as {drawn.name}", 30)
    limits = top.get_ylim()
    top.plot(times, drawn.curve[mine], color=INK, lw=1.1, ls="--", label=label, zorder=5)
    top.set_ylim(limits)


def _source_label(alert: Alert, i: int, n: int) -> str:
    if len(alert.sources) < 2:
        return f"{n} epochs"
    one = alert.sources[i]
    band = "" if one.band == alert.band else f"{one.band} "
    return plot_text(f"{band}{one.source}, {n} epochs", 60)


def _errorbar(
    axes: Axes,
    times: list[datetime],
    y: FloatArray,
    error: FloatArray,
    colour: str,
    **label: str,
) -> None:
    many = len(times) > 300
    look: dict[str, Any] = {"color": colour, "mew": 0, "alpha": 0.4 if many else 0.85, "zorder": 2}
    size = 2 if many else 3.5
    axes.errorbar(
        times, y, error, fmt="o", ms=size, elinewidth=0.4 if many else 0.7, **look, **label
    )
    low, high = axes.get_ylim()
    for beyond, edge, mark in ((y < low, low, "v"), (y > high, high, "^")):
        out = [time for time, far in zip(times, beyond.tolist(), strict=True) if far]
        axes.plot(out, [edge] * len(out), mark, ms=5, clip_on=False, in_layout=False, **look)
    axes.set_ylim(low, high)


def _label(alert: Alert, shown: ShownCurve, top: Axes, bottom: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    top.set_title(_title(alert), fontsize=11, pad=10)
    top.set_ylabel("flux / baseline")
    top.legend(frameon=False, fontsize=9)
    top.set_xlim(*_dates(np.array(shown.limits)))
    mjd = top.secondary_xaxis(
        "top", functions=(lambda day: day + _MJD_1970, lambda mjd: mjd - _MJD_1970)
    )
    mjd.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    mjd.ticklabel_format(useOffset=False, style="plain")
    mjd.set_xlabel("MJD (TAI)")
    if shown.baseline is not None:
        _magnitude_axis(top, shown.baseline)
    bottom.set_ylabel("residual / σ")
    locator = AutoDateLocator()
    bottom.xaxis.set_major_locator(locator)
    bottom.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    bottom.set_xlabel("date (TAI); dotted: last epoch")


def _title(alert: Alert) -> str:
    median, up, down = alert.interval("tE").rounded()
    name = plot_text(f"{alert.survey} {alert.star_id} · {alert.band} · {alert.state}", 60)
    return f"{name}      {log10_k_formula(alert)}      $t_E = {median}^{{+{up}}}_{{-{down}}}$ d"


def _magnitude_axis(axes: Axes, baseline_njy: float) -> None:
    """Put AB magnitudes at the right: a few round ones, since the flux axis stays linear."""
    low, high = axes.get_ylim()
    faint, bright = (
        AB_ZERO_POINT - 2.5 * np.log10(max(flux, high / 8, 1e-3) * baseline_njy)
        for flux in (low, high)
    )
    step = next((s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1) if (faint - bright) / s <= 6), 2)
    marks = np.arange(np.ceil(bright / step), np.floor(faint / step) + 1) * step
    twin = axes.twinx()
    twin.set_ylim(low, high)
    twin.set_yticks(
        10 ** (-0.4 * (marks - AB_ZERO_POINT)) / baseline_njy,
        [f"{mark:.{2 if step < 0.1 else 1}f}" for mark in marks],
    )
    twin.set_ylabel("AB magnitude")
