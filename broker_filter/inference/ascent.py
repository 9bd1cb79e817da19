"""Climbs from several starts to the maxima of the likelihood of a lens.

In the coordinates of `LensBox` the prior is a normal distribution: it acts as four more residuals
of unit error. f_s and the baselines, in which the flux is linear, are projected out (variable
projection), so that a step needs only products of the derivatives of A - 1 with each other and with
the fluxes. Steps are many and each is small: they are one compiled loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from broker_filter.compiled import compiled, inlined
from broker_filter.inference.curve_loops import (
    BASIS,
    BY_TIME,
    EXCESS,
    ONE,
    RESIDUAL,
    Table,
    gram,
    lens_table,
    slopes,
)
from broker_filter.inference.lens_coordinates import LENS, LensBox
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.source_loops import NO_ERROR, baseline, best, exponent
from broker_filter.types import FloatArray, IntArray

__all__ = ["Modes", "climb"]

STEPS: Final = 20
FARTHEST: Final = 4.5  # |z| of a lens at the edge of the prior
ENOUGH: Final = 1e-2  # gain of ln L from which on a start climbs no further
HOPELESS: Final = 1e4  # damping from which on no step goes up
FIXED: Final = 1e30  # weight of an f_s that is held
LN_10: Final = math.log(10)


@dataclass(frozen=True, slots=True)
class Modes:
    """Where the climbs ended.

    Parameters
    ----------
    z : Tensor, shape (k, 4)
    height : Tensor, shape (k,)
        Profile ln L there, with ln of the prior but for a constant where it has a part.
    covariance : Tensor, shape (k, 4, 4)
        Inverse of the curvature.
    """

    z: Tensor
    height: Tensor
    covariance: Tensor

    def joined(self, other: Modes) -> Modes:
        """Those of both."""
        return Modes(
            torch.cat([self.z, other.z]),
            torch.cat([self.height, other.height]),
            torch.cat([self.covariance, other.covariance]),
        )


def climb(
    likelihood: Likelihood,
    box: LensBox,
    z: Tensor,
    *,
    prior: float = 1.0,
    steps: int = STEPS,
    held: Tensor | None = None,
) -> Modes:
    """Levenberg and Marquardt's climb from each start.

    Parameters
    ----------
    likelihood : Likelihood
    box : LensBox
    z : Tensor, shape (k, 4)
        Starts.
    prior : float
        Weight of the prior: 1 climbs to the maximum of the posterior in z, and almost 0 to that of
        the likelihood.
    steps : int
        Most of them.
    held : Tensor, shape (k,), int64, optional
        The coordinate of each start that stays fixed; it is given a variance of 1 and no covariance
        with the others.

    Returns
    -------
    Modes
        One for each start, in their order.
    """
    free = torch.ones_like(z)
    if held is not None:
        free.scatter_(1, held[:, None], 0.0)
    z = z.clamp(-FARTHEST, FARTHEST).contiguous()
    height, covariance = z.new_empty(len(z)), z.new_empty(len(z), LENS, LENS)
    _climb(
        z.numpy(),
        height.numpy(),
        covariance.numpy(),
        free.numpy(),
        likelihood.days.numpy(),
        likelihood.residual.numpy(),
        likelihood.weight.sqrt().numpy(),
        likelihood.firsts,
        likelihood.moments,
        np.array(likelihood.f_s_range),
        np.stack([box.low.numpy(), box.width.numpy()]),
        prior,
        steps,
        lens_table(),
    )
    return Modes(z, height, covariance)


@compiled
def _climb(
    z: FloatArray,
    height: FloatArray,
    covariance: FloatArray,
    free: FloatArray,
    days: FloatArray,
    residual: FloatArray,
    root: FloatArray,
    firsts: IntArray,
    sources: FloatArray,
    f_s_range: FloatArray,
    box: FloatArray,
    prior: float,
    steps: int,
    table: Table,
) -> None:
    """Move each z to its maximum, and write its height and covariance; ``root`` is 1 / sigma."""
    columns, room = np.empty((BASIS, len(days))), np.empty((5, len(days)))
    for k in range(len(days)):
        columns[ONE, k], columns[RESIDUAL, k] = root[k], root[k] * residual[k]
    products = np.empty((len(firsts) - 1, BASIS, BASIS))
    gradient, curvature = np.empty((2, LENS)), np.empty((2, LENS, LENS))
    for i in range(len(z)):
        here, other, damping = 0, 1, 1e-2
        tried = z[i].copy()
        for step in range(steps + 1):
            theta = _theta(tried, box)
            slopes(columns, room, root, days, theta, table)
            for s in range(len(products)):
                gram(products[s], columns, firsts[s], firsts[s + 1])
            look = _look(
                gradient[other], curvature[other], products, sources, f_s_range, theta, tried,
                free[i], box, prior,
            )  # fmt: skip
            gain = look - height[i]
            if step == 0 or gain > 0:
                z[i], height[i] = tried, look
                here, other = other, here
                damping = max(0.2 * damping, 1e-7) if step > 0 else damping
            else:
                damping = min(8 * damping, 1e7)
            if step > 0 and (0 < gain < ENOUGH or damping > HOPELESS):
                break
            tried = _next(z[i], gradient[here], curvature[here], damping)
        covariance[i] = _inverse(curvature[here])


@inlined
def _next(z: FloatArray, gradient: FloatArray, curvature: FloatArray, damping: float) -> Any:  # noqa: ANN401
    """Where the damped step leads, shape (4,)."""
    damped = curvature.copy()
    for d in range(LENS):
        damped[d, d] *= 1 + damping
    inverse, moved = _inverse(damped), np.empty(LENS)
    for d in range(LENS):
        step = 0.0
        for k in range(LENS):
            step += inverse[d, k] * gradient[k]
        moved[d] = min(max(z[d] + step, -FARTHEST), FARTHEST)
    return moved


@inlined
def _theta(z: FloatArray, box: FloatArray) -> Any:  # noqa: ANN401
    theta = np.empty(LENS)
    for d in range(LENS):
        theta[d] = box[0, d] + box[1, d] * 0.5 * math.erfc(-z[d] / math.sqrt(2.0))
    return theta


@inlined
def _look(
    gradient: FloatArray,
    curvature: FloatArray,
    products: FloatArray,
    sources: FloatArray,
    f_s_range: FloatArray,
    theta: FloatArray,
    z: FloatArray,
    free: FloatArray,
    box: FloatArray,
    prior: float,
) -> Any:  # noqa: ANN401
    """Height of a lens; its gradient and its curvature (that of Gauss and Newton) are written."""
    height = 0.0
    gradient[:], curvature[:] = 0.0, 0.0
    by_z = np.empty(LENS)
    factors = (-(10 ** -theta[2]), theta[1], -LN_10, 1.0)
    for d in range(LENS):
        slope = box[1, d] * math.exp(-0.5 * z[d] * z[d]) / math.sqrt(2 * math.pi)
        by_z[d] = factors[d] * slope * free[d]
    for s in range(len(products)):
        height += _add_source(gradient, curvature, products[s], sources[:, s], f_s_range, by_z)
    floor = 0.0
    for d in range(LENS):
        floor = max(floor, curvature[d, d])
    for d in range(LENS):
        height -= 0.5 * prior * z[d] * z[d]
        gradient[d] -= prior * z[d] * free[d]
        curvature[d, d] += prior + 1e-9 * floor if free[d] > 0 else 1.0
    return height


@inlined
def _add_source(
    gradient: FloatArray,
    curvature: FloatArray,
    p: FloatArray,
    moments: FloatArray,
    f_s_range: FloatArray,
    by_z: FloatArray,
) -> Any:  # noqa: ANN401
    """Add the terms of one source, its f_s and baseline projected out; return its height."""
    v, low, high = moments[0], f_s_range[0], f_s_range[1]
    w, wr, re = p[ONE, ONE], p[ONE, RESIDUAL], p[RESIDUAL, EXCESS]
    e, ee = p[ONE, EXCESS], p[EXCESS, EXCESS]
    source = (v, w, wr, re, e, ee)
    f_s = best(source, low, high)
    g = baseline(f_s, source)
    # Weights hold g and f_s where they are: the baseline's error, and the ends of the prior.
    by_g = w + 2 * f_s * e + f_s * f_s * ee + 1 / max(v, NO_ERROR**2)
    by_both = g * (e + f_s * ee)
    by_f = g * g * ee + (FIXED if f_s <= low or f_s >= high else 1e-6)
    determinant = by_g * by_f - by_both * by_both
    cross = np.empty((2, LENS))
    scale = np.empty(LENS)
    for d in range(LENS):
        b = BY_TIME + d
        scale[d] = by_z[d] * g * f_s
        cross[0, d] = scale[d] * (p[ONE, b] + f_s * p[EXCESS, b])
        cross[1, d] = scale[d] * g * p[EXCESS, b]
        off = p[RESIDUAL, b] + (1 - g) * p[ONE, b] - g * f_s * p[EXCESS, b]
        gradient[d] += scale[d] * off
    for d in range(LENS):
        for k in range(LENS):
            projected = by_f * cross[0, d] * cross[0, k] + by_g * cross[1, d] * cross[1, k]
            projected -= by_both * (cross[0, d] * cross[1, k] + cross[1, d] * cross[0, k])
            inner = scale[d] * scale[k] * p[BY_TIME + d, BY_TIME + k]
            curvature[d, k] += inner - projected / determinant
    return exponent(f_s, source) - exponent(0.0, source)


@inlined
def _inverse(matrix: FloatArray) -> Any:  # noqa: ANN401
    """Inverse of a positive definite matrix by Gauss-Jordan elimination, unchecked, no pivots."""
    n = len(matrix)
    inverse = matrix.copy()
    for k in range(n):
        pivot = 1 / inverse[k, k]
        for i in range(n):
            if i != k:
                share = inverse[i, k] * pivot
                for j in range(n):
                    if j != k:
                        inverse[i, j] -= share * inverse[k, j]
                inverse[i, k] = -share
        for j in range(n):
            inverse[k, j] *= pivot
        inverse[k, k] = pivot
    return inverse
