"""How alerts come into the database: from a topic, or from a folder of saved ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_message
from broker_filter.backoff import Backoff
from broker_filter.client.read import read_alert
from broker_filter.client.subscribe import SHOWN, MessageReader
from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.observe.text import printable
from broker_filter.page.database import Database
from broker_filter.page.kept import Bounds, advance, keep, positions, prune
from broker_filter.types import Message

__all__ = ["FolderIntake", "Standing", "TopicIntake"]

_log = logging.getLogger(__name__)

POLL_S: Final = 0.5
AT_ONCE: Final = 200
"""Messages or files of one transaction at most."""
PRUNE_S: Final = 600.0
LONGEST_PAUSE_S: Final = 30.0
FOLDER_S: Final = 2.0
"""Between two looks at a folder."""


@dataclass(slots=True)
class Standing:
    """How the intake stands, for the page.

    Parameters
    ----------
    source : str
        Where alerts come from.
    trouble : str
        What keeps them from coming; empty where nothing does.
    received, broken : int
        Alerts that were new, and what could not be read, since the start.
    """

    source: str
    trouble: str = ""
    received: int = 0
    broken: int = 0

    def count_broken(self, what: object, error: Exception) -> None:
        """Take note of what could not be read."""
        self.broken += 1
        # A source that is all broken must not fill a disk with log lines.
        if self.broken <= 10 or self.broken % 1000 == 0:
            said = printable(error, SHOWN)
            _log.warning("%s is not an alert (%s); %d so far", what, said, self.broken)


@dataclass(slots=True)
class _Pruning:
    """Forgets old events now and then."""

    bounds: Bounds
    due: float = 0.0

    def __call__(self, database: Database) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + PRUNE_S
            with database.write() as connection:
                gone = prune(connection, self.bounds)
            if gone:
                _log.info("forgot %d old events", gone)


@dataclass(slots=True)
class TopicIntake:
    """Reads a topic into the database, each alert once.

    The place in the topic is kept in the same transaction as the alerts, so that a restart goes on
    where the database ends; where Kafka or the database fails, it tries again.

    Parameters
    ----------
    database : Database
    topic : str
    connect : callable
        Given the offset to begin with of each partition that was read before, makes a reader.
    bounds : Bounds
    """

    database: Database
    topic: str
    connect: Callable[[Mapping[int, int]], MessageReader]
    bounds: Bounds
    standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        self.standing = Standing(f"topic {self.topic}")

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set.

        Raises
        ------
        ConfigError
            The brokers refuse the credentials, or librdkafka a property.
        StateError
            The database is damaged.
        """
        backoff = Backoff(float("inf"), first_s=0.5, longest_s=LONGEST_PAUSE_S)
        while not stop.is_set():
            try:
                self._read(stop, backoff)
            except TransientError as error:
                self.standing.trouble = printable(error, SHOWN)
                _log.warning("%s; trying again", self.standing.trouble)
                stop.wait(backoff.failed(error))

    def _read(self, stop: threading.Event, backoff: Backoff) -> None:
        with self.database.read() as connection:
            places = positions(connection, self.topic)
        pruning = _Pruning(self.bounds)
        with closing(self.connect(places)) as reader:
            while not stop.is_set():
                pruning(self.database)
                if messages := list(_next_messages(reader)):
                    self._take(messages)
                self.standing.trouble = ""
                backoff.succeeded()

    def _take(self, messages: Sequence[Message]) -> None:
        alerts = [alert for one in messages if (alert := self._alert(one)) is not None]
        with self.database.write() as connection:
            new = sum(keep(connection, alert) for alert in alerts)
            for one in messages:
                advance(connection, self.topic, one.partition, one.next_offset)
        self.standing.received += new

    def _alert(self, message: Message) -> Alert | None:
        try:
            return from_message(message)
        except PoisonMessage as error:
            place = f"{message.topic}[{message.partition}] offset {message.offset}"
            self.standing.count_broken(place, error)
            return None


def _next_messages(reader: MessageReader) -> Iterator[Message]:
    """What is there, after a wait for the first."""
    timeout = POLL_S
    for _ in range(AT_ONCE):
        if (message := reader.poll(timeout)) is None:
            return
        yield message
        timeout = 0.0


@dataclass(slots=True)
class FolderIntake:
    """Reads the alerts of a folder, and those that come into it later.

    Parameters
    ----------
    database : Database
    folder : Path
        With files ``*.avro`` as ``broker-filter subscribe --avro`` saves them, at any depth.
    bounds : Bounds
    """

    database: Database
    folder: Path
    bounds: Bounds
    standing: Standing = field(init=False)
    _seen: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.standing = Standing(f"folder {printable(self.folder)}")

    def run(self, stop: threading.Event) -> None:
        """Look at the folder again and again until ``stop`` is set.

        Raises
        ------
        StateError
            The database is damaged.
        """
        pruning = _Pruning(self.bounds)
        while not stop.is_set():
            try:
                self.load()
                pruning(self.database)
                self.standing.trouble = ""
            except TransientError as error:
                self.standing.trouble = printable(error, SHOWN)
                _log.warning("%s; trying again", self.standing.trouble)
            stop.wait(FOLDER_S)

    def load(self) -> int:
        """Take all files that are new or have changed; gives the number of new alerts."""
        changed, before = self._changed(), self.standing.received
        while paths := dict(islice(changed, AT_ONCE)):
            alerts = [alert for path in paths if (alert := self._alert(path)) is not None]
            with self.database.write() as connection:
                new = sum(keep(connection, alert) for alert in alerts)
            self.standing.received += new
            self._seen |= paths
        return self.standing.received - before

    def _changed(self) -> Iterator[tuple[Path, int]]:
        for path in sorted(self.folder.rglob("*.avro")):
            try:
                changed = path.stat().st_mtime_ns
            except OSError:  # gone meanwhile
                continue
            if self._seen.get(path) != changed:
                yield path, changed

    def _alert(self, path: Path) -> Alert | None:
        try:
            return read_alert(path)
        except ConfigError as error:
            self.standing.count_broken(printable(path), error)
            return None
