"""Sees that the topics that are read stay the same: one made anew has other messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from broker_filter.errors import StateError

__all__ = ["IdsOf", "TopicWatch", "made_anew"]

WATCH_S = 10.0

IdsOf = Callable[[Collection[str]], Mapping[str, str]]
"""Gives the ids of topics, those that are known for now."""


def made_anew(topic: str) -> StateError:
    """Return the error for a topic that was deleted and made anew."""
    return StateError(
        f"topic {topic} was deleted and made anew: offsets and snapshots of the old one say nothing"
        " of the new one. Take another kafka.group_id; or reset the group's offsets"
        " (kafka-consumer-groups.sh --reset-offsets) and remove the group's snapshots of it"
    )


class TopicWatch:
    """A thread that looks up the ids of the topics that are read.

    Parameters
    ----------
    ids_of : callable
        See `IdsOf`; called in the thread.
    every_s : float, seconds
    """

    def __init__(self, ids_of: IdsOf, every_s: float = WATCH_S) -> None:
        self._ids_of, self._every_s = ids_of, every_s
        self._topics: frozenset[str] = frozenset()
        self._ids: dict[str, str] = {}
        self._changed: str | None = None
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="topics", daemon=True)
        self._thread.start()

    def follow(self, topics: Collection[str]) -> None:
        """Watch these topics from now on. Never blocks."""
        if (new := frozenset(topics)) != self._topics:
            self._topics = new
            self._wake.set()

    def id_of(self, topic: str) -> str:
        """The id of a topic when it was first looked up; empty where it is not known."""
        return self._ids.get(topic, "")

    def check(self) -> None:
        """Raise StateError where a topic that is followed was made anew."""
        if self._changed in self._topics:
            raise made_anew(str(self._changed))

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()

    def _loop(self) -> None:
        while not self._closed:
            self._wake.wait(self._every_s)
            self._wake.clear()
            topics = self._topics
            self._note(topics, self._ids_of(topics) if topics else {})

    def _note(self, topics: Collection[str], now: Mapping[str, str]) -> None:
        self._ids = {topic: name for topic, name in self._ids.items() if topic in topics}
        for topic, name in now.items():
            if topic in topics and self._ids.setdefault(topic, name) != name:
                self._changed = topic
