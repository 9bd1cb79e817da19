"""What the cells of a column say beside numbers: flags, limits, places on the sky."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.replay.lightcurves.table import MISSING

__all__ = ["degrees", "flag_values", "limit_values", "number"]

_BOOLEANS: Final = {"true": 1, "t": 1, "yes": 1, "y": 1, "false": 0, "f": 0, "no": 0, "n": 0}
_WORDS: Final = _BOOLEANS | {
    **dict.fromkeys(("g", "good", "ok", "clean", "-"), 0),
    **dict.fromkeys(("v", "z", "u"), 0),  # AAVSO: validated, pre-validated, not yet; t: discrepant
    **dict.fromkeys(("b", "bad", "poor", "rejected", "fail", "failed", "x", ":", "::", "?"), 1),
}
_LIMITS: Final = _BOOLEANS | {"-": 0, "0": 0, "1": 1, ">": 1, "<": 1, "u": 1, "ul": 1, "limit": 1}
_POSITIVE: Final = re.compile(r"(is_?)?(good|ok|accepted|clean|det(ected|ection)?)|use|used")
_FLAG_BITS: Final = 0xFFFF_FFFF
_SHOWN: Final = 5  # values that a message names


def number(text: str) -> float:
    """The number in a cell; NaN where there is none."""
    try:
        return math.nan if "_" in text else float(text)  # float() reads 1_0 as 10
    except ValueError:
        return math.nan


def flag_values(name: str, cells: Sequence[str]) -> NDArray[np.uint32]:
    """Read a column of flags: 0 for a good row, else its bits, or 1.

    Parameters
    ----------
    name : str
        By which ``good`` and ``use`` differ from ``bad`` and ``flag``.
    cells : sequence of str, length n

    Returns
    -------
    ndarray, shape (n,), uint32

    Raises
    ------
    ValueError
        It holds something that is no flag; the message names some of the values.
    """
    good = bool(_POSITIVE.fullmatch(name))
    flags = {text: _flag(text.strip().lower(), good=good) for text in set(cells)}
    unknown = sorted(text for text, flag in flags.items() if flag is None)
    if unknown:
        raise ValueError(f"holds {', '.join(map(repr, unknown[:_SHOWN]))}")
    return np.array([flags[text] for text in cells], dtype=np.uint32)


def _flag(text: str, *, good: bool) -> int | None:
    if text in MISSING:
        return 0
    value = _WORDS.get(text)
    if value is None:
        found = number(text)
        if not found.is_integer():
            return None
        value = int(found)
    elif text not in _BOOLEANS:
        return value  # a word means the same in either sense
    if good:
        return int(value == 0)
    return value & _FLAG_BITS or int(value != 0) << 31  # bits beyond the 32nd count, too


def limit_values(name: str, cells: Sequence[str]) -> NDArray[np.bool_] | None:
    """Which rows a column marks as limits, shape (n,); None where it holds depths instead.

    Raises
    ------
    ValueError
        It holds words whose meaning is not known; the message names some of them.
    """
    marks = {text: _mark(text.strip().lower()) for text in set(cells)}
    unknown = sorted(text for text, mark in marks.items() if mark is None)
    if unknown and all(math.isfinite(number(text)) for text in unknown):
        return None
    if unknown:
        raise ValueError(f"holds {', '.join(map(repr, unknown[:_SHOWN]))}")
    found = np.array([bool(marks[text]) for text in cells])
    known = np.array([text.strip().lower() not in MISSING for text in cells])
    return np.asarray(known & ~found) if _POSITIVE.fullmatch(name) else found


def _mark(text: str) -> int | None:
    if text in MISSING:
        return 0
    return _LIMITS.get(text.removesuffix(".0"))


def degrees(text: str, *, hours: bool) -> float:
    """Read an angle in degrees, or in sexagesimal notation; NaN where it is none.

    Parameters
    ----------
    text : str
        Such as ``268.5``, ``17:54:14.53`` or ``-34d46m41s``.
    hours : bool
        Whether sexagesimal numbers are hours (right ascension).
    """
    found = re.fullmatch(r"([+-]?)(\d+)[:hd ]\s*(\d+)[:m ]\s*([\d.]+)s?", text.strip())
    if not found:
        return number(text)
    whole = float(found[2]) + float(found[3]) / 60 + number(found[4]) / 3600
    return (15 if hours else 1) * (-whole if found[1] == "-" else whole)
