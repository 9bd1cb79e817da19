"""How loops are compiled, and what all of them share.

A compiled loop is kept beside its module, or in the user's cache where one can be written. numba
compiles it again when its own module has changed, but not when one that it calls has: after an
edit of this module, of `curve_loops` or of `source_loops` remove ``__pycache__/*.nb?``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np

__all__ = ["compiled", "exponential", "inlined", "reordered"]

LOG2_E: Final = 1 / math.log(2)
LN_2_HIGH: Final = 6.93147180369123816490e-01  # ln 2 as the sum of two numbers, of which
LN_2_LOW: Final = 1.90821492927058770002e-10  # the first times an integer is exact
LEAST: Final = -700.0


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


@reordered
def exponential(x: float) -> Any:  # noqa: ANN401  float
    """exp(x) within 1e-14, for x up to 700; below -700 as there. Loops of it become vectors."""
    x = max(x, LEAST)
    n = np.floor(x * LOG2_E + 0.5)
    r = (x - n * LN_2_HIGH) - n * LN_2_LOW
    # Taylor's series; |r| <= ln(2) / 2.
    p = 1.0 / 39916800
    p = p * r + 1.0 / 3628800
    p = p * r + 1.0 / 362880
    p = p * r + 1.0 / 40320
    p = p * r + 1.0 / 5040
    p = p * r + 1.0 / 720
    p = p * r + 1.0 / 120
    p = p * r + 1.0 / 24
    p = p * r + 1.0 / 6
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    # 2^n by the bits of its exponent.
    power = np.int64((np.int64(np.int32(n)) + np.int64(1023)) << np.int64(52))
    return p * power.view(np.float64)
