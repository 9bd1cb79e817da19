"""One thread that does heavy jobs in order, while the main thread goes on polling.

A job and what is to be made of its result are given together; the result is handed over in the
main thread, so that only the job itself runs beside it.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Worker", "leave"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

THREAD = "inference"


@dataclass(frozen=True, slots=True)
class _Job:
    run: Callable[[], Any]
    done: Callable[[Any], None] | None


class Worker:
    """A queue of jobs, and one thread behind it.

    Parameters
    ----------
    depth : int
        So many jobs may wait before the worker counts as `full`.
    """

    def __init__(self, depth: int) -> None:
        self._depth, self._open = depth, 0
        self._todo: queue.Queue[_Job | None] = queue.Queue()
        self._done: queue.Queue[tuple[_Job, Any, BaseException | None]] = queue.Queue()
        self._thread = threading.Thread(target=self._loop, name=THREAD, daemon=True)

    def start(self) -> None:
        """Begin with the jobs."""
        self._thread.start()

    def submit(self, run: Callable[[], T], done: Callable[[T], None] | None = None) -> None:
        """Queue one job; `serve` calls ``done`` with its result. Never blocks."""
        self._open += 1
        self._todo.put(_Job(run, done))

    def waiting(self) -> int:
        """Jobs that nobody has begun."""
        return self._todo.qsize()

    def full(self) -> bool:
        """Whether the worker is behind."""
        return self.waiting() >= self._depth

    def busy(self) -> bool:
        """Whether any job is unfinished, or its result not yet handed over."""
        return self._open > 0

    def serve(self, wait_s: float = 0.0) -> None:
        """Hand over the results that are there, in order; waits ``wait_s`` for a first one.

        Raises what a job raised. No job runs after one that failed.
        """
        while True:
            try:
                job, result, error = self._done.get(timeout=wait_s or None, block=wait_s > 0)
            except queue.Empty:
                return
            if error is not None:
                raise error
            self._open -= 1
            wait_s = 0.0
            if job.done is not None:
                job.done(result)

    def close(self, timeout_s: float) -> None:
        """End after the job that runs now, within ``timeout_s``; those that wait are dropped.

        Where that is too short, the process is to end by `leave`.
        """
        with suppress(queue.Empty):
            while True:
                self._todo.get_nowait()
        self._todo.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _loop(self) -> None:
        while (job := self._todo.get()) is not None:
            try:
                self._done.put((job, job.run(), None))
            except BaseException as error:  # noqa: BLE001  handed to the main thread
                self._done.put((job, None, error))
                return


def leave(status: int) -> int:
    """Give back the exit status of a process; where a job still runs, end the process with it.

    A thread that is in native code while the interpreter ends would abort the process instead, with
    status 134 and a core dump.
    """
    if any(thread.name == THREAD for thread in threading.enumerate()):
        _log.warning("ended while a job still ran", extra={"event": "abandoned"})
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
