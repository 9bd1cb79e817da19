"""What SIGTERM and SIGINT do to the service: end it with status 0, and nothing half done."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

__all__ = ["exit_on_signals", "stop_on_signals"]

_log = logging.getLogger(__name__)


def exit_on_signals() -> None:
    """End at once while nothing has been taken yet: loading a model may take long."""

    def leave() -> None:
        _log.info("stopped before the start", extra={"event": "stopped"})
        logging.shutdown()
        # An exception would be lost where the signal comes amid a call of a C extension.
        os._exit(0)

    stop_on_signals(leave)


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Call ``stop`` at the first signal; a second one ends the process."""

    def handle(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
