"""How far a demo has come: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from tqdm import tqdm

from broker_filter.observe.metrics import Metrics
from broker_filter.schemas import schema_id

__all__ = ["Progress"]

CHECK_S = 0.5
LINE_SHARE, LINE_S = 0.05, 15.0
"""A line is written after so much more of the whole, and at the latest after so many seconds."""


class Progress:
    """Shows on stderr, while it is entered, what the filter has taken of a stream.

    It has a thread of its own, so that it goes on while everything else waits.

    Parameters
    ----------
    metrics : Metrics
        Of the filter.
    messages : int
        That will be sent.
    clock : callable
        Seconds.
    """

    def __init__(
        self, metrics: Metrics, messages: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics, self._messages, self._clock = metrics, messages, clock
        self._sent = self._epochs = 0
        self._began = self._said = clock()
        self._said_share = 0.0
        self._bar = tqdm(total=100, unit="%", disable=None, file=sys.stderr)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.show(last=True)
        self._bar.close()

    def sent(self, epochs: int) -> None:
        """Count one message, of so many epochs."""
        self._sent += 1
        self._epochs += epochs

    def share(self) -> float:
        """What part of the whole stream the filter has taken, 0 to 1."""
        taken = self._metrics.value("points_inserted_total", outcome="inserted")
        return self._sent / self._messages * min(taken / max(self._epochs, 1), 1.0)

    def show(self, *, last: bool = False) -> None:
        """Move the bar, or write a line where it is time for one."""
        share, now = self.share(), self._clock()
        if not self._bar.disable:
            self._bar.set_postfix_str(f"{self._alerts()} alerts", refresh=False)
            self._bar.update(round(100 * share, 1) - self._bar.n)
            return
        due = share - self._said_share >= LINE_SHARE or now - self._said >= LINE_S
        if due or (last and share > self._said_share):
            self._said, self._said_share = now, share
            sys.stderr.write(
                f"demo: {100 * share:.0f} % filtered, {self._alerts()} alerts,"
                f" {now - self._began:.0f} s\n"
            )
            sys.stderr.flush()

    def _alerts(self) -> int:
        return int(self._metrics.value("alerts_published_total", schema=schema_id("alert")))

    def _run(self) -> None:
        while not self._over.wait(CHECK_S):
            self.show()
