"""Snapshots: what is written is what is read, and damage, age and faults have their own reasons."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_filter.alerts.event_columns import events_to_columns
from broker_filter.alerts.lifecycle import EventState
from broker_filter.errors import ConfigError, StateError
from broker_filter.state import store as snapshot
from broker_filter.state.columns import Column, arrays_of, write_columns
from broker_filter.state.manifest import manifest_from_json, manifest_to_json
from broker_filter.state.partition import PartitionState, prefixed, read_state, write_state
from broker_filter.state.store import Manifest, SnapshotError, SnapshotStore
from broker_filter.windows.schedule import Schedule
from broker_filter.windows.store import WindowStore
from tests import build

WHERE = ("epochs", 3)


def make_state(offset: int = 40, window_days: float = 20.0, epochs: int = 6) -> PartitionState:
    """Windows of two stars, one of them with an open event."""
    store, schedule = WindowStore(window_days), Schedule(0.0, 1)
    for i in range(epochs):
        stars = ["Sgr A*", 7] if i == 0 else ["Sgr A*", "ζ"]
        piece = build.photometry(60_000.0 + i, stars, flux=1000.0 + i)
        schedule.due(store, store.insert(piece))
    events = {("test", "Sgr A*", "r"): EventState(60_001.5, "a-b-1.0.0", 60_002.5, 4.5, 60_003.5)}
    columns: dict[str, Column] = {
        **prefixed("window", store.state()),
        **prefixed("schedule", schedule.state()),
        **prefixed("event", events_to_columns(events)),
    }
    return PartitionState(WHERE, {WHERE: offset}, window_days, "a-b-1.0.0", columns)


def same(one: PartitionState, two: PartitionState) -> bool:
    """Whether two states are equal bit for bit."""
    mine, other = arrays_of(one.columns), arrays_of(two.columns)
    about = [(s.key, dict(s.offsets), s.window_days, s.model_id) for s in (one, two)]
    return about[0] == about[1] and {
        name: (column.dtype, column.shape, column.tobytes()) for name, column in mine.items()
    } == {name: (column.dtype, column.shape, column.tobytes()) for name, column in other.items()}


def load(store: SnapshotStore, at_most: int = 1000) -> PartitionState:
    return store.load(WHERE, window_days=20.0, at_most={WHERE: at_most})[1]


def reason_of(action: Callable[[], object]) -> str:
    with pytest.raises(SnapshotError) as caught:
        action()
    return caught.value.reason


def files(folder: Path, kind: str = "*") -> list[Path]:
    return sorted((folder / "epochs" / "3").glob(f"*.{kind}"))


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(str(tmp_path))


@pytest.mark.parametrize("place", ["folder", "file URL", "object store"])
def test_what_is_written_is_read(tmp_path: Path, place: str) -> None:
    urls = {
        "folder": str(tmp_path / "not there yet"),
        "file URL": tmp_path.as_uri(),
        "object store": f"memory://{uuid.uuid4()}",
    }
    store, state = SnapshotStore(urls[place]), make_state()
    manifest = store.write(state, committed={WHERE: 50})
    again, read = SnapshotStore(urls[place]).load(WHERE, window_days=20.0, at_most={WHERE: 50})
    assert same(read, state)
    assert again == manifest
    assert (manifest.offset, manifest.committed, manifest.model_id) == (
        40,
        {"epochs": 50},
        "a-b-1.0.0",
    )
    assert (manifest.windows, manifest.points, manifest.newest_mjd_tai) == (3, 12, 60_005.0)


def test_a_state_survives_bytes() -> None:
    file, state = io.BytesIO(), make_state()
    write_state(file, state)
    data = file.getvalue()
    assert same(read_state(io.BytesIO(data), len(data)), state)


def test_an_empty_partition_has_a_snapshot_too(store: SnapshotStore) -> None:
    state = make_state(epochs=0)
    assert store.write(state, committed={WHERE: 40}).newest_mjd_tai is None
    assert same(load(store), state)


@pytest.fixture(scope="module")
def one_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    SnapshotStore(str(folder)).write(make_state(), committed={WHERE: 50})
    return folder


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_no_flipped_bit_is_read_as_something_else(
    one_snapshot: Path, tmp_path: Path, data: st.DataObject
) -> None:
    folder = tmp_path / "flipped"
    shutil.copytree(one_snapshot, folder, dirs_exist_ok=True)
    path = files(folder, data.draw(st.sampled_from(["json", "safetensors"])))[0]
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        state = load(SnapshotStore(str(folder)))
    except StateError:
        return
    # White space of the manifest means nothing; nothing else may change unnoticed.
    assert path.suffix == ".json"
    assert same(state, make_state())


@pytest.mark.parametrize("kind", ["json", "safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_damage(
    store: SnapshotStore, tmp_path: Path, kind: str, share: float
) -> None:
    store.write(make_state(), committed={WHERE: 50})
    path = files(tmp_path, kind)[0]
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert reason_of(lambda: load(store)) == "damaged"


def test_a_state_that_is_gone_is_damage(store: SnapshotStore, tmp_path: Path) -> None:
    store.write(make_state(), committed={WHERE: 50})
    files(tmp_path, "safetensors")[0].unlink()
    assert reason_of(lambda: load(store)) == "damaged"


def test_the_one_before_is_used_where_the_newest_is_damaged(
    store: SnapshotStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for offset in (10, 20):
        store.write(make_state(offset), committed={WHERE: offset})
    newest = next(path for path in files(tmp_path, "safetensors") if "-20-" in path.name)
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    with caplog.at_level(logging.WARNING):
        assert load(store).offset == 10
    assert newest.stem in caplog.text


def test_the_last_two_are_kept(store: SnapshotStore, tmp_path: Path) -> None:
    for offset in range(10, 60, 10):
        store.write(make_state(offset), committed={WHERE: offset})
    assert sorted(path.name.split("-")[1] for path in files(tmp_path, "json")) == ["40", "50"]
    assert len(files(tmp_path)) == 4
    assert load(store).offset == 50


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_jumps_loses_nothing(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    now = time.time()
    for i, offset in enumerate(range(10, 60, 10)):
        jumped = now + i + (jump_s if i > 1 else 0.0)
        monkeypatch.setattr(snapshot.time, "time", lambda jumped=jumped: jumped)
        store.write(make_state(offset), committed={WHERE: offset})
        assert load(store).offset == offset


def test_no_snapshot_is_missing(store: SnapshotStore, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=str(tmp_path)) as caught:
        load(store)
    assert caught.value.reason == "missing"


def test_one_beyond_the_committed_offset_is_not_used(store: SnapshotStore) -> None:
    for offset in (10, 20):
        store.write(make_state(offset), committed={WHERE: offset})
    assert load(store, at_most=20).offset == 20
    assert load(store, at_most=19).offset == 10
    assert reason_of(lambda: load(store, at_most=9)) == "ahead"


def test_one_whose_offsets_are_not_committed_is_not_written(
    store: SnapshotStore, tmp_path: Path
) -> None:
    assert reason_of(lambda: store.write(make_state(20), committed={WHERE: 19})) == "ahead"
    assert files(tmp_path) == []


def test_windows_of_another_length_are_not_used(store: SnapshotStore) -> None:
    store.write(make_state(window_days=10.0), committed={WHERE: 50})
    assert reason_of(lambda: load(store)) == "window"


def test_another_format_is_told_from_damage(store: SnapshotStore, tmp_path: Path) -> None:
    store.write(make_state(), committed={WHERE: 50})
    path = files(tmp_path, "json")[0]
    content = json.loads(path.read_bytes())
    del content["seal"]
    content["format"] = 99
    seal: Any = vars(__import__("broker_filter.state.manifest", fromlist=["_seal"]))["_seal"]
    path.write_text(json.dumps({**content, "seal": seal(content)}))
    assert reason_of(lambda: load(store)) == "version"


def test_columns_of_another_version_are_told_from_damage(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(make_state(), committed={WHERE: 50})
    monkeypatch.setattr(snapshot, "SCHEMA", 2)
    assert reason_of(lambda: load(store)) == "version"


def test_a_state_longer_than_allowed_is_not_read(tmp_path: Path) -> None:
    SnapshotStore(str(tmp_path)).write(make_state(), committed={WHERE: 50})
    small = SnapshotStore(str(tmp_path), max_bytes=100)
    assert reason_of(lambda: load(small)) == "damaged"


def test_a_manifest_of_any_length_is_refused(store: SnapshotStore, tmp_path: Path) -> None:
    store.write(make_state(), committed={WHERE: 50})
    files(tmp_path, "json")[0].write_bytes(b" " * 1_000_000)
    assert reason_of(lambda: load(store)) == "damaged"


def test_a_manifest_of_another_partition_is_damage(store: SnapshotStore, tmp_path: Path) -> None:
    store.write(make_state(), committed={WHERE: 50})
    other = tmp_path / "epochs" / "4"
    shutil.copytree(tmp_path / "epochs" / "3", other)
    action = lambda: store.load(("epochs", 4), window_days=20.0, at_most={("epochs", 4): 100})  # noqa: E731
    assert reason_of(action) == "damaged"


def test_halves_left_by_a_crash_are_not_seen_and_go_after_a_day(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(make_state(10), committed={WHERE: 10})
    stem = f"{round(1000 * time.time()):013d}-20-0123abcd"
    for kind in ("safetensors", "part"):
        (tmp_path / "epochs" / "3" / f"{stem}.{kind}").write_bytes(b"half")
    assert load(store).offset == 10
    store.write(make_state(30), committed={WHERE: 30})
    assert len([path for path in files(tmp_path) if path.stem == stem]) == 2
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(snapshot.time, "time", lambda: tomorrow)
    store.write(make_state(40), committed={WHERE: 40})
    assert [path for path in files(tmp_path) if path.stem == stem] == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "full"),
        (PermissionError(errno.EACCES, "Permission denied"), "permission"),
        (OSError(errno.EROFS, "Read-only file system"), "permission"),
        (TimeoutError("no answer"), "unwritable"),
        (RuntimeError("what a plug-in raises"), "unwritable"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("after_bytes", [0, 500])
def test_a_store_that_fails_says_why_and_keeps_the_one_before(
    store: SnapshotStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    reason: str,
    after_bytes: int,
) -> None:
    store.write(make_state(10), committed={WHERE: 10})
    before = {path.name for path in files(tmp_path)}

    def failing(file: Any, _: PartitionState) -> None:
        file.write(b"x" * after_bytes)
        raise fault

    monkeypatch.setattr(snapshot, "write_state", failing)
    with pytest.raises(SnapshotError, match=str(tmp_path)) as caught:
        store.write(make_state(20), committed={WHERE: 20})
    assert caught.value.reason == reason
    assert {path.name for path in files(tmp_path)} == before
    assert load(store).offset == 10


def test_a_place_that_cannot_be_a_folder_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = SnapshotStore(str(tmp_path / "file"))
    assert reason_of(lambda: store.write(make_state(), committed={WHERE: 50})) == "unwritable"


def test_an_unknown_place_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="nosuch://bucket"):
        SnapshotStore("nosuch://bucket")


def test_a_password_in_the_url_is_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        SnapshotStore("nosuch://user:secret@host/bucket")
    assert "secret" not in str(caught.value)


def test_a_manifest_survives_json() -> None:
    manifest = Manifest("t", 1, {"t": 2}, {"t": 3}, 1, "m", "0", 20.0, 1.5, None, 4, 5, 6, "f" * 64)
    assert manifest_from_json(manifest_to_json(manifest)) == manifest


# Topics that share their stars have one state, with an offset each.

SHARED = ("^ztf_.*_programid1$|^a/b", 3)
NIGHT, NEXT = ("ztf_1_programid1", 3), ("ztf_2_programid1", 3)


def shared_state(first: int, second: int) -> PartitionState:
    return replace(make_state(), key=SHARED, offsets={NIGHT: first, NEXT: second})


def test_a_state_of_several_topics_is_read_as_it_was_written(store: SnapshotStore) -> None:
    written = store.write(shared_state(100, 5), committed={NIGHT: 100, NEXT: 7})
    manifest, state = store.load(SHARED, window_days=20.0, at_most={NIGHT: 100, NEXT: 7})
    assert same(state, shared_state(100, 5))
    assert manifest == written
    assert manifest.committed == {NIGHT[0]: 100, NEXT[0]: 7}


def test_no_offset_of_several_may_be_ahead(store: SnapshotStore) -> None:
    with pytest.raises(SnapshotError, match=r"offset 5 of ztf_2_programid1 is not committed, 4"):
        store.write(shared_state(100, 5), committed={NIGHT: 200, NEXT: 4})
    store.write(shared_state(100, 5), committed={NIGHT: 100, NEXT: 5})
    with pytest.raises(SnapshotError, match=r"its offset 5 of ztf_2_programid1 is beyond 4"):
        store.load(SHARED, window_days=20.0, at_most={NIGHT: 200, NEXT: 4})


def test_a_topic_that_is_gone_does_not_count(store: SnapshotStore) -> None:
    store.write(shared_state(100, 5), committed={NIGHT: 100, NEXT: 5})
    newer = replace(make_state(), key=SHARED, offsets={NEXT: 6})
    store.write(newer, committed={NEXT: 6})
    _, state = store.load(SHARED, window_days=20.0, at_most={NEXT: 9})
    assert state.offsets == {NEXT: 6}


def test_patterns_have_folders_of_their_own(store: SnapshotStore) -> None:
    at_most = {("t", 0): 40}
    for pattern in ("^a.*", "^a/*", "^" + "é" * 120, "^" + "é" * 119 + "x"):
        state = replace(make_state(), key=(pattern, 0), offsets={("t", 0): 40})
        store.write(state, committed=at_most)
    for pattern in ("^a.*", "^a/*", "^" + "é" * 120, "^" + "é" * 119 + "x"):
        assert store.load((pattern, 0), window_days=20.0, at_most=at_most)[1].key == (pattern, 0)


def test_a_snapshot_from_before_topics_could_share_is_read(
    store: SnapshotStore, tmp_path: Path
) -> None:
    store.write(make_state(), committed={WHERE: 50})
    (path,) = files(tmp_path, "json")
    content = json.loads(path.read_text())
    del content["seal"]
    content |= {"format": 1, "offset": 40, "committed": 50}
    del content["offsets"]
    content["seal"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content))
    manifest, state = store.load(WHERE, window_days=20.0, at_most={WHERE: 50})
    assert (state.offsets, manifest.committed) == ({WHERE: 40}, {"epochs": 50})


def test_a_state_from_before_topics_could_share_is_read() -> None:
    file, state = io.BytesIO(), make_state()
    about = {"schema": 1, "topic": "epochs", "partition": 3, "offset": 40, "window_days": 20.0}
    said = {key: str(value) for key, value in about.items()} | {"model_id": "a-b-1.0.0"}
    write_columns(file, state.columns, said)
    assert same(read_state(io.BytesIO(file.getvalue()), len(file.getvalue())), state)
