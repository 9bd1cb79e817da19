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
    n_models, _, fixed = solved.shape
    q, _, m = columns.shape
    gram, mixed = np.empty((n_models, m, q, q)), np.empty((n_models, m, q, fixed))
    room = np.empty((q * (q + 2 + fixed), AT_ONCE))
    for first in range(0, m, AT_ONCE):
        last = min(first + AT_ONCE, m)
        own, sums = columns[:, :, first:last], room[:, : last - first]
        for j in range(n_models):
            of = gram[j, first:last], mixed[j, first:last]
            _group(*of, sums, filters[j], solved[j], own)
    return gram, mixed


@inlined
def _group(
    gram: FloatArray,
    mixed: FloatArray,
    room: FloatArray,
    steps: FloatArray,
    solved: FloatArray,
    columns: FloatArray,
) -> None:
    """The same under one model, of the groups whose columns these are."""
    q, fixed = len(columns), solved.shape[1]
    white, mean = room[:q], room[q : 2 * q]
    squares, across = room[2 * q : (2 + q) * q], room[(2 + q) * q :]
    room[:] = 0.0
    for i in range(len(steps)):
        for a in range(q):
            column = columns[a, i]
            for f in range(fixed):
                _add_times(across[a * fixed + f], column, solved[i, f])
            _filtered(white[a], mean[a], column, steps[i])
            for b in range(a + 1):
                _add_product(squares[a * q + b], white[a], white[b])
    for a in range(q):
        for b in range(a + 1):
            gram[:, a, b] = gram[:, b, a] = squares[a * q + b]
        for f in range(fixed):
            mixed[:, a, f] = across[a * fixed + f]


@reordered
def _add_product(total: FloatArray, x: FloatArray, y: FloatArray) -> None:
    for c in range(len(total)):
        total[c] += x[c] * y[c]


@reordered
def _add_times(total: FloatArray, x: FloatArray, factor: float) -> None:
    for c in range(len(total)):
        total[c] += x[c] * factor
