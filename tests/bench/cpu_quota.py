"""Processor time that a process may take, set as a container's limit is: Linux control groups."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["limited", "where"]

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


def where() -> Path | None:
    """Folder in which this process may make groups with a quota, or None if it may in none."""
    for folder, setting in ((ROOT / "cpu", "cpu.cfs_quota_us"), (ROOT, "cpu.max")):
        group = folder / f"bench-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                if (group / setting).exists():
                    return folder
            finally:
                group.rmdir()
    return None


@contextmanager
def limited(pids: Iterable[int], cores: float) -> Iterator[None]:
    """Let each of these processes have so many cores at most, until the context is left.

    Raises
    ------
    OSError
        Where `where` finds no folder.
    """
    folder = where()
    if folder is None:
        raise PermissionError(f"no control group with a quota can be made in {ROOT}")
    with ExitStack() as stack:
        for pid in pids:
            stack.enter_context(_limited(folder, pid, round(PERIOD_US * cores)))
        yield


@contextmanager
def _limited(folder: Path, pid: int, quota_us: int) -> Iterator[None]:
    group = folder / f"bench-{pid}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with suppress(OSError):  # the process has ended
            (folder / "cgroup.procs").write_text(str(pid))
        group.rmdir()
