"""What the other bands of a star hold, beside the window that may alert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from broker_filter.alerts.alert import OtherBand
from broker_filter.inference.scorer import Scorer
from broker_filter.pipeline.batcher import Work
from broker_filter.types import WindowBatch

__all__ = ["OtherBands"]


class OtherBands:
    """Windows of the same stars in their other bands, and the network's K of them.

    They are scored when the first alert needs some, those of all rows together.

    Parameters
    ----------
    work : Work
    rows : sequence of int
        Of the windows that may alert.
    scorer : Scorer
    """

    def __init__(self, work: Work, rows: Sequence[int], scorer: Scorer) -> None:
        self._work, self._rows, self._scorer = work, rows, scorer

    def of(self, row: int) -> tuple[OtherBand, ...]:
        """The other bands of one window."""
        return self._found.get(row, ())

    def windows_of(self, row: int) -> Iterator[tuple[WindowBatch, int]]:
        """The windows of the other bands of one window: a batch and a row of it for each."""
        if self._work.others is not None:
            for other in np.flatnonzero(self._work.owner == row).tolist():
                yield self._work.others, other

    @cached_property
    def _found(self) -> dict[int, tuple[OtherBand, ...]]:
        wanted = np.flatnonzero(np.isin(self._work.owner, self._rows))
        if self._work.others is None or not len(wanted):
            return {}
        others = self._work.others.take(wanted)
        found: dict[int, tuple[OtherBand, ...]] = {}
        columns = zip(others.band, self._scorer.score(others).log10_k, others.n, strict=True)
        for i, (band, log10_k, n) in enumerate(columns):
            other = OtherBand(band, float(log10_k), int(n), float(others.mjd_tai[i, n - 1]))
            owner = int(self._work.owner[wanted[i]])
            found[owner] = (*found.get(owner, ()), other)
        return found
