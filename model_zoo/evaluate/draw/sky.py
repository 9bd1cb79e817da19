"""Picture of the record on labelled stars: which rule fires on what, and what alerts are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_filter.alerts.verdict import VERDICTS
from model_zoo.evaluate.draw.figures import COLOURS, LABELS, PALE, figure

__all__ = ["draw_sky"]

RULES = {
    "triggered": "network triggers",
    "white_above_3": r"white noise, $\log_{10} K > 3$",
    "certified_above_3": r"family of noise, $\log_{10} K > 3$",
}
ABOVE: Mapping[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "fontsize": 7}


def draw_sky(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Figure of `model_zoo.evaluate.sky_summary.summary`; made in ``folder``."""
    path = folder / "sky_record.png"
    classes = sorted({row["class"] for row in result["classes"]})
    groups = [[row for row in result["classes"] if row["class"] == name] for name in classes]
    with figure(path, 10.0, 1.6 + 0.42 * len(classes)) as canvas:
        left, right = canvas.subplots(1, 2, sharey=True)
        _rules(left, groups)
        _verdicts(right, groups)
        left.set_yticks(range(len(classes)), classes)
        left.invert_yaxis()
    return [path]


def _rules(axes: Any, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:  # noqa: ANN401
    """Share of the windows of each class that pass each rule; none at the left edge."""
    windows = [max(sum(row["windows"] for row in rows), 1) for rows in groups]
    counts = {
        label: [sum(row[rule] for row in rows) for rows in groups] for rule, label in RULES.items()
    }
    for cut in groups[0][0]["cuts"] if groups else ():
        counts[LABELS[cut]] = [sum(row["cuts"][cut] for row in rows) for rows in groups]
    for j, (label, found) in enumerate(counts.items()):
        share = [max(k / n, 1e-5) for k, n in zip(found, windows, strict=True)]
        at = [i + 0.12 * (j - 2.5) for i in range(len(share))]
        axes.plot(share, at, "o", color=list(COLOURS.values())[j], ms=4, label=label)
    axes.set(xscale="log", xlim=(7e-6, 1.3), xlabel="share of windows (at the edge: none)")
    axes.legend(**ABOVE, ncols=2)


def _verdicts(axes: Any, groups: Sequence[Sequence[Mapping[str, Any]]]) -> None:  # noqa: ANN401
    """Share of each verdict in the alerts of each class."""
    said = [sum((Counter(row["verdicts"]) for row in rows), Counter[str]()) for rows in groups]
    total = [max(sum(one.values()), 1) for one in said]
    start = [0.0] * len(groups)
    for verdict, colour in zip(VERDICTS, (*COLOURS.values(), PALE), strict=True):
        share = [one[verdict] / n for one, n in zip(said, total, strict=True)]
        axes.barh(range(len(groups)), share, left=start, color=colour, label=verdict)
        start = [a + b for a, b in zip(start, share, strict=True)]
    for i, one in enumerate(said):
        axes.text(1.02, i, str(sum(one.values())), va="center", fontsize=7)
    axes.set(xlim=(0, 1.12), xlabel="verdicts of alerts, and their number")
    axes.legend(**ABOVE, ncols=4)
