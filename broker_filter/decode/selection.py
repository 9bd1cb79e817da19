"""What is read of a survey's packet: a selection of its fields, with columns for its epochs.

A packet is a record with some hundred fields, most of which nobody here reads. A `Selection` names
those that are; what comes back is a dict of the same shape, in which a list of records (a star's
history) has become a dict of columns. So an adapter never meets a point as a Python object, and
sees the same whether a packet came as Avro, as JSON or as a row of Parquet.

`select` does this to a record that is a dict already; `broker_filter.decode.avro.reader` does it
to bytes, and agrees with `select`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from broker_filter.errors import PoisonMessage
from broker_filter.types import Photometry

__all__ = [
    "DTYPES",
    "MAX_ITEMS",
    "MISSING",
    "Leaf",
    "Many",
    "Packet",
    "Selection",
    "absent",
    "column",
    "missing_column",
    "select",
    "too_many_items",
]

Leaf: TypeAlias = Literal["f8", "i8", "bool", "str"]
"""Type that a value is read as: float64, int64, bool or str."""

MISSING: Mapping[Leaf, Any] = {"f8": np.nan, "i8": np.iinfo(np.int64).min, "bool": False, "str": ""}
"""What stands for null, for a field that the schema lacks, and for one of the wrong type."""

MAX_ITEMS: Final = 100_000
"""Most items that a list of a packet may hold: fifty times the deepest history seen."""

DTYPES: Final[Mapping[Leaf, type]] = {
    "f8": np.float64,
    "i8": np.int64,
    "bool": np.bool_,
    "str": np.object_,
}
"""Type of a column of leaves."""
_INT64: Final = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Many:
    """A list of records, of each of which these leaves are read into columns.

    Parameters
    ----------
    fields : mapping of str to leaf
    time, band : str, optional
        The two of ``fields`` by which items that are known already may be passed over unread: see
        `broker_filter.decode.avro.lists.Known`. Without them, every item is read always.
    """

    fields: Mapping[str, Leaf]
    time: str = ""
    band: str = ""


Selection: TypeAlias = Mapping[str, "Leaf | Many | Selection"]
"""Fields of a record: leaves, lists of records, and records with a selection of their own."""


@dataclass(frozen=True, slots=True)
class Packet:
    """What an adapter made of one packet.

    Parameters
    ----------
    photometry : tuple of Photometry
        One for each band, source and kind; empty where the packet holds nothing of use.
    rejected : Counter
        Epochs left out, by reason.
    """

    photometry: tuple[Photometry, ...]
    rejected: Counter[str] = field(default_factory=Counter)


def select(record: Mapping[str, Any], selection: Selection) -> dict[str, Any]:
    """Pick out of a record what a selection names.

    Parameters
    ----------
    record : mapping
        As `fastavro` or `json` read it. Fields that are not selected may hold anything.
    selection : Selection

    Returns
    -------
    dict
        For each field of the selection: a float, int, bool or str for a leaf (`MISSING` where it is
        null, absent or of another type); a dict for a selection of its own, or None where the
        record is null or absent; for `Many`, a dict of columns of equal length, each an ndarray of
        shape (n,), float64, int64, bool or object (of str), with n = 0 for a list that is null or
        absent.

    Raises
    ------
    PoisonMessage
        ``too_many_items`` where a list holds more than `MAX_ITEMS`.

    Notes
    -----
    Integers are read as floats where a float is selected, never the other way round, and a bool is
    no number. Items of a list that are not records give `MISSING` in every column.
    """
    return {name: _pick(record.get(name), want) for name, want in selection.items()}


def absent(want: Leaf | Many | Selection) -> object:
    """What is selected where there is nothing."""
    return _pick(None, want)


def _pick(value: object, want: Leaf | Many | Selection) -> object:
    if isinstance(want, Many):
        return _columns(value if _is_list(value) else (), want)
    if isinstance(want, str):
        return _VALUES[want](value)
    return select(value, want) if isinstance(value, Mapping) else None


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def _columns(items: Sequence[Any], many: Many) -> dict[str, NDArray[Any]]:
    if len(items) > MAX_ITEMS:
        raise too_many_items(len(items))
    rows = [item if isinstance(item, Mapping) else {} for item in items]
    return {
        name: column(leaf, (_VALUES[leaf](row.get(name)) for row in rows), len(rows))
        for name, leaf in many.fields.items()
    }


def column(leaf: Leaf, values: Iterable[Any], n: int) -> NDArray[Any]:
    """One column of n values of a leaf's type."""
    return np.fromiter(values, DTYPES[leaf], n)


def missing_column(leaf: Leaf, n: int) -> NDArray[Any]:
    """One column of n values that are missing."""
    return np.full(n, MISSING[leaf], DTYPES[leaf])


def too_many_items(n: int, most: int = MAX_ITEMS) -> PoisonMessage:
    """The error of a list of n items, more than ``most``."""
    return PoisonMessage("too_many_items", f"a list holds {n} items; up to {most} are read")


def _float(value: object) -> float:
    if isinstance(value, float | int | np.integer | np.floating) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # an integer of more than 308 digits
            pass
    return float(MISSING["f8"])


def _int(value: object) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value) if _INT64.min <= value <= _INT64.max else int(MISSING["i8"])
    return int(MISSING["i8"])


def _bool(value: object) -> bool:
    return bool(value) if isinstance(value, bool | np.bool_) else False


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


_VALUES: Final[Mapping[Leaf, Callable[[Any], Any]]] = {
    "f8": _float,
    "i8": _int,
    "bool": _bool,
    "str": _str,
}
