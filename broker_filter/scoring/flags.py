"""Which rows a table marks as bad or as limits, by the columns that `replay` knows as such."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import SchemaError
from broker_filter.replay.lightcurves.cells import flag_values, limit_values
from broker_filter.replay.lightcurves.epochs import ALL_FLAGGED_ROWS
from broker_filter.replay.lightcurves.names import role_of, snake

__all__ = ["flag_columns", "flags_of"]

_ROLES: Final = ("flags", "limit")


def flag_columns(names: Iterable[str]) -> list[str]:
    """Those of the columns that say which rows are bad, or limits."""
    return [name for name in names if role_of(snake(name)) in _ROLES]


def flags_of(table: Any, columns: Iterable[str]) -> NDArray[np.uint32] | None:  # noqa: ANN401
    """Flags of the rows, shape (n,), by all of these columns together; None without any.

    Parameters
    ----------
    table
        Gives a column by its name.
    columns : iterable of str
        As `flag_columns` finds them.

    Raises
    ------
    SchemaError
        A column holds something that is no flag, or marks every row of twenty or more.
    """
    found = [_flags(name, [str(value) for value in table[name]]) for name in columns]
    return np.bitwise_or.reduce(found) if found else None


def _flags(name: str, cells: list[str]) -> NDArray[np.uint32]:
    known = snake(name)
    try:
        if role_of(known) == "limit":
            limits = limit_values(known, cells)  # None: it holds depths
            flags = np.zeros(len(cells), np.uint32) if limits is None else limits.astype(np.uint32)
        else:
            flags = flag_values(known, cells)
    except ValueError as error:
        raise SchemaError(
            f"column {name} {error}: write 0 where a row is good, or leave the column out"
        ) from None
    if len(flags) >= ALL_FLAGGED_ROWS and flags.all():
        raise SchemaError(
            f"column {name} marks every row as bad: write 0 where a row is good, or leave the "
            "column out"
        )
    return flags
