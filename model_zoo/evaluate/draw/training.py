"""Picture of a training: both losses by step, of the training curves and of the validation set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_zoo.evaluate.draw.figures import COLOURS, PALE, figure

__all__ = ["draw_training"]

LABELS = {
    "nll": "flow: ln prior - ln density (nats)",
    "evidence": "evidence head: exponential loss",
}


def draw_training(part: Mapping[str, Any], folder: Path) -> list[Path]:
    """Figure of the ``training`` section of a card that has a history; made in ``folder``.

    Parameters
    ----------
    part : mapping
        ``history`` as `model_zoo.training.history.summary_of` gives it, and ``validation`` with
        the ``best_step`` whose weights were taken.
    folder : Path
    """
    path, history = folder / "training.png", part["history"]
    with figure(path, 9.6, 4.0) as canvas:
        for axes, loss in zip(canvas.subplots(1, 2), LABELS, strict=True):
            for name, colour in (("training", "sky"), ("validation", "vermilion")):
                rows = history[name]
                axes.plot(rows["step"], rows[loss], color=COLOURS[colour], label=name)
            axes.axvline(part["validation"]["best_step"], ls="--", color=PALE, lw=1)
            axes.set(xlabel="step", ylabel=LABELS[loss])
        axes.set(yscale="log")
        axes.legend()
    return [path]
