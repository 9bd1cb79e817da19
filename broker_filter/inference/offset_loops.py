"""The search for the best noise, and for the wrong epochs and nights under it, as compiled loops.

All that is needed of the data under a model of the noise is a small matrix: the products of the
residuals, of ones, and of a column for each suspect, with the inverse covariance between them. Each
model is tried at several scales of the errors, for which these only have to be divided.

Arguments that all searches share:

- ``gram``, shape (P, 2 + p, 2 + p): those products, of P models of scale 1 and p suspects;
- ``log_determinant``, shape (P,): of their covariances;
- ``amplitude``, shape (P,): of their red noise, over k and in the unit of its bound;
- ``scale``, shape (P, K): factors k on the errors;
- ``limits``: number of epochs, variance of the baseline, bound of the red noise;
- ``least``, shape (p,): least variance of the offset of each suspect.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, inlined
from broker_filter.types import FloatArray, IntArray

__all__ = ["best_set", "every_set", "greedy", "offset", "scaled"]

SWEEPS: Final = 3
FREE: Final = 1e3
"""Variance at which the search for the best ones starts, in units of what the data tell."""
TINY: Final = 1e-300
INSIDE: Final = 1 + 1e-9

Limits = tuple[int, float, float]


@compiled
def greedy(
    gram: FloatArray,
    log_determinant: FloatArray,
    amplitude: FloatArray,
    scale: FloatArray,
    limits: Limits,
    least: FloatArray,
    n_epochs: int,
    rooms: tuple[int, int],
) -> Any:  # noqa: ANN401
    """Density, shape (P, K), where the suspects that help most are freed one by one.

    Parameters
    ----------
    n_epochs : int
        Suspects before this one are epochs, the others nights.
    rooms : (int, int)
        How many epochs and how many nights may be off.
    """
    found, p = np.empty(scale.shape), len(least)
    rest, left = np.empty((p + 1, p + 1)), np.empty(p, np.bool_)
    for j, k in np.ndindex(scale.shape):
        log_p = _scaled(rest, gram[j], log_determinant[j], amplitude[j], scale[j, k], limits)
        left[:] = True
        epochs, nights = rooms
        for _ in range(min(epochs + nights, p) if log_p > -math.inf else 0):
            best, best_gain, variance = -1, 0.0, 0.0
            for c in range(p):
                if left[c] and (epochs if c < n_epochs else nights) > 0:
                    own = max(rest[c + 1, c + 1], TINY)
                    square = rest[0, c + 1] * rest[0, c + 1] / own
                    if 0.5 * square > best_gain:
                        size, gain = offset(square, own, least[c])
                        if gain > best_gain:
                            best, best_gain, variance = c, gain, size
            if best < 0:
                break
            log_p -= 0.5 * math.log(_absorb(rest, best + 1, variance))
            epochs, nights = epochs - (best < n_epochs), nights - (best >= n_epochs)
            left[best] = False
        found[j, k] = log_p - 0.5 * rest[0, 0] if log_p > -math.inf else log_p
    return found


@compiled
def scaled(
    gram: FloatArray,
    log_determinant: FloatArray,
    amplitude: FloatArray,
    scale: FloatArray,
    limits: Limits,
    rows: IntArray,
) -> Any:  # noqa: ANN401
    """Some models at some scales, with the error of the baseline taken up.

    ``rows``, shape (R, 2), says which. Products of residuals and suspects, shape (R, 1 + p, 1 + p);
    ln of the density but for the squares, shape (R,).
    """
    found, log_p = np.empty((len(rows), gram.shape[1] - 1, gram.shape[1] - 1)), np.empty(len(rows))
    for i in range(len(rows)):
        j, k = rows[i]
        log_p[i] = _scaled(found[i], gram[j], log_determinant[j], amplitude[j], scale[j, k], limits)
    return found, log_p


@compiled
def every_set(
    gram: FloatArray,
    log_p: FloatArray,
    sets: IntArray,
    least: FloatArray,
    enough: float,
    worth: float,
) -> Any:  # noqa: ANN401
    """The density of every set of suspects, shape (R, S), and which of its columns are off.

    Of sets that cannot come within ``worth`` of the best density so far it is minus infinity; one
    of ``enough`` is known before.

    Parameters
    ----------
    gram, log_p : ndarray
        As of `scaled`.
    sets : ndarray, shape (S, 3)
        Suspects from 0 on, p for none.

    Returns
    -------
    ndarray, shape (R, S), float64
    ndarray, shape (R, S), uint8
        Bits of the columns of a set that are off.
    """
    value = np.full((len(gram), len(sets)), -np.inf)
    off, top = np.zeros(value.shape, np.uint8), enough
    room, variance = np.empty((3, 4, 4)), np.empty(3)
    for i, s in np.ndindex(value.shape):
        q = _part(room[0], gram[i], sets[s])
        hope = log_p[i] - 0.5 * _unexplained(room, q)
        if hope >= top - worth and hope - _cost(room, q, sets[s], least) >= top - worth:
            value[i, s] = log_p[i] + _freed(room, variance, q, sets[s], least)
            off[i, s] = _bits(variance)
            top = max(top, float(value[i, s]))
    return value, off


@compiled
def best_set(
    gram: FloatArray,
    log_determinant: FloatArray,
    amplitude: FloatArray,
    scale: FloatArray,
    limits: Limits,
    least: FloatArray,
    sets: IntArray,
    above: float,
) -> Any:  # noqa: ANN401
    """The best density of any model, scale and set, these three, and bits as of `every_set`.

    There has to be one ``above`` some density that is known.
    """
    value, model, at, which, off = above, 0, 0, 0, np.uint8(0)
    rest = np.empty((gram.shape[1] - 1, gram.shape[1] - 1))
    room, variance = np.empty((3, 4, 4)), np.empty(3)
    for j, k in np.ndindex(scale.shape):
        log_p = _scaled(rest, gram[j], log_determinant[j], amplitude[j], scale[j, k], limits)
        for s in range(len(sets) if log_p > -math.inf else 0):
            q = _part(room[0], rest, sets[s])
            if log_p - 0.5 * _unexplained(room, q) > value:
                found = log_p + _freed(room, variance, q, sets[s], least)
                if found > value:
                    value, model, at, which, off = found, j, k, s, _bits(variance)
    return value, model, at, which, off


@inlined
def offset(square: float, own: float, least: float) -> Any:  # noqa: ANN401  (float, float)
    """The variance by which a column is best off, and what ln p gains; both 0 where none helps.

    Parameters
    ----------
    square, own : float
        Its significance squared, and the inverse of the variance with which it is known.
    least : float
        Least variance of an offset.
    """
    variance = max((square - 1) / own, least)
    grown = 1 + variance * own
    gain = 0.5 * (square * (1 - 1 / grown) - math.log(grown))
    return (variance, gain) if gain > 0 else (0.0, 0.0)


@inlined
def _scaled(
    found: FloatArray,
    gram: FloatArray,
    log_determinant: float,
    amplitude: float,
    scale: float,
    limits: Limits,
) -> Any:  # noqa: ANN401  float
    """As `scaled`, of one model; minus infinity outside of the family."""
    n, variance, bound = limits
    if amplitude * scale > bound * INSIDE:
        return -math.inf
    by = 1 / (scale * scale)
    grown = 1 + variance * gram[1, 1] * by
    share = variance / grown * by * by
    for a in range(len(found)):
        left = a + 1 if a > 0 else 0
        for b in range(a + 1):
            right = b + 1 if b > 0 else 0
            inner = gram[left, right] * by - share * gram[left, 1] * gram[1, right]
            found[a, b] = found[b, a] = inner
    return -0.5 * (log_determinant + math.log(grown)) - n * math.log(scale)


@inlined
def _part(part: FloatArray, gram: FloatArray, chosen: IntArray) -> Any:  # noqa: ANN401  int
    """Write the products of the residuals and the columns of a set; number of its columns."""
    q, p = 0, len(gram) - 1
    part[0, 0] = gram[0, 0]
    for a in range(3):
        if chosen[a] == p:
            continue
        q += 1
        part[0, q] = part[q, 0] = gram[0, chosen[a] + 1]
        before = 0
        for b in range(a + 1):
            if chosen[b] != p:
                before += 1
                part[q, before] = part[before, q] = gram[chosen[a] + 1, chosen[b] + 1]
    return q


@inlined
def _unexplained(room: FloatArray, q: int) -> Any:  # noqa: ANN401  float
    """What offsets of any size leave of the residuals' square; row 1 of ``room`` is used up."""
    part, rest = room[0], room[1]
    for a in range(q + 1):
        for b in range(q + 1):
            rest[a, b] = part[a, b]
    for c in range(1, q + 1):
        pivot = max(rest[c, c], TINY)
        for a in range(c + 1, q + 1):
            share = rest[a, c] / pivot
            for b in range(c + 1, q + 1):
                rest[a, b] -= share * rest[c, b]
            rest[a, 0] -= share * rest[c, 0]
        rest[0, 0] -= rest[c, 0] * rest[c, 0] / pivot
    return max(rest[0, 0], 0.0)


@inlined
def _cost(room: FloatArray, q: int, chosen: IntArray, least: FloatArray) -> Any:  # noqa: ANN401  float
    """What offsets of all columns of a set take from ln p at least: that of the least variances."""
    part, cost, determinant, p = room[0], room[1], 1.0, len(least)
    a = 0
    for i in range(3):
        if chosen[i] == p:
            continue
        a, b = a + 1, 0
        for j in range(i + 1):
            if chosen[j] != p:
                b += 1
                size = math.sqrt(least[chosen[i]] * least[chosen[j]])
                cost[a, b] = size * part[a, b] + (1.0 if a == b else 0.0)
    for c in range(1, q + 1):
        determinant *= max(cost[c, c], TINY)
        for a in range(c + 1, q + 1):
            share = cost[a, c] / max(cost[c, c], TINY)
            for b in range(c + 1, a + 1):
                cost[a, b] -= share * cost[b, c]
    return 0.5 * math.log(determinant)


@inlined
def _freed(
    room: FloatArray, variance: FloatArray, q: int, chosen: IntArray, least: FloatArray
) -> Any:  # noqa: ANN401  float
    """Density but for ln p where the columns of a set are off by Gaussians of the best variances.

    Those are written, in the places of the set; 0 where none helps.
    """
    part, rest, p = room[0], room[1], len(least)
    size = np.zeros(4)
    for c in range(1, q + 1):
        own = part[c, c]
        size[c] = FREE / max(own, TINY) if own > 0 else 0.0
    for _ in range(SWEEPS if q > 1 else q):
        c = 0
        for i in range(3):
            if chosen[i] == p:
                continue
            c += 1
            _copy(rest, part, q)
            for other in range(1, q + 1):
                if other != c:
                    _absorb_part(rest, other, size[other], q)
            own = max(rest[c, c], TINY)
            size[c] = offset(rest[0, c] * rest[0, c] / own, own, least[chosen[i]])[0]
    _copy(rest, part, q)
    grown = 1.0
    for c in range(1, q + 1):
        grown *= _absorb_part(rest, c, size[c], q)
    c = 0
    for i in range(3):
        c += 1 if chosen[i] != p else 0
        variance[i] = size[c] if chosen[i] != p else 0.0
    return -0.5 * (rest[0, 0] + math.log(grown))


@inlined
def _copy(rest: FloatArray, part: FloatArray, q: int) -> None:
    for a in range(q + 1):
        for b in range(q + 1):
            rest[a, b] = part[a, b]


@inlined
def _absorb_part(gram: FloatArray, j: int, variance: float, q: int) -> Any:  # noqa: ANN401  float
    return _absorb(gram[: q + 1, : q + 1], j, variance)


@inlined
def _absorb(gram: FloatArray, j: int, variance: float) -> Any:  # noqa: ANN401  float
    """Let column j be off by a Gaussian, in place; by what factor its variance grows."""
    total = 1 + variance * gram[j, j]
    factor = variance / total
    for a in range(len(gram)):
        if a != j:
            share = factor * gram[a, j]
            for b in range(len(gram)):
                if b != j:
                    gram[a, b] -= share * gram[j, b]
    kept = 1 / total
    for a in range(len(gram)):
        gram[a, j] *= kept
        if a != j:
            gram[j, a] *= kept
    return total


@inlined
def _bits(variance: FloatArray) -> Any:  # noqa: ANN401  uint8
    bits = 0
    for i in range(3):
        if variance[i] > 0:
            bits |= 1 << i
    return np.uint8(bits)
