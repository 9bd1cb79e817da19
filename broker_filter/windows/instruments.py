"""Numbers the sources of one store: whose images an epoch comes from, and what its flux means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from broker_filter.state.columns import Column, packed, unpacked
from broker_filter.types import IntArray, Photometry

__all__ = ["Instruments"]

MAX_SOURCES: Final = 1 << 16


class Instruments:
    """The sources that were met, by number.

    Flux of one source is in one unit: a camera's or a reference image's own total flux, relative
    flux, or difference flux without a reference.

    Parameters
    ----------
    relative, difference : ndarray, shape (n,), bool
        What the flux of each source is; neither is total flux in nJy.
    rank : ndarray, shape (n,), int64
        In which order epochs of one tick stand: by the sources' names, not by their arrival.
    other : ndarray, shape (n,), int64
        The same camera's difference flux for its total flux, and the reverse; -1 for none.
    """

    def __init__(self) -> None:
        self._code: dict[tuple[str, bool, bool], int] = {}
        self._label: list[str] = []
        self.relative = np.zeros(0, np.bool_)
        self.difference = np.zeros(0, np.bool_)
        self.rank = np.zeros(0, np.int64)
        self.other = np.zeros(0, np.int64)

    def code(self, photometry: Photometry) -> int:
        """Number of the source of a message; negative where there are too many."""
        key = (photometry.source, photometry.relative, photometry.kind == "difference")
        known = self._code.get(key)
        if known is not None:
            return known
        return -1 if len(self._code) == MAX_SOURCES else self._enter(key)

    def _enter(self, key: tuple[str, bool, bool]) -> int:
        code = self._code[key] = len(self._code)
        self._label.append(f"{key[0]} (difference)" if key[2] else key[0])
        self.relative = np.append(self.relative, key[1])
        self.difference = np.append(self.difference, key[2])
        # Both kinds of one camera are neighbours, so that one can take the other's place.
        rank = crc32(repr(key[:2]).encode()) * MAX_SOURCES + code
        self.rank = np.append(self.rank, rank)
        other = self._code.get((key[0], key[1], not key[2]), -1)
        self.other = np.append(self.other, other)
        if other >= 0:
            self.other[other] = code
        return code

    def names(self, rows: IntArray) -> list[tuple[str, ...]]:
        """Names of the sources of each row of codes, shape (B, S), as readers see them.

        Codes of -1 have none. Most rows are alike, and share one tuple.
        """
        found: dict[bytes, tuple[str, ...]] = {}
        names = []
        for row in rows:
            key = row.tobytes()
            if key not in found:
                found[key] = tuple(self._label[code] for code in row.tolist() if code >= 0)
            names.append(found[key])
        return names

    def state(self) -> dict[str, Column]:
        """A copy of the sources, as columns for a snapshot."""
        return {
            **packed("sources", [name for name, _, _ in self._code]),
            "source_relative": self.relative.copy(),
            "source_difference": self.difference.copy(),
        }

    def restore(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave; this table must be empty."""
        relative = columns["source_relative"]
        # Older snapshots hold total flux alone.
        difference = columns.get("source_difference", np.zeros(len(relative), np.bool_))
        names = unpacked("sources", columns)
        for key in zip(names, relative.tolist(), difference.tolist(), strict=True):
            self._enter(key)
