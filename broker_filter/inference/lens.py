"""Magnification of a finite uniform source by a point lens, from a table, in torch.

For the networks; fits take `broker_filter.inference.curve_loops`, and all else
`broker_filter.inference.magnification`, which says how the table is laid out.
``model_zoo.simulate.lens_table`` makes it from a quadrature that is exact to 1e-8. Outside of it
the source is a point.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.magnification import RHO_MAX, RHO_MIN, TABLE_PATH, Z_MAX

__all__ = ["excess", "point_excess"]


@cache
def _table(device: torch.device) -> Tensor:
    return torch.from_numpy(np.load(TABLE_PATH, allow_pickle=False)).to(device)


def point_excess(u: Tensor) -> Tensor:
    """A - 1 of a point source, without cancellation at large u.

    Parameters
    ----------
    u : Tensor, any shape, float
        Separation in Einstein radii; zero gives infinity.

    Notes
    -----
    A = (u^2 + 2) / (u sqrt(u^2 + 4)), Paczynski 1986, ApJ 304, 1.
    """
    square = u * u
    product = u * torch.sqrt(square + 4)
    return 4 / (product * (square + 2 + product))


def excess(u: Tensor, rho: Tensor) -> Tensor:
    """A(u, rho) - 1 of a uniform disc, in float32, on the device of ``u``.

    Parameters
    ----------
    u : Tensor, any shape
        Separation in Einstein radii, u >= 0.
    rho : Tensor, broadcast against ``u``
        Source radius in Einstein radii, at most 10. Below 0.001 the source is a point.

    Returns
    -------
    Tensor, broadcast shape, float32
        Within 5e-4 of exact quadrature, relative to A - 1, everywhere in the table.
    """
    table = _table(u.device)
    n_rho, n_q = table.shape
    u, rho = u.float(), rho.float()
    offset = u / rho.clamp(min=RHO_MIN) - 1
    q = torch.sign(offset) * torch.sqrt(offset.abs())
    column = (q + 1) * ((n_q - 1) / (1 + math.sqrt(Z_MAX - 1)))
    row = torch.log(rho / RHO_MIN) * ((n_rho - 1) / math.log(RHO_MAX / RHO_MIN))
    inside = (offset < Z_MAX - 1) & (rho >= RHO_MIN)
    log_excess = _bilinear(table, row.clamp(0, n_rho - 1), column.clamp(0, n_q - 1))
    return torch.where(inside, torch.exp(log_excess), point_excess(u))


def _bilinear(table: Tensor, row: Tensor, column: Tensor) -> Tensor:
    n_rho, n_q = table.shape
    i = row.long().clamp(max=n_rho - 2)
    j = column.long().clamp(max=n_q - 2)
    x, y = row - i, column - j
    flat, corner = table.reshape(-1), i * n_q + j
    low = torch.lerp(flat[corner], flat[corner + 1], y)
    high = torch.lerp(flat[corner + n_q], flat[corner + n_q + 1], y)
    return torch.lerp(low, high, x)
