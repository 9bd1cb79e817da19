"""Snapshots of partitions in a folder or an object store, through fsspec.

One folder a partition, two objects a snapshot (topics of one pattern share theirs, and the pattern
stands in place of the topic, with ``%`` and hexadecimal digits for unusual characters)::

    <url>/<topic>/<partition>/<time>-<offset>-<random>.safetensors   the state
                              <time>-<offset>-<random>.json          its manifest, written last

No object is ever written twice, and a state without its manifest does not exist, so a crash
at any moment leaves the snapshots before it as they were. The manifest holds its own checksum and
that of the state: damage anywhere is an error, never a state that is a little wrong.

A snapshot may be behind the committed offset, never ahead of it: what it holds, it does not say
again. So one is written only after the offsets of its messages have been committed.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import fsspec
from fsspec.implementations.local import LocalFileSystem

from broker_filter.config.file import hidden
from broker_filter.errors import ConfigError
from broker_filter.state.columns import Readable, Writable
from broker_filter.state.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    describe,
    manifest_from_json,
    manifest_to_json,
)
from broker_filter.state.partition import (
    SCHEMA,
    PartitionState,
    Reason,
    SnapshotError,
    read_state,
    write_state,
)
from broker_filter.types import Partition, StateKey

__all__ = ["Manifest", "SnapshotError", "SnapshotStore"]

_log = logging.getLogger(__name__)

MAX_MANIFESTS: Final = 32
MAX_NAME: Final = 249
"""Of a folder: the longest name of a topic."""
ORPHAN_S: Final = 86_400.0
"""A state without a manifest is of a write that still goes on, or, after a day, of none."""

_NAME: Final = re.compile(r"(\d{13}-\d+-[0-9a-f]{8})\.(json|safetensors|part)")
_REPLAY: Final = "else the topic is replayed from one window back"
_WAY_OUT: Final[Mapping[Reason, str]] = {
    "missing": "the topic is replayed from one window back",
    "damaged": f"an older one is used, {_REPLAY}; delete it",
    "version": f"run the version that wrote it, {_REPLAY}",
    "window": "its windows are of no use to this model: the topic is replayed from one window back",
    "ahead": f"were the group's offsets reset? An older one is used, {_REPLAY}",
    "permission": "give this process the right to list, read, write and delete there",
    "full": "make room there, or keep snapshots elsewhere",
    "unreachable": "check that the place exists and can be reached",
    "unwritable": "check that the place exists and can be written",
}


class SnapshotStore:
    """Writes and reads the snapshots of partitions below one URL.

    Parameters
    ----------
    url : str
        A folder, or any URL of fsspec (s3://, gcs://, ...). Consumer groups must not share it.
    keep : int
        Snapshots kept of each partition.
    max_bytes : int
        Longest state that is read.
    options : mapping of str to object
        For the file system; may hold secrets, and is never shown.

    Raises
    ------
    ConfigError
        No file system is known for the URL, or its package is missing.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: int = 2,
        max_bytes: int = 32 << 30,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = hidden(url).rstrip("/")
        self._keep, self._max_bytes = keep, max_bytes
        try:
            self._fs, root = fsspec.url_to_fs(url, **(options or {}))
        except (ImportError, ValueError) as error:
            raise ConfigError(f"snapshots cannot be kept at {self.url}: {error}") from error
        self._root = root.rstrip("/")

    def write(self, state: PartitionState, *, committed: Mapping[Partition, int]) -> Manifest:
        """Write a snapshot; those older than the last few go.

        Parameters
        ----------
        state : PartitionState
        committed : mapping of Partition to int
            The group's offsets; not below the state's.

        Raises
        ------
        SnapshotError
            ``full``, ``permission`` or ``unwritable``; or ``ahead`` where the offsets of the
            state's messages are not committed. The snapshots before it are as they were.
        """
        for where, offset in state.offsets.items():
            if offset > (done := committed.get(where, 0)):
                text = f"offset {offset} of {where[0]} is not committed, {done} is"
                raise self._error("ahead", state.key, text)
        created = time.time()
        name = f"{round(1000 * created):013d}-{state.offset}-{secrets.token_hex(4)}"
        with self._as_snapshot_error("unwritable", state.key):
            try:
                size, digest = self._write_state(name, state)
                manifest = describe(state, committed, created, size, digest)
                self._write_manifest(name, state.key, manifest)
            except BaseException:
                self._remove(state.key, name)  # halves must not fill a full disk
                raise
        self._clean(state.key, name)
        return manifest

    def load(
        self, key: StateKey, *, window_days: float, at_most: Mapping[Partition, int]
    ) -> tuple[Manifest, PartitionState]:
        """Read the snapshot that has come furthest of those that can be used.

        One of another model is used: its windows and baselines are the stars' own, and its open
        events keep their ids.

        Parameters
        ----------
        key : (str, int)
        window_days : float, days
            Length of the windows that it must have.
        at_most : mapping of Partition to int
            Highest offsets that it may have: the committed ones. Partitions of the state that are
            not named are gone and do not count.

        Returns
        -------
        manifest : Manifest
        state : PartitionState

        Raises
        ------
        SnapshotError
            ``missing``; or why none of those found can be used: ``damaged``, ``version``,
            ``window``, ``ahead``, ``permission``, ``unreachable``.
        """
        manifests, problems = self._manifests(key)
        topics = [topic for topic, _ in at_most]
        manifests.sort(
            key=lambda each: sum(each[1].offsets.get(topic, 0) for topic in topics), reverse=True
        )
        for name, manifest in manifests:
            try:
                self._check(name, manifest, window_days, at_most)
                state = self._read_state(name, manifest)
            except SnapshotError as error:
                problems.append(error)
                continue
            for problem in problems:
                about = {"event": "snapshot_skipped", "reason": problem.reason}
                _log.warning("an older snapshot is used: %s", problem.detail, extra=about)
            return manifest, state
        if not problems:
            raise self._error("missing", key, "there is no snapshot")
        raise SnapshotError(problems[0].reason, "; ".join(problem.detail for problem in problems))

    def _manifests(self, key: StateKey) -> tuple[list[tuple[str, Manifest]], list[SnapshotError]]:
        """Manifests, and why others cannot be read."""
        found, problems = [], []
        with self._as_snapshot_error("unreachable", key):
            names = sorted(name for name, kind in self._names(key) if kind == "json")
        for name in names[-MAX_MANIFESTS:]:
            try:
                found.append((name, self._read_manifest(name, key)))
            except FileNotFoundError:
                continue  # its owner has just replaced it
            except SnapshotError as error:
                problems.append(error)
        return found, problems

    def _check(
        self, name: str, manifest: Manifest, window_days: float, at_most: Mapping[Partition, int]
    ) -> None:
        """Refuse a snapshot that cannot be used, before its state is read."""
        key = (manifest.topic, manifest.partition)
        if manifest.schema != SCHEMA:
            text = f"its columns are of version {manifest.schema}, ours of {SCHEMA}"
            raise self._error("version", key, text, name)
        if manifest.window_days != window_days:
            text = f"its windows have {manifest.window_days:g} days, not {window_days:g}"
            raise self._error("window", key, text, name)
        for (topic, _), most in at_most.items():
            if (offset := manifest.offsets.get(topic, 0)) > most:
                text = f"its offset {offset} of {topic} is beyond {most}, which is committed"
                raise self._error("ahead", key, text, name)
        if manifest.bytes > self._max_bytes:
            text = f"its {manifest.bytes} bytes are more than the {self._max_bytes} allowed"
            raise self._error("damaged", key, text, name)

    def _write_state(self, name: str, state: PartitionState) -> tuple[int, str]:
        """Length and hash of the object written."""
        path = self._path(state.key, f"{name}.safetensors")
        if isinstance(self._fs, LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        with self._fs.open(path, "wb") as file:
            hashing = _HashingWriter(file)
            write_state(hashing, state)
        return hashing.size, hashing.sha256.hexdigest()

    def _write_manifest(self, name: str, key: StateKey, manifest: Manifest) -> None:
        path, text = self._path(key, f"{name}.json"), manifest_to_json(manifest)
        if isinstance(self._fs, LocalFileSystem):  # an object store shows whole objects only
            part = Path(self._path(key, f"{name}.part"))
            part.write_bytes(text)
            part.replace(path)
        else:
            self._fs.pipe_file(path, text)

    def _read_manifest(self, name: str, key: StateKey) -> Manifest:
        path = self._path(key, f"{name}.json")
        with (
            self._as_snapshot_error("unreachable", key, name),
            self._fs.open(path, "rb") as file,
        ):
            content = file.read(MAX_MANIFEST_BYTES + 1)
        try:
            manifest = manifest_from_json(content)
            if key != (manifest.topic, manifest.partition):
                raise SnapshotError("damaged", f"it is of {manifest.topic} {manifest.partition}")
        except SnapshotError as error:
            text = f"its manifest: {error.detail}"
            raise self._error(error.reason, key, text, name) from error
        return manifest

    def _read_state(self, name: str, manifest: Manifest) -> PartitionState:
        key = (manifest.topic, manifest.partition)
        path = self._path(key, f"{name}.safetensors")
        try:
            with (
                self._as_snapshot_error("unreachable", key, name),
                self._fs.open(path, "rb") as file,
            ):
                hashing = _HashingReader(file)
                state = read_state(hashing, manifest.bytes)
        except FileNotFoundError as error:
            raise self._error("damaged", key, "its state is not there", name) from error
        except SnapshotError as error:
            if error.reason != "damaged":
                raise
            raise self._error("damaged", key, error.detail, name) from error
        if hashing.sha256.hexdigest() != manifest.sha256:
            raise self._error("damaged", key, "its bytes do not have its sha256", name)
        offsets = {(topic, key[1]): offset for topic, offset in manifest.offsets.items()}
        if (state.key, state.offsets) != (key, offsets):
            raise self._error("damaged", key, "its state is another's", name)
        return state

    def _clean(self, key: StateKey, newest: str) -> None:
        """Remove all but the last few snapshots, and what crashes have left.

        The one just written stays whatever its name says of the time, since clocks jump.
        """
        try:
            names = self._names(key)
            whole = {name for name, kind in names if kind == "json"}
            before = sorted(whole - {newest}, reverse=True)
            for name in before[self._keep - 1 :]:
                self._remove(key, name)
            for name in {name for name, _ in names} - whole:
                if time.time() - int(name[:13]) / 1000 > ORPHAN_S:
                    self._remove(key, name)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            text = f"{self._shown(key)}: old snapshots are not removed: {error}"
            _log.warning(text, extra={"event": "snapshot_not_removed"})

    def _remove(self, key: StateKey, name: str) -> None:
        """Remove what there is of a snapshot, its manifest first."""
        for kind in ("json", "part", "safetensors"):
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path(key, f"{name}.{kind}"))

    def _names(self, key: StateKey) -> list[tuple[str, str]]:
        """Name and kind of the objects in a partition's folder."""
        folder = self._path(key)
        self._fs.invalidate_cache(folder)
        try:
            paths = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        found = (_NAME.fullmatch(Path(path).name) for path in paths)
        return [(match[1], match[2]) for match in found if match]

    def _path(self, key: StateKey, name: str = "") -> str:
        return f"{self._root}/{_folder(key)}/{name}".rstrip("/")

    def _shown(self, key: StateKey, name: str = "") -> str:
        """The place as messages show it, without a password."""
        return f"{self.url}/{_folder(key)}/{name}".rstrip("/")

    def _error(self, reason: Reason, key: StateKey, text: str, name: str = "") -> SnapshotError:
        return SnapshotError(reason, f"{self._shown(key, name)}: {text} ({_WAY_OUT[reason]})")

    @contextmanager
    def _as_snapshot_error(self, reason: Reason, key: StateKey, name: str = "") -> Iterator[None]:
        """Turn whatever a file system raises into one error that says where and what to do."""
        try:
            yield
        except (SnapshotError, FileNotFoundError) as error:
            if isinstance(error, SnapshotError) or reason == "unreachable":
                raise
            raise self._error(reason, key, str(error), name) from error
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise self._error(_reason(error, reason), key, text, name) from error


def _folder(key: StateKey) -> str:
    """A pattern may hold any character, and three bytes stand for one: so a long one is cut."""
    name = quote(key[0], safe="")
    if len(name) > MAX_NAME:
        name = f"{name[:100]}-{hashlib.sha256(key[0].encode()).hexdigest()[:16]}"
    return f"{name}/{key[1]}"


def _reason(error: Exception, otherwise: Reason) -> Reason:
    if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EROFS:
        return "permission"
    full = getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT}
    return "full" if full else otherwise


class _HashingWriter:
    """Passes bytes on, and knows how many and their hash."""

    def __init__(self, file: Writable) -> None:
        self._file = file
        self.size = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: Any, /) -> None:  # noqa: ANN401  anything with a buffer
        self._file.write(data)
        self.size += len(data)
        self.sha256.update(data)


class _HashingReader:
    """Passes bytes on, and knows their hash."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401  anything with a buffer
        got = self._file.readinto(buffer)
        self.sha256.update(buffer[: got or 0])
        return got
