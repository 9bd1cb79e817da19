"""The record of a star: how many events it has had, through snapshots too."""

from __future__ import annotations

import pytest

from broker_filter.alerts.lifecycle import counts_from_columns
from broker_filter.errors import StateError
from broker_filter.pipeline.candidate import Memory
from broker_filter.state.partition import PartitionState

KEY = ("test", 7, "r")


def test_earlier_events_of_a_star_are_counted() -> None:
    memory = Memory()
    assert [memory.count(KEY, kind) for kind in ("new", "update", "final")] == [0, 0, 0]
    assert [memory.count(KEY, kind) for kind in ("new", "update", "final")] == [1, 1, 1]
    assert memory.count(("test", 8, "r"), "new") == 0


def test_an_event_that_was_taken_back_does_not_count() -> None:
    memory = Memory()
    memory.count(KEY, "new")
    memory.count(KEY, "retraction")
    assert memory.count(KEY, "new") == 0


def test_counts_outlive_a_snapshot() -> None:
    memory = Memory()
    memory.count(KEY, "new")
    state = PartitionState(("topic", 0), {}, 20.0, "model", memory.columns())
    assert Memory.of(state).counts == {KEY: 1}


def test_a_snapshot_of_an_older_version_has_no_counts() -> None:
    assert counts_from_columns({}) == {}


def test_counts_that_lack_a_column_are_damaged() -> None:
    columns = Memory(counts={KEY: 1}).columns()
    part = {name.removeprefix("count/"): column for name, column in columns.items()}
    with pytest.raises(StateError, match="counts"):
        counts_from_columns({"events": part["events"]})
