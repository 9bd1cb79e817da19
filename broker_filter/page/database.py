"""The page's database: one SQLite file, read by many threads while one writes.

It holds the alerts as Avro, one row an event for the list, notes, and how far each topic was read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from broker_filter.errors import ConfigError, StateError, TransientError

__all__ = ["APPLICATION", "MIGRATIONS", "Database"]

APPLICATION: Final = 0x6C656E73
"""SQLite's mark of whose file it is: "lens"."""

MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE alerts (
        alert_id TEXT PRIMARY KEY,
        event_id TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        state TEXT NOT NULL,
        last_epoch REAL NOT NULL,
        log10_k REAL NOT NULL,
        certified REAL,
        certified_error REAL,
        schema TEXT NOT NULL,
        avro BLOB NOT NULL
    );
    CREATE INDEX alerts_of_event ON alerts (event_id, last_epoch, created_ms);
    CREATE TABLE events (
        event_id TEXT PRIMARY KEY,
        alert_id TEXT NOT NULL,
        star TEXT NOT NULL,
        survey TEXT NOT NULL,
        band TEXT NOT NULL,
        state TEXT NOT NULL,
        verdict TEXT,
        log10_k REAL NOT NULL,
        certified REAL,
        t0 REAL NOT NULL,
        tE REAL NOT NULL,
        magnitude REAL,
        days_to_peak REAL,
        ra REAL,
        dec REAL,
        last_epoch REAL NOT NULL,
        created_ms INTEGER NOT NULL,
        received_ms INTEGER NOT NULL
    );
    CREATE INDEX events_by_arrival ON events (received_ms);
    CREATE TABLE marks (
        event_id TEXT PRIMARY KEY,
        note TEXT NOT NULL DEFAULT '',
        hidden INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE positions (
        topic TEXT NOT NULL,
        partition INTEGER NOT NULL,
        next_offset INTEGER NOT NULL,
        PRIMARY KEY (topic, partition)
    );
    """,
    # Whose note it is may matter a week later.
    "ALTER TABLE marks ADD COLUMN changed_ms INTEGER NOT NULL DEFAULT 0;",
)
"""What makes each version of the next older one, the first of an empty file."""

BUSY_S = 5.0
"""A writer waits so long for another program that writes."""


class Database:
    """A database file; each read and each write has a connection of its own.

    Parameters
    ----------
    path : Path
        Made where it is missing; brought up to this version where it is older.

    Raises
    ------
    ConfigError
        The file cannot be opened, is none of ours, or was written by a newer version.
    TransientError
        Another program has locked it, or the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path.parent}: {error.strerror}") from None
        with self._connect() as connection:
            self._check_owner(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            self._migrate(connection)

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One connection, on which all statements see the same state.

        Raises
        ------
        TransientError
            The file is locked.
        StateError
            It is damaged.
        """
        with self._connect() as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: done as a whole at the end of the block, or not at all.

        Raises
        ------
        TransientError
            The file is locked for 5 s, or the disk is full.
        StateError
            It is damaged.
        """
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(
                sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            ) as connection:
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.Error as error:
            raise self._named(error) from error

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if owner != APPLICATION and not empty:
            raise ConfigError(f"{self.path} is the database of another program; choose another")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Bring the file to this version, one step a transaction."""
        newest = len(MIGRATIONS)
        while (version := _version(connection)) < newest:
            connection.executescript(
                f"BEGIN IMMEDIATE; {MIGRATIONS[version]}"
                f" PRAGMA application_id = {APPLICATION};"
                f" PRAGMA user_version = {version + 1}; COMMIT;"
            )
        if version > newest:
            raise ConfigError(
                f"{self.path} has version {version}; this program knows {newest} at most:"
                " install the newer one again, or choose another file"
            )

    def _named(self, error: sqlite3.Error) -> ConfigError | StateError | TransientError:
        """Give an error of SQLite the name of one of ours."""
        said = str(error)
        if "locked" in said or "busy" in said:
            return TransientError(f"{self.path} is locked by another program: does a page run?")
        if "full" in said:
            return TransientError(f"{self.path} cannot grow, the disk is full: {said}")
        if any(word in said for word in ("not a database", "unable to open", "readonly")):
            return ConfigError(f"{self.path} cannot be used: {said}")
        return StateError(f"{self.path}: {said}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
