"""All that is kept of one partition at one input offset, and its way to bytes and back.

A partition's windows, baselines, schedule and event states are one state only together, and only at
an offset at which every window that was due has been looked at. `Intake.flush` and
`Assessment.assess` make such a state; here it becomes a file.

Topics of one pattern share their stars: partitions of the same number have one state, with an
offset for each topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import StateError
from broker_filter.state.columns import (
    Column,
    Columns,
    Readable,
    Writable,
    arrays_of,
    read_columns,
    write_columns,
)
from broker_filter.types import Partition, StateKey

__all__ = [
    "SCHEMA",
    "PartitionState",
    "Reason",
    "SnapshotError",
    "damage_of",
    "prefixed",
    "read_state",
    "write_state",
]

SCHEMA: Final = 1
"""Version of the columns: raised when their names, units or meaning change."""

Reason = Literal[
    "missing",
    "damaged",
    "version",
    "window",
    "ahead",
    "unreachable",
    "permission",
    "full",
    "unwritable",
]


class SnapshotError(StateError):
    """A snapshot cannot be used or made.

    Parameters
    ----------
    reason : str
        A short stable word for metrics, one of `Reason`.
    detail : str
        One sentence for people: which snapshot, what is wrong, and the way out.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@contextmanager
def damage_of(what: str) -> Iterator[None]:
    """Say of any StateError within that the snapshot called ``what`` is damaged."""
    try:
        yield
    except SnapshotError:
        raise
    except StateError as error:
        raise SnapshotError("damaged", f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of one partition.

    Parameters
    ----------
    key : (str, int)
        The partition, or pattern and number.
    offsets : mapping of Partition to int
        Next input offset of each partition behind it: all messages before it are in the state,
        none after it.
    window_days : float, days
        Length of its windows.
    model_id : str
        Model that last looked at them; empty where none has.
    columns : mapping of str to array or Streamed
        Those of the windows, the schedule and the events, named ``window/...``, ``schedule/...``
        and ``event/...``.
    """

    key: StateKey
    offsets: Mapping[Partition, int]
    window_days: float
    model_id: str
    columns: Columns

    @property
    def offset(self) -> int:
        """How far it has come: the sum of its offsets."""
        return sum(self.offsets.values())

    def __len__(self) -> int:
        """Windows held."""
        return self.columns["window/count"].shape[0]

    @property
    def points(self) -> int:
        """Epochs held in windows."""
        return self.columns["window/time"].shape[0]

    @property
    def newest_mjd(self) -> float:
        """Newest epoch, MJD TAI; NaN where there is none."""
        newest = arrays_of({"": self.columns["window/newest"]})[""]
        return float(newest.max()) if len(newest) else float("nan")

    def part(self, name: str) -> dict[str, Column]:
        """The columns of the windows, the schedule or the events, by their own names."""
        start = f"{name}/"
        return {
            key.removeprefix(start): column
            for key, column in self.columns.items()
            if key.startswith(start)
        }


def prefixed(name: str, columns: Columns) -> dict[str, Column]:
    """Columns as `PartitionState` names them."""
    return {f"{name}/{key}": column for key, column in columns.items()}


def write_state(file: Writable, state: PartitionState) -> None:
    """Write a state in the layout of `broker_filter.state.columns`."""
    topic, number = state.key
    about = {
        "schema": SCHEMA,
        "topic": topic,
        "partition": number,
        "offsets": json.dumps({topic: offset for (topic, _), offset in state.offsets.items()}),
        "window_days": state.window_days,
        "model_id": state.model_id,
    }
    write_columns(file, state.columns, {key: str(value) for key, value in about.items()})


def read_state(file: Readable, size: int) -> PartitionState:
    """Read what `write_state` wrote.

    Parameters
    ----------
    file
        Only ``readinto`` is called; it is read to its end.
    size : int, bytes
        Length of the file.

    Raises
    ------
    SnapshotError
        ``damaged``, or ``version`` where the columns are those of another schema.
    """
    try:
        columns, about = read_columns(file, size)
        if about["schema"] != str(SCHEMA):
            raise SnapshotError("version", f"its schema is {about['schema']}, ours {SCHEMA}")
        key = about["topic"], int(about["partition"])
        return PartitionState(
            key=key,
            offsets=_offsets_of(about, key),
            window_days=float(about["window_days"]),
            model_id=about["model_id"],
            columns=_checked(columns),
        )
    except SnapshotError:
        raise
    except (StateError, KeyError, ValueError, AttributeError, TypeError) as error:
        detail = str(error) if isinstance(error, StateError) else repr(error)
        raise SnapshotError("damaged", detail) from error


def _offsets_of(about: Mapping[str, str], key: StateKey) -> dict[Partition, int]:
    if "offsets" not in about:  # written before topics could share a state
        return {key: int(about["offset"])}
    return {(topic, key[1]): int(offset) for topic, offset in json.loads(about["offsets"]).items()}


def _checked(columns: Mapping[str, NDArray[Any]]) -> dict[str, Column]:
    missing = {"window/count", "window/time", "window/newest"} - set(columns)
    if missing:
        raise StateError(f"it lacks {', '.join(sorted(missing))}")
    if columns["window/newest"].dtype != np.float64:
        raise StateError("its times are not 64-bit floats")
    return dict(columns)
