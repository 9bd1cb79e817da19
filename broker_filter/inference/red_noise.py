"""Gaussian noise whose red part is an Ornstein-Uhlenbeck process: inverse covariances in O(n).

A Kalman filter turns any column of numbers, one for each epoch, into independent
innovations; products of such columns with the inverse covariance between them are sums over
innovations, and so are likelihoods (Durbin & Koopman 2012, Time Series Analysis by State Space
Methods, ch. 4). Models and columns go through it side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from broker_filter.compiled import compiled, inlined, reordered
from broker_filter.types import FloatArray

__all__ = ["Models", "RedNoise", "absorbed", "by_place"]

AT_ONCE: Final = 64
"""Groups of columns that go through the filter together, so that their sums stay in the cache."""

EPOCHS: Final = 4
"""Epochs that do, so that each sum is read and written once for all of them."""


@dataclass(frozen=True, slots=True)
class Models:
    """Parameters of M models of the noise, each of shape (M,), float64.

    Parameters
    ----------
    scale : ndarray
        Factor k on the errors.
    amplitude : ndarray, in the unit of the errors
        Standard deviation ``a`` of the red noise; may be 0.
    tau : ndarray, days
        Its correlation time.
    """

    scale: FloatArray
    amplitude: FloatArray
    tau: FloatArray

    def __len__(self) -> int:
        return len(self.scale)


class RedNoise:
    """Some models of the noise at the epochs of one source.

    Parameters
    ----------
    t : ndarray, shape (n,), float64, days
        In order of time.
    sigma : ndarray, shape (n,), float64
        Quoted errors.
    models : Models

    Attributes
    ----------
    log_determinant : ndarray, shape (M,), float64
        Natural log of the determinant of each model's covariance.
    """

    def __init__(self, t: FloatArray, sigma: FloatArray, models: Models) -> None:
        self.models = models
        of = models.scale, models.amplitude, models.tau
        self._filter, self.log_determinant = _filters(t, sigma, *map(np.ascontiguousarray, of))

    def products(self, columns: FloatArray) -> FloatArray:
        """Products of columns with the inverse covariance between them.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64

        Returns
        -------
        ndarray, shape (M, m, m), float64
        """
        white = _innovations(self._filter, np.ascontiguousarray(columns))
        return np.asarray(_grams(white))

    def products_with(self, fixed: FloatArray, columns: FloatArray) -> tuple[FloatArray, ...]:
        """Products of many columns with themselves and with a few fixed ones.

        Parameters
        ----------
        fixed : ndarray, shape (n, f), float64
        columns : ndarray, shape (n, m), float64

        Returns
        -------
        squares : ndarray, shape (M, m), float64
            Of each column with itself.
        mixed : ndarray, shape (M, f, m), float64
            Of each fixed one with each column.
        """
        squares, mixed = self.products_in_groups(self.times(fixed), columns[..., None])
        return squares[:, :, 0, 0], mixed[:, :, 0].transpose(0, 2, 1)

    def products_in_groups(
        self, solved: FloatArray, columns: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Products of the columns of each group with themselves and with a few fixed ones.

        Parameters
        ----------
        solved : ndarray, shape (M, n, f), float64
            `times` of the fixed ones.
        columns : ndarray, shape (n, m, q), float64
            m groups of q.

        Returns
        -------
        gram : ndarray, shape (M, m, q, q), float64
        mixed : ndarray, shape (M, m, q, f), float64
        """
        found: tuple[FloatArray, FloatArray] = _in_groups(self._filter, solved, by_place(columns))
        return found

    def times(self, columns: FloatArray) -> FloatArray:
        """The inverse covariance times columns, shape (M, n, m), float64.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64
        """
        found: FloatArray = _innovations(self._filter, np.ascontiguousarray(columns))
        _transposed(self._filter, found)
        return found

    @property
    def diagonal(self) -> FloatArray:
        """Of the inverse covariances, shape (M, n)."""
        return np.asarray(_diagonal(self._filter))


def absorbed(gram: FloatArray, j: int, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Products once column j may be off by a Gaussian of this variance, and what ln p gains.

    Sherman & Morrison's formula; ``gram`` has shape (..., c, c) and ``variance`` (...).
    """
    column = gram[..., :, j]
    total = 1 + variance * column[..., j]
    factor = (variance / total)[..., None, None]
    return gram - factor * column[..., :, None] * column[..., None, :], -0.5 * np.log(total)


def by_place(columns: FloatArray) -> FloatArray:
    """Columns in groups, shape (n, m, q), by their place in a group, shape (q, n, m)."""
    return np.ascontiguousarray(columns.transpose(2, 0, 1))


@compiled
def _filters(
    t: FloatArray, sigma: FloatArray, scale: FloatArray, amplitude: FloatArray, tau: FloatArray
) -> Any:  # noqa: ANN401
    """What each epoch does to a column, shape (M, n, 3), and log determinants, shape (M,).

    How much of the mean of the red noise is left since the epoch before, the weight of an epoch in
    that mean, and the inverse root of the variance of its innovation.
    """
    found, log_determinant = np.empty((len(tau), len(t), 3)), np.zeros(len(tau))
    for j in range(len(tau)):
        variance = amplitude[j] * amplitude[j]
        known = variance
        for i in range(len(t)):
            step = (t[i] - t[max(i - 1, 0)]) / tau[j]
            decay = math.exp(-step)
            expected = decay * decay * known - math.expm1(-2 * step) * variance
            white = scale[j] * scale[j] * sigma[i] * sigma[i]
            total = expected + white
            known = expected * white / total
            found[j, i, 0], found[j, i, 1] = decay, expected / total
            found[j, i, 2] = 1 / math.sqrt(total)
            log_determinant[j] += math.log(total)
    return found, log_determinant


@inlined
def _filtered(white: FloatArray, mean: FloatArray, column: FloatArray, step: FloatArray) -> None:
    """Innovations of one epoch of columns side by side; ``mean`` is moved on."""
    decay, gain, root = step[0], step[1], step[2]
    for c in range(len(column)):
        expected = decay * mean[c]
        new = column[c] - expected
        mean[c] = expected + gain * new
        white[c] = new * root


@compiled
def _innovations(filters: FloatArray, columns: FloatArray) -> Any:  # noqa: ANN401
    """Columns as independent numbers of unit variance, shape (M, n, m)."""
    found = np.empty((len(filters), *columns.shape))
    for j in range(len(filters)):
        mean = np.zeros(columns.shape[1])
        for i in range(len(columns)):
            _filtered(found[j, i], mean, columns[i], filters[j, i])
    return found


@compiled
def _transposed(filters: FloatArray, white: FloatArray) -> None:
    """Innovations, in place, to the inverse covariance times the columns that they are of.

    The transposed filter, from the last epoch to the first: what the mean at an epoch adds to all
    later innovations goes along.
    """
    for j in range(len(filters)):
        later = np.zeros(white.shape[2])
        for i in range(white.shape[1] - 1, -1, -1):
            decay, gain, root = filters[j, i, 0], filters[j, i, 1], filters[j, i, 2]
            for c in range(white.shape[2]):
                own = white[j, i, c] * root + gain * later[c]
                later[c] = decay * (later[c] - own)
                white[j, i, c] = own


@compiled
def _diagonal(filters: FloatArray) -> Any:  # noqa: ANN401
    found = np.empty(filters.shape[:2])
    for j in range(len(filters)):
        later = 0.0  # squares of what the mean after an epoch adds to all later innovations
        for i in range(filters.shape[1] - 1, -1, -1):
            decay, gain, root = filters[j, i, 0], filters[j, i, 1], filters[j, i, 2]
            found[j, i] = root * root + gain * gain * later
            later = decay * decay * (root * root + (1 - gain) * (1 - gain) * later)
    return found


@compiled
def _grams(white: FloatArray) -> Any:  # noqa: ANN401
    """Products of innovations, shape (M, n, m), with each other, shape (M, m, m)."""
    n_models, n, m = white.shape
    found = np.zeros((n_models, m, m))
    for j in range(n_models):
        for i in range(n):
            for a in range(m):
                _add_times(found[j, a, : a + 1], white[j, i], white[j, i, a])
        for a in range(m):
            found[j, :a, a] = found[j, a, :a]
    return found


@compiled
def _in_groups(filters: FloatArray, solved: FloatArray, columns: FloatArray) -> Any:  # noqa: ANN401
    """As `RedNoise.products_in_groups`, of columns as `by_place` gives them."""
    q, _, m = columns.shape
    n_models, fixed = len(filters), solved.shape[2]
    gram, mixed = np.empty((n_models, m, q, q)), np.empty((n_models, m, q, fixed))
    steps, factors, flat = _whole(filters), _whole(solved), columns.reshape(-1)
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


Four = tuple[int, int, int, int]
"""Where rows of `EPOCHS` epochs begin in a flat array."""


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
    """As `_filtered`, of `EPOCHS` epochs."""
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


@reordered
def _add_times(total: FloatArray, x: FloatArray, factor: float) -> None:
    for c in range(len(total)):
        total[c] += x[c] * factor
