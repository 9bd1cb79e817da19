"""Magnification of a finite uniform source by a point lens, from a table, in torch.

For the networks; all else takes `broker_filter.inference.magnification`, which reads the same
table and says how it is laid out. ``model_zoo.simulate.lens_table`` makes the table from a
quadrature that is exact to 1e-8. Outside of it the source is a point.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from broker_filter.inference.magnification import RHO_MAX, RHO_MIN, TABLE_PATH, Z_MAX

__all__ = ["RHO_MAX", "RHO_MIN", "excess", "excess_by_curve", "point_excess"]


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


def excess_by_curve(u: Tensor, rho: Tensor) -> Tensor:
    """A(u, rho) - 1 as `excess`, for many epochs of each rho, on the CPU.

    Two rows of the table are merged once a curve, which halves the time of `excess`. How far an
    epoch is from the limb is found in float64 and looked up in float32: within 3e-6 of float64, a
    hundredth of the table's own error.

    Parameters
    ----------
    u : Tensor, shape (n, m), float64
        Separation in Einstein radii, u >= 0.
    rho : Tensor, shape (n,), float64
        Source radius in Einstein radii, at most 10. Below 0.001 the source is a point.

    Returns
    -------
    Tensor, shape (n, m), float64
    """
    table = _table(u.device)
    n_rho, n_q = table.shape
    row = torch.log(rho / RHO_MIN) * ((n_rho - 1) / math.log(RHO_MAX / RHO_MIN))
    i = row.long().clamp(0, n_rho - 2)
    rows = torch.lerp(table[i], table[i + 1], (row - i)[:, None].float()).view(-1)
    offset = (u / rho[:, None]).sub_(1).float()
    outside = (offset >= Z_MAX - 1) | (rho < RHO_MIN)[:, None]
    q = offset.abs().sqrt_().copysign_(offset)
    column = q.add_(1).mul_((n_q - 1) / (1 + math.sqrt(Z_MAX - 1))).clamp_(max=n_q - 1.001)
    j = column.int()
    y = column.sub_(j)
    corner = j.add_((n_q * torch.arange(len(u), dtype=torch.int32))[:, None]).view(-1)
    low = rows.index_select(0, corner).view_as(u)
    high = rows.index_select(0, corner.add_(1)).view_as(u)
    result = torch.lerp(low, high, y).exp_().double()
    points = outside.view(-1).nonzero()[:, 0]
    result.view(-1)[points] = point_excess(u.reshape(-1)[points])
    return result


def _bilinear(table: Tensor, row: Tensor, column: Tensor) -> Tensor:
    n_rho, n_q = table.shape
    i = row.long().clamp(max=n_rho - 2)
    j = column.long().clamp(max=n_q - 2)
    x, y = row - i, column - j
    flat, corner = table.reshape(-1), i * n_q + j
    low = torch.lerp(flat[corner], flat[corner + 1], y)
    high = torch.lerp(flat[corner + n_q], flat[corner + n_q + 1], y)
    return torch.lerp(low, high, x)
