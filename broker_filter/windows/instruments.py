"""Numbers the sources of one store: whose images an epoch comes from, and what its flux means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from broker_filter.state.columns import Column, packed, unpacked
from broker_filter.types import IntArray, Photometry

__all__ = ["Instruments"]

MAX_SOURCES: Final = 1 << 16

_Key = tuple[str, bool, bool, str]
"""Name, whether its flux is relative, whether it is difference flux, and the band or "" for any."""


class Instruments:
    """The sources that were met, by number.

    Flux of one source is in one unit: a camera's or a reference image's own total flux, relative
    flux, or difference flux without a reference.

    Attributes
    ----------
    relative, difference : ndarray, shape (n,), bool
        What the flux of each source is; neither is total flux in nJy.
    rank : ndarray, shape (n,), int64
        In which order epochs of one tick stand: by the sources' names, not by their arrival.
    band : ndarray, shape (n,), int64
        Number of each source's band; one for all where bands have windows of their own.
    other : ndarray, shape (n,), int64
        The same camera's difference flux for its total flux, and the reverse; -1 for none.
    """

    def __init__(self) -> None:
        self._code: dict[_Key, int] = {}
        self._bands: dict[str, int] = {}
        self._label: list[tuple[str, str]] = []
        self.relative = np.zeros(0, np.bool_)
        self.difference = np.zeros(0, np.bool_)
        self.rank = np.zeros(0, np.int64)
        self.band = np.zeros(0, np.int64)
        self.other = np.zeros(0, np.int64)

    @property
    def bands(self) -> list[str]:
        """Bands of the sources, where windows hold those of all bands."""
        return [band for band in self._bands if band]

    def code(self, photometry: Photometry, band: str = "") -> int:
        """Number of the source of a message; negative where there are too many.

        ``band`` is to be given where windows hold the epochs of all bands.
        """
        difference = photometry.kind == "difference"
        key = (photometry.source, photometry.relative, difference, band)
        known = self._code.get(key)
        if known is not None:
            return known
        return -1 if len(self._code) == MAX_SOURCES else self._enter(key)

    def _enter(self, key: _Key) -> int:
        name, relative, difference, band = key
        code = self._code[key] = len(self._code)
        self._label.append((band, f"{name} (difference)" if difference else name))
        self.relative = np.append(self.relative, relative)
        self.difference = np.append(self.difference, difference)
        self.band = np.append(self.band, self._bands.setdefault(band, len(self._bands)))
        # Both kinds of one camera are neighbours, so that one can take the other's place.
        camera = (name, relative, band) if band else (name, relative)
        self.rank = np.append(self.rank, crc32(repr(camera).encode()) * MAX_SOURCES + code)
        other = self._code.get((name, relative, not difference, band), -1)
        self.other = np.append(self.other, other)
        if other >= 0:
            self.other[other] = code
        return code

    def names(self, rows: IntArray, bands: Sequence[str]) -> list[tuple[tuple[str, str], ...]]:
        """Band and name of the sources of each row of codes, shape (B, S), as readers see them.

        Codes of -1 have none; ``bands`` are those of the windows. Most rows are alike, and share
        one tuple.
        """
        if len(rows) and (rows == rows[0]).all() and bands.count(bands[0]) == len(bands):
            return [self._names(rows[0].tolist(), bands[0])] * len(rows)
        keys = list(zip(map(tuple, rows.tolist()), bands, strict=True))
        found = {key: self._names(*key) for key in set(keys)}
        return [found[key] for key in keys]

    def _names(self, codes: Sequence[int], window_band: str) -> tuple[tuple[str, str], ...]:
        labels = (self._label[code] for code in codes if code >= 0)
        return tuple((band or window_band, name) for band, name in labels)

    def state(self) -> dict[str, Column]:
        """A copy of the sources, as columns for a snapshot."""
        return {
            **packed("sources", [name for name, *_ in self._code]),
            **packed("source_bands", [band for *_, band in self._code]),
            "source_relative": self.relative.copy(),
            "source_difference": self.difference.copy(),
        }

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave; this table must be empty."""
        relative = columns["source_relative"]
        # Older snapshots hold total flux alone.
        difference = columns.get("source_difference", np.zeros(len(relative), np.bool_))
        names = unpacked("sources", columns)
        # Older snapshots hold windows of single bands alone.
        bands = (
            unpacked("source_bands", columns) if "source_bands" in columns else [""] * len(names)
        )
        for key in zip(names, relative.tolist(), difference.tolist(), bands, strict=True):
            self._enter(key)
