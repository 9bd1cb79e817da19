"""Two pictures of an alert: its light curve with the models that fit it, and its posterior.

Drawn without pyplot, so that no window, backend or global state is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.alerts.alert import (
    UNITS,
    Alert,
    mjd_to_datetime,
)
from broker_filter.alerts.curves import Magnification, model_curves
from broker_filter.extras import require
from broker_filter.inference.magnification import magnification
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.types import FloatArray

__all__ = ["mass_levels", "open_figure", "plot_corner", "plot_light_curve", "require_matplotlib"]

Column = NDArray[np.floating[Any]]
Axes = Any  # matplotlib comes with an extra, so its types may be absent

_MJD_1970 = 40587.0
_INK, _DATA, _MODEL = "#22252b", "#6b7a90", "#c2410c"
_STYLE = {
    "font.size": 10,
    "axes.edgecolor": "#9aa3af",
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.titlecolor": _INK,
    "text.color": _INK,
    "xtick.color": "#5b6470",
    "ytick.color": "#5b6470",
    "xtick.direction": "in",
    "ytick.direction": "in",
    "mathtext.fontset": "dejavusans",
}
_SYMBOLS = {"t0": "t_0", "u0": "u_0", "tE": "t_E", "rho": r"\rho", "f_s": "f_s"}


def require_matplotlib() -> None:
    """Check that pictures can be drawn.

    Raises
    ------
    ConfigError
        matplotlib is not installed; the message says how to install it.
    """
    require("matplotlib", "plots")


@contextmanager
def open_figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """Open a figure in our style (inches), and write it to ``path`` at the end."""
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def plot_light_curve(
    alert: Alert, path: Path | str, magnify: Magnification = magnification
) -> None:
    """Draw the window's photometry with the posterior's models, and what the median leaves over.

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
    start = alert.window_start_mjd_tai
    grid = _grid(alert)
    low, median, high = np.quantile(
        model_curves(alert.samples, grid, magnify), (0.16, 0.5, 0.84), axis=0
    )
    at_data = np.median(model_curves(alert.samples, alert.mjd_tai - start, magnify), axis=0)
    with open_figure(Path(path), 8, 5.4) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        times = [mjd_to_datetime(day) for day in alert.mjd_tai.tolist()]
        model_times = [mjd_to_datetime(day) for day in (start + grid).tolist()]
        _errorbar(top, times, alert.flux, alert.sigma, label=f"{alert.n_epochs} epochs")
        top.plot(model_times, median, color=_MODEL, lw=1.6, label="median model", zorder=4)
        top.fill_between(
            model_times, low, high, color=_MODEL, alpha=0.3, lw=0, label="68 %", zorder=3
        )
        _errorbar(bottom, times, (alert.flux - at_data) / alert.sigma, np.ones(alert.n_epochs))
        bottom.axhline(0, color=_MODEL, lw=1.2, zorder=3)
        for axes in (top, bottom):
            axes.axvline(times[-1], color=_INK, lw=0.8, ls=":", zorder=0)
        _label_light_curve(alert, top, bottom, model_times)
        figure.align_ylabels((top, bottom))


def _grid(alert: Alert) -> FloatArray:
    """Days after the window's start: even over the window, and dense around the peak."""
    t0 = alert.interval("t0").median - alert.window_start_mjd_tai
    tE = alert.interval("tE").median
    near = np.clip(t0 + 2 * tE * np.linspace(-1, 1, 401), 0, alert.window_days)
    return np.union1d(np.linspace(0, alert.window_days, 400), near)


def _errorbar(axes: Axes, times: list[datetime], y: Column, error: Column, **label: str) -> None:
    many = len(times) > 300
    axes.errorbar(
        times,
        y,
        error,
        fmt="o",
        ms=2 if many else 3.5,
        mew=0,
        color=_DATA,
        ecolor=_DATA,
        elinewidth=0.4 if many else 0.7,
        alpha=0.4 if many else 0.85,
        zorder=2,
        **label,
    )


def _label_light_curve(alert: Alert, top: Axes, bottom: Axes, times: list[datetime]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    median, up, down = alert.interval("tE").rounded()
    top.set_title(
        f"{alert.survey} {alert.star_id} · {alert.band} · {alert.state}      "
        rf"$\log_{{10}}K = {alert.log10_k:.2f}$      "
        rf"$t_E = {median}^{{+{up}}}_{{-{down}}}$ d",
        fontsize=11,
        pad=10,
    )
    top.set_ylabel("flux / baseline")
    top.legend(frameon=False, fontsize=9)
    top.set_xlim(times[0], times[-1])
    top.margins(y=0.08)
    mjd = top.secondary_xaxis(
        "top", functions=(lambda day: day + _MJD_1970, lambda mjd: mjd - _MJD_1970)
    )
    mjd.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    mjd.ticklabel_format(useOffset=False, style="plain")
    mjd.set_xlabel("MJD (TAI)")
    if alert.baseline_flux is not None:
        _magnitude_axis(top, alert.baseline_flux)
    bottom.set_ylabel("residual / σ")
    reach = 1.1 * max(4.0, float(np.abs(bottom.get_ylim()).max()))
    bottom.set_ylim(-reach, reach)
    locator = AutoDateLocator()
    bottom.xaxis.set_major_locator(locator)
    bottom.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    bottom.set_xlabel("date (TAI); dotted: last epoch")


def _magnitude_axis(axes: Axes, baseline_njy: float) -> None:
    """Put AB magnitudes at the right: a few round ones, since the flux axis stays linear."""
    low, high = axes.get_ylim()
    faint, bright = (
        AB_ZERO_POINT - 2.5 * np.log10(max(flux, 1e-3) * baseline_njy) for flux in (low, high)
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


def plot_corner(alert: Alert, path: Path | str) -> None:
    """Draw the marginal posteriors of t0, u0, tE, rho and f_s, one by one and in pairs.

    Contours hold 68 and 95 % of the samples; dashed lines mark the median and the 68 % interval.

    Parameters
    ----------
    alert : Alert
    path : Path or str
        Where the picture goes; its ending gives the format, such as ``.png``.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    columns = _corner_columns(alert)
    names = list(columns)
    ranges = {name: _range(values) for name, values in columns.items()}
    with open_figure(Path(path), 8.6, 8.6) as figure:
        grid = figure.subplots(len(names), len(names), sharex="col")
        for i, row in enumerate(names):
            for j, column in enumerate(names):
                axes = grid[i, j]
                if j > i:
                    axes.set_visible(False)
                    continue
                axes.set_xlim(*ranges[column])
                if i == j:
                    _histogram(axes, columns[row], ranges[row])
                    axes.set_title(_corner_title(alert, row), fontsize=9.5)
                else:
                    _contours(axes, columns[column], columns[row], ranges[column], ranges[row])
                _label_corner(axes, alert, row, column, left=j == 0 and i > 0, low=row == names[-1])
        figure.text(0.97, 0.97, _corner_heading(alert), ha="right", va="top", linespacing=1.7)


def _corner_heading(alert: Alert) -> str:
    return (
        f"{alert.survey} {alert.star_id} · {alert.band} · {alert.state}\n"
        rf"$\log_{{10}}K = {alert.log10_k:.2f}$" + "\n"
        f"{len(alert.samples)} samples of {alert.model_id}"
    )


def _corner_columns(alert: Alert) -> dict[str, FloatArray]:
    """Take the five parameters as drawn: t0 within its day, tE and rho in logarithms."""
    posterior = alert.posterior
    return {
        "t0": posterior["t0"].to_numpy() - np.floor(alert.t0_mjd_tai),
        "u0": posterior["u0"].to_numpy(),
        "tE": posterior["log10_tE"].to_numpy(),
        "rho": posterior["log10_rho"].to_numpy(),
        "f_s": posterior["f_s"].to_numpy(),
    }


def _corner_title(alert: Alert, name: str) -> str:
    median, up, down = alert.interval(name).rounded()
    unit = " d" if UNITS[name] == "d" and name != "t0" else ""
    return rf"${_SYMBOLS[name]} = {median}^{{+{up}}}_{{-{down}}}${unit}"


def _corner_label(alert: Alert, name: str) -> str:
    if name == "t0":
        return rf"$t_0 - {np.floor(alert.t0_mjd_tai):.0f}$ (d)"
    label = {"tE": r"$\log_{10}\,t_E$ (d)", "rho": r"$\log_{10}\,\rho$"}
    return label.get(name, f"${_SYMBOLS[name]}$")


def _label_corner(
    axes: Axes, alert: Alert, row: str, column: str, *, left: bool, low: bool
) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.tick_params(labelsize=8, labelbottom=low, labelleft=left)
    axes.xaxis.set_major_locator(MaxNLocator(3, prune="both"))
    if row == column:
        axes.set_yticks([])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(3, prune="both"))
    if low:
        axes.set_xlabel(_corner_label(alert, column))
    if left:
        axes.set_ylabel(_corner_label(alert, row))


def _range(values: FloatArray) -> tuple[float, float]:
    low, high = np.quantile(values, (0.003, 0.997))
    margin = max(0.08 * (high - low), 1e-6)
    return float(low - margin), float(high + margin)


def _histogram(axes: Axes, values: FloatArray, limits: tuple[float, float]) -> None:
    bins = _bins(len(values))
    axes.hist(values, bins, range=limits, color=_DATA, histtype="stepfilled", alpha=0.35, lw=0)
    axes.hist(values, bins, range=limits, color=_DATA, histtype="step", lw=1.2)
    for quantile, weight in zip(
        np.quantile(values, (0.16, 0.5, 0.84)), (0.9, 1.5, 0.9), strict=True
    ):
        axes.axvline(quantile, color=_MODEL, lw=weight, ls="--")


def _contours(
    axes: Axes,
    x: FloatArray,
    y: FloatArray,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> None:
    counts, x_edges, y_edges = np.histogram2d(
        x, y, 3 * _bins(len(x)) // 2, range=(x_range, y_range)
    )
    density = _smooth(_smooth(counts).T)
    centres = [(edges[1:] + edges[:-1]) / 2 for edges in (x_edges, y_edges)]
    outer, inner = mass_levels(density, (0.95, 0.68))
    axes.plot(x, y, ".", ms=2, color=_DATA, alpha=0.5, mew=0, rasterized=True)
    axes.contourf(
        *centres,
        density,
        levels=(outer, inner, density.max() * 1.01),
        colors=("#f6c9a8", "#e58a4e"),
    )
    axes.contour(*centres, density, levels=(outer, inner), colors=_MODEL, linewidths=(0.7, 1.0))
    axes.set_ylim(*y_range)


def _bins(samples: int) -> int:
    """Bins along each axis: more where the samples fill them (Rice's rule)."""
    return int(np.clip(2 * samples ** (1 / 3), 10, 40))


def _smooth(counts: FloatArray) -> FloatArray:
    """Blur the last axis by a Gaussian of one bin."""
    kernel = np.exp(-0.5 * np.arange(-3.0, 4.0) ** 2)
    kernel /= kernel.sum()
    return np.apply_along_axis(np.convolve, -1, counts, kernel, mode="same")


def mass_levels(density: FloatArray, shares: tuple[float, ...]) -> list[float]:
    """Find the densities above which the given shares of the mass lie.

    Parameters
    ----------
    density : ndarray, any shape, float64
        Mass of equal cells, not negative, with a positive sum.
    shares : tuple of float
        Between 0 and 1, decreasing.

    Returns
    -------
    list of float
        One level a share, strictly increasing as contour levels must be.
    """
    ordered = np.sort(density.ravel())[::-1]
    enclosed = np.cumsum(ordered) / ordered.sum()
    cells = np.minimum(np.searchsorted(enclosed, shares), ordered.size - 1)
    levels = ordered[cells].tolist()
    return [level * (1 + 1e-6 * i) for i, level in enumerate(levels)]
