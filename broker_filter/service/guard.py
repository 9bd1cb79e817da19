"""Stops the consumer where a stream is bad as a whole, so that one bad message never does."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from broker_filter.errors import StateError
from broker_filter.types import DeadLetter, Message

__all__ = ["MEMORY", "StreamGuard"]

MEMORY = 10_000
"""Messages over which the share of unusable ones is taken: a bad hour is seen after a good month,
and forgotten in time."""

_LEAST = 1_000  # a share of fewer would say little


class StreamGuard:
    """Counts unusable messages among the newest, and in a row.

    Parameters
    ----------
    max_ratio : float
        Largest share of unusable messages among the newest `MEMORY`.
    max_consecutive : int
        So many unusable messages in a row are too many.
    """

    def __init__(self, max_ratio: float, max_consecutive: int) -> None:
        self._max_ratio, self._max_consecutive = max_ratio, max_consecutive
        self._polls: deque[tuple[int, int]] = deque()
        self._messages = self._dead = self._row = 0

    def count(self, messages: Sequence[Message], dead: Sequence[DeadLetter]) -> None:
        """Take note of some messages, in order, and which of them could not be used.

        Raises
        ------
        StateError
            Past one of the limits, naming the last reason.
        """
        self._remember(len(messages), len(dead))
        longest = self._longest_row(messages, dead)
        too_many = self._dead > self._max_ratio * max(self._messages, _LEAST)
        if longest >= self._max_consecutive or (dead and too_many):
            raise StateError(
                f"{self._dead} of {self._messages} messages could not be used, the last because"
                f" {dead[-1].reason}: {dead[-1].detail}. Check input.format and the topic, or raise"
                " dead_letters.max_ratio and dead_letters.max_consecutive"
            )

    def _remember(self, messages: int, dead: int) -> None:
        self._polls.append((messages, dead))
        self._messages += messages
        self._dead += dead
        while self._messages - self._polls[0][0] >= MEMORY:
            old_messages, old_dead = self._polls.popleft()
            self._messages -= old_messages
            self._dead -= old_dead

    def _longest_row(self, messages: Sequence[Message], dead: Sequence[DeadLetter]) -> int:
        """Most unusable messages in a row, those of the calls before included."""
        if not dead:
            self._row = 0
            return 0
        longest, letters = 0, {id(letter.message) for letter in dead}
        for message in messages:
            self._row = self._row + 1 if id(message) in letters else 0
            longest = max(longest, self._row)
        return longest
