"""The exponential in compiled loops, fast enough for densities of thousands of samples."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from broker_filter.compiled import reordered

__all__ = ["exponential", "exponential_less_one"]

LOG2_E: Final = 1 / math.log(2)
LN_2_HIGH: Final = 6.93147180369123816490e-01  # ln 2 as the sum of two numbers, of which
LN_2_LOW: Final = 1.90821492927058770002e-10  # the first times an integer is exact
LEAST: Final = -700.0


@reordered
def exponential(x: float) -> Any:  # noqa: ANN401  float
    """exp(x) within 1e-14, relative, for x up to 700; below -700 that of -700.

    The compiler makes vectors of loops of it.
    """
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


@reordered
def exponential_less_one(x: float) -> Any:  # noqa: ANN401  float
    """exp(x) - 1, relatively as exact near 0, for the same x."""
    x = max(x, LEAST)
    n = np.floor(x * LOG2_E + 0.5)
    r = (x - n * LN_2_HIGH) - n * LN_2_LOW
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
    power = np.int64((np.int64(np.int32(n)) + np.int64(1023)) << np.int64(52)).view(np.float64)
    return power * (p * r) + (power - 1)
