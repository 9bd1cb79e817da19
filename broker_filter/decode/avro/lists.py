"""Read a list of Avro records, such as a star's history, into columns.

Where a list holds the time and the band of its items, those that are known already are glanced at
and passed over: of a star that is tracked, most of each packet is its own past.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypeAlias

from numpy.typing import NDArray

from broker_filter.decode.avro.run import Rows, Run, Take
from broker_filter.decode.avro.skip import block_head
from broker_filter.decode.avro.values import NULL, Value
from broker_filter.decode.selection import (
    MAX_ITEMS,
    MISSING,
    Many,
    column,
    missing_column,
    too_many_items,
)

__all__ = ["Known", "Oldest", "ValueReader", "read_records", "read_rows"]

Oldest: TypeAlias = Mapping[Any, float]
"""By band, as the packet writes it, the time from which on epochs are wanted; others all are."""

Known: TypeAlias = Callable[[Mapping[str, Any]], Oldest]
"""From what was read of a packet before a list to what of that list is wanted."""

ValueReader: TypeAlias = Callable[[bytes, int, Oldest], tuple[Any, int]]
"""From where a value begins to what is selected of it, and where it ends."""

MAX_EMPTY_ITEMS: Final = 100
"""Most items that take no byte: nothing else bounds how many a short message may claim."""

_ANY_TIME: Final = float("-inf")


def read_rows(whole: Run, glance: Run | None, many: Many, *, takes_bytes: bool) -> ValueReader:
    """Reader of a list whose items are one run each.

    Parameters
    ----------
    whole : Run
        Takes all that is wanted of an item.
    glance : Run, optional
        Takes an item's time and band alone.
    many : Many
    takes_bytes : bool
        Whether an item takes a byte at least.
    """
    take, take_many, table = whole.compiled(), whole.repeated(), _Table(whole, many)
    past = None if glance is None or glance.pattern is None else _Past.of(glance, whole, many)

    def read(value: bytes, at: int, oldest: Oldest) -> tuple[dict[str, NDArray[Any]], int]:
        rows: Rows = []
        items = 0
        while True:
            count, at, _ = block_head(value, at)
            if not count:
                return table.columns(rows), at
            items = _more(items, count, len(value) - at, takes_bytes=takes_bytes)
            if past is not None and oldest:
                at = past.take_newer(value, at, count, oldest, take, rows)
            else:
                at = take_many(value, at, count, rows)

    return read


@dataclass(frozen=True, slots=True)
class _Past:
    """Passes over the items that are older than what is wanted.

    Parameters
    ----------
    fits : callable
        Matches one item, with groups for its time and its band.
    groups : (int, int)
        Numbers of these groups.
    of_row : callable
        Picks the bytes of time and band out of those of all that is wanted of an item.
    read_time, read_band : callable
        From these bytes to the values.
    """

    fits: Callable[[bytes, int], re.Match[bytes] | None]
    groups: tuple[int, int]
    of_row: Callable[[Sequence[bytes]], tuple[bytes, bytes]]
    read_time: Callable[[bytes], float]
    read_band: Callable[[bytes], Any]

    @staticmethod
    def of(glance: Run, whole: Run, many: Many) -> _Past:
        """Make it from the run that takes time and band alone."""
        found = {part.name: (i, part.value) for i, part in glance.singles}
        index = {part.name: i for i, part in whole.singles}
        (time, read_time), (band, read_band) = found[many.time], found[many.band]
        return _Past(
            re.compile(glance.pattern or b"", re.DOTALL).match,
            (1 + time, 1 + band),
            itemgetter(index[many.time], index[many.band]),
            read_time.one,
            read_band.read,
        )

    def take_newer(
        self, value: bytes, at: int, count: int, oldest: Oldest, take: Take, rows: Rows
    ) -> int:
        """Take those of ``count`` items that are wanted, and find where the items end."""
        fits, (time, band), read_time = self.fits, self.groups, self.read_time
        limits, newer = _Limits(oldest, self.read_band), False
        for _ in range(count):
            # Histories are in order of time, mostly: what follows a new epoch is new.
            match = None if newer else fits(value, at)
            if match is not None:
                when, where = match.group(time, band)
                if when is not None and read_time(when) < limits[where]:
                    at = match.end()
                    continue
            raws, at = take(value, at)
            when, where = self.of_row(raws)
            newer = when == NULL or not read_time(when) < limits[where]
            if newer:
                rows.append(raws)
        return at


class _Limits(dict[bytes | None, float]):
    """From the bytes of a band to the time from which on its epochs are wanted."""

    def __init__(self, oldest: Oldest, read_band: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._oldest, self._read_band = oldest, read_band

    def __missing__(self, band: bytes | None) -> float:
        name = self._read_band(NULL if band is None else band)
        limit = self[band] = self._oldest.get(name, _ANY_TIME)
        return limit


def read_records(item: ValueReader, many: Many, *, takes_bytes: bool) -> ValueReader:
    """Reader of a list of whose items ``item`` reads each into a dict, or None."""

    def read(value: bytes, at: int, oldest: Oldest) -> tuple[dict[str, NDArray[Any]], int]:
        rows: list[dict[str, Any]] = []
        while True:
            count, at, _ = block_head(value, at)
            if not count:
                break
            _more(len(rows), count, len(value) - at, takes_bytes=takes_bytes)
            for _ in range(count):
                row, at = item(value, at, oldest)
                rows.append(row or {})
        columns = {
            name: column(leaf, (row.get(name, MISSING[leaf]) for row in rows), len(rows))
            for name, leaf in many.fields.items()
        }
        return columns, at

    return read


def _more(items: int, count: int, room: int, *, takes_bytes: bool) -> int:
    """Add to a number of items, unless there cannot or should not be so many."""
    if takes_bytes and count > room:
        raise IndexError
    if items + count > (MAX_ITEMS if takes_bytes else MAX_EMPTY_ITEMS):
        raise too_many_items(items + count, MAX_ITEMS if takes_bytes else MAX_EMPTY_ITEMS)
    return items + count


class _Table:
    """Makes columns of the rows of a list.

    Columns of one type are converted as one: most histories are short.

    Parameters
    ----------
    run : Run
        That takes the rows.
    many : Many
    """

    def __init__(self, run: Run, many: Many) -> None:
        self._width, self._blocks = len(run.parts), run.blocks
        self._missing = [(n, leaf) for n, leaf in many.fields.items() if n not in run.names]
        alike: dict[Value, dict[int, str]] = {}
        for i, part in run.singles:
            alike.setdefault(part.value, {})[i] = part.name
        self._kinds = [
            (value, list(of.values()), itemgetter(*of), len(of)) for value, of in alike.items()
        ]

    def columns(self, rows: Rows) -> dict[str, NDArray[Any]]:
        """The columns, shape (len(rows),) each."""
        n = len(rows)
        raws = list(zip(*rows, strict=True)) if rows else [()] * self._width
        columns = {name: missing_column(leaf, n) for name, leaf in self._missing}
        for i, block in self._blocks:
            columns |= block.columns(raws[i])
        for value, names, pick, count in self._kinds:
            if count == 1:
                columns[names[0]] = value.column(pick(raws))
            else:
                together = value.column(list(chain.from_iterable(pick(raws))))
                columns.update(zip(names, together.reshape(count, n), strict=True))
        return columns
