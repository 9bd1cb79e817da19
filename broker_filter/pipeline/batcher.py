"""Gathers windows that are due, with the offsets that they settle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

import numpy as np

from broker_filter.alerts.lifecycle import EventKey
from broker_filter.state.partition import PartitionState
from broker_filter.types import IntArray, Partition, StateKey, WindowBatch

__all__ = ["Batcher", "Forgotten", "Origin", "Work"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a window's newest message came from.

    Parameters
    ----------
    key : (str, int)
        Of its star's state.
    received_ms : int
        Kafka timestamp of the newest message behind it, ms since 1970 UTC (0 where unknown).
    silent : bool
        Its alerts were delivered before a restart: it moves its event on and gives none.
    """

    key: StateKey = ("", 0)
    received_ms: int = 0
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Stars whose windows were dropped, and the row of the batch before which that was.

    Parameters
    ----------
    row : int
        The length of the batch where it was after all of it.
    key : (str, int)
        Of their state.
    stars : list of (str, StarId, str)
        Survey, star and band.
    """

    row: int
    key: StateKey
    stars: list[EventKey]


@dataclass(frozen=True, slots=True)
class Work:
    """Windows to evaluate, in order, and the offsets that may be committed after it.

    ``windows`` is None where the messages made none due; ``origins`` has an entry for each of them.
    ``others`` are windows of the same stars in other bands; ``owner``, shape (len(others),), says
    to which row of ``windows`` each belongs.
    ``captured`` are states as they are once this work is done, still without events; what is
    ``forgotten`` is in order.
    """

    windows: WindowBatch | None
    offsets: dict[Partition, int]
    origins: list[Origin] = field(default_factory=list)
    others: WindowBatch | None = None
    owner: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    captured: dict[StateKey, PartitionState] = field(default_factory=dict)
    forgotten: list[Forgotten] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Gathered:
    windows: WindowBatch
    origin: Origin
    others: WindowBatch | None
    owner: IntArray | None

    @property
    def key(self) -> StateKey:
        """Of the state of its stars."""
        return self.origin.key


class Batcher:
    """Gathers windows until there are enough of them or the first has waited long enough.

    Parameters
    ----------
    flush_windows : int
    max_wait_s : float
    """

    def __init__(self, flush_windows: int = 1024, max_wait_s: float = 2.0) -> None:
        self._flush_windows, self._max_wait_s = flush_windows, max_wait_s
        self._taken: list[_Gathered | Forgotten] = []
        self._offsets: dict[Partition, int] = {}
        self._since: float | None = None

    def add(
        self,
        windows: WindowBatch,
        now: float,
        origin: Origin = Origin(),
        others: WindowBatch | None = None,
        owner: IntArray | None = None,
    ) -> None:
        """Take windows of one origin.

        Parameters
        ----------
        windows : WindowBatch
        now : float
            Any monotonic clock, in seconds.
        origin : Origin
        others, owner : WindowBatch and ndarray of int64, optional
            As of `Work`, with rows of ``windows``.
        """
        if len(windows):
            self._taken.append(_Gathered(windows, origin, others, owner))
            self._since = now if self._since is None else self._since

    def forget(self, key: StateKey, stars: list[EventKey], now: float) -> None:
        """Note that windows were dropped: what is known of their stars goes in the same order."""
        self._taken.append(Forgotten(0, key, stars))
        self._since = now if self._since is None else self._since

    def note_offsets(self, offsets: Mapping[Partition, int], now: float) -> None:
        """Take the next offset to read after the messages taken so far."""
        self._offsets |= offsets
        self._since = now if self._since is None else self._since

    def due(self, now: float, most: int | None = None) -> bool:
        """Whether to flush now; ``most`` may be less than the windows that otherwise make it so."""
        if self._since is None:
            return False
        enough = self._flush_windows if most is None else min(most, self._flush_windows)
        return (
            sum(len(each.windows) for each in self._windows) >= enough
            or now - self._since >= self._max_wait_s
        )

    def flush(self) -> Work | None:
        """Hand over everything; None if there is nothing. Offsets move on without windows too."""
        if self._since is None:
            return None
        gathered = self._windows
        forgotten = list(self._dropped())
        windows = _joined([each.windows for each in gathered]) if gathered else None
        origins = [each.origin for each in gathered for _ in range(len(each.windows))]
        others = _joined_others(gathered)
        work = Work(windows, self._offsets, origins, *others, forgotten=forgotten)
        self._taken, self._offsets, self._since = [], {}, None
        return work

    @property
    def _windows(self) -> list[_Gathered]:
        return [each for each in self._taken if isinstance(each, _Gathered)]

    def _dropped(self) -> Iterator[Forgotten]:
        """What is to be forgotten, each with the rows of the windows that came before."""
        row = 0
        for each in self._taken:
            if isinstance(each, Forgotten):
                yield replace(each, row=row)
            else:
                row += len(each.windows)

    def drop(self, partitions: Collection[Partition], keys: Collection[StateKey]) -> None:
        """Forget offsets of partitions that others own now, and windows of states that went."""
        self._taken = [each for each in self._taken if each.key not in keys]
        self._offsets = {p: n for p, n in self._offsets.items() if p not in partitions}


def _joined_others(gathered: Sequence[_Gathered]) -> tuple[WindowBatch | None, IntArray]:
    """The windows in other bands of all, and their rows in the joined batch."""
    others: list[WindowBatch] = []
    owner: list[IntArray] = [np.empty(0, np.int64)]
    first = 0
    for each in gathered:
        if each.others is not None and each.owner is not None and len(each.others):
            others.append(each.others)
            owner.append(first + each.owner)
        first += len(each.windows)
    return (_joined(others) if others else None), np.concatenate(owner)


def _joined(batches: Sequence[WindowBatch]) -> WindowBatch:
    """Batches one after the other, each column padded to the widest."""

    def stacked(name: str) -> Any:  # noqa: ANN401  lists and arrays of several types
        columns = [getattr(batch, name) for batch in batches]
        if isinstance(columns[0], list):
            return list(chain.from_iterable(columns))
        if columns[0].ndim == 1:
            return np.concatenate(columns)
        width = max(column.shape[1] for column in columns)
        rest = [(0, 0)] * (columns[0].ndim - 2)
        wider = [((0, 0), (0, width - column.shape[1]), *rest) for column in columns]
        return np.concatenate([np.pad(*each) for each in zip(columns, wider, strict=True)])

    return WindowBatch(**{column.name: stacked(column.name) for column in fields(WindowBatch)})
