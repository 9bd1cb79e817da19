"""Whether the process lives, and whether it is ready: what its probes see."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["STALL_S", "Health"]

STALL_S = 30.0
START_S = 300.0


class Health:
    """Whether the main loop makes its passes, and whether all that work needs is available.

    Parameters
    ----------
    needs : tuple of str
        What must be available before the process is ready.
    clock : callable
        Monotonic time in seconds.
    stall_s : float
        Longest time that one pass of the main loop may take.
    start_s : float
        Longest time up to the first pass: models load before it.
    """

    def __init__(
        self,
        needs: tuple[str, ...] = ("model", "partitions", "broker"),
        *,
        clock: Callable[[], float] = time.monotonic,
        stall_s: float = STALL_S,
        start_s: float = START_S,
    ) -> None:
        self._clock = clock
        self._stall_s = stall_s
        self._limit_s = start_s
        self._last_beat = clock()
        self._ready = dict.fromkeys(needs, False)

    def beat(self) -> None:
        """Note that the main loop has made a pass."""
        self._last_beat, self._limit_s = self._clock(), self._stall_s

    def set_ready(self, need: str, ready: bool = True) -> None:
        """Note that a need is met, or no longer; KeyError if it is not one of the needs."""
        if need not in self._ready:
            raise KeyError(need)
        self._ready[need] = ready

    def missing(self) -> list[str]:
        """Return the needs that are not met."""
        return [need for need, ready in self._ready.items() if not ready]

    def stalled_s(self) -> float:
        """Return the seconds since the last pass, 0 while they are within the limit."""
        passed = self._clock() - self._last_beat
        return passed if passed > self._limit_s else 0.0

    def liveness(self) -> tuple[bool, str]:
        """Return whether the main loop makes its passes, and the sentence that says so."""
        stalled = self.stalled_s()
        return not stalled, f"no pass of the main loop for {stalled:.0f} s" if stalled else "ok"

    def readiness(self) -> tuple[bool, str]:
        """Return whether all needs are met, and the sentence that names those that are not."""
        missing = self.missing()
        return not missing, f"waiting for {', '.join(missing)}" if missing else "ok"
