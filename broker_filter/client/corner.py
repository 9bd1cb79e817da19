"""The picture of an alert's posterior: of the fit, with the network's beside."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.parts import UNITS, Draws, physical
from broker_filter.client.figure import DATA, MODEL, SYMBOLS, Axes, open_figure
from broker_filter.client.text import log10_k_formula
from broker_filter.observe.text import plot_text
from broker_filter.types import FloatArray

__all__ = ["mass_levels", "plot_corner"]

NETWORK = "#1d4ed8"
WIDEST = 3.0
"""How many widths of the fit's posterior the picture goes beyond it to show the network's."""

Columns = dict[str, FloatArray]
Limits = tuple[float, float]


def plot_corner(alert: Alert, path: Path | str) -> None:
    """Draw the marginal posteriors of t0, u0, tE, rho and f_s, one by one and in pairs.

    Contours hold 68 and 95 % of the samples; dashed lines mark the median and the 68 % interval.
    The network's posterior is drawn in thin blue lines where the alert holds a fit's as well.

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
    columns = _columns(alert, alert.draws)
    network = {} if alert.network is None else _columns(alert, alert.network)
    names = list(columns)
    limits = {name: _limits(columns[name], network.get(name)) for name in names}
    with open_figure(Path(path), 8.6, 8.6) as figure:
        grid = figure.subplots(len(names), len(names), sharex="col")
        for i, row in enumerate(names):
            for j, column in enumerate(names):
                axes = grid[i, j]
                if j > i:
                    axes.set_visible(False)
                    continue
                axes.set_xlim(*limits[column])
                if i == j:
                    _draw_one(axes, columns[row], network.get(row), limits[row])
                    axes.set_title(_title(alert, row), fontsize=9.5)
                else:
                    _draw_pair(axes, columns, network or None, (column, row), limits)
                _label(axes, alert, row, column, left=j == 0 and i > 0, low=row == names[-1])
        figure.text(0.97, 0.97, _heading(alert), ha="right", va="top", linespacing=1.7)


def _heading(alert: Alert) -> str:
    lines = [
        plot_text(f"{alert.survey} {alert.star_id} · {alert.band} · {alert.state}", 70),
        log10_k_formula(alert),
    ]
    model = plot_text(alert.model_id, 60)
    if alert.fit is None:
        return "\n".join([*lines, f"{len(alert.samples)} samples of {model}"])
    chi2 = rf"$\chi^2$ / dof {alert.fit.chi2:.0f} / {alert.fit.degrees_of_freedom}"
    state = "" if alert.fit.converged else " · not converged"
    lines += [f"{len(alert.samples)} samples of the fit{state} · {chi2}", f"blue: {model}"]
    return "\n".join(lines)


def _columns(alert: Alert, draws: Draws) -> Columns:
    """Take the five parameters as drawn: t0 within its day, tE and rho in logarithms."""
    samples = physical(draws.samples, alert.window_start_mjd_tai, draws.parameters)
    return {
        "t0": samples["t0"] - np.floor(alert.t0_mjd_tai),
        "u0": samples["u0"],
        "tE": samples["log10_tE"],
        "rho": samples["log10_rho"],
        "f_s": samples["f_s"],
    }


def _title(alert: Alert, name: str) -> str:
    median, up, down = alert.interval(name).rounded()
    unit = " d" if UNITS[name] == "d" and name != "t0" else ""
    return rf"${SYMBOLS[name]} = {median}^{{+{up}}}_{{-{down}}}${unit}"


def _axis_label(alert: Alert, name: str) -> str:
    if name == "t0":
        return rf"$t_0 - {np.floor(alert.t0_mjd_tai):.0f}$ (d)"
    label = {"tE": r"$\log_{10}\,t_E$ (d)", "rho": r"$\log_{10}\,\rho$"}
    return label.get(name, f"${SYMBOLS[name]}$")


def _label(axes: Axes, alert: Alert, row: str, column: str, *, left: bool, low: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.tick_params(labelsize=8, labelbottom=low, labelleft=left)
    axes.xaxis.set_major_locator(MaxNLocator(3, prune="both"))
    if row == column:
        axes.set_yticks([])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(3, prune="both"))
    if low:
        axes.set_xlabel(_axis_label(alert, column))
    if left:
        axes.set_ylabel(_axis_label(alert, row))


def _limits(values: FloatArray, network: FloatArray | None) -> Limits:
    """Limits that hold the posterior, and the network's as far as that leaves it visible."""
    low, high = np.quantile(values, (0.003, 0.997))
    width = high - low
    if network is not None:
        its_low, its_high = np.quantile(network, (0.05, 0.95))
        low = min(low, max(its_low, low - WIDEST * width))
        high = max(high, min(its_high, high + WIDEST * width))
    margin = max(0.08 * (high - low), 1e-6)
    return float(low - margin), float(high + margin)


def _draw_one(axes: Axes, values: FloatArray, network: FloatArray | None, limits: Limits) -> None:
    """Histograms of one parameter, in densities."""
    look = {"range": limits, "density": True}
    bins = _bins(len(values))
    axes.hist(values, bins, color=DATA, histtype="stepfilled", alpha=0.35, lw=0, **look)
    axes.hist(values, bins, color=DATA, histtype="step", lw=1.2, **look)
    if network is not None and ((network > limits[0]) & (network < limits[1])).any():
        axes.hist(network, _bins(len(network)), color=NETWORK, histtype="step", lw=0.9, **look)
    for quantile, weight in zip(
        np.quantile(values, (0.16, 0.5, 0.84)), (0.9, 1.5, 0.9), strict=True
    ):
        axes.axvline(quantile, color=MODEL, lw=weight, ls="--")


def _draw_pair(
    axes: Axes,
    columns: Columns,
    network: Columns | None,
    names: tuple[str, str],
    limits: dict[str, Limits],
) -> None:
    """Contours of two parameters: filled those of the posterior, as lines the network's."""
    x, y = (columns[name] for name in names)
    ranges = (limits[names[0]], limits[names[1]])
    axes.plot(x, y, ".", ms=2, color=DATA, alpha=0.5, mew=0, rasterized=True)
    centres, density = _density(x, y, ranges)
    levels = mass_levels(density, (0.95, 0.68))
    filled = (*levels, max(density.max(), levels[1]) * 1.01)
    axes.contourf(*centres, density, levels=filled, colors=("#f6c9a8", "#e58a4e"))
    axes.contour(*centres, density, levels=levels, colors=MODEL, linewidths=(0.7, 1.0))
    if network is not None:
        centres, density = _density(network[names[0]], network[names[1]], ranges)
        if density.any():
            levels = mass_levels(density, (0.95, 0.68))
            axes.contour(*centres, density, levels=levels, colors=NETWORK, linewidths=(0.6, 0.9))
    axes.set_ylim(*ranges[1])


def _density(
    x: FloatArray, y: FloatArray, ranges: tuple[Limits, Limits]
) -> tuple[list[FloatArray], FloatArray]:
    """Centres of cells along both axes, and the smoothed number of samples in each cell."""
    counts, *edges = np.histogram2d(x, y, 3 * _bins(len(x)) // 2, range=ranges)
    return [(edge[1:] + edge[:-1]) / 2 for edge in edges], _smooth(_smooth(counts).T)


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
