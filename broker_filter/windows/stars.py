"""Which star and series each window belongs to, and where the stars are on the sky.

A series is a survey and a band. Each star has one window in each series in which it was seen; the
window's number is its slot.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.state.columns import (
    Column,
    packed,
    packed_stars,
    unpacked,
    unpacked_stars,
)
from broker_filter.types import IntArray, Photometry, StarId
from broker_filter.windows.arrays import grown

__all__ = ["Stars"]

Series = tuple[str, str]
"""Survey and band."""

SLOT_BYTES: Final = 32
"""Memory of one int object, as dictionaries hold slots."""

ALIGNMENT: Final = 16


class Stars:
    """The stars of one partition, by slot.

    Attributes
    ----------
    name : list of (str or int), length n
        The star of each slot.
    """

    __slots__ = (
        *("_code", "_coordinates", "_series", "_series_of", "_slot_of", "_text_bytes"),
        "name",
    )

    def __init__(self) -> None:
        self.name: list[StarId] = []
        self._text_bytes = 0
        self._series: list[Series] = []
        self._code: dict[Series, int] = {}
        self._slot_of: dict[Series, dict[StarId, int]] = {}
        self._series_of = np.zeros(0, np.uint32)
        self._coordinates = np.zeros((0, 2))

    def __len__(self) -> int:
        return len(self.name)

    @property
    def nbytes(self) -> int:
        """Memory of the names, of the dictionaries that find them and of the arrays, bytes."""
        arrays = self._series_of.nbytes + self._coordinates.nbytes
        tables = sum(map(sys.getsizeof, (self.name, *self._slot_of.values())))
        return arrays + tables + SLOT_BYTES * len(self) + self._text_bytes

    def names(self, slots: IntArray) -> list[StarId]:
        """The star of each of these slots."""
        return list(map(self.name.__getitem__, slots.tolist()))

    def series(self, slots: IntArray) -> list[Series]:
        """Survey and band of each of these slots."""
        return [self._series[code] for code in self._series_of[slots].tolist()]

    def coordinates(self, slots: IntArray) -> list[tuple[float, float] | None]:
        """(ra, dec) in degrees of the star of each of these slots; None where unknown."""
        found: list[tuple[float, float] | None] = [None] * len(slots)
        known = np.flatnonzero(~np.isnan(self._coordinates[slots, 0]))
        ra, dec = self._coordinates[slots[known]].T.tolist()
        for i, place in zip(known.tolist(), zip(ra, dec, strict=True), strict=True):
            found[i] = place
        return found

    def bands(self, survey: str, star: StarId) -> Iterator[tuple[str, int]]:
        """The bands in which a survey has seen a star, and the slot of each."""
        for (its_survey, band), slot_of in self._slot_of.items():
            slot = slot_of.get(star) if its_survey == survey else None
            if slot is not None:
                yield band, slot

    def slots(self, photometry: Photometry) -> IntArray:
        """Slot of each epoch, shape (n,), int64; new stars get the next ones."""
        series, star = (photometry.survey, photometry.band), photometry.star
        slot_of = self._slot_of.setdefault(series, {})
        slot = self._in_a_row(series, star)
        if slot is None:
            slot = self._looked_up(series, star)
        if photometry.coordinates and np.isnan(self._coordinates[slot, 0]).any():
            for name, coordinates in photometry.coordinates.items():
                self._coordinates[slot_of[name]] = coordinates
        return slot

    def _in_a_row(self, series: Series, star: list[StarId]) -> IntArray | None:
        """The slots of stars that come as they came first: quicker than to look each up."""
        first = self._slot_of[series].get(star[0]) if star else None
        if first is None:
            return None
        end = first + len(star)
        same = self._series_of[first:end] == self._series_of[first]
        return np.arange(first, end) if same.all() and self.name[first:end] == star else None

    def _looked_up(self, series: Series, star: list[StarId]) -> IntArray:
        """The slots of stars in any order; new stars get the next ones."""
        slot_of = self._slot_of[series]
        slot = np.fromiter(map(slot_of.get, star, repeat(-1)), np.int64, len(star))
        missing = np.flatnonzero(slot < 0)
        if len(missing):
            self._add_stars(series, list(dict.fromkeys(star[i] for i in missing.tolist())))
            slot[missing] = [slot_of[star[i]] for i in missing.tolist()]
        return slot

    def _add_stars(self, series: Series, stars: list[StarId]) -> None:
        code = self._code.setdefault(series, len(self._series))
        if code == len(self._series):
            self._series.append(series)
        first, size = len(self), len(self) + len(stars)
        self.name += stars
        self._text_bytes += _text_bytes(stars)
        self._slot_of[series].update(zip(stars, range(first, size), strict=True))
        self._make_room(size)
        self._series_of[first:size] = code

    def _make_room(self, size: int) -> None:
        self._series_of = grown(self._series_of, size)
        self._coordinates = grown(self._coordinates, size, np.nan)

    def keep(self, slots: IntArray) -> None:
        """Make ``slots`` (ascending, no repeats) the only ones, numbered from 0."""
        self.name = [self.name[slot] for slot in slots.tolist()]
        self._series_of, self._coordinates = self._series_of[slots], self._coordinates[slots]
        self._index()

    def label(self, slot: int) -> tuple[str, ...]:
        """Name, survey and band of a slot as texts: in what order windows of equal times stand."""
        star = self.name[slot]
        return (type(star).__name__, str(star), *self._series[self._series_of[slot]])

    def keys(self, slots: IntArray) -> list[tuple[str, StarId, str]]:
        """Survey, star and band of each of these slots."""
        of = zip(slots.tolist(), self.series(slots), strict=True)
        return [(survey, self.name[slot], band) for slot, (survey, band) in of]

    def _index(self) -> None:
        """Find the slots of all stars anew."""
        self._slot_of = {series: {} for series in self._series}
        self._code = {series: code for code, series in enumerate(self._series)}
        codes = self._series_of[: len(self)].tolist()
        for slot, (star, code) in enumerate(zip(self.name, codes, strict=True)):
            self._slot_of[self._series[code]][star] = slot
        self._text_bytes = _text_bytes(self.name)

    def siblings(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """Windows of the same stars in other bands of the same survey.

        Returns
        -------
        owner, sibling : ndarray, shape (m,), int64
            Row of ``slots`` and slot of each; those of one owner in order of their bands' names.
        """
        owner: list[int] = []
        sibling: list[int] = []
        for code in np.unique(self._series_of[slots]).tolist():
            survey, band = self._series[code]
            others = sorted(key for key in self._series if key[0] == survey and key[1] != band)
            rows = np.flatnonzero(self._series_of[slots] == code).tolist() if others else ()
            for row in rows:
                star = self.name[slots[row]]
                found = [self._slot_of[key][star] for key in others if star in self._slot_of[key]]
                owner += [row] * len(found)
                sibling += found
        return np.array(owner, np.int64), np.array(sibling, np.int64)

    def state(self) -> dict[str, Column]:
        """A copy of all that is known of the stars, as columns for a snapshot."""
        size = len(self)
        return {
            **packed_stars("star", self.name),
            **packed("books", [text for series in self._series for text in series]),
            "book": self._series_of[:size].copy(),
            "place": self._coordinates[:size].copy(),
        }

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave; there must be no stars yet."""
        texts = unpacked("books", columns)
        self._series = list(zip(texts[::2], texts[1::2], strict=True))
        self.name = unpacked_stars("star", columns)
        self._make_room(len(self))
        self._series_of[: len(self)] = columns["book"]
        self._coordinates[: len(self)] = columns["place"]
        self._index()


def _text_bytes(stars: list[StarId]) -> int:
    """Memory of the names of stars, as the allocator rounds it."""
    return sum(-sys.getsizeof(star) // ALIGNMENT for star in stars) * -ALIGNMENT
