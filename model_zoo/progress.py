"""What a person sees of work that takes long: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from tqdm import tqdm

__all__ = ["REPORT_SECONDS", "Clock", "Progress"]

Clock = Callable[[], float]
"""Seconds since any moment; `time.monotonic`, but where time itself is under test."""

REPORT_SECONDS = 30.0
"""From one line to the next where standard error is no terminal."""


class Progress:
    """Progress of one piece of work, on standard error.

    Parameters
    ----------
    name, unit : str
    total : float
        In the unit.
    quiet : bool
        Shows nothing.
    clock : callable
    """

    def __init__(
        self,
        name: str,
        total: float,
        unit: str,
        *,
        quiet: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self._name, self._total, self._unit, self._clock = name, total, unit, clock
        self._lines = not quiet and not sys.stderr.isatty()
        shown = not quiet and not self._lines
        self._bar = tqdm(total=round(total), unit=unit, desc=name, disable=not shown)
        self._done, self._last_line = 0.0, clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, done: float) -> None:
        """So much more is done."""
        self.update(self._done + done)

    def update(self, done: float, text: str = "") -> None:
        """So much is done in all; ``text`` says how it goes."""
        self._done = done
        self._bar.update(round(min(done, self._total)) - self._bar.n)
        if text:
            self._bar.set_postfix_str(text)
        if self._clock() - self._last_line >= REPORT_SECONDS:
            self.say(text, done)

    def say(self, text: str, done: float) -> None:
        """Write a line now, where there is no bar."""
        self._done = done
        if self._lines:
            self._last_line = self._clock()
            said = f"{self._name}: {self._done:,.0f} of {self._total:,.0f} {self._unit}"
            tqdm.write(f"{said}: {text}" if text else said, file=sys.stderr)
