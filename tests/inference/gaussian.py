"""Formulas for Gaussians that compiled loops are held against."""

from __future__ import annotations

import numpy as np

from broker_filter.types import FloatArray


def absorbed(gram: FloatArray, j: int, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Products once column j may be off by a Gaussian of this variance, and what ln p gains.

    Sherman and Morrison's formula; ``gram`` has shape (..., c, c) and ``variance`` (...).
    """
    column = gram[..., :, j]
    total = 1 + variance * column[..., j]
    factor = (variance / total)[..., None, None]
    return gram - factor * column[..., :, None] * column[..., None, :], -0.5 * np.log(total)
