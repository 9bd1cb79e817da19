"""The scale of a network's log10 K, where it is far above what its training met.

There it ranks windows, but its number is off by a factor. So a card may hold, for some of the
network's log10 K, the certified log10 K that windows of events have in the median. The first pair
is one number twice, not below the card's threshold: up to there nothing changes, and so do no rates
of false alarms. Above, the order of windows stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from broker_filter.types import FloatArray

__all__ = ["rescaled"]


def rescaled(log10_k: FloatArray, scale: Mapping[str, Sequence[float]]) -> FloatArray:
    """The network's log10 K on the scale of certified ones.

    Parameters
    ----------
    log10_k : ndarray, shape (n,), float64
    scale : mapping
        ``network`` and ``certified``, rising; straight between them and, with the last slope,
        beyond.
    """
    network, certified = (np.asarray(scale[name], float) for name in ("network", "certified"))
    slope = (certified[-1] - certified[-2]) / (network[-1] - network[-2])
    above = np.interp(log10_k, network, certified)
    above = above + slope * np.maximum(log10_k - network[-1], 0.0)
    return np.where(log10_k > network[0], above, log10_k)
