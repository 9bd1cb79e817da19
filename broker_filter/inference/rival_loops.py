"""Marginal likelihoods of shapes from products of their columns, in compiled loops.

Of one noise and one shape there are: ``gram``, shape (q, q), of its columns with themselves;
``mixed``, shape (q, 2), of them with the residuals and with ones; ``fixed``, shape (2, 2), of those
two with themselves. All are of errors as they are quoted, k being 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from broker_filter.compiled import compiled, inlined
from broker_filter.inference.normal_steps import log_mean
from broker_filter.types import FloatArray

__all__ = ["Sizes", "best_at", "best_curves", "best_log_k", "log_by_noise", "residuals"]

Products = tuple[FloatArray, FloatArray, FloatArray]
"""``gram``, ``mixed`` and ``fixed``."""

TURNS = 3
"""Steps to the most likely k: its effect on the baseline changes little."""
LEAST_K = 1e-3
SMALL = 1e-12  # of what the epochs say of an amplitude


class Sizes(NamedTuple):
    """What is the same for all shapes of a source.

    Parameters
    ----------
    n : int
        Epochs.
    variance : float
        Of the baseline.
    scale, spread : float
        Prior of ln k: around ln of ``scale``, Student's t of three degrees of freedom.
    """

    n: int
    variance: float
    scale: float
    spread: float


@compiled
def log_by_noise(
    gram: FloatArray,
    mixed: FloatArray,
    fixed: FloatArray,
    log_determinant: FloatArray,
    sizes: Sizes,
    amplitudes: FloatArray,
    any_sign: bool,
    nodes: FloatArray,
    log_weight: FloatArray,
) -> Any:  # noqa: ANN401
    """Natural log of the density of the fluxes under each noise and shape, shape (J, m).

    Parameters
    ----------
    gram, mixed, fixed : ndarray, shape (J, m, q, q), (J, m, q, 2), (J, 2, 2), float64
    log_determinant : ndarray, shape (J,), float64
    sizes : Sizes
    amplitudes : ndarray, shape (A,), float64
        Edges of the steps of their prior; with ``any_sign`` sizes of Gaussians.
    any_sign : bool
    nodes, log_weight : ndarray, shape (K,), float64
        Of the quadrature over ln k, from its maximum.
    """
    found, room = np.empty(mixed.shape[:2]), _room(mixed.shape[2])
    norm = math.log(2 / (math.pi * math.sqrt(3.0) * sizes.spread))
    log_p = np.empty(len(nodes))
    for j, m in np.ndindex(found.shape):
        of = gram[j, m], mixed[j, m], fixed[j]
        centre = _most_likely(room, of, sizes, amplitudes, any_sign)
        for i in range(len(nodes)):
            log_k = centre + nodes[i]
            rest, log_p[i] = _reduced(room, of, sizes, log_k)
            log_p[i] += _log_mean(room, amplitudes, any_sign) - 0.5 * rest - sizes.n * log_k
            off = (log_k - math.log(sizes.scale)) / sizes.spread
            log_p[i] += norm - 2 * math.log1p(off * off / 3) + log_weight[i]
        top = log_p.max()
        found[j, m] = top + math.log(np.exp(log_p - top).sum()) - 0.5 * log_determinant[j]
    return found


@compiled
def best_log_k(
    gram: FloatArray,
    mixed: FloatArray,
    fixed: FloatArray,
    sizes: Sizes,
    amplitudes: FloatArray,
    any_sign: bool,
) -> Any:  # noqa: ANN401
    """About the most likely ln k of each noise and shape, shape (J, m)."""
    found, room = np.empty(mixed.shape[:2]), _room(mixed.shape[2])
    for j, m in np.ndindex(found.shape):
        of = gram[j, m], mixed[j, m], fixed[j]
        found[j, m] = _most_likely(room, of, sizes, amplitudes, any_sign)
    return found


@compiled
def best_at(
    gram: FloatArray,
    mixed: FloatArray,
    fixed: FloatArray,
    sizes: Sizes,
    amplitudes: FloatArray,
    any_sign: bool,
    log_k: float,
) -> Any:  # noqa: ANN401
    """Of one noise and shape: ln of the density but for determinant and prior; best amplitudes."""
    room, of = _room(len(gram)), (gram, mixed, fixed)
    rest, log_p = _reduced(room, of, sizes, log_k)
    log_p += _log_mean(room, amplitudes, any_sign) - 0.5 * rest - sizes.n * log_k
    _best(room, amplitudes, any_sign)
    return log_p, room[1].copy()


@compiled
def best_curves(
    gram: FloatArray,
    mixed: FloatArray,
    fixed: FloatArray,
    sizes: Sizes,
    amplitudes: FloatArray,
    any_sign: bool,
) -> Any:  # noqa: ANN401
    """The best amplitudes, shape (m, q), and baselines, shape (m,), under one noise, k being 1.

    And chi2 of what they leave, shape (m,), without that of the baselines.
    """
    m, q, _ = mixed.shape
    f, offset, chi2 = np.empty((m, q)), np.empty(m), np.empty(m)
    room = _room(q)
    for c in range(m):
        _reduced(room, (gram[c], mixed[c], fixed), sizes, 0.0)
        _best(room, amplitudes, any_sign)
        f[c] = room[1]
        rest, ones = fixed[0, 1], fixed[1, 1]
        total = fixed[0, 0]
        for a in range(q):
            rest -= f[c, a] * mixed[c, a, 1]
            total -= 2 * f[c, a] * mixed[c, a, 0]
            for b in range(q):
                total += f[c, a] * f[c, b] * gram[c, a, b]
        offset[c] = rest / (ones + 1 / sizes.variance)
        chi2[c] = total + offset[c] * (offset[c] * ones - 2 * rest)
    return f, offset, chi2


@compiled
def residuals(columns: FloatArray, residual: FloatArray, f: FloatArray, offset: FloatArray) -> Any:  # noqa: ANN401
    """What curves leave of residuals, shape (n, m).

    Parameters
    ----------
    columns : ndarray, shape (q, n, m), float64
    residual : ndarray, shape (n,), float64
    f, offset : ndarray, shape (m, q), (m,), float64
        As of `best_curves`.
    """
    q, n, m = columns.shape
    found = np.empty((n, m))
    for i in range(n):
        for c in range(m):
            found[i, c] = residual[i] - offset[c]
        for a in range(q):
            for c in range(m):
                found[i, c] -= f[c, a] * columns[a, i, c]
    return found


@inlined
def _room(q: int) -> Any:  # noqa: ANN401
    """Row 0 is of columns with residuals, as `_reduced` has them, rows from 3 on with themselves.

    Amplitudes are in row 1, and what `_factored` gives in row 2 and from row 3 + q on.
    """
    return np.zeros((3 + 2 * q, q))


@inlined
def _reduced(room: FloatArray, of: Products, sizes: Sizes, log_k: float) -> Any:  # noqa: ANN401
    """The sums at one scale of the errors, the baseline integrated out.

    Those of the columns are written. What is left: of the residuals with themselves, and what the
    integral over the baseline adds to ln p.
    """
    gram, mixed, fixed = of
    q, k2, variance = len(mixed), math.exp(-2 * log_k), sizes.variance
    grown = 1 + variance * fixed[1, 1] * k2
    taken = variance / grown * k2 * k2
    for a in range(q):
        room[0, a] = mixed[a, 0] * k2 - taken * fixed[0, 1] * mixed[a, 1]
        for b in range(q):
            room[3 + a, b] = gram[a, b] * k2 - taken * mixed[a, 1] * mixed[b, 1]
    return fixed[0, 0] * k2 - taken * fixed[0, 1] ** 2, -0.5 * math.log(grown)


@inlined
def _most_likely(
    room: FloatArray, of: Products, sizes: Sizes, amplitudes: FloatArray, any_sign: bool
) -> Any:  # noqa: ANN401
    n, before, log_k = sizes.n, sizes.spread**-2, 0.0
    for _ in range(TURNS):
        rest, _ = _reduced(room, of, sizes, log_k)
        _best(room, amplitudes, any_sign)
        chi2 = (rest + _chi2(room)) * math.exp(2 * log_k)
        likely = 0.5 * math.log(max(chi2 / n, LEAST_K**2))
        log_k = (2 * n * likely + before * math.log(sizes.scale)) / (2 * n + before)
    return log_k


@inlined
def _chi2(room: FloatArray) -> Any:  # noqa: ANN401  float
    """What the best amplitudes add to chi2."""
    q, total = room.shape[1], 0.0
    for a in range(q):
        total -= 2 * room[1, a] * room[0, a]
        for b in range(q):
            total += room[1, a] * room[3 + a, b] * room[1, b]
    return total


@inlined
def _best(room: FloatArray, amplitudes: FloatArray, any_sign: bool) -> None:
    """The most likely amplitudes, into row 1."""
    q = room.shape[1]
    if not any_sign:
        for a in range(q):
            f = room[0, a] / max(room[3, 0], SMALL)
            room[1, a] = min(max(f, amplitudes[0]), amplitudes[-1])
        return
    root = room[3 + q :]
    _factored(room, amplitudes.max() ** -2, 1.0)
    for a in range(q - 1, -1, -1):
        room[1, a] = room[2, a] * root[a, a]
        for b in range(a + 1, q):
            room[1, a] -= root[b, a] * room[1, b]


@inlined
def _log_mean(room: FloatArray, amplitudes: FloatArray, any_sign: bool) -> Any:  # noqa: ANN401  float
    """Log of the mean of exp(mixed f - f square f / 2) over the prior of f."""
    q = room.shape[1]
    if q == 0:
        return 0.0
    if not any_sign:
        return log_mean(room[3, 0], room[0, 0], amplitudes)
    root, top, total = room[3 + q :], -math.inf, 0.0
    for size in amplitudes:
        determinant = _factored(room, 1.0, size * size)
        gain = -0.5 * math.log(determinant)
        for a in range(q):
            gain += 0.5 * size * size * room[2, a] * room[2, a] * root[a, a]
        total = total * math.exp(top - gain) + 1 if gain > top else total + math.exp(gain - top)
        top = max(top, gain)
    return top + math.log(total / len(amplitudes))


@inlined
def _factored(room: FloatArray, added: float, factor: float) -> Any:  # noqa: ANN401  float
    """Factors L D L' of ``factor`` times the square plus a diagonal, and L^-1 times the mixed.

    The latter are in row 2; L, and on its diagonal the inverse of D, from row 3 + q on. The
    determinant.
    """
    q = room.shape[1]
    root, determinant = room[3 + q :], 1.0
    for a in range(q):
        room[2, a], pivot = room[0, a], factor * room[3 + a, a] + added
        for b in range(a):
            inner = factor * room[3 + a, b]
            for c in range(b):
                inner -= root[a, c] * root[b, c]
            # Times D until all of the row are known.
            root[a, b] = inner
        for b in range(a):
            share = root[a, b] * root[b, b]
            pivot -= share * root[a, b]
            root[a, b] = share
            room[2, a] -= share * room[2, b]
        # Exactly it is at least that; of dependent columns and tiny errors rounding leaves less.
        pivot = max(pivot, added)
        root[a, a] = 1 / pivot
        determinant *= pivot
    return determinant
