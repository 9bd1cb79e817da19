"""What was handed over, in an SQLite file: pending before an alert is sent, done after.

An alert that is found done is not sent again, whatever its topic delivers. One that is found
pending was sent by a process that died, or whose answer was lost: nobody knows whether it arrived.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, Self

from broker_filter.alerts.alert import Alert
from broker_filter.errors import ConfigError, StateError

__all__ = ["Journal", "Standing"]

Standing = Literal["new", "pending", "done", "dead"]

VERSION: Final = 1
BUSY_S: Final = 10.0
_TABLE: Final = """
CREATE TABLE handed (
    target TEXT NOT NULL,
    alert TEXT NOT NULL,
    event TEXT NOT NULL,
    standing TEXT NOT NULL,
    day TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (target, alert)
) WITHOUT ROWID;
CREATE INDEX by_day ON handed (target, day);
CREATE INDEX by_event ON handed (target, event);
"""


class Journal:
    """The alerts that one target was given.

    Parameters
    ----------
    path : Path
        Of the file; made where there is none.
    target : str
        Whose alerts: several targets may share a file.

    Raises
    ------
    ConfigError
        The file is no journal, or that of a newer version.
    StateError
        It cannot be written to: locked, read-only, or the disk is full.
    """

    def __init__(self, path: Path, target: str) -> None:
        self._path, self._target = path, target
        with self._named():
            self._base = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            self._base.execute("PRAGMA journal_mode = WAL")
            # A power cut must not forget what was handed over.
            self._base.execute("PRAGMA synchronous = FULL")
            self._prepare()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def standing(self, alert: Alert) -> Standing:
        """How far an alert has come."""
        row = self._one("SELECT standing FROM handed WHERE target = ? AND alert = ?", alert)
        return "new" if row is None else row

    def names_of_event(self, alert: Alert) -> list[str]:
        """What the target calls the alerts of the same event that were handed over, sorted."""
        query = "SELECT name FROM handed WHERE target = ? AND event = ? AND standing = 'done'"
        with self._named():
            rows = self._base.execute(query, (self._target, str(alert.event_id))).fetchall()
        return sorted(name for (name,) in rows)

    def count(self, day: str) -> int:
        """Alerts that were handed over, or begun, on a day."""
        query = "SELECT count(*) FROM handed WHERE target = ? AND day = ? AND standing != 'dead'"
        with self._named():
            return int(self._base.execute(query, (self._target, day)).fetchone()[0])

    def begin(self, alert: Alert, day: str) -> None:
        """Note that an alert is about to be sent."""
        row = (self._target, str(alert.alert_id), str(alert.event_id), day)
        with self._named():
            self._base.execute(
                "INSERT INTO handed (target, alert, event, standing, day)"
                " VALUES (?, ?, ?, 'pending', ?) ON CONFLICT DO NOTHING",
                row,
            )

    def end(self, alert: Alert, standing: Literal["done", "dead"], name: str = "") -> None:
        """Note what became of it; ``name`` is what the target calls it."""
        with self._named():
            self._base.execute(
                "UPDATE handed SET standing = ?, name = ? WHERE target = ? AND alert = ?",
                (standing, name, self._target, str(alert.alert_id)),
            )

    def _one(self, query: str, alert: Alert) -> Standing | None:
        with self._named():
            row = self._base.execute(query, (self._target, str(alert.alert_id))).fetchone()
        return None if row is None else row[0]

    def _prepare(self) -> None:
        (version,) = self._base.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise ConfigError(
                f"{self._path}: journal of version {version}, and this program knows {VERSION}"
            )
        if version == 0:
            self._base.executescript(f"BEGIN; {_TABLE} PRAGMA user_version = {VERSION}; COMMIT;")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in what SQLite says of it."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StateError(f"{self._path}: the journal cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{self._path}: not a journal: {error}") from error
