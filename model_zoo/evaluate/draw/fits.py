"""Pictures of the fit: coverage and ranks beside the flow's, evidence beside nested sampling's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_filter.types import PARAMETERS
from model_zoo.evaluate.draw.figures import COLOURS, INK, PALE, SYMBOLS, figure

__all__ = ["draw_fits", "draw_nested"]

Axes = Any
Table = Mapping[str, Any]

SIDES = {"fit": COLOURS["blue"], "flow": COLOURS["orange"]}
LEVELS = {"coverage68": 0.68, "coverage95": 0.95}


def draw_fits(result: Table, folder: Path) -> list[Path]:
    """Figures of `model_zoo.evaluate.measure.fits.measure_fits`; made in ``folder``."""
    paths = [folder / "fit_coverage.png", folder / "fit_ranks.png"]
    _coverage(result, paths[0])
    _ranks(result, paths[1])
    return paths


def draw_nested(result: Table, folder: Path) -> list[Path]:
    """Figure of `model_zoo.evaluate.measure.nested.measure_nested`; made in ``folder``."""
    path, events = folder / "nested.png", result["events"]
    snr = [row["snr"] for row in events]
    with figure(path, 9.6, 4.0) as canvas:
        off, width = canvas.subplots(1, 2)
        off.axhspan(-3, 3, color=PALE, alpha=0.2, lw=0)
        off.axhline(0, ls="--", color=PALE, lw=1)
        off.plot(snr, [row["off"] for row in events], "o", color=COLOURS["blue"], ms=4)
        off.set(xscale="log", xlabel=SYMBOLS["snr"], ylabel=r"$\Delta \ln Z$ / combined error")
        off.set_title(f"{result['within_3']} of {result['n']} within 3 errors")
        width.axhline(1, ls="--", color=PALE, lw=1)
        for name, colour in zip(result["width_ratio"], COLOURS.values(), strict=False):
            ratio = [row["width_ratio"][name] for row in events]
            width.plot(snr, ratio, ".", color=colour, ms=6, label=SYMBOLS[name])
        width.set(xscale="log", yscale="log", xlabel=SYMBOLS["snr"])
        width.set(ylabel="width of 68 %, fit / nested sampling")
        width.set_title(f"median {result['width_ratio_median']:.3f}")
        width.legend()
    return [path]


def _coverage(result: Table, path: Path) -> None:
    """Of events with their peak in the data, by bin of the signal-to-noise."""
    rows = [row for row in result["by_snr"] if row["peak_in_data"]]
    with figure(path, 12.0, 3.2) as canvas:
        panels = canvas.subplots(1, len(PARAMETERS), sharey=True)
        for axes, name in zip(panels, PARAMETERS, strict=True):
            for level in LEVELS.values():
                axes.axhline(level, ls="--", color=PALE, lw=1)
            for place, (side, colour) in zip((-0.08, 0.08), SIDES.items(), strict=True):
                _intervals(axes, rows, side, name, place, colour)
            axes.set(ylim=(0.3, 1.02), title=SYMBOLS[name])
            axes.set_xticks(range(len(rows)), [_bin(row) for row in rows], fontsize=7)
        panels[0].set(ylabel="truth in 68 % (filled) and 95 % (open)")
        panels[0].legend(loc="lower left")
        canvas.supxlabel(
            f"matched-filter signal-to-noise; {result['n_peak']:,} events with peak in the data",
            fontsize=9,
        )


def _intervals(
    axes: Axes, rows: Sequence[Table], side: str, name: str, place: float, colour: str
) -> None:
    """Shares with their binomial errors, those of exact posteriors in such bins."""
    for level, exact in LEVELS.items():
        filled = level == "coverage68"
        axes.errorbar(
            [i + place for i in range(len(rows))],
            [row[side][level][name] for row in rows],
            [math.sqrt(exact * (1 - exact) / row["n"]) for row in rows],
            fmt="o",
            ms=4,
            lw=1,
            color=colour,
            mfc=colour if filled else "white",
            label=side if filled else None,
        )


def _bin(row: Table) -> str:
    low, high = row["snr_low"], row["snr_high"]
    return f"{low:g}+\n{row['n']:,}" if high > 1e5 else f"{low:g}-{high:g}\n{row['n']:,}"


def _ranks(result: Table, path: Path) -> None:
    """Ranks of the truth (simulation-based calibration): flat for posteriors that are right."""
    with figure(path, 12.0, 2.8) as canvas:
        panels = canvas.subplots(1, len(PARAMETERS), sharey=True)
        for axes, name in zip(panels, PARAMETERS, strict=True):
            for side, colour in SIDES.items():
                counts = result[side]["ranks"][name]["counts"]
                edges = [i / len(counts) for i in range(len(counts) + 1)]
                axes.stairs(counts, edges, color=colour, lw=1.3, label=side)
            mean = sum(counts) / len(counts)
            axes.axhspan(mean - 2 * mean**0.5, mean + 2 * mean**0.5, color=PALE, alpha=0.2, lw=0)
            axes.axhline(mean, ls="--", color=INK, lw=0.8)
            tests = result["fit"]["ranks"][name]
            axes.set(xlabel="rank of the truth", ylim=(0, None))
            axes.set_title(
                f"{SYMBOLS[name]}: fit's p {tests['ks_p']:.2g} (KS), {tests['chi2_p']:.2g} (chi2)",
                fontsize=7.5,
            )
        panels[0].set(ylabel="events")
        panels[0].legend(loc="lower left")
