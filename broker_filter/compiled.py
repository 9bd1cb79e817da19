"""Loops over arrays as machine code, where array operations would take several times as long.

A compiled loop is kept beside its module, or in the user's cache where one can be written. numba
compiles it again when its own module has changed, but not when one that it calls has: after an
edit of this module, or of one whose loops others call, remove ``__pycache__/*.nb?``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["compiled", "inlined", "reordered"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, at its first call; it holds no lock of Python."""
    try:
        found: Callable[..., Any] = _njit(cache=True)(function)
    except RuntimeError:  # no place to keep it
        found = _njit()(function)
    return found


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that compiled ones call."""
    return _njit()(function)


def reordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `inlined`; sums may be taken in another order, which is what makes vectors of them."""
    return _njit(fastmath={"reassoc", "contract", "nsz"})(function)


def _njit(**options: Any) -> Callable[..., Callable[..., Any]]:  # noqa: ANN401
    # Division by zero gives infinity: a check of each would keep loops from being vectors.
    return numba.njit(nogil=True, error_model="numpy", **options)  # type: ignore[no-any-return]
