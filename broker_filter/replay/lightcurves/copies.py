"""Files that hold the epochs of another file: copies, and older states of a growing table.

Two stars, or two instruments, never have the same fluxes and errors at the same times. A second
file with them is a copy under another name, and would count each epoch twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.observe.text import printable
from broker_filter.replay.lightcurves.file import LightCurve

__all__ = ["without_copies"]

COPIED: Final = 0.9  # share of a file's epochs that are in another
FEWEST: Final = 10  # epochs of a file that is compared
DAY_DIGITS: Final = 1e6  # times are compared to 1e-6 d
_MIX: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def without_copies(curves: Sequence[LightCurve]) -> tuple[list[LightCurve], list[str]]:
    """Leave out the files whose epochs are those of another.

    Parameters
    ----------
    curves : sequence of LightCurve

    Returns
    -------
    (list of LightCurve, list of str)
        The larger of two such files stays, of equal ones the first. One line for each file left
        out names it and the one that stays.

    Notes
    -----
    Epochs are compared by time, flux and error, as float32, whatever star, band and source are
    called; 16 bytes of memory an epoch. Files of fewer than 10 epochs are not compared.
    """
    order = sorted(range(len(curves)), key=lambda i: (-len(curves[i]), i))
    prints = [_fingerprints(curves[i]) for i in order]
    prints = [one if len(one) >= FEWEST else one[:0] for one in prints]
    owner = np.repeat(np.arange(len(order)), [len(one) for one in prints])
    values = np.concatenate([*prints, np.empty(0, np.uint64)])
    by_value = np.argsort(values, kind="stable")
    values, owner = values[by_value], owner[by_value]
    begins = np.append(True, values[1:] != values[:-1])[: len(values)]
    first = owner[np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))]
    left_out: dict[int, int] = {}
    for later in np.unique(owner[owner != first]).tolist():
        among = first[(owner == later) & (first != later)]
        others, counts = np.unique(among, return_counts=True)
        if counts.max() >= COPIED * len(prints[later]):
            left_out[order[later]] = order[int(others[counts.argmax()])]
    lines = [
        printable(f"{curves[i].path}: left out, its epochs are those of {curves[other].path}")
        for i, other in sorted(left_out.items())
    ]
    return [curve for i, curve in enumerate(curves) if i not in left_out], lines


def _fingerprints(curve: LightCurve) -> NDArray[np.uint64]:
    """One number for each epoch of a file, each once; shape (n,)."""
    if not curve.parts:
        return np.empty(0, np.uint64)
    times = np.concatenate([np.rint(part.mjd_tai * DAY_DIGITS) for part in curve.parts])
    flux = np.concatenate([part.flux for part in curve.parts]).astype(np.float32)
    error = np.concatenate([part.flux_err for part in curve.parts]).astype(np.float32)
    columns: list[NDArray[np.signedinteger[Any]]] = [
        times.astype(np.int64),
        flux.view(np.int32),
        error.view(np.int32),
    ]
    mixed = np.zeros(len(times), np.uint64)
    for column, factor in zip(columns, _MIX, strict=True):
        mixed = (mixed ^ column.astype(np.uint64)) * factor
        mixed ^= mixed >> np.uint64(29)
    return np.unique(mixed)
