"""How far a replay has come, and the file that keeps it for ``--resume``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_filter.errors import ConfigError

__all__ = ["Position", "read_position", "write_position"]


@dataclass(slots=True)
class Position:
    """How far a replay has come.

    Parameters
    ----------
    turn : int
        Passes through the archive that are done.
    period : float, days
        By how much times move on with each pass.
    first, last : float, MJD TAI
    messages, epochs, late : int
    streams : dict or None
        Where the present pass stands; see `Merge.position`.
    """

    turn: int = 0
    period: float = 0.0
    first: float = math.nan
    last: float = math.nan
    messages: int = 0
    epochs: int = 0
    late: int = 0
    streams: Mapping[str, Any] | None = None


def read_position(path: Path, fingerprint: str) -> Position:
    """Read where an interrupted replay stands; the beginning where there is no such file.

    Raises
    ------
    ConfigError
        The file is no such file, belongs to a replay of other sources or options, or would be in a
        folder that does not exist.
    """
    try:
        stored = json.loads(path.read_bytes())
        if stored.pop("fingerprint") == fingerprint:
            return Position(**stored)
    except FileNotFoundError:
        if not path.parent.is_dir():  # said now, not when there is something to keep
            raise ConfigError(f"{path}: there is no folder {path.parent}") from None
        return Position()
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ConfigError(f"{path} is no position of a replay: {error}") from None
    raise ConfigError(
        f"{path} belongs to a replay of other sources or options: give the same ones to go on, or "
        "delete it to begin anew"
    )


def write_position(path: Path, fingerprint: str, position: Position) -> None:
    """Write where a replay stands, so that the file is whole at any time.

    Raises
    ------
    ConfigError
        It cannot be written there.
    """
    part = path.with_name(path.name + ".part")
    names = Position.__dataclass_fields__
    stored = {name: getattr(position, name) for name in names} | {"fingerprint": fingerprint}
    try:
        part.write_text(json.dumps(stored))
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: the position cannot be kept: {error.strerror}") from None
