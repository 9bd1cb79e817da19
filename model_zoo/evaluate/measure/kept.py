"""Results of a long measurement, star by star in a file, so that a run goes on where one ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from model_zoo.json_lines import append_line, read_lines
from model_zoo.progress import Progress

__all__ = ["Kept"]

Result = TypeVar("Result")


class Kept:
    """What was measured of each star.

    Parameters
    ----------
    path : Path, optional
        JSON lines, of earlier runs too; without it nothing is kept.
    of : str
        What the results depend on, such as the checksum of weights; those of another do not count.
    """

    def __init__(self, path: Path | None = None, of: str = "") -> None:
        self._path, self._of = path, of
        rows = [] if path is None else read_lines(path)
        self._known = {row["star"]: row["result"] for row in rows if row["of"] == of}

    def __call__(self, star: str, measure: Callable[[], Result]) -> Result:
        """The result of one star, whose form JSON has to hold: known, or measured now."""
        if star in self._known:
            return cast("Result", self._known[star])
        result = measure()
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self._path, {"star": star, "of": self._of, "result": result})
        return result

    def each(
        self,
        name: str,
        unit: str,
        n: int,
        seed: Sequence[int],
        measure: Callable[[np.random.Generator], Result],
        *,
        quiet: bool = False,
    ) -> list[Result]:
        """The results of so many stars of one kind.

        Parameters
        ----------
        name, unit : str
            Of the kind, and what one of it is called.
        n : int
        seed : sequence of int
            Of the kind; star j is drawn from this and j.
        measure : callable
            Draws a star and measures it.
        quiet : bool
            Shows no progress.
        """
        found = []
        with Progress(name, n, unit, quiet=quiet) as shown:
            for j in range(n):
                star = partial(measure, np.random.default_rng([*seed, j]))
                found.append(self(f"{name}, {j}", star))
                shown.add(1)
        return found
