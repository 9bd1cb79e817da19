"""The journal on disk: what is wrong with the file is said, and by its name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from broker_filter.errors import ConfigError, StateError
from broker_filter.forward import journal
from broker_filter.forward.journal import Journal
from tests import build

ALERT = build.alert()


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("not a database" * 100)
    with pytest.raises(ConfigError, match="text: not a journal"):
        Journal(path, "target")


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "journal", "target")


def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA user_version = 9")
    with pytest.raises(ConfigError, match="version 9"):
        Journal(path, "target")


def test_a_locked_journal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "BUSY_S", 0.01)
    path = tmp_path / "journal"
    with Journal(path, "target") as mine, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StateError, match="locked"):
            mine.begin(ALERT, "2026-01-01")
        other.rollback()
        mine.begin(ALERT, "2026-01-01")
        assert mine.standing(ALERT) == "pending"


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", "target") as mine:
        mine._base.execute("PRAGMA max_page_count = 1")

        def fill() -> None:
            for n in range(1000):
                mine.begin(build.alert(alert_id=n), "2026-01-01")

        with pytest.raises(StateError, match="full"):
            fill()


def test_a_second_begin_changes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", "target") as mine:
        mine.begin(ALERT, "2026-01-01")
        mine.begin(ALERT, "2026-01-02")
        assert (mine.count("2026-01-01"), mine.count("2026-01-02")) == (1, 0)
        mine.end(ALERT, "dead")
        assert mine.count("2026-01-01") == 0
        assert not mine.names_of_event(ALERT)
