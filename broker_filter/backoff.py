"""When to try again after a failure: one back-off for brokers, registries and stores."""

from __future__ import annotations

import time
from collections.abc import Callable

from broker_filter.errors import BrokerFilterError

__all__ = ["Backoff"]


class Backoff:
    """When to try again after a failure, and when to give up.

    Parameters
    ----------
    limit_s : float, seconds
        Time since the first failure in a row after which there is no further attempt.
    first_s, longest_s : float, seconds
        The first pause, and the longest: each is twice the one before it.
    clock : callable
        Monotonic time in seconds.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        first_s: float = 0.1,
        longest_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s, self._first_s, self._longest_s = limit_s, first_s, longest_s
        self._clock = clock
        self._since: float | None = None
        self._next = 0.0
        self._pause = first_s

    def ready(self) -> bool:
        """Whether to try now."""
        return self._clock() >= self._next

    def failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._since is not None

    def failed(self, error: BrokerFilterError) -> float:
        """Take note of a failure; gives the seconds to wait before the next attempt.

        The last attempt comes when the limit has passed. Raises ``error`` after that.
        """
        now = self._clock()
        if self._since is None:
            self._since, self._pause = now, self._first_s
        left_s = self._since + self._limit_s - now
        if left_s <= 0:
            raise error
        pause, self._pause = min(self._pause, left_s), min(2 * self._pause, self._longest_s)
        self._next = now + pause
        return pause

    def succeeded(self) -> None:
        """Start afresh."""
        self._since, self._next = None, 0.0
