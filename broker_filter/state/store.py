"""Snapshots of partitions in a folder or an object store, through fsspec.

One folder a partition, two objects a snapshot::

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

import fsspec
from fsspec.implementations.local import LocalFileSystem

from broker_filter.config_file import hidden
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
from broker_filter.types import Partition

__all__ = ["Manifest", "SnapshotError", "SnapshotStore"]

_log = logging.getLogger(__name__)

MAX_MANIFESTS: Final = 32
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

    def write(self, state: PartitionState, *, committed: int) -> Manifest:
        """Write a snapshot; those older than the last few go.

        Parameters
        ----------
        state : PartitionState
        committed : int
            The group's offset of the partition; not below the state's.

        Raises
        ------
        SnapshotError
            ``full``, ``permission`` or ``unwritable``; or ``ahead`` where the offsets of the
            state's messages are not committed. The snapshots before it are as they were.
        """
        if state.offset > committed:
            raise self._error(
                "ahead", state.partition, f"offset {state.offset} is not committed, {committed} is"
            )
        created = time.time()
        name = f"{round(1000 * created):013d}-{state.offset}-{secrets.token_hex(4)}"
        with self._as_snapshot_error("unwritable", state.partition):
            try:
                size, digest = self._write_state(name, state)
                manifest = describe(state, committed, created, size, digest)
                self._write_manifest(name, state.partition, manifest)
            except BaseException:
                self._remove(state.partition, name)  # halves must not fill a full disk
                raise
        self._clean(state.partition, name)
        return manifest

    def load(
        self, partition: Partition, *, window_days: float, at_most: int
    ) -> tuple[Manifest, PartitionState]:
        """Read the snapshot of highest offset that can be used.

        One of another model is used: its windows and baselines are the stars' own, and its open
        events keep their ids.

        Parameters
        ----------
        partition : (str, int)
        window_days : float, days
            Length of the windows that it must have.
        at_most : int
            Highest offset that it may have: the committed one.

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
        manifests, problems = self._manifests(partition)
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
            raise self._error("missing", partition, "there is no snapshot")
        raise SnapshotError(problems[0].reason, "; ".join(problem.detail for problem in problems))

    def _manifests(
        self, partition: Partition
    ) -> tuple[list[tuple[str, Manifest]], list[SnapshotError]]:
        """Manifests by offset, highest first, and why others cannot be read."""
        found, problems = [], []
        with self._as_snapshot_error("unreachable", partition):
            names = sorted(name for name, kind in self._names(partition) if kind == "json")
        for name in names[-MAX_MANIFESTS:]:
            try:
                found.append((name, self._read_manifest(name, partition)))
            except FileNotFoundError:
                continue  # its owner has just replaced it
            except SnapshotError as error:
                problems.append(error)
        return sorted(found, key=lambda each: each[1].offset, reverse=True), problems

    def _check(self, name: str, manifest: Manifest, window_days: float, at_most: int) -> None:
        """Refuse a snapshot that cannot be used, before its state is read."""
        partition = (manifest.topic, manifest.partition)
        if manifest.schema != SCHEMA:
            text = f"its columns are of version {manifest.schema}, ours of {SCHEMA}"
            raise self._error("version", partition, text, name)
        if manifest.window_days != window_days:
            text = f"its windows have {manifest.window_days:g} days, not {window_days:g}"
            raise self._error("window", partition, text, name)
        if manifest.offset > at_most:
            text = f"its offset {manifest.offset} is beyond {at_most}, which is committed"
            raise self._error("ahead", partition, text, name)
        if manifest.bytes > self._max_bytes:
            text = f"its {manifest.bytes} bytes are more than the {self._max_bytes} allowed"
            raise self._error("damaged", partition, text, name)

    def _write_state(self, name: str, state: PartitionState) -> tuple[int, str]:
        """Length and hash of the object written."""
        path = self._path(state.partition, f"{name}.safetensors")
        if isinstance(self._fs, LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        with self._fs.open(path, "wb") as file:
            hashing = _HashingWriter(file)
            write_state(hashing, state)
        return hashing.size, hashing.sha256.hexdigest()

    def _write_manifest(self, name: str, partition: Partition, manifest: Manifest) -> None:
        path, text = self._path(partition, f"{name}.json"), manifest_to_json(manifest)
        if isinstance(self._fs, LocalFileSystem):  # an object store shows whole objects only
            part = Path(self._path(partition, f"{name}.part"))
            part.write_bytes(text)
            part.replace(path)
        else:
            self._fs.pipe_file(path, text)

    def _read_manifest(self, name: str, partition: Partition) -> Manifest:
        path = self._path(partition, f"{name}.json")
        with (
            self._as_snapshot_error("unreachable", partition, name),
            self._fs.open(path, "rb") as file,
        ):
            content = file.read(MAX_MANIFEST_BYTES + 1)
        try:
            manifest = manifest_from_json(content)
            if partition != (manifest.topic, manifest.partition):
                raise SnapshotError("damaged", f"it is of {manifest.topic} {manifest.partition}")
        except SnapshotError as error:
            text = f"its manifest: {error.detail}"
            raise self._error(error.reason, partition, text, name) from error
        return manifest

    def _read_state(self, name: str, manifest: Manifest) -> PartitionState:
        partition = (manifest.topic, manifest.partition)
        path = self._path(partition, f"{name}.safetensors")
        try:
            with (
                self._as_snapshot_error("unreachable", partition, name),
                self._fs.open(path, "rb") as file,
            ):
                hashing = _HashingReader(file)
                state = read_state(hashing, manifest.bytes)
        except FileNotFoundError as error:
            raise self._error("damaged", partition, "its state is not there", name) from error
        except SnapshotError as error:
            if error.reason != "damaged":
                raise
            raise self._error("damaged", partition, error.detail, name) from error
        if hashing.sha256.hexdigest() != manifest.sha256:
            raise self._error("damaged", partition, "its bytes do not have its sha256", name)
        if (state.partition, state.offset) != (partition, manifest.offset):
            raise self._error("damaged", partition, "its state is another's", name)
        return state

    def _clean(self, partition: Partition, newest: str) -> None:
        """Remove all but the last few snapshots, and what crashes have left.

        The one just written stays whatever its name says of the time, since clocks jump.
        """
        try:
            names = self._names(partition)
            whole = {name for name, kind in names if kind == "json"}
            before = sorted(whole - {newest}, reverse=True)
            for name in before[self._keep - 1 :]:
                self._remove(partition, name)
            for name in {name for name, _ in names} - whole:
                if time.time() - int(name[:13]) / 1000 > ORPHAN_S:
                    self._remove(partition, name)
        except Exception as error:  # noqa: BLE001  file systems raise what they like
            text = f"{self._shown(partition)}: old snapshots are not removed: {error}"
            _log.warning(text, extra={"event": "snapshot_not_removed"})

    def _remove(self, partition: Partition, name: str) -> None:
        """Remove what there is of a snapshot, its manifest first."""
        for kind in ("json", "part", "safetensors"):
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path(partition, f"{name}.{kind}"))

    def _names(self, partition: Partition) -> list[tuple[str, str]]:
        """Name and kind of the objects in a partition's folder."""
        folder = self._path(partition)
        self._fs.invalidate_cache(folder)
        try:
            paths = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        found = (_NAME.fullmatch(Path(path).name) for path in paths)
        return [(match[1], match[2]) for match in found if match]

    def _path(self, partition: Partition, name: str = "") -> str:
        return f"{self._root}/{partition[0]}/{partition[1]}/{name}".rstrip("/")

    def _shown(self, partition: Partition, name: str = "") -> str:
        """The place as messages show it, without a password."""
        return f"{self.url}/{partition[0]}/{partition[1]}/{name}".rstrip("/")

    def _error(
        self, reason: Reason, partition: Partition, text: str, name: str = ""
    ) -> SnapshotError:
        return SnapshotError(reason, f"{self._shown(partition, name)}: {text} ({_WAY_OUT[reason]})")

    @contextmanager
    def _as_snapshot_error(
        self, reason: Reason, partition: Partition, name: str = ""
    ) -> Iterator[None]:
        """Turn whatever a file system raises into one error that says where and what to do."""
        try:
            yield
        except (SnapshotError, FileNotFoundError) as error:
            if isinstance(error, SnapshotError) or reason == "unreachable":
                raise
            raise self._error(reason, partition, str(error), name) from error
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise self._error(_reason(error, reason), partition, text, name) from error


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
