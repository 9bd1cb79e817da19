"""Pictures of what `posteriors` and `toy` measured, drawn without pyplot's global state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from broker_filter.types import PARAMETERS
from model_zoo.evaluate.draw.figures import COLOURS, INK, PALE, SYMBOLS, figure
from model_zoo.evaluate.measure.posteriors import RANK_BINS
from model_zoo.evaluate.measure.toy import NOISE, toy_examples

__all__ = ["plot_posteriors", "plot_toy"]

Axes = Any

LABELS = {
    **SYMBOLS,
    "log10_u0_over_rho": r"$\log_{10} u_0 / \rho$",
    "log10_peak_magnification": r"$\log_{10} A_\mathrm{peak}$",
}
TOY_LOSSES = {"lpop": "l-POP", "cross_entropy": "cross-entropy"}
TOY_COLUMNS = 4
SHOWN = {"u0": r", $u_0 > \rho$", "log10_rho": r", $u_0 < \rho$"}
BLUE, RED = COLOURS["blue"], COLOURS["vermilion"]


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


def plot_toy(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Draw examples of the toy problem, and ROC and calibration curves beside the oracle's.

    ``figures`` are those of `model_zoo.evaluate.measure.toy.measure_toy`.
    """
    paths = [folder / "toy_examples.png", folder / "toy.png"]
    _plot_examples(paths[0])
    with figure(paths[1], 9.6, 4.0) as canvas:
        roc, calibration = canvas.subplots(1, 2)
        _plot_toy_roc(roc, figures)
        calibration.plot([0, 1], [0, 1], "--", color=PALE, lw=1)
        for (key, label), colour in zip(TOY_LOSSES.items(), (BLUE, RED), strict=True):
            curve = figures[key]["calibration"]
            calibration.errorbar(
                curve["predicted"], curve["observed"], curve["error"],
                color=colour, fmt="o", ms=3, label=label,
            )  # fmt: skip
        calibration.set(xlabel="K / (1 + K)", ylabel="share of events")
        calibration.legend()
    return paths


def _plot_toy_roc(axes: Axes, figures: dict[str, Any]) -> None:
    curves = {"oracle": ("oracle", INK, "--")}
    colours = zip(TOY_LOSSES.items(), (BLUE, RED), strict=True)
    curves |= {key: (label, colour, "-") for (key, label), colour in colours}
    for key, (label, colour, line) in curves.items():
        one, auc = figures[key]["roc"], figures[key]["auc"]
        axes.plot(one["fpr"], one["tpr"], line, color=colour, lw=1.4, label=f"{label}, {auc:.4f}")
    axes.set(xscale="log", xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(title="area below the curve")


def _plot_examples(path: Path) -> None:
    """The figure that the paper announces: noise above, events of high K below."""
    noise, events = toy_examples(TOY_COLUMNS)
    with figure(path, 12.0, 4.6) as canvas:
        rows = canvas.subplots(2, TOY_COLUMNS, sharex=True, sharey=True)
        for panels, examples in zip(rows, (noise, events), strict=True):
            for axes, one in zip(panels, examples, strict=True):
                axes.errorbar(one.t, one.flux, NOISE, fmt=".", ms=3, lw=0.4, color=PALE, zorder=1)
                axes.set_title(f"$\\log_{{10}} K$ {one.log10_k:.2f}")
                if examples is events:
                    axes.plot(one.t, one.signal, color=RED, lw=1.6, zorder=2)
        canvas.supxlabel("days", fontsize=9)
        canvas.supylabel("noise alone (above), with an event (below)", fontsize=9)


def _plot_recovered(figures: dict[str, Any], path: Path) -> None:
    with figure(path, 10.8, 6.0) as canvas:
        panels = canvas.subplots(2, 3).ravel()
        for axes, name in zip(panels, PARAMETERS, strict=False):
            one = figures["recovered"][name]
            axes.plot(one["injected"], one["recovered"], ".", color=PALE, ms=2, alpha=0.5)
            _band(axes, one)
            if one["injected"]:
                ends = [min(one["injected"]), max(one["injected"])]
                axes.plot(ends, ends, color=INK, ls="--", lw=1)
            label = LABELS[name]
            axes.set(xlabel=f"injected {label}{SHOWN.get(name, '')}", ylabel=f"recovered {label}")
        _draw_tarp(panels[-1], figures)


def _plot_tarp(figures: dict[str, Any], path: Path) -> None:
    with figure(path, 3.6, 3.0) as canvas:
        _draw_tarp(canvas.subplots(), figures)


def _draw_tarp(axes: Axes, figures: dict[str, Any]) -> None:
    one = figures["tarp"]
    ends, chance = np.array([0.0, 1.0]), one["chance95"]
    axes.fill_between(ends, ends - chance, ends + chance, color=PALE, alpha=0.2, lw=0)
    axes.plot(ends, ends, color=INK, ls="--", lw=1)
    axes.plot(one["alpha"], one["ecp"], color=BLUE)
    axes.set(xlabel="credibility", ylabel="TARP expected coverage")
    axes.set_title(f"largest deviation {one['max_deviation']:.3f}")


def _plot_ranks(figures: dict[str, Any], path: Path) -> None:
    with figure(path, 10.8, 6.0) as canvas:
        panels = canvas.subplots(2, 3).ravel()
        panels[-1].set_axis_off()
        for axes, name in zip(panels, PARAMETERS, strict=False):
            one = figures["ranks"][name]
            mean = sum(one["counts"]) / RANK_BINS
            axes.stairs(one["counts"], np.linspace(0, 1, RANK_BINS + 1), color=BLUE)
            axes.axhspan(mean - 2 * mean**0.5, mean + 2 * mean**0.5, color=PALE, alpha=0.2, lw=0)
            axes.set(xlabel=f"rank of the truth, {LABELS[name]}", ylabel="events", ylim=(0, None))
            axes.set_title(f"p = {one['ks_p']:.2g} (KS), {one['chi2_p']:.2g} (chi2)")


def _plot_bias(figures: dict[str, Any], path: Path) -> None:
    with figure(path, 10.8, 3.0) as canvas:
        panels = canvas.subplots(1, 3)
        for axes, (name, one) in zip(panels, figures["bias_against"].items(), strict=True):
            _band(axes, one)
            axes.axhline(0, color=INK, ls="--", lw=1)
            axes.set(xlabel=LABELS[one["axis"]], ylabel=f"error of {LABELS[name]}")


def _band(axes: Axes, binned: dict[str, Any]) -> None:
    axes.fill_between(binned["x"], binned["low"], binned["high"], color=BLUE, alpha=0.25, lw=0)
    axes.plot(binned["x"], binned["median"], color=BLUE, lw=1.5)
