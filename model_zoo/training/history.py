"""How the losses of a training fell: one line of JSON for every so many steps.

A line has ``step``, ``curves`` and ``seconds`` so far, and three losses: ``nll`` of the flow,
``evidence`` and ``lookalikes`` of the two heads (0 without a second one). These are means over the
steps since the line before; with the prefix ``validation_`` they are of the validation set, and
with ``unpolished_`` and ``polished_`` of the same before and after the last stage. All nll are
relative to the prior, in nats: 0 for a flow that only repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_zoo.json_lines import append_line, read_lines

__all__ = ["History", "summary_of"]

ROWS = 60


class History:
    """The file of one run.

    Parameters
    ----------
    path : Path
        Made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, step: int) -> None:
        """Forget what comes after ``step``, from which a run goes on; all of it for step 0."""
        kept = [row for row in self.rows() if row["step"] <= step] if step else []
        if kept or self.path.exists():
            partial = self.path.with_suffix(".partial")
            partial.write_text("".join(json.dumps(row) + "\n" for row in kept))
            partial.replace(self.path)

    def add(self, row: Mapping[str, float]) -> None:
        """Write one line."""
        append_line(self.path, dict(row))

    def rows(self) -> list[dict[str, float]]:
        """All lines; one that an interrupt cut off is left out."""
        return read_lines(self.path)


def summary_of(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """At most `ROWS` points of each loss, as the card keeps them.

    Returns
    -------
    dict
        ``training`` and ``validation``, each with lists ``step``, ``nll`` and ``evidence``.
    """
    return {
        "training": _columns([row for row in rows if "nll" in row], ""),
        "validation": _columns([row for row in rows if "validation_nll" in row], "validation_"),
    }


def _columns(rows: Sequence[Mapping[str, float]], prefix: str) -> dict[str, list[float]]:
    """Means over neighbours for training losses, which scatter; the last point always stays."""
    stride = max(1, -(-len(rows) // ROWS))
    groups = [rows[max(0, end - stride) : end] for end in range(len(rows), 0, -stride)][::-1]
    if prefix:  # a validation is no mean of several: the latest of each group
        groups = [group[-1:] for group in groups]
    return {
        "step": [int(group[-1]["step"]) for group in groups],
        **{
            name: [round(sum(row[prefix + name] for row in g) / len(g), 4) for g in groups]
            for name in ("nll", "evidence")
        },
    }
