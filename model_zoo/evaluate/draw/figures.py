"""Figures of an evaluation, all in one style; each is a PNG below 300 kB.

`figure` opens a canvas, `band`, `steps` and `diagonal` draw what most parts need, and
`draw_detection` makes those of the detection part. Colours are those of Okabe and Ito, which
colour-blind readers tell apart. Nothing here touches the state of pyplot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from broker_filter.client.figure import INK, open_figure
from broker_filter.inference.evidence import LN_10
from model_zoo.simulate.curves import signal_of
from model_zoo.simulate.pattern import Pattern

__all__ = [
    "COLOURS",
    "INK",
    "LABELS",
    "PALE",
    "SYMBOLS",
    "allowed_log10_k",
    "band",
    "diagonal",
    "draw_detection",
    "figure",
    "steps",
]

# matplotlib comes with an extra, so its types may be absent.
Axes = Any
Canvas = Any
Table = Mapping[str, Any]

PALE = "#9aa3af"
COLOURS = {
    "blue": "#0072b2",
    "vermilion": "#d55e00",
    "green": "#009e73",
    "purple": "#cc79a7",
    "orange": "#e69f00",
    "sky": "#56b4e9",
}
SYMBOLS = {
    "t0": r"$t_0$ (days)",
    "u0": r"$u_0$",
    "log10_tE": r"$\log_{10} t_E$ (days)",
    "log10_rho": r"$\log_{10} \rho$",
    "f_s": r"$f_s$",
    "snr": "matched-filter signal-to-noise",
    "phase": r"(last epoch $- \, t_0$) / $t_E$",
    "phase_bright": r"(last epoch $- \, t_0$) / $t_E$, bright events",
}
LABELS = {
    "network_0.8": r"network, $\log_{10} K > 0.8$",
    "network_zero_fp": "network, no false alarm",
    "johnson_2020": "Johnson 2020",
    "sumi_2011": "Sumi 2011",
    "mroz_2017": "Mroz 2017",
    "johnson_2020_tuned": "Johnson, re-tuned",
    "sumi_2011_tuned": "Sumi, re-tuned",
    "mroz_2017_tuned": "Sumi and Mroz, re-tuned",
    "snr2_ge_25": "ceiling: signal-to-noise of 5",
    "known_template": "ceiling: parameters known",
    "own": "events",
    "ungated": "events, no gate",
    "blended": "events, blended gate",
    "noise": "noise",
}
MISSED = "missed, 1 - efficiency"
_LINES = {
    "network_zero_fp": (COLOURS["blue"], "-"),
    "johnson_2020": (COLOURS["vermilion"], "-"),
    "sumi_2011": (COLOURS["green"], "-"),
    "mroz_2017": (COLOURS["purple"], "-"),
    "johnson_2020_tuned": (COLOURS["vermilion"], ":"),
    "mroz_2017_tuned": (COLOURS["purple"], ":"),
    "snr2_ge_25": (INK, "--"),
}
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e8ec",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def figure(path: Path, width: float = 6.4, height: float = 4.2) -> AbstractContextManager[Canvas]:
    """Open a matplotlib ``Figure`` (inches) as `open_figure` does, in the style of reports."""
    return open_figure(path, width, height, style=_STYLE, write=_save)


def _save(canvas: Canvas, path: Path) -> None:
    """Write a PNG of 128 colours, a third as large as one of all colours."""
    from PIL import Image  # comes with matplotlib

    buffer = BytesIO()
    canvas.savefig(buffer, format="png", dpi=120)
    with Image.open(buffer) as picture:
        picture.convert("RGB").quantize(128).save(path, optimize=True)


def band(
    axes: Axes,
    x: Sequence[float],
    table: Table,
    colour: str,
    *,
    line: str = "-",
    label: str | None = None,
) -> None:
    """A line through ``share``, solid ones with their 68 % band; unknown shares are left out.

    Parameters
    ----------
    axes : matplotlib Axes
    x : sequence of float
    table : mapping
        ``share`` (None where unknown), ``low68`` and ``high68``, each as long as ``x``.
    colour, line, label
        As in matplotlib.
    """
    known = [i for i, value in enumerate(table["share"]) if value is not None]
    share, low, high = ([table[key][i] for i in known] for key in ("share", "low68", "high68"))
    at = [x[i] for i in known]
    axes.plot(at, share, line, color=colour, lw=1.4, label=label)
    if line == "-":
        axes.fill_between(at, low, high, color=colour, alpha=0.18, lw=0)


def steps(
    axes: Axes, edges: Sequence[float], counts: Sequence[float], colour: str, label: str
) -> None:
    """A histogram as an outline, each bin divided by the sum of all."""
    total = max(sum(counts), 1)
    axes.stairs([n / total for n in counts], edges, color=colour, lw=1.4, label=label)


def diagonal(axes: Axes, low: float, high: float) -> None:
    """The line on which both axes agree."""
    axes.plot([low, high], [low, high], "--", color=PALE, lw=1, zorder=0)


def draw_detection(result: Table, folder: Path) -> list[Path]:
    """Figures of `model_zoo.evaluate.measure.detection.measure_detection`.

    Parameters
    ----------
    result : mapping
        What `measure_detection` returned, or the same read from JSON.
    folder : Path
        Made if missing.

    Returns
    -------
    list of Path
        The PNG files.
    """
    drawn = [_roc(result, folder), _k_distribution(result, folder)]
    for name, part in result["sets"].items():
        title = f"{LABELS[name]} ({part['n']:,}), gate: {part['gate']}"
        path = folder / f"detection_efficiency_{name}.png"
        drawn.append(_efficiency(part["efficiency"], title, path))
    if result["gallery"]["curves"]:
        drawn.append(_gallery(result, folder))
    if "rising" in result:
        drawn.append(_rising(result["rising"], folder))
    return drawn


def _roc(result: Table, folder: Path) -> Path:
    """Missed events against false positives; cuts without a false alarm lie at the left edge."""
    path = folder / "detection_roc.png"
    edge, n = 0.5 / result["n_noise"], len(result["sets"])
    with figure(path, 3.4 * n + 1.2, 3.6) as canvas:
        panels = canvas.subplots(1, n, squeeze=False)[0]
        for axes, (name, part) in zip(panels, result["sets"].items(), strict=True):
            for key, colour, line in (
                ("known_template", INK, "--"),
                ("network", COLOURS["blue"], "-"),
            ):
                curve = part["roc"][key]
                label = f"{LABELS.get(key, key)} (AUC {curve['auc']:.5f})"
                fpr = np.maximum(curve["fpr"], edge)
                missed = [1 - share for share in curve["tpr"]]
                axes.plot(fpr, missed, line, color=colour, lw=1.5, label=label)
            _cut_points(axes, part["detectors"], result["false_alarms"], edge)
            axes.set(xscale="log", xlim=(edge * 0.8, 1), title=f"{LABELS[name]}: {part['gate']}")
            axes.set(yscale="log", ylim=(0.3 / part["n"], 1.5))
            axes.set(xlabel="false positive rate", ylabel=MISSED)
            axes.legend(loc="upper right", fontsize=6.5)
    return path


def _cut_points(axes: Axes, detectors: Table, false_alarms: Table, edge: float) -> None:
    for name, (colour, line) in _LINES.items():
        if name not in false_alarms or name.startswith("network"):
            continue
        rate = false_alarms[name]["false_alarms"] / false_alarms[name]["of"]
        share, published = detectors[name]["all"]["share"], line == "-"
        axes.plot(
            max(rate, edge),
            1 - share,
            "o",
            color=colour,
            ms=5,
            mfc=colour if published else "white",
            label=LABELS[name],
        )


def _efficiency(tables: Table, title: str, path: Path) -> Path:
    columns = 3
    rows = -(-len(tables) // columns)
    with figure(path, 9.6, 2.5 * rows + 0.5) as canvas:
        panels = canvas.subplots(rows, columns, squeeze=False).ravel()
        for axes, (quantity, table) in zip(panels, tables.items(), strict=False):
            x = _centres(table["edges"], quantity)
            floor = 0.3 / max(table["n"])
            for name, (colour, line) in _LINES.items():
                missed = _missed(table[name], floor)
                band(axes, x, missed, colour, line=line, label=LABELS[name])
            axes.set(xlabel=SYMBOLS[quantity], ylabel=MISSED, yscale="log", ylim=(floor, 1.5))
            if quantity == "snr" or (quantity == "f_s" and table["edges"][0] < 0.05):
                axes.set_xscale("log")
        for axes in panels[len(tables) :]:
            axes.axis("off")
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=4)
        canvas.suptitle(title, fontsize=10)
    return path


def _missed(table: Table, floor: float) -> Table:
    """One minus the shares; where nothing was missed, the line runs along the floor."""

    def rest(key: str) -> list[float | None]:
        return [None if share is None else max(1 - share, floor) for share in table[key]]

    return {"share": rest("share"), "low68": rest("high68"), "high68": rest("low68")}


def _centres(edges: Sequence[float], quantity: str) -> list[float]:
    """Where a bin is drawn: its middle; the first and last of open bins near their inner edge."""
    centres = [(low + high) / 2 for low, high in pairwise(edges)]
    if quantity.startswith("phase"):
        centres[0], centres[-1] = 1.5 * edges[1], 1.5 * edges[-2]
    return centres


def _k_distribution(result: Table, folder: Path) -> Path:
    path, table = folder / "detection_k_distribution.png", result["k_distribution"]
    threshold = result["rules"]["network_zero_fp"]["threshold"]
    names = [name for name in table if name not in ("edges", "noise")]
    with figure(path) as canvas:
        axes = canvas.subplots()
        steps(axes, table["edges"], table["noise"], COLOURS["vermilion"], LABELS["noise"])
        for name, colour in zip(names, ("blue", "green", "purple"), strict=False):
            steps(axes, table["edges"], table[name], COLOURS[colour], LABELS[name])
        axes.axvline(threshold, color=INK, lw=1, ls="--", label="no false alarm in validation")
        axes.set_xscale("symlog", linthresh=4)
        axes.set(yscale="log", xlabel=r"$\log_{10} K$", ylabel="share in bin")
        axes.legend()
    return path


def _gallery(result: Table, folder: Path) -> Path:
    """Events that only the network finds."""
    path, gallery = folder / "detection_gallery.png", result["gallery"]
    curves = gallery["curves"]
    rows = -(-len(curves) // 3)
    with figure(path, 9.6, 1.9 * rows + 0.4) as canvas:
        panels = canvas.subplots(rows, 3, squeeze=False).ravel()
        for axes, curve in zip(panels, curves, strict=False):
            _one_curve(axes, curve)
        for axes in panels[len(curves) :]:
            axes.axis("off")
        canvas.supxlabel("days", fontsize=9)
        canvas.supylabel("flux / baseline", fontsize=9)
        canvas.suptitle(
            f"found by the network alone: {gallery['n']:,} of {gallery['of']:,} events; "
            "a sample from the weakest K to the strongest, binned",
            fontsize=9,
        )
    return path


def _one_curve(axes: Axes, curve: Table) -> None:
    t, flux, sigma = (np.array(curve[key]) for key in ("t", "flux", "sigma"))
    grid = torch.linspace(0.0, float(max(t[-1], 1.0)), 600)[None]
    one = torch.ones(1)
    every = Pattern.of(grid, torch.ones_like(grid), one * grid.shape[1], one)
    model = 1 + signal_of(torch.tensor([curve["theta"]]), every)[0]
    axes.errorbar(t, flux, sigma, fmt=".", ms=2, lw=0.4, color=PALE, zorder=1)
    axes.plot(grid[0], model, color=COLOURS["blue"], lw=1.4, zorder=2)
    _, _, log10_tE, log10_rho, f_s = curve["theta"]
    axes.set_title(
        f"$\\log_{{10}} K$ {allowed_log10_k(curve):.1f}, s/n {curve['snr']:.0f}, "
        f"$t_E$ {10**log10_tE:.2f} d, $\\rho$ {10**log10_rho:.2g}, $f_s$ {f_s:.2f}",
        fontsize=7.5,
    )


def allowed_log10_k(curve: Table) -> float:
    """The network's log10 K of an event, no higher than its delta chi2 allows.

    No average over lenses exceeds the likelihood ratio of the best, exp(delta chi2 / 2).
    """
    return float(min(curve["log10_k"], max(curve["delta_chi2"], 0.0) / (2 * LN_10)))


def _rising(table: Table, folder: Path) -> Path:
    path = folder / "detection_rising.png"
    with figure(path) as canvas:
        axes = canvas.subplots()
        band(axes, table["phase"], table["found"], COLOURS["blue"], label="found by the network")
        label = LABELS["snr2_ge_25"]
        band(axes, table["phase"], table["snr2_ge_25"], INK, line="--", label=label)
        axes.axvline(0, color=PALE, lw=1)
        axes.set(xlabel=r"(last epoch $- \, t_0$) / $t_E$", ylabel="found by then", ylim=(0, 1))
        axes.set_title(f"{table['n']:,} bright events, window growing epoch by epoch")
        axes.legend(loc="upper left")
    return path
