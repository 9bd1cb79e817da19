"""Pictures of the calibration of K: its tail, what p covers, exact evidence, and K over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_zoo.evaluate.draw.figures import COLOURS, INK, PALE, diagonal, figure

__all__ = ["draw_calibration", "draw_exact", "draw_streams"]

EDGE = 1e-6

Axes = Any
Table = Mapping[str, Any]


def draw_calibration(result: Table, folder: Path) -> list[Path]:
    """Figures of what `measure_calibration` gives; made in ``folder``."""
    paths = [folder / "calibration_tail.png", folder / "calibration_reliability.png"]
    with figure(paths[0]) as canvas:
        axes = canvas.subplots()
        _tail(axes, result["k_tail"], result["n_tail"])
        mean, error = result["mean_k_noise"], result["mean_k_noise_error"]
        axes.set_title(f"{result['n_tail']:,} noise windows, mean K {mean:.2g} ± {error:.1g}")
        axes.set(ylabel=r"$P(K \geq k \mid$ no event)")
    with figure(paths[1], 9.6, 4.0) as canvas:
        by_odds, by_p = canvas.subplots(1, 2)
        table = result["reliability"]
        _reliability(by_p, table["by_p"])
        by_p.set(xlabel="$p = K / (1 + K)$, mean of bin", ylabel="share of events")
        _reliability(by_odds, table["by_log10_k"])
        limits = (EDGE, 1 - EDGE)
        by_odds.set(xscale="logit", yscale="logit", xlim=limits, ylim=limits)
        by_odds.set(xlabel="$p$ in bins of $\\log_{10} K$", ylabel="share of events")
        by_odds.set_title(f"{table['covered']} of {table['bins']} bins cover their p at 95 %")
    return paths


def draw_exact(result: Table, folder: Path) -> list[Path]:
    """Figure of `model_zoo.evaluate.measure.exact.measure_exact`; made in ``folder``."""
    path, curves = folder / "calibration_exact.png", result["curves"]
    with figure(path, 9.6, 4.2) as canvas:
        both, off = canvas.subplots(1, 2)
        for event, colour, label in ((True, "blue", "events"), (False, "vermilion", "noise")):
            rows = [i for i, e in enumerate(curves["event"]) if e == event]
            exact, network = ([curves[key][i] for i in rows] for key in ("exact", "network"))
            style = {"color": COLOURS[colour], "ms": 3, "label": label}
            both.plot(exact, network, ".", **style)
            off.plot(exact, [n - e for n, e in zip(network, exact, strict=True)], ".", **style)
        if curves["exact"]:
            diagonal(both, min(curves["exact"]), max(curves["exact"]))
        off.axhline(0, ls="--", color=PALE, lw=1)
        off.axvspan(-3, 3, color=PALE, alpha=0.2, lw=0)
        off.set(xlabel=r"exact $\log_{10} K$", ylabel="network - exact (dex)")
        both.set(xlabel=r"exact $\log_{10} K$", ylabel=r"network's $\log_{10} K$")
        both.legend()
        small = result["small_k"]
        if small["n"] > 1:
            off.set_title(
                f"within ±3: {small['n']} curves, bias {small['bias']:+.3f} ± "
                f"{small['bias_error']:.3f}, scatter {small['scatter']:.2f} dex"
            )
    return [path]


def draw_streams(result: Table, folder: Path) -> list[Path]:
    """Figure of `model_zoo.evaluate.measure.streams.measure_streams`; made in ``folder``."""
    path = folder / "calibration_streams.png"
    with figure(path, 9.6, 4.2) as canvas:
        tail, paths = canvas.subplots(1, 2)
        _tail(tail, result["sup_tail"], result["n_streams"])
        tail.set(ylabel=r"$P(\sup_t K \geq k \mid$ no event)")
        tail.set_title(f"{result['n_streams']:,} streams, {result['looks']:,} looks")
        for one in result["paths"]:
            paths.step(one["day"], one["log10_k"], where="post", color=PALE, lw=0.6)
        table = result["over_time"]
        for key, colour in (("highest", "vermilion"), ("p99", "orange"), ("median", "blue")):
            known = [i for i, value in enumerate(table[key]) if value is not None]
            x, y = ([table[name][i] for i in known] for name in ("day", key))
            paths.plot(x, y, color=COLOURS[colour], lw=1.5, label=f"{key} so far")
        paths.set(xlabel="day of the window", ylabel=r"$\log_{10} K$")
        paths.set_title(f"{result['n_every_exposure']:,} streams at every exposure")
        paths.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
    return [path]


def _tail(axes: Axes, rows: Sequence[Table], n: int) -> None:
    """Shares beside the bound 1/k; where none was seen, the upper limit alone."""
    floor = 0.3 / max(n, 1)
    k = [row["k"] for row in rows]
    axes.plot(k, [row["bound"] for row in rows], "--", color=INK, lw=1.2, label="bound 1/k")
    low, high = ([max(row[key], floor) for row in rows] for key in ("low", "high"))
    axes.vlines(k, low, high, color=COLOURS["blue"], lw=1.4)
    seen = [row for row in rows if row["count"]]
    axes.plot(
        [row["k"] for row in seen],
        [row["observed"] for row in seen],
        "o",
        color=COLOURS["blue"],
        ms=4,
        label="observed, 95 % interval",
    )
    axes.set(xscale="log", yscale="log", xlabel="k", ylim=(floor, 2))
    axes.legend()


def _reliability(axes: Axes, rows: Sequence[Table]) -> None:
    """Shares of events against mean p; certain ones are drawn at the edge of a logit axis."""

    def drawn(key: str) -> list[float]:
        return [min(max(row[key], EDGE), 1 - EDGE) for row in rows]

    p = drawn("p")
    axes.plot([EDGE, 1 - EDGE], [EDGE, 1 - EDGE], "--", color=PALE, lw=1)
    axes.vlines(p, drawn("observed_low"), drawn("observed_high"), color=COLOURS["blue"], lw=1.4)
    axes.plot(p, drawn("observed"), "o", color=COLOURS["blue"], ms=4, clip_on=False)
