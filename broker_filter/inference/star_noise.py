"""What the histories of a window's sources say of its noise, as networks read it.

A history that is unlike those of training is not handed over, and the network then takes the star
as one of which nothing is known. So it is with about one epoch a night, which cannot tell the noise
of epochs from that of nights: the errors of such a window have been scaled by both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.types import HISTORY, FloatArray, IntArray, WindowBatch

__all__ = ["star_noise"]

LEAST_NIGHTS: Final = 4
LEAST_EPOCHS_A_NIGHT: Final = 2
"""Nights of a source, and epochs in each on average, from which on its noise is known."""
KNOWN_SHARE: Final = 0.9
"""Share of a window's epochs whose source has known noise, from which on the window has."""
SCALE: Final = (0.62, 1.62)
MOST_RED_NOISE: Final = 1.5
"""What nearly all stars in training have (`sky-1`)."""
MOST_NIGHTS: Final = 400
"""More nights of a history than the longest in training count as so many."""


def star_noise(batch: WindowBatch) -> NDArray[np.float32]:
    """Noise of the stars of windows, from before them.

    Parameters
    ----------
    batch : WindowBatch

    Returns
    -------
    ndarray, shape (B, 3), float32
        Columns `broker_filter.inference.encoder.STAR_NOISE`: root mean squares, and a mean of the
        nights, over the sources, weighted by their epochs in the window. NaN where too little is
        known, or what is known is unlike the stars of training.
    """
    past = dict(zip(HISTORY, np.moveaxis(batch.source_history, -1, 0), strict=True))
    nights = past["nights"]
    known = (nights >= LEAST_NIGHTS) & (past["freedom"] >= (LEAST_EPOCHS_A_NIGHT - 1) * nights)
    counts = _counts(batch)
    known &= counts > 0
    own = counts * known
    total = own.sum(axis=1)
    weight = own / np.maximum(total, 1)[:, None]
    of_epochs = np.square(past["error_scale"])
    of_nights = np.maximum(past["night_squares"] - of_epochs * past["night_expected"], 0)
    mean = [
        _sum(weight * np.where(known, each, 0))
        for each in (of_epochs, of_nights, np.minimum(nights, MOST_NIGHTS))
    ]
    scale, red_noise = np.sqrt(mean[0]), np.sqrt(mean[1])
    usual = (scale >= SCALE[0]) & (scale <= SCALE[1]) & (red_noise <= MOST_RED_NOISE)
    found = np.stack([scale, red_noise, mean[2]], axis=1)
    enough = total >= KNOWN_SHARE * batch.n
    return np.where((enough & usual)[:, None], found, np.nan).astype(np.float32)


def _sum(columns: FloatArray) -> FloatArray:
    """Sum over axis 1, one column after another: columns of zeros for other rows change nothing."""
    return np.asarray(np.cumsum(columns, axis=1)[:, -1])


def _counts(batch: WindowBatch) -> IntArray:
    """Epochs of a window that each of its sources has, shape (B, D)."""
    sources = range(batch.source_history.shape[1])
    if len(sources) == 1:
        return np.asarray(batch.n[:, None])
    counts = [((batch.source == d) & batch.valid).sum(axis=1) for d in sources]
    return np.asarray(np.stack(counts, axis=1))
