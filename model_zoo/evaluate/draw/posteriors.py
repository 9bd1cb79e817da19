"""Pictures of what `posteriors` and `toy` measured, drawn without pyplot's global state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from broker_filter.types import PARAMETERS
from model_zoo.evaluate.measure.posteriors import RANK_BINS

__all__ = ["plot_posteriors", "plot_toy"]

LABELS = {
    "t0": "$t_0$ (d)",
    "u0": "$u_0$",
    "log10_tE": r"$\log_{10} t_E$ (d)",
    "log10_rho": r"$\log_{10} \rho$",
    "f_s": "$f_s$",
    "log10_u0_over_rho": r"$\log_{10} u_0 / \rho$",
    "log10_peak_magnification": r"$\log_{10} A_\mathrm{peak}$",
}
SHOWN = {"u0": r", $u_0 > \rho$", "log10_rho": r", $u_0 < \rho$"}
_INK, _BAND, _POINT = "#22252b", "#c2410c", "#6b7a90"


def plot_posteriors(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Draw injected against recovered, TARP, ranks and the decomposition of the bias.

    Parameters
    ----------
    figures : dict
        As `model_zoo.evaluate.measure.posteriors.posterior_figures` gives them.
    folder : Path
        Where the PNG files go; made if missing.

    Returns
    -------
    list of Path
    """
    drawn = {
        "recovered": _plot_recovered,
        "tarp": _plot_tarp,
        "ranks": _plot_ranks,
        "bias": _plot_bias,
    }
    paths = [folder / f"posterior_{name}.png" for name in drawn]
    for path, draw in zip(paths, drawn.values(), strict=True):
        draw(figures, path)
    return paths


def plot_toy(figures: dict[str, Any], folder: Path) -> Path:
    """Draw ROC and calibration curves of the toy problem beside the oracle's.

    ``figures`` are those of `model_zoo.evaluate.measure.toy.measure_toy`.
    """
    path = folder / "toy.png"
    colours = {"lpop": ("l-POP", _BAND), "cross_entropy": ("cross-entropy", _POINT)}
    with _figure(path, 1, 2) as (roc, calibration):
        oracle = figures["oracle"]
        label = f"oracle, AUC {oracle['auc']:.4f}"
        roc.plot(
            oracle["roc"]["fpr"], oracle["roc"]["tpr"], color=_INK, lw=3, alpha=0.3, label=label
        )
        calibration.plot([0, 1], [0, 1], color=_INK, ls=":", lw=1)
        for key, (name, colour) in colours.items():
            one = figures[key]
            label = f"{name}, AUC {one['auc']:.4f}"
            roc.plot(one["roc"]["fpr"], one["roc"]["tpr"], color=colour, lw=1, label=label)
            curve = one["calibration"]
            calibration.errorbar(
                curve["predicted"], curve["observed"], curve["error"],
                color=colour, fmt="o", ms=3, label=name,
            )  # fmt: skip
        roc.set(xscale="log", xlabel="false positive rate", ylabel="true positive rate")
        calibration.set(xlabel="K / (1 + K)", ylabel="share of events")
        roc.legend(frameon=False)
        calibration.legend(frameon=False)
    return path


def _plot_recovered(figures: dict[str, Any], path: Path) -> None:
    with _figure(path, 2, 3) as axes:
        for ax, name in zip(axes, PARAMETERS, strict=False):
            one = figures["recovered"][name]
            ax.plot(one["injected"], one["recovered"], ".", color=_POINT, ms=2, alpha=0.5)
            _band(ax, one)
            if one["injected"]:
                ends = [min(one["injected"]), max(one["injected"])]
                ax.plot(ends, ends, color=_INK, ls="--", lw=1)
            label = LABELS[name]
            ax.set(xlabel=f"injected {label}{SHOWN.get(name, '')}", ylabel=f"recovered {label}")
        _draw_tarp(axes[-1], figures)


def _plot_tarp(figures: dict[str, Any], path: Path) -> None:
    with _figure(path, 1, 1) as (ax,):
        _draw_tarp(ax, figures)


def _draw_tarp(ax: Any, figures: dict[str, Any]) -> None:  # noqa: ANN401
    one = figures["tarp"]
    ends, chance = np.array([0.0, 1.0]), one["chance95"]
    ax.fill_between(ends, ends - chance, ends + chance, color=_POINT, alpha=0.2, lw=0)
    ax.plot(ends, ends, color=_INK, ls="--", lw=1)
    ax.plot(one["alpha"], one["ecp"], color=_BAND)
    ax.set(xlabel="credibility", ylabel="TARP expected coverage")
    ax.set_title(f"largest deviation {one['max_deviation']:.3f}", fontsize=9)


def _plot_ranks(figures: dict[str, Any], path: Path) -> None:
    with _figure(path, 2, 3) as axes:
        axes[-1].set_axis_off()
        for ax, name in zip(axes, PARAMETERS, strict=False):
            one = figures["ranks"][name]
            mean = sum(one["counts"]) / RANK_BINS
            ax.stairs(one["counts"], np.linspace(0, 1, RANK_BINS + 1), color=_BAND)
            ax.axhspan(mean - 2 * mean**0.5, mean + 2 * mean**0.5, color=_POINT, alpha=0.2, lw=0)
            ax.set(xlabel=f"rank of the truth, {LABELS[name]}", ylabel="events", ylim=(0, None))
            ax.set_title(f"p = {one['ks_p']:.2g} (KS), {one['chi2_p']:.2g} (chi2)", fontsize=9)


def _plot_bias(figures: dict[str, Any], path: Path) -> None:
    with _figure(path, 1, 3) as axes:
        for ax, (name, one) in zip(axes, figures["bias_against"].items(), strict=True):
            _band(ax, one)
            ax.axhline(0, color=_INK, ls="--", lw=1)
            ax.set(xlabel=LABELS[one["axis"]], ylabel=f"error of {LABELS[name]}")


def _band(ax: Any, binned: dict[str, Any]) -> None:  # noqa: ANN401
    ax.fill_between(binned["x"], binned["low"], binned["high"], color=_BAND, alpha=0.25, lw=0)
    ax.plot(binned["x"], binned["median"], color=_BAND, lw=1.5)


@contextmanager
def _figure(path: Path, rows: int, columns: int) -> Iterator[Any]:
    """Axes of a figure that is written to ``path`` at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * columns, 3.0 * rows), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    yield figure.subplots(rows, columns, squeeze=False).ravel()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
