"""What the database keeps: alerts once each, one row an event, notes, and places in topics."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_avro, to_avro
from broker_filter.schemas import current_version

__all__ = [
    "MAX_NOTE",
    "Bounds",
    "advance",
    "alert_of",
    "history",
    "keep",
    "latest_alert",
    "marks",
    "positions",
    "prune",
    "set_hidden",
    "set_note",
]

MAX_NOTE: Final = 4000
"""Characters of a note."""
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept: events younger than so many days, and at most so many."""

    days: float = 30.0
    events: int = 20_000


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def keep(connection: sqlite3.Connection, alert: Alert, received_ms: int | None = None) -> bool:
    """Keep an alert, and let its event say what the newest alert says.

    Returns
    -------
    bool
        Whether it is new; one that is there already changes nothing.
    """
    row = _alert_row(alert)
    if not _insert(connection, "INSERT OR IGNORE INTO alerts", row):
        return False
    found = connection.execute(
        "SELECT last_epoch, created_ms FROM events WHERE event_id = ?", (row["event_id"],)
    ).fetchone()
    if found is None or tuple(found) <= (alert.last_epoch_mjd_tai, alert.created_ms):
        when = now_ms() if received_ms is None else received_ms
        _insert(connection, "REPLACE INTO events", _event_row(alert, when))
    return True


def _insert(connection: sqlite3.Connection, verb: str, row: Mapping[str, Any]) -> bool:
    places = ", ".join("?" * len(row))
    sql = f"{verb} ({', '.join(row)}) VALUES ({places})"
    return connection.execute(sql, tuple(row.values())).rowcount > 0


def _alert_row(alert: Alert) -> dict[str, Any]:
    certified = alert.certified
    return {
        "alert_id": str(alert.alert_id),
        "event_id": str(alert.event_id),
        "created_ms": alert.created_ms,
        "state": alert.state,
        "last_epoch": alert.last_epoch_mjd_tai,
        "log10_k": alert.log10_k,
        "certified": None if certified is None else certified.log10_k,
        "certified_error": None if certified is None else certified.log10_k_error,
        "schema": current_version("alert"),
        "avro": to_avro(alert),
    }


def _event_row(alert: Alert, received_ms: int) -> dict[str, Any]:
    return {
        "event_id": str(alert.event_id),
        "alert_id": str(alert.alert_id),
        "star": _storable(alert.star_id),
        "survey": _storable(alert.survey),
        "band": _storable(alert.band),
        "state": alert.state,
        "verdict": None if alert.verdict is None else alert.verdict.verdict,
        "log10_k": alert.log10_k,
        "certified": None if alert.certified is None else alert.certified.log10_k,
        "t0": alert.t0_mjd_tai,
        "tE": alert.interval("tE").median,
        "magnitude": alert.magnitude_now,
        "days_to_peak": alert.days_to_peak,
        "ra": alert.ra,
        "dec": alert.dec,
        "last_epoch": alert.last_epoch_mjd_tai,
        "created_ms": alert.created_ms,
        "received_ms": received_ms,
    }


def _storable(text: object) -> str:
    """Text without lone surrogates, which SQLite does not take."""
    return str(text).encode(errors="replace").decode()


def prune(connection: sqlite3.Connection, bounds: Bounds, at_ms: int | None = None) -> int:
    """Forget the oldest events beyond the bounds; those with a note go by number alone.

    Returns
    -------
    int
        How many went.
    """
    oldest = (now_ms() if at_ms is None else at_ms) - int(bounds.days * _DAY_MS)
    old = """
        SELECT event_id FROM events LEFT JOIN marks USING (event_id)
        WHERE received_ms < ? AND coalesce(note, '') = ''
        UNION SELECT event_id FROM (
            SELECT event_id FROM events LEFT JOIN marks USING (event_id)
            ORDER BY coalesce(note, '') = '', received_ms DESC LIMIT -1 OFFSET ?)"""
    gone = [tuple(row) for row in connection.execute(old, (oldest, bounds.events))]
    for table in ("alerts", "events", "marks"):
        connection.executemany(f"DELETE FROM {table} WHERE event_id = ?", gone)  # noqa: S608
    return len(gone)


def positions(connection: sqlite3.Connection, topic: str) -> dict[int, int]:
    """Offset to read next of each partition of a topic that was read before."""
    sql = "SELECT partition, next_offset FROM positions WHERE topic = ?"
    return {row[0]: row[1] for row in connection.execute(sql, (topic,))}


def advance(connection: sqlite3.Connection, topic: str, partition: int, offset: int) -> None:
    """Remember the offset to read next."""
    connection.execute("REPLACE INTO positions VALUES (?, ?, ?)", (topic, partition, offset))


def history(connection: sqlite3.Connection, event_id: str) -> Sequence[sqlite3.Row]:
    """The alerts of an event, oldest first, without their bytes."""
    sql = """SELECT alert_id, created_ms, state, last_epoch, log10_k, certified, certified_error
             FROM alerts WHERE event_id = ? ORDER BY last_epoch, created_ms"""
    return connection.execute(sql, (event_id,)).fetchall()


def latest_alert(connection: sqlite3.Connection, event_id: str) -> Alert | None:
    """The newest alert of an event."""
    sql = """SELECT schema, avro FROM alerts JOIN events USING (alert_id)
             WHERE events.event_id = ?"""
    return _read(connection.execute(sql, (event_id,)).fetchone())


def alert_of(connection: sqlite3.Connection, alert_id: str) -> Alert | None:
    """An alert by its identifier."""
    sql = "SELECT schema, avro FROM alerts WHERE alert_id = ?"
    return _read(connection.execute(sql, (alert_id,)).fetchone())


def _read(row: sqlite3.Row | None) -> Alert | None:
    return None if row is None else from_avro(row["avro"], row["schema"])


def marks(connection: sqlite3.Connection, event_id: str) -> tuple[str, bool]:
    """Note of an event, and whether it is hidden."""
    sql = "SELECT note, hidden FROM marks WHERE event_id = ?"
    row = connection.execute(sql, (event_id,)).fetchone()
    return ("", False) if row is None else (row[0], bool(row[1]))


def set_note(connection: sqlite3.Connection, event_id: str, note: str) -> None:
    """Keep a note on an event."""
    _mark(connection, event_id, "note", _storable(note)[:MAX_NOTE])


def set_hidden(connection: sqlite3.Connection, event_id: str, hidden: bool) -> None:
    """Leave an event out of the list, or put it back."""
    _mark(connection, event_id, "hidden", int(hidden))


def _mark(connection: sqlite3.Connection, event_id: str, column: str, value: object) -> None:
    connection.execute(
        # The column is one of two names above.
        f"""INSERT INTO marks (event_id, {column}, changed_ms) VALUES (?, ?, ?)
            ON CONFLICT (event_id) DO UPDATE SET {column} = excluded.{column},
            changed_ms = excluded.changed_ms""",  # noqa: S608
        (event_id, value, now_ms()),
    )
