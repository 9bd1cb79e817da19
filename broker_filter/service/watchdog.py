"""Sees that the main loop makes its passes: a loop that hangs cannot report itself.

Kafka's client has calls that may ignore their own timeout, such as sending offsets to a
transaction whose coordinator is down (librdkafka issue 5456). So another thread watches: first it
logs where every thread stands, and at last it ends the process, to be started anew.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["EXIT_STUCK", "Watchdog", "stacks"]

_log = logging.getLogger(__name__)

EXIT_STUCK = 70
"""Exit status of a process that was ended because its main loop hung."""

CHECK_S = 1.0


class Watchdog:
    """A thread that logs all stacks once per stall, and ends the process if the stall goes on.

    Parameters
    ----------
    stalled_s : callable
        Gives the seconds since the last pass, 0 while they are few (`Health.stalled_s`).
    limit_s : float
        Stall after which the process is ended.
    end : callable
        Ends it, given the exit status. The default leaves at once, since what hangs may hold up
        any orderly way out.
    check_s : float
        Time between two checks.
    """

    def __init__(
        self,
        stalled_s: Callable[[], float],
        limit_s: float,
        *,
        end: Callable[[int], object] = os._exit,
        check_s: float = CHECK_S,
    ) -> None:
        self._stalled_s, self._limit_s = stalled_s, limit_s
        self._end, self._check_s = end, check_s
        self._reported = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join()

    def check(self) -> None:
        """Log or end, as the stall demands."""
        stalled = self._stalled_s()
        if stalled and not self._reported:
            _log.error(
                "no pass of the main loop for %.0f s; all threads:\n%s",
                stalled,
                stacks(),
                extra={"event": "stalled", "duration_s": round(stalled, 1)},
            )
        self._reported = stalled > 0
        if stalled > self._limit_s:
            _log.critical(
                "no pass of the main loop for %.0f s: ending the process, to be restarted",
                stalled,
                extra={"event": "stuck"},
            )
            self._end(EXIT_STUCK)

    def _loop(self) -> None:
        while not self._closed.wait(self._check_s):
            self.check()


def stacks() -> str:
    """Where every thread of this process stands, innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  the documented way
    )
