"""Error bars in two bytes: 8 bits of exponent, 8 of mantissa, no sign.

A rounded error differs from its original by a part in 500 at most, which changes no result by a
tenth of sigma. Epochs have theirs rounded before anything else sees them, so that windows and
histories stay functions of the set of epochs.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.compiled import compiled

__all__ = ["packed_error", "rounded_error", "unpacked_error"]

_DROPPED: Final = 15  # bits of a float32
_HALF: Final = 1 << (_DROPPED - 1)
_SMALLEST, _LARGEST = 1, 0xFEFF  # neither zero nor infinite


def packed_error(error: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Positive finite numbers, float32, to the nearest that two bytes can say; shape (n,)."""
    code = np.empty(len(error), np.uint16)
    _pack(np.ascontiguousarray(error).view(np.int32), code)
    return code


def unpacked_error(code: NDArray[np.uint16]) -> NDArray[np.float32]:
    """What `packed_error` was given, rounded; any shape."""
    return (code.astype(np.uint32) << np.uint32(_DROPPED)).view(np.float32)


def rounded_error(error: NDArray[np.float32]) -> NDArray[np.float32]:
    """Errors as they are kept, shape (n,)."""
    return unpacked_error(packed_error(error))


@compiled
def _pack(bits: NDArray[np.int32], code: NDArray[np.uint16]) -> None:
    for i in range(len(bits)):
        rounded = (np.int64(bits[i]) + _HALF) >> _DROPPED
        code[i] = min(max(int(rounded), _SMALLEST), _LARGEST)
