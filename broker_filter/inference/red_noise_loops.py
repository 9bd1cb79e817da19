"""The Kalman filter of red noise and its sums over innovations, in compiled loops.

See `broker_filter.inference.red_noise`. Models, or columns, go through a loop side by side.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, inlined, reordered
from broker_filter.inference.exponential import exponential_less_one
from broker_filter.types import FloatArray

__all__ = [
    "by_model",
    "diagonal",
    "filters_of",
    "grams",
    "innovations",
    "products_in_groups",
    "times",
]

AT_ONCE: Final = 64
"""Groups of columns that go through the filter together, so that their sums stay in the cache."""

EPOCHS: Final = 4
"""Epochs that do, so that each sum is read and written once for all of them."""

LANES: Final = 8
"""Models stand side by side in a multiple of so many, on which a processor works at once."""

LOGS: Final = 8
"""Variances that are multiplied before the logarithm is taken."""

Four = tuple[int, int, int, int]
"""Where rows of `EPOCHS` epochs begin in a flat array."""


@compiled
def filters_of(
    t: FloatArray, sigma: FloatArray, scale: FloatArray, amplitude: FloatArray, tau: FloatArray
) -> Any:  # noqa: ANN401
    """What each epoch does to a column, shape (N, 3, W), and log determinants, shape (M,).

    How much of the mean of the red noise is left since the epoch before, the weight of an epoch in
    that mean, and the inverse root of the variance of its innovation. Of M models, in the last
    axis, up to a multiple of `LANES`; of n epochs, and zeros up to a multiple of `EPOCHS`.
    """
    n, m = len(t), len(tau)
    found = np.zeros((-(-n // EPOCHS) * EPOCHS, 3, -(-m // LANES) * LANES))
    width = found.shape[2]
    white, variance, rate = np.ones(width), np.zeros(width), np.ones(width)
    white[:m], variance[:m], rate[:m] = scale * scale, amplitude * amplitude, 1 / tau
    known, product, log_determinant = variance.copy(), np.ones(width), np.zeros(width)
    for i in range(n):
        step = t[i] - t[max(i - 1, 0)]
        _add_step(found, i, known, product, white, variance, rate, step, sigma[i] * sigma[i])
        if i % LOGS == LOGS - 1 or i == n - 1:
            for j in range(width):
                log_determinant[j] += math.log(product[j])
                product[j] = 1.0
    return found, log_determinant[:m].copy()


@reordered
def _add_step(
    found: FloatArray,
    i: int,
    known: FloatArray,
    product: FloatArray,
    white: FloatArray,
    variance: FloatArray,
    rate: FloatArray,
    step: float,
    square: float,
) -> None:
    for j in range(len(known)):
        less = exponential_less_one(-step * rate[j])
        decay, own = 1 + less, white[j] * square
        expected = decay * decay * known[j] - less * (2 + less) * variance[j]
        total = expected + own
        gain = expected / total
        known[j] = gain * own
        product[j] *= total
        found[i, 0, j], found[i, 1, j] = decay, gain
        found[i, 2, j] = 1 / math.sqrt(total)


@compiled
def times(filters: FloatArray, columns: FloatArray, shape: tuple[int, int, int]) -> Any:  # noqa: ANN401
    """As `RedNoise.times`, of ``shape``.

    The filter, and the transposed one from the last epoch to the first: what the mean at an epoch
    adds to all later innovations goes along.
    """
    n_models, n, m = shape
    found, white = np.empty(shape), np.empty((n, filters.shape[2]))
    room = np.empty(filters.shape[2])
    for c in range(m):
        room[:] = 0.0
        for i in range(n):
            _innovation(white, room, filters, i, columns[i, c])
        room[:] = 0.0
        for i in range(n - 1, -1, -1):
            _solved(white, room, filters, i)
            for j in range(n_models):
                found[j, i, c] = white[i, j]
    return found


@reordered
def _innovation(
    white: FloatArray, mean: FloatArray, filters: FloatArray, i: int, value: float
) -> None:
    """That of one epoch under all models; ``mean`` is moved on."""
    for j in range(len(mean)):
        expected = filters[i, 0, j] * mean[j]
        new = value - expected
        mean[j] = expected + filters[i, 1, j] * new
        white[i, j] = new * filters[i, 2, j]


@reordered
def _solved(white: FloatArray, later: FloatArray, filters: FloatArray, i: int) -> None:
    for j in range(len(later)):
        own = white[i, j] * filters[i, 2, j] + filters[i, 1, j] * later[j]
        later[j] = filters[i, 0, j] * (later[j] - own)
        white[i, j] = own


@compiled
def innovations(steps: FloatArray, columns: FloatArray) -> Any:  # noqa: ANN401
    """As `RedNoise.innovations`."""
    found, mean = np.empty(columns.shape), np.zeros(columns.shape[1])
    for i in range(len(columns)):
        _next_innovation(found, mean, columns, i, steps[0, i, 0], steps[0, i, 1], steps[0, i, 2])
    return found


@reordered
def _next_innovation(
    found: FloatArray,
    mean: FloatArray,
    columns: FloatArray,
    i: int,
    decay: float,
    gain: float,
    root: float,
) -> None:
    for c in range(len(mean)):
        expected = decay * mean[c]
        new = columns[i, c] - expected
        mean[c] = expected + gain * new
        found[i, c] = new * root


@compiled
def diagonal(filters: FloatArray, shape: tuple[int, int]) -> Any:  # noqa: ANN401
    """As `RedNoise.diagonal`, of ``shape``."""
    found, own = np.empty(shape), np.empty(filters.shape[2])
    later = np.zeros(filters.shape[2])  # squares of what the mean adds to all later innovations
    for i in range(shape[1] - 1, -1, -1):
        _add_square(own, later, filters, i)
        found[:, i] = own[: shape[0]]
    return found


@reordered
def _add_square(own: FloatArray, later: FloatArray, filters: FloatArray, i: int) -> None:
    for j in range(len(own)):
        decay, gain, root = filters[i, 0, j], filters[i, 1, j], filters[i, 2, j]
        own[j] = root * root + gain * gain * later[j]
        later[j] = decay * decay * (root * root + (1 - gain) * (1 - gain) * later[j])


@compiled
def grams(filters: FloatArray, columns: FloatArray, n_models: int) -> Any:  # noqa: ANN401
    """As `RedNoise.products`: sums over the epochs, all models side by side.

    Rows of ``room`` are the innovations of `EPOCHS` epochs of each column, the mean of the red
    noise, and the sums. A column counts from its first number that is not 0 on.
    """
    (n, m), width = columns.shape, filters.shape[2]
    firsts = np.full(m, n)
    for c in range(m):
        for i in range(n - 1, -1, -1):
            firsts[c] = i if columns[i, c] != 0 else firsts[c]
    room, steps = np.zeros((5 * m + m * m) * width), filters.reshape(-1)
    for i in range(0, len(filters), EPOCHS):
        for a in range(m):
            if firsts[a] < i + EPOCHS:
                x = _lanes(a * EPOCHS, width)
                _filtered_lanes(room, x, (EPOCHS * m + a) * width, columns, a, steps, i, width)
                for b in range(a + 1):
                    if firsts[b] < i + EPOCHS:
                        total = np.uint64((5 * m + a * m + b) * width)
                        _add_products(room, total, x, _lanes(b * EPOCHS, width), width)
    found = np.empty((n_models, m, m))
    for a in range(m):
        for b in range(a + 1):
            for j in range(n_models):
                found[j, a, b] = found[j, b, a] = room[(5 * m + a * m + b) * width + j]
    return found


@inlined
def _lanes(number: int, width: int) -> Any:  # noqa: ANN401  Four
    """As `_rows`, of rows as long as there are models."""
    return (
        np.uint64(number * width),
        np.uint64((number + 1) * width),
        np.uint64((number + 2) * width),
        np.uint64((number + 3) * width),
    )


@reordered
def _filtered_lanes(
    room: FloatArray,
    white: Four,
    mean: int,
    columns: FloatArray,
    c: int,
    steps: FloatArray,
    i: int,
    width: int,
) -> None:
    """Innovations of `EPOCHS` epochs of one column under all models."""
    last = len(columns) - 1
    at, row = np.uint64(mean), np.uint64(width)
    for e in range(EPOCHS):
        value, x = columns[min(i + e, last), c], white[e]
        step = np.uint64((i + e) * 3 * width)
        for j in range(width):
            expected = steps[step + j] * room[at + j]
            new = value - expected
            room[at + j] = expected + steps[step + row + j] * new
            room[x + j] = new * steps[step + row + row + j]


@compiled
def by_model(filters: FloatArray, n_models: int) -> Any:  # noqa: ANN401
    """What each epoch does to a column, model by model, shape (M, N, 3)."""
    found = np.empty((n_models, len(filters), 3))
    for i in range(len(filters)):
        for k in range(3):
            for j in range(n_models):
                found[j, i, k] = filters[i, k, j]
    return found


@compiled
def products_in_groups(steps: FloatArray, solved: FloatArray, columns: FloatArray) -> Any:  # noqa: ANN401
    """As `RedNoise.products_in_groups`, of columns as `by_place` gives them."""
    q, _, m = columns.shape
    n_models, fixed = len(steps), solved.shape[2]
    gram, mixed = np.empty((n_models, m, q, q)), np.empty((n_models, m, q, fixed))
    factors, flat = _whole(solved), columns.reshape(-1)
    room = np.empty(q * (EPOCHS + 1 + q + fixed) * AT_ONCE)
    sums = room[q * (EPOCHS + 1) * AT_ONCE :].reshape(q, q + fixed, AT_ONCE)
    for first in range(0, m, AT_ONCE):
        last = min(first + AT_ONCE, m)
        for j in range(n_models):
            _group(room, steps[j], factors[j], flat, columns.shape, first, np.uint64(last - first))
            for a in range(q):
                for b in range(a + 1):
                    gram[j, first:last, a, b] = sums[a, b, : last - first]
                    gram[j, first:last, b, a] = sums[a, b, : last - first]
                for f in range(fixed):
                    mixed[j, first:last, a, f] = sums[a, q + f, : last - first]
    return gram, mixed


@inlined
def _whole(values: FloatArray) -> FloatArray:
    """Values by model and epoch, shape (M, n, k), with zeros up to a multiple of `EPOCHS`."""
    n_models, n, k = values.shape
    found = np.zeros((n_models, -(-n // EPOCHS) * EPOCHS, k))
    found[:, :n] = values
    return found


@inlined
def _group(
    room: FloatArray,
    steps: FloatArray,
    factors: FloatArray,
    flat: FloatArray,
    shape: tuple[int, int, int],
    first: int,
    size: int,
) -> None:
    """Sums over the epochs under one model, of ``size`` groups of columns from the ``first`` on.

    All arrays that are gone through are flat, and places in them have no sign: slices, and a
    comparison of each index with zero, would take longer than the sums. Rows of ``room`` are the
    innovations of `EPOCHS` epochs of each column, the mean of the red noise, and the sums: of each
    column with each, and with those that are fixed.
    """
    q, n, m = shape
    fixed = factors.shape[1]
    room[:] = 0.0
    for i in range(0, len(steps), EPOCHS):
        for a in range(q):
            x, white = _epochs(a * n, i, n, m, first), _rows(a * EPOCHS)
            sums = q * (EPOCHS + 1) + a * (q + fixed)
            for f in range(fixed):
                _add_times_of(room, _row(sums + q + f), flat, x, factors, i, f, size)
            _filtered_of(room, white, _row(q * EPOCHS + a), flat, x, steps, i, size)
            for b in range(a + 1):
                _add_products(room, _row(sums + b), white, _rows(b * EPOCHS), size)


@inlined
def _row(number: int) -> Any:  # noqa: ANN401  int
    return np.uint64(number * AT_ONCE)


@inlined
def _rows(number: int) -> Any:  # noqa: ANN401  Four
    return _row(number), _row(number + 1), _row(number + 2), _row(number + 3)


@inlined
def _epochs(before: int, i: int, n: int, m: int, first: int) -> Any:  # noqa: ANN401  Four
    """Of a column behind ``before`` rows of m; that of the last epoch again beyond the last."""
    a, b, c = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
    return (
        np.uint64((before + i) * m + first),
        np.uint64((before + a) * m + first),
        np.uint64((before + b) * m + first),
        np.uint64((before + c) * m + first),
    )


@reordered
def _filtered_of(
    room: FloatArray,
    white: Four,
    mean: int,
    flat: FloatArray,
    x: Four,
    steps: FloatArray,
    i: int,
    size: int,
) -> None:
    """Innovations of `EPOCHS` epochs of columns side by side; their mean is moved on."""
    (d0, g0, r0), (d1, g1, r1) = _step(steps, i), _step(steps, i + 1)
    (d2, g2, r2), (d3, g3, r3) = _step(steps, i + 2), _step(steps, i + 3)
    for c in range(size):
        expected = d0 * room[mean + c]
        new = flat[x[0] + c] - expected
        room[white[0] + c] = new * r0
        expected = d1 * (expected + g0 * new)
        new = flat[x[1] + c] - expected
        room[white[1] + c] = new * r1
        expected = d2 * (expected + g1 * new)
        new = flat[x[2] + c] - expected
        room[white[2] + c] = new * r2
        expected = d3 * (expected + g2 * new)
        new = flat[x[3] + c] - expected
        room[white[3] + c] = new * r3
        room[mean + c] = expected + g3 * new


@inlined
def _step(steps: FloatArray, i: int) -> Any:  # noqa: ANN401
    return steps[i, 0], steps[i, 1], steps[i, 2]


@reordered
def _add_products(room: FloatArray, total: int, x: Four, y: Four, size: int) -> None:
    for c in range(size):
        near = room[x[0] + c] * room[y[0] + c] + room[x[1] + c] * room[y[1] + c]
        late = room[x[2] + c] * room[y[2] + c] + room[x[3] + c] * room[y[3] + c]
        room[total + c] += near + late


@reordered
def _add_times_of(
    room: FloatArray,
    total: int,
    flat: FloatArray,
    x: Four,
    factors: FloatArray,
    i: int,
    f: int,
    size: int,
) -> None:
    f0, f1, f2, f3 = factors[i, f], factors[i + 1, f], factors[i + 2, f], factors[i + 3, f]
    for c in range(size):
        near = flat[x[0] + c] * f0 + flat[x[1] + c] * f1
        room[total + c] += near + flat[x[2] + c] * f2 + flat[x[3] + c] * f3
