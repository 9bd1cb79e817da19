"""Pages as they were at one moment, copied little by little while others write to them.

A partition may hold gigabytes, and copying them at once would stop the main loop. So the moment is
only noted; from then on a page is copied before it is first overwritten, and whoever wants
the copy copies the rest. Most pages are full and never written again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import IntArray

__all__ = ["PageCopy"]

SLICE_PAGES: Final = 1024
_REST_S: Final = 1e-4


class PageCopy:
    """Columns of points in pages, as they were when this was made.

    Parameters
    ----------
    columns : sequence of ndarray, shape (at least n_pages * page,)
    n_pages : int
    page : int
        Points of a page.
    """

    __slots__ = ("__weakref__", "_copies", "_live", "_lock", "_page", "_taken")

    def __init__(self, columns: Sequence[NDArray[Any]], n_pages: int, page: int) -> None:
        self._page = page
        self._live = [column[: n_pages * page].reshape(n_pages, page) for column in columns]
        self._copies = [np.empty_like(column) for column in self._live]
        self._taken = np.zeros(n_pages, np.bool_)
        self._lock = threading.Lock()

    def keep(self, index: IntArray) -> None:
        """Copy what has not been copied of the pages of these points, which are to be written."""
        touched = np.zeros(len(self._taken), np.bool_)
        page = index // self._page
        touched[page[page < len(touched)]] = True
        pages = np.flatnonzero(touched & ~self._taken)
        if len(pages):
            with self._lock:
                self._take(pages)

    def columns(self) -> list[NDArray[Any]]:
        """The columns, whole; copies what is left, in another thread if need be."""
        for first in range(0, len(self._taken), SLICE_PAGES):
            pages = np.arange(first, min(first + SLICE_PAGES, len(self._taken)))
            if not self._taken[pages].all():
                with self._lock:
                    self._take(pages)
                time.sleep(_REST_S)  # locks are not fair: without a rest, `keep` would starve
        self._live = []
        return [copy.reshape(-1) for copy in self._copies]

    def _take(self, pages: IntArray) -> None:
        pages = pages[~self._taken[pages]]
        for live, copy in zip(self._live, self._copies, strict=False):
            copy[pages] = live[pages]
        self._taken[pages] = True
