"""Files that programs leave beside archives: copies, metadata and histories, not data.

``.ipynb_checkpoints`` holds copies of the files that a notebook opened, ``__MACOSX`` and ``._name``
what macOS adds to archives, ``.git`` a history. Read with the rest, a copy counts each epoch twice.
"""

from __future__ import annotations

from pathlib import PurePath

__all__ = ["is_hidden"]


def is_hidden(path: PurePath | str) -> bool:
    """Whether a path inside a folder or an archive is hidden, or lies in what is hidden."""
    return any(
        part == "__MACOSX" or (part.startswith(".") and part not in (".", ".."))
        for part in PurePath(path).parts
    )
