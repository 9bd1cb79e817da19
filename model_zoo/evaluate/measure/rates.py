"""Shares and their errors: binomial intervals, ROC curves, efficiency in bins.

All return plain floats and lists, ready for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from broker_filter.recovery.efficiency import wilson

__all__ = [
    "as_list",
    "clopper_pearson",
    "efficiency",
    "known_template_roc",
    "roc",
    "share",
    "upper_limit",
    "wilson",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def share(found: Bools) -> dict[str, Any]:
    """How many were found, their share (None of none) and its 68 % interval."""
    k, n = int(found.sum()), len(found)
    low, high = wilson(k, n)
    return {"found": k, "n": n, "share": k / n if n else None, "low68": low, "high68": high}


def clopper_pearson(found: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share of which ``found`` of ``n`` were seen.

    Notes
    -----
    Clopper and Pearson 1934, Biometrika 26, 404; exact, so never too short.
    """
    miss = (1 - level) / 2
    low = float(stats.beta.ppf(miss, found, n - found + 1)) if found else 0.0
    high = float(stats.beta.ppf(1 - miss, found + 1, n - found)) if found < n else 1.0
    return low, high


def upper_limit(found: int, n: int) -> float:
    """95 % upper limit of a share when ``found`` of ``n`` were seen."""
    return clopper_pearson(found, n, 0.90)[1]


def roc(events: Floats, noise: Floats, points: int = 80) -> dict[str, Any]:
    """True positives against false ones as the threshold falls, and the area below the curve.

    Parameters
    ----------
    events, noise : ndarray, shape (n,), float64
        Values of a statistic that is larger for events.
    points : int
        About how many points are kept, evenly in the logarithm of the false positives.
    """
    falling = np.sort(noise)[::-1]
    allowed = np.unique(np.geomspace(1, len(noise), points).astype(int)) - 1
    fpr = [float((noise > threshold).mean()) for threshold in falling[allowed]]
    tpr = [float((events > threshold).mean()) for threshold in falling[allowed]]
    rising = falling[::-1]
    below = np.searchsorted(rising, events) + np.searchsorted(rising, events, side="right")
    return {
        "fpr": [*as_list(fpr), 1.0],
        "tpr": [*as_list(tpr), 1.0],
        "auc": float(below.mean() / (2 * len(noise))),
    }


def known_template_roc(snr: Floats, n_noise: int, points: int = 80) -> dict[str, Any]:
    """ROC of the likelihood ratio for an oracle that knows the parameters of each curve.

    It is the ceiling of every detector, for none knows more: on an event of signal-to-noise s the
    log of the ratio is distributed as N(s^2 / 2, s^2), and on noise as N(-s^2 / 2, s^2).

    Parameters
    ----------
    snr : ndarray, shape (n,), float64
        Of the events; the noise is searched for the same events.
    n_noise : int
        ``tpr_zero_fp`` holds where the highest of so many noise curves lies on average, at a false
        positive rate of 1 / (n + 1).
    """
    s = torch.from_numpy(np.maximum(snr, 1e-6))
    log_ratio = np.concatenate([np.linspace(30, 0.1, 300), -np.geomspace(1e-2, 1e10, 500)])
    passed = [
        (torch.special.ndtr(z - s / 2).mean().item(), torch.special.ndtr(z + s / 2).mean().item())
        for z in (-threshold / s for threshold in torch.from_numpy(log_ratio))
    ]
    fpr, tpr = np.array(passed).T
    grid = np.geomspace(1 / (n_noise + 1), 1, points)
    seen = fpr > 0
    on_grid = np.interp(np.log(grid), np.log(fpr[seen]), tpr[seen])
    x, y = np.r_[0, fpr, 1], np.r_[0, tpr, 1]
    area = (np.diff(x) * (y[1:] + y[:-1]) / 2).sum()
    return {
        "fpr": as_list(grid),
        "tpr": as_list(on_grid),
        "auc": float(area),
        "tpr_zero_fp": float(on_grid[0]),
    }


def efficiency(
    values: Floats, edges: Sequence[float], found: Mapping[str, Bools]
) -> dict[str, Any]:
    """Share that each detector finds in bins of a quantity.

    Parameters
    ----------
    values : ndarray, shape (n,), float64
        What is binned; values beyond the outer edges count in the outer bins.
    edges : sequence of float
        Rising.
    found : mapping of name to ndarray, shape (n,), bool

    Returns
    -------
    dict
        ``edges``, ``n`` by bin, and by name ``share``, ``low68`` and ``high68`` by bin; the share
        of an empty bin is None.
    """
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    masks = [place == i for i in range(len(edges) - 1)]
    table: dict[str, Any] = {"edges": as_list(edges), "n": [int(mask.sum()) for mask in masks]}
    for name, hits in found.items():
        shares = [share(hits[mask]) for mask in masks]
        table[name] = {
            key: [None if s[key] is None else round(s[key], 5) for s in shares]
            for key in ("share", "low68", "high68")
        }
    return table


def as_list(values: Floats | Sequence[float], digits: int = 6) -> list[float]:
    """Plain floats, to so many significant digits."""
    return [float(f"{float(value):.{digits}g}") for value in values]
