"""Where a partition begins: at its snapshot, else two windows back, and never by guesswork."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_filter.backoff import Backoff
from broker_filter.errors import StateError, TransientError
from broker_filter.kafka.memory import MemorySource
from broker_filter.kafka.progress import MemoryProgress
from broker_filter.service.restore import Restorer, Start, find_start, with_topic_ids
from broker_filter.state.partition import PartitionState, SnapshotError
from broker_filter.state.store import SnapshotStore
from broker_filter.types import Message
from tests.state.test_store import make_state

PARTITION = ("epochs", 0)
DAY_MS = 86_400_000
DAYS = 20.0


def progress(*, low: int = 0, high: int = 100, committed: int | None = None) -> MemoryProgress:
    """A topic with one message a day."""
    source = MemorySource(
        [Message(*PARTITION, n, None, b"", (n + 1) * DAY_MS) for n in range(low, high)]
    )
    if committed is not None:
        source.stored[PARTITION] = committed
    return MemoryProgress(source)


class Store:
    """Stands in for a snapshot store: one snapshot, or the reason why there is none."""

    def __init__(self, offset: int = 0, reason: Any = None, topic_id: str = "") -> None:
        self.offset, self.reason, self.topic_id = offset, reason, topic_id
        self.loads = 0

    def load(self, partition: Any, *, window_days: float, at_most: Any) -> Any:
        assert window_days == DAYS
        self.loads += 1
        reason = self.reason or ("ahead" if self.offset > at_most[PARTITION] else None)
        if reason:
            raise SnapshotError(reason, "told by the test")

        class Manifest:
            created = time.time() - 60

        state = PartitionState(partition, {PARTITION: self.offset}, DAYS, "model", {})
        return Manifest, with_topic_ids(state, lambda _: self.topic_id)


def start(
    where: MemoryProgress,
    store: Any = None,
    reset: Any = "earliest",
    backoff: Backoff | None = None,
) -> Start:
    return find_start(PARTITION, [PARTITION], where, store, DAYS, reset, backoff)


def summary(found: Start) -> tuple[int, int, str, bool]:
    return (
        found.offsets[PARTITION],
        found.live_from[PARTITION],
        found.outcome,
        found.state is not None,
    )


def test_a_snapshot_is_replayed_in_silence_up_to_the_committed_offset() -> None:
    found = start(progress(committed=70), Store(60))
    assert summary(found) == (60, 70, "snapshot", True)
    assert 60 <= found.age_s < 120


@pytest.mark.parametrize("reason", ["missing", "damaged", "version", "window", "permission"])
def test_without_a_usable_snapshot_two_windows_are_replayed(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = start(progress(committed=70), Store(60, reason))
    # The message before the committed one is 69, of day 70.
    assert summary(found) == (29, 70, reason, False)
    assert [record.getMessage() for record in caplog.records if reason in record.getMessage()]


def test_a_store_that_does_not_answer_is_waited_for_once_and_not_for_each_partition() -> None:
    store, backoff = Store(60, "unreachable"), Backoff(0.2)
    outcomes = [start(progress(committed=70), store, backoff=backoff).outcome]
    waited = store.loads
    assert waited > 1
    outcomes.append(start(progress(committed=70), store, backoff=backoff).outcome)
    assert outcomes == ["unreachable"] * 2
    assert store.loads == waited + 1
    # Once it has answered, the next outage is waited for again.
    store.reason = "missing"
    start(progress(committed=70), store, backoff=backoff)
    store.reason, store.loads = "unreachable", 0
    start(progress(committed=70), store, backoff=backoff)
    assert store.loads > 1


def test_a_snapshot_ahead_of_the_committed_offset_is_not_used() -> None:
    assert summary(start(progress(committed=50), Store(60))) == (9, 50, "ahead", False)


def test_without_a_store_windows_are_rebuilt_too() -> None:
    assert summary(start(progress(committed=70))) == (29, 70, "disabled", False)


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 10), ("latest", 100)])
def test_a_new_group_begins_where_the_settings_say(reset: str, offset: int) -> None:
    assert summary(start(progress(low=10), None, reset)) == (offset, offset, "new", False)
    found = start(progress(low=10), Store(0, "missing"), reset)
    assert summary(found) == (offset, offset, "new", False)


def test_a_group_whose_offsets_expired_goes_on_from_its_snapshot() -> None:
    assert summary(start(progress(), Store(60))) == (60, 60, "snapshot", True)


def test_what_retention_took_is_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        found = start(progress(low=65, committed=70), Store(60))
    assert summary(found) == (65, 70, "truncated", True)
    assert "60 to 64 were deleted" in caplog.text
    assert "never read" not in caplog.text


def test_messages_deleted_unread_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        found = start(progress(low=80, committed=70), Store(60))
    assert summary(found) == (80, 80, "truncated", True)
    assert "10 of them never read" in caplog.text


def test_a_topic_made_anew_is_refused_with_advice() -> None:
    with pytest.raises(StateError, match=r"150 lies beyond the end 100.*reset-offsets"):
        start(progress(committed=150))


@pytest.mark.parametrize(
    ("saved", "there", "same"),
    [("one", "one", True), ("one", "another", False), ("", "one", True), ("one", "", True)],
)
def test_a_snapshot_of_a_topic_that_was_made_anew_is_refused(
    saved: str, there: str, same: bool
) -> None:
    """The brokers forget a group's offsets of a topic that goes; its snapshot outlives it."""
    where = progress()
    where.topic_ids = {PARTITION[0]: there}
    store = Store(60, topic_id=saved)
    if same:
        assert summary(start(where, store)) == (60, 60, "snapshot", True)
    else:
        with pytest.raises(StateError, match=r"made anew.*kafka\.group_id"):
            start(where, store)


def test_a_real_store_gives_what_was_saved(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    assert summary(start(progress(committed=70), store))[2] == "missing"


# Topics that share their stars begin together.

SHARED = ("^night", 0)
OLD, LAST, NEW = (("night-1", 0), ("night-2", 0), ("night-3", 0))


def nights(**committed: int) -> MemoryProgress:
    """Thirty days a topic, one message a day."""
    source = MemorySource(
        Message(*where, n, None, b"", (30 * i + n + 1) * DAY_MS)
        for i, where in enumerate((OLD, LAST, NEW))
        for n in range(30)
    )
    source.stored = {where: committed[name] for where, name in NAMES.items() if name in committed}
    return MemoryProgress(source)


NAMES = {OLD: "old", LAST: "last", NEW: "new"}


def start_of_nights(where: MemoryProgress, store: Any = None, reset: Any = "earliest") -> Start:
    return find_start(SHARED, list(NAMES), where, store, DAYS, reset)


def test_a_topic_that_came_after_the_snapshot_is_read_from_its_start(tmp_path: Path) -> None:
    state = replace(make_state(), key=SHARED, offsets={OLD: 30, LAST: 20})
    store = SnapshotStore(str(tmp_path))
    store.write(state, committed=state.offsets)
    found = start_of_nights(nights(old=30, last=25), store, "latest")
    assert found.offsets == {OLD: 30, LAST: 20, NEW: 0}
    assert found.live_from == {OLD: 30, LAST: 25, NEW: 0}
    assert (found.key, found.outcome) == (SHARED, "snapshot")


def test_two_windows_are_counted_over_all_topics() -> None:
    """The newest committed message is of day 49; forty days before that is day 9."""
    found = start_of_nights(nights(old=30, last=19))
    assert found.offsets == {OLD: 8, LAST: 0, NEW: 0}
    assert found.live_from == {OLD: 30, LAST: 19, NEW: 0}
    found = start_of_nights(nights(old=30, last=30, new=30))
    assert found.offsets == {OLD: 30, LAST: 19, NEW: 0}


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 0), ("latest", 30)])
def test_a_new_group_begins_all_topics_where_the_settings_say(reset: str, offset: int) -> None:
    found = start_of_nights(nights(), None, reset)
    assert found.offsets == found.live_from == dict.fromkeys(NAMES, offset)
    assert found.outcome == "new"


def finish(restorer: Restorer) -> list[Start]:
    found: list[Start] = []
    end = time.monotonic() + 10
    while restorer.waiting():
        found += restorer.finished()
        assert time.monotonic() < end
        time.sleep(0.001)
    return found


def made(find: Callable[..., Start], limit_s: float = 10.0) -> Restorer:
    return Restorer(find, limit_s)


def blank(key: Any, snapshots: bool = True) -> Start:
    return Start(key, None, {key: 0}, {key: 0}, "snapshot" if snapshots else "damaged")


def test_starts_are_found_in_the_background_and_cancelled_ones_never_come() -> None:
    gate = threading.Event()

    def find(where: Any, _: Any, snapshots: bool) -> Start:
        assert gate.wait(10)
        return blank(where, snapshots)

    restorer = made(find)
    restorer.begin({where: [where] for where in (("t", 0), ("t", 1))})
    restorer.begin({("t", 1): [("t", 1)]}, snapshots=False)
    restorer.cancel([("t", 0)])
    assert restorer.finished() == []
    gate.set()
    assert [(s.key, s.outcome) for s in finish(restorer)] == [(("t", 1), "damaged")]
    restorer.close()


def test_a_broker_that_does_not_answer_is_asked_again() -> None:
    answers = [TransientError("no answer"), TransientError("no answer")]

    def find(where: Any, _: Any, snapshots: bool) -> Start:
        if answers:
            raise answers.pop()
        return blank(where, snapshots)

    restorer = made(find)
    restorer.begin({PARTITION: [PARTITION]})
    assert [s.key for s in finish(restorer)] == [PARTITION]
    restorer.close()


def test_what_no_attempt_can_mend_reaches_the_caller() -> None:
    def find(where: Any, _: Any, snapshots: bool) -> Start:
        raise StateError(f"{where} {snapshots} is lost")

    restorer = made(find)
    restorer.begin({PARTITION: [PARTITION]})
    with pytest.raises(StateError, match="is lost"):
        finish(restorer)
    restorer.close()
