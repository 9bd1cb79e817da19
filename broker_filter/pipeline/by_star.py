"""The windows of a batch, taken up star by star."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol, TypeVar

from broker_filter.alerts.lifecycle import EventKey
from broker_filter.pipeline.batcher import Forgotten
from broker_filter.types import StateKey

__all__ = ["Drops", "EachStar", "Star", "by_star"]

T = TypeVar("T")
S = TypeVar("S")

Star = tuple[StateKey, EventKey]
"""Which state, and which star and band of it."""


class EachStar(Protocol):
    """Applies a function to each star, as `map` does; may do so in several threads."""

    def __call__(self, function: Callable[[S], T], stars: Iterable[S], /) -> Iterable[T]:
        """Results in the order of the stars."""


def by_star(
    take_up: Callable[[int], T], rows: Sequence[int], stars: Sequence[Star], each_star: EachStar
) -> list[T]:
    """What each of some rows gives; the rows of a star are taken up one after the other.

    Parameters
    ----------
    take_up : callable
        Given a row of the batch.
    rows : sequence of int
    stars : sequence of Star
        Of each of the rows.
    each_star : EachStar
    """
    own: dict[Star, list[int]] = defaultdict(list)
    for row, star in zip(rows, stars, strict=True):
        own[star].append(row)
    found = each_star(lambda rows: [(row, take_up(row)) for row in rows], own.values())
    by_row = dict(chain.from_iterable(found))
    return [by_row[row] for row in rows]


class Drops:
    """Windows that were dropped between rows of a batch.

    Parameters
    ----------
    forgotten : iterable of Forgotten
        In order.
    """

    def __init__(self, forgotten: Iterable[Forgotten]) -> None:
        self._rows: dict[Star, deque[int]] = {}
        for gone in forgotten:
            for key in gone.stars:
                self._rows.setdefault((gone.key, key), deque()).append(gone.row)

    def before(self, star: Star, row: int) -> bool:
        """Whether the window of a star was dropped before a row, and after one asked for before."""
        rows, dropped = self._rows.get(star), False
        while rows and rows[0] <= row:
            rows.popleft()
            dropped = True
        return dropped

    def rest(self) -> list[Star]:
        """The stars whose windows were dropped after all rows that were asked for."""
        return [star for star, rows in self._rows.items() if rows]
