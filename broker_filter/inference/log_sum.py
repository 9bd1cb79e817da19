"""The log of a sum of exponentials, without what scipy's own spends on each small array."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from broker_filter.types import FloatArray

__all__ = ["log_sum"]


def log_sum(log_x: ArrayLike, axis: int = 0) -> FloatArray:
    """Ln of the sum of exp(log_x) along an axis.

    Parameters
    ----------
    log_x : array, float64
        At least one along the axis; minus infinity where the exponential is 0.

    Returns
    -------
    ndarray of one dimension less, float64
        Minus infinity where all are; NaN where one is NaN.
    """
    log_x = np.asarray(log_x, dtype=np.float64)
    high = log_x.max(axis=axis, keepdims=True)
    shift = np.where(np.isfinite(high), high, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        total = np.log(np.exp(log_x - shift).sum(axis=axis))
    return np.asarray(total + shift.squeeze(axis))
