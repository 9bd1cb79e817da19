"""Cuts by name: which rows of a table of epochs are left out, and how many for what reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cuts", "Table", "cut", "filled", "stacked"]

Table: TypeAlias = dict[str, NDArray[Any]]
"""Columns of equal length, by name."""

Cuts: TypeAlias = Mapping[str, NDArray[np.bool_]]
"""Reason to the rows that it rejects, shape (n,), in order of precedence."""


def cut(table: Table, cuts: Cuts, rejected: Counter[str], ignored: Collection[str] = ()) -> Table:
    """Leave out the rows that a cut rejects.

    Parameters
    ----------
    table : Table
    cuts : Cuts
    rejected : Counter
        Grows by the number of rows that are left out, each under its first reason.
    ignored : collection of str
        Reasons that reject nothing.
    """
    good = np.ones(len(next(iter(table.values()))), np.bool_)
    for reason, bad in cuts.items():
        if reason in ignored or not bad.any():
            continue
        found = good & bad
        if found.any():
            rejected[reason] += int(found.sum())
            good &= ~found
    return table if good.all() else {name: column[good] for name, column in table.items()}


def stacked(first: Mapping[str, Any], rest: Mapping[str, NDArray[Any]]) -> Table:
    """A record as the first row of a table of records of its kind; its other fields are left."""
    return {name: np.concatenate([[first[name]], column]) for name, column in rest.items()}


def filled(column: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """One column with the gaps (NaN or empty) filled from another."""
    gap = np.isnan(column) if column.dtype.kind == "f" else column == ""
    return np.where(gap, other, column) if gap.any() else column
