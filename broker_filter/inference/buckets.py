"""Cuts a batch of windows by length, so that each network call has one padded shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from broker_filter.types import IntArray, WindowBatch

__all__ = ["by_bucket"]


def by_bucket(
    batch: WindowBatch, buckets: Sequence[int], chunk: int
) -> Iterator[tuple[int, IntArray]]:
    """Cut a batch into chunks of windows that fit the same bucket.

    Parameters
    ----------
    batch : WindowBatch
    buckets : sequence of int
        Lengths, ascending; windows longer than the last are thinned to it later.
    chunk : int
        Most rows a chunk.

    Yields
    ------
    bucket : int
    rows : ndarray, shape (m <= chunk,), int64
    """
    place = np.searchsorted(buckets, np.minimum(batch.n, buckets[-1]))
    for i, bucket in enumerate(buckets):
        rows = np.flatnonzero(place == i)
        for first in range(0, len(rows), chunk):
            yield bucket, rows[first : first + chunk]
