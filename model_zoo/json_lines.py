"""Files of one JSON value a line, to which long work adds, and which it reads when it goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["append_line", "read_lines"]


def append_line(path: Path, value: Any) -> None:  # noqa: ANN401  whatever JSON holds
    """Add a value to a file, whose last line a killed run may have left unfinished."""
    line = json.dumps(value).encode() + b"\n"
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read() == b"\n" else b"\n" + line
        file.write(line)


def read_lines(path: Path) -> list[Any]:
    """The values of a file in their order; none where there is no file.

    Lines that were not written to their end are left out.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [value for line in lines if (value := _parsed(line)) is not None]


def _parsed(line: str) -> Any:  # noqa: ANN401  as above
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
