"""One figure of a benchmark: in words, beside what it is compared with.

The table on the screen, ``results.json`` and the page [README.md](README.md) show the same figures
under the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SMALLER_IS_BETTER = ("s", "ms", "us", "MB", "bytes", "share")
"""Units of which less is better; of rates more is."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure.

    Parameters
    ----------
    name : str
        Short and stable, for programs: ``score_compact_835``.
    label : str
        What was measured, in words.
    value : float
    unit : str
        Such as ``windows/s`` or ``ms``; empty for a number.
    rival : str
        What it is compared with in the same run, if anything.
    rival_value : float, optional
        The rival's figure, in the same unit.
    """

    name: str
    label: str
    value: float
    unit: str
    rival: str = ""
    rival_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times better than the rival this is; None without one."""
        if self.rival_value is None or not self.value or not self.rival_value:
            return None
        ratio = self.value / self.rival_value
        return 1 / ratio if self.unit in SMALLER_IS_BETTER else ratio

    def row(self) -> dict[str, Any]:
        """As one row of a JSON file."""
        return {
            "name": self.name,
            "label": self.label,
            "value": self.value,
            "unit": self.unit,
            "rival": self.rival,
            "rival_value": self.rival_value,
            "ratio": self.ratio,
        }

    def __str__(self) -> str:
        figure = f"{self.label:<72} {shown(self.value):>12} {self.unit:<12}"
        if self.ratio is None:
            return figure.rstrip()
        return f"{figure} {shown(self.ratio):>8} times {self.rival}"


def shown(value: float) -> str:
    """Whole numbers where they say enough."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(figures: Iterable[Figure]) -> None:
    """Print each figure on a line of its own, as it comes."""
    for figure in figures:
        print(figure, flush=True)
