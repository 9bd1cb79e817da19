"""Which of the epochs and nights of a constant star are wrong, and by how much.

All that is needed of the data under a model of the noise is a small matrix: the products of the
residuals, and of a column for each suspect, with the inverse covariance between them.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from broker_filter.compiled import compiled, inlined
from broker_filter.inference.noise_family import NoiseFamily
from broker_filter.types import FloatArray, IntArray

__all__ = ["Offsets", "best_sets", "bounds", "freed", "greedy", "offset", "parts", "single_gains"]

SWEEPS: Final = 3
FREE: Final = 1e3
"""Variance at which the search for the best ones starts, in units of what the data tell."""
TINY: Final = 1e-300
WORTH_IT: Final = 3.0
"""How far below the best of a first search, in ln, another one may become the best."""
AT_ONCE: Final = 256


class Offsets(NamedTuple):
    """ln of the density under a model, its number, and the columns that are off."""

    log_p: float
    model: int
    wrong: tuple[int, ...]


def offset(
    square: FloatArray, own: FloatArray, least: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """The variance by which a column is best off, and what ln p gains; both 0 where none helps.

    Parameters
    ----------
    square, own : ndarray
        Its significance squared, and the inverse of the variance with which it is known.
    least : ndarray or float
        Least variance of an offset.
    """
    own = np.maximum(own, TINY)
    variance = np.maximum((square - 1) / own, least)
    grown = 1 + variance * own
    gain = 0.5 * (square * (1 - 1 / grown) - np.log(grown))
    return np.where(gain > 0, variance, 0.0), np.maximum(gain, 0.0)


def single_gains(gram: FloatArray, least: FloatArray) -> FloatArray:
    """Gain of each column alone, shape (M, p)."""
    own = np.maximum(np.diagonal(gram, axis1=1, axis2=2)[:, 1:], TINY)
    return offset(np.square(gram[:, 0, 1:]) / own, own, least)[1]


def greedy(
    gram: FloatArray, log_p: FloatArray, least: FloatArray, n_epochs: int, family: NoiseFamily
) -> FloatArray:
    """Density of each model, shape (M,), where the columns that help most are freed one by one."""
    every, n_columns = np.arange(len(gram)), gram.shape[1] - 1
    left = np.ones((len(gram), n_columns), np.bool_)
    rooms = {"epoch": family.wrong_epochs, "night": family.wrong_nights}
    taken = {kind: np.zeros(len(gram), np.int64) for kind in rooms}
    for _ in range(sum(rooms.values()) if n_columns else 0):
        left[:, :n_epochs] &= (taken["epoch"] < rooms["epoch"])[:, None]
        left[:, n_epochs:] &= (taken["night"] < rooms["night"])[:, None]
        best = np.where(left, single_gains(gram, least), -1.0).argmax(axis=1)
        own = np.maximum(gram[every, best + 1, best + 1], TINY)
        square = np.where(left[every, best], np.square(gram[every, 0, best + 1]) / own, 0.0)
        gram, gain = _absorbed_each(gram, best + 1, offset(square, own, least[best])[0])
        log_p = log_p + gain
        taken["epoch"] += best < n_epochs
        taken["night"] += best >= n_epochs
        left[every, best] = False
    return np.asarray(log_p - 0.5 * gram[:, 0, 0])


def _absorbed_each(
    gram: FloatArray, column: IntArray, variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """As `absorbed`, with a column of its own for each of the matrices, shape (M,)."""
    own = np.take_along_axis(gram, column[:, None, None], axis=2)[..., 0]
    total = 1 + variance * own[np.arange(len(own)), column]
    factor = (variance / total)[:, None, None]
    return gram - factor * own[:, :, None] * own[:, None, :], -0.5 * np.log(total)


def parts(gram: FloatArray, sets: IntArray) -> FloatArray:
    """Products of the residual and each set's columns, shape (M, S, 4, 4), from those of all."""
    padded = np.pad(gram, ((0, 0), (0, 1), (0, 1)))
    rows = np.concatenate([np.zeros((len(sets), 1), np.int64), sets + 1], axis=1)
    return padded[:, rows[:, :, None], rows[:, None, :]]


def bounds(least: FloatArray, sets: IntArray) -> FloatArray:
    """Least variance of the offset of each column of each set, shape (S, 3)."""
    return np.append(least, 0.0)[sets]


def freed(part: FloatArray, log_p: FloatArray, least: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Density where the columns of each set are off by Gaussians of the best variances.

    Parameters
    ----------
    part : ndarray, shape (..., 4, 4)
        Products of the residual and three columns; zeros for none.
    log_p : ndarray, shape (...)
    least : ndarray, shape (..., 3)
        Least variance of each column's offset.

    Returns
    -------
    value : ndarray, shape (...)
    variance : ndarray, shape (..., 3)
    """
    shape = part.shape[:-2]
    of = np.ascontiguousarray(part).reshape(-1, 4, 4), np.broadcast_to(log_p, shape).reshape(-1)
    bound = np.broadcast_to(least, (*shape, 3)).reshape(-1, 3)
    value, variance = _freed(*map(np.ascontiguousarray, (*of, bound)))
    return value.reshape(shape), variance.reshape(*shape, 3)


@compiled
def _freed(part: FloatArray, log_p: FloatArray, least: FloatArray) -> Any:  # noqa: ANN401
    """As `freed`, of flat arrays: shapes (n, 4, 4), (n,) and (n, 3)."""
    value, variance, rest = log_p.copy(), np.zeros(least.shape), np.empty((4, 4))
    for i in range(len(part)):
        for j in range(3):
            size = part[i, j + 1, j + 1]
            variance[i, j] = FREE / max(size, TINY) if size > 0 else 0.0
        for _ in range(SWEEPS):
            for j in range(3):
                rest[:] = part[i]
                for other in range(3):
                    if other != j:
                        _absorb(rest, other + 1, variance[i, other])
                own = max(rest[j + 1, j + 1], TINY)
                square = rest[0, j + 1] * rest[0, j + 1] / own
                variance[i, j] = _variance(square, own, least[i, j])
        rest[:] = part[i]
        for j in range(3):
            value[i] -= 0.5 * math.log(_absorb(rest, j + 1, variance[i, j]))
        value[i] -= 0.5 * rest[0, 0]
    return value, variance


@inlined
def _absorb(gram: FloatArray, j: int, variance: float) -> Any:  # noqa: ANN401  float
    """As `absorbed`, in place, of one matrix; by what factor the variance has grown."""
    total = 1 + variance * gram[j, j]
    factor = variance / total
    column = (gram[0, j], gram[1, j], gram[2, j], gram[3, j])
    for a in range(4):
        for b in range(4):
            gram[a, b] -= factor * column[a] * column[b]
    return total


@inlined
def _variance(square: float, own: float, least: float) -> Any:  # noqa: ANN401  float
    """As `offset`, of one column."""
    variance = max((square - 1) / own, least)
    grown = 1 + variance * own
    gain = square * (1 - 1 / grown) - math.log(grown)
    return variance if gain > 0 else 0.0


def best_sets(
    gram: FloatArray, log_p: FloatArray, sets: IntArray, least: FloatArray
) -> list[Offsets]:
    """The sets that are best under any model, and the models that are, the best first.

    Only those that could be among the best are tried: what `_hope` promises of the others is less.

    Parameters
    ----------
    gram : ndarray, shape (M, 1 + p, 1 + p)
        Products of the residual and p columns.
    log_p : ndarray, shape (M,)
    sets : ndarray, shape (S, 3)
        Columns from 0 on; p for none.
    least : ndarray, shape (p,)
        Least variance of each column's offset.
    """
    part, bound = parts(gram, sets), bounds(least, sets)
    hope = _hope(part, log_p[:, None], bound).ravel()
    order = np.argsort(-hope, kind="stable")
    found: list[Offsets] = []
    top = -math.inf
    for first in range(0, len(order), AT_ONCE):
        chosen = order[first : first + AT_ONCE]
        if hope[chosen[0]] < top - WORTH_IT:
            break
        row, which = np.divmod(chosen, len(sets))
        value, variance = freed(part[row, which], log_p[row], bound[which])
        top = max(top, float(value.max()))
        for i in np.flatnonzero(value >= top - WORTH_IT).tolist():
            wrong = tuple(sets[which[i], variance[i] > 0].tolist())
            found.append(Offsets(float(value[i]), int(row[i]), wrong))
    return sorted((one for one in found if one.log_p >= top - WORTH_IT), reverse=True)


def _hope(part: FloatArray, log_p: FloatArray, least: FloatArray) -> FloatArray:
    """What the density of each set is at most where all of its columns are off; shape (...).

    Offsets of any size explain most, and those of least variance cost least; arguments as those of
    `freed`.
    """
    columns = np.moveaxis(part, (-2, -1), (0, 1))[[1, 2, 3, 0]][:, [1, 2, 3, 0]]
    size = np.moveaxis(np.broadcast_to(np.sqrt(least), (*part.shape[:-2], 3)), -1, 0)
    cost = columns[:3, :3] * (size[:, None] * size)
    for j in range(3):
        cost[j, j] += 1
        columns[j, j] = np.where(size[j] > 0, columns[j, j], 1.0)
    value = log_p - 0.5 * np.maximum(_pivots(columns)[3], 0.0)
    return np.asarray(value - 0.5 * np.log(_pivots(cost)).sum(axis=0))


def _pivots(matrix: FloatArray) -> FloatArray:
    """Pivots of symmetric matrices, shape (n, ...); ``matrix`` of shape (n, n, ...) is used up."""
    n = len(matrix)
    for j in range(n):
        pivot = np.maximum(matrix[j, j], TINY)
        for i in range(j + 1, n):
            share = matrix[i, j] / pivot
            for k in range(j + 1, i + 1):
                matrix[i, k] -= share * matrix[k, j]
    return np.asarray([matrix[j, j] for j in range(n)])
