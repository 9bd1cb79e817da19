"""The page's database: whose file it is, its version, and what happens where it cannot be used."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from broker_filter.errors import ConfigError, TransientError
from broker_filter.page import database, kept
from broker_filter.page.database import APPLICATION, MIGRATIONS, Database
from broker_filter.page.kept import Bounds
from tests import build


def test_a_new_file_has_the_newest_version(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "page.sqlite"
    with Database(path).read() as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_an_older_file_is_brought_up_with_what_it_holds(tmp_path: Path, version: int) -> None:
    path, event = tmp_path / "page.sqlite", str(uuid.uuid4())
    with closing(sqlite3.connect(path)) as old:
        for step in MIGRATIONS[:version]:
            old.executescript(step)
        old.execute("INSERT INTO marks (event_id, note) VALUES (?, 'look')", (event,))
        old.execute(f"PRAGMA application_id = {APPLICATION}")
        old.execute(f"PRAGMA user_version = {version}")
        old.commit()
    with Database(path).write() as connection:
        assert kept.marks(connection, event) == ("look", False)
        kept.set_note(connection, event, "again")
        assert kept.marks(connection, event) == ("again", False)


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "page.sqlite"
    Database(path)
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="version 99"):
        Database(path)


def test_the_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(ConfigError, match="another program"):
        Database(path)
    (tmp_path / "text").write_text("no database at all, but long enough to be read as one" * 20)
    with pytest.raises(ConfigError, match="not a database"):
        Database(tmp_path / "text")
    with pytest.raises(ConfigError, match="unable to open"):
        Database(tmp_path)


def test_a_locked_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.01)
    base = Database(tmp_path / "page.sqlite")
    with closing(sqlite3.connect(base.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransientError, match="locked"), base.write():
            pass
        with base.read() as connection:  # who reads does not wait
            assert kept.positions(connection, "alerts") == {}


def test_a_full_disk_is_named_and_nothing_is_half_kept(tmp_path: Path) -> None:
    base = Database(tmp_path / "page.sqlite")

    def fill() -> None:
        with base.write() as connection:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
            for _ in range(10):
                kept.keep(connection, build.alert(alert_id=uuid.uuid4()))

    with pytest.raises(TransientError, match="full"):
        fill()
    with base.read() as connection:
        assert connection.execute("SELECT count(*) FROM alerts").fetchone()[0] == 0


# What is kept


@pytest.fixture
def base(tmp_path: Path) -> Database:
    return Database(tmp_path / "page.sqlite")


def test_an_alert_is_kept_once_and_comes_back_whole(base: Database) -> None:
    alert = build.alert()
    with base.write() as connection:
        assert kept.keep(connection, alert)
        assert not kept.keep(connection, alert)
    with base.read() as connection:
        found = kept.alert_of(connection, str(alert.alert_id))
        assert len(kept.history(connection, str(alert.event_id))) == 1
    assert found is not None
    assert (found.log10_k, found.star_id) == (alert.log10_k, alert.star_id)


def test_an_event_says_what_its_newest_alert_says_in_any_order(base: Database) -> None:
    early = build.alert(last_epoch_mjd_tai=60_000.0, state="new")
    late = build.alert(alert_id=uuid.uuid4(), last_epoch_mjd_tai=60_001.0, state="update")
    with base.write() as connection:
        for alert in (late, early):
            kept.keep(connection, alert)
        newest = kept.latest_alert(connection, str(early.event_id))
        states = [row["state"] for row in kept.history(connection, str(early.event_id))]
    assert newest is not None
    assert newest.alert_id == late.alert_id
    assert states == ["new", "update"]


def test_old_events_go_but_for_those_with_a_note(base: Database) -> None:
    day = 86_400_000
    events = [uuid.uuid4() for _ in range(4)]
    with base.write() as connection:
        for i, event in enumerate(events):
            alert = build.alert(alert_id=uuid.uuid4(), event_id=event)
            kept.keep(connection, alert, received_ms=i * day)
        kept.set_note(connection, str(events[0]), "mine")
        assert kept.prune(connection, Bounds(days=1.5, events=10), at_ms=4 * day) == 2
        assert kept.latest_alert(connection, str(events[0])) is not None
        assert kept.latest_alert(connection, str(events[1])) is None
        assert kept.prune(connection, Bounds(days=99, events=1), at_ms=4 * day) == 1
        assert kept.latest_alert(connection, str(events[0])) is not None
        assert kept.history(connection, str(events[3])) == []
