"""Loops over arrays as machine code, where array operations would take several times as long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call, without the lock of the interpreter.

    What was compiled is kept beside its file, or in the user's cache, where one can be written.
    """
    try:
        found: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no such place
        found = numba.njit(nogil=True)(function)
    return found
