"""Figures in one style, drawn without pyplot: no window, backend or global state is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker_filter.extras import require

__all__ = ["DATA", "INK", "MODEL", "SYMBOLS", "Axes", "open_figure", "require_matplotlib"]

Axes = Any  # matplotlib comes with an extra, so its types may be absent

INK, DATA, MODEL = "#22252b", "#6b7a90", "#c2410c"
SYMBOLS = {"t0": "t_0", "u0": "u_0", "tE": "t_E", "rho": r"\rho", "f_s": "f_s"}
"""Parameters in matplotlib's formulae."""

_STYLE = {
    "font.size": 10,
    "axes.edgecolor": "#9aa3af",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": "#5b6470",
    "ytick.color": "#5b6470",
    "xtick.direction": "in",
    "ytick.direction": "in",
    "mathtext.fontset": "dejavusans",
}


def require_matplotlib() -> None:
    """Check that pictures can be drawn.

    Raises
    ------
    ConfigError
        matplotlib is not installed; the message says how to install it.
    """
    require("matplotlib", "plots")


def _write(figure: Any, path: Path) -> None:  # noqa: ANN401  matplotlib has no types here
    figure.savefig(path, dpi=150)


@contextmanager
def open_figure(
    path: Path,
    width: float,
    height: float,
    *,
    style: Mapping[str, object] | None = None,
    write: Callable[[Any, Path], None] = _write,
) -> Iterator[Any]:
    """Open a matplotlib ``Figure`` in our style (inches), and write it to ``path`` at the end.

    Parameters
    ----------
    path : Path
        Its folder is made where it is missing.
    width, height : float, inches
    style : mapping, optional
        Matplotlib's settings that differ from our style.
    write : callable
        Writes a figure to a path.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({**_STYLE, **(style or {})}):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        write(figure, path)
