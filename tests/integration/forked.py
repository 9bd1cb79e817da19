"""Processes that begin with everything imported: one server imports it, and each is its fork.

To import torch and what goes with it takes ten seconds of a processor, and a filter that is killed
again and again would do little else. The server has no thread and no connection to a broker, so a
fork of it is as good as a fresh process.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Forked"]

PRELOADED = ["tests.chaos.crash", "broker_filter.service.assembly", "tests.integration.harness"]


class Forked:
    """A module that is run as ``python -m`` would; has what we use of `subprocess.Popen`.

    Parameters
    ----------
    command : sequence of str
        Module and arguments.
    log : Path
        For all that it writes.
    environment : mapping
        Further environment variables.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        arguments = (list(command), log, dict(environment))
        self._process = context.Process(target=_run, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, the negative signal that ended it, or None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """See `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], log: Path, environment: dict[str, str]) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    sys.argv[1:] = command[1:]
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
