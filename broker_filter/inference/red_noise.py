"""Gaussian noise whose red part is an Ornstein-Uhlenbeck process: inverse covariances in O(n).

A Kalman filter turns any column of numbers, one for each epoch, into independent
innovations; products of such columns with the inverse covariance between them are sums over
innovations, and so are likelihoods (Durbin & Koopman 2012, Time Series Analysis by State Space
Methods, ch. 4). The filter is linear, so within a block of some epochs it is a small matrix, and
only the mean with which a block begins goes from block to block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from broker_filter.types import FloatArray

__all__ = ["Models", "RedNoise", "absorbed"]

BLOCK: Final = 16
"""Epochs that go through the filter as one matrix."""


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
    """

    def __init__(self, t: FloatArray, sigma: FloatArray, models: Models) -> None:
        self.models, self._n = models, len(t)
        variance = models.amplitude[:, None] ** 2
        step = np.diff(t, prepend=t[:1]) / models.tau[:, None]
        white = np.square(models.scale[:, None] * sigma)
        decay, fresh = np.exp(-step), -np.expm1(-2 * step) * variance
        known = _known(decay**2, fresh, 1 / white, variance)
        before = np.concatenate([variance, known[:, :-1]], axis=1)
        self._total = decay**2 * before + fresh + white  # variance of each innovation, (M, n)
        self._filter = _filter(decay, known / white, self._total**-0.5)

    @property
    def log_determinant(self) -> FloatArray:
        """Natural log of the determinant of each model's covariance, shape (M,)."""
        return np.asarray(np.log(self._total).sum(axis=1))

    def products(self, columns: FloatArray) -> FloatArray:
        """Products of columns with the inverse covariance between them.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64

        Returns
        -------
        ndarray, shape (M, m, m), float64
        """
        white = self._innovations(columns).reshape(len(self.models), -1, columns.shape[1])
        return np.asarray(white.transpose(0, 2, 1) @ white)

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
        white = self._innovations(columns)
        squares = np.einsum("Mbim,Mbim->Mm", white, white)
        return squares, self.times(fixed).transpose(0, 2, 1) @ columns

    def times(self, columns: FloatArray) -> FloatArray:
        """The inverse covariance times columns, shape (M, n, m), float64.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64

        Notes
        -----
        The transposed filter, from the last block to the first: what the mean with which a block
        ends adds to all later innovations goes from block to block.
        """
        white = self._innovations(columns)
        found = self._filter[..., :-1, :].transpose(0, 1, 3, 2) @ white
        times, later = found[:, :, :-1], found[:, :, -1]
        end = self._filter[:, :, -1, :, None]
        for i in range(white.shape[1] - 2, -1, -1):
            found[:, i] += end[:, i] * later[:, i + 1, None]
        return times.reshape(len(self.models), -1, columns.shape[1])[:, : self._n]

    @property
    def diagonal(self) -> FloatArray:
        """Of the inverse covariances, shape (M, n); see `times`."""
        squares = np.square(self._filter)
        found = squares[..., :-1, :].sum(axis=2)
        for i in range(found.shape[1] - 2, -1, -1):
            found[:, i] += squares[:, i, -1] * found[:, i + 1, -1:]
        return np.asarray(found[..., :-1].reshape(len(found), -1)[:, : self._n])

    def _innovations(self, columns: FloatArray) -> FloatArray:
        """Columns as independent numbers of unit variance, shape (M, blocks, BLOCK, m)."""
        parts = _in_blocks(columns.T, 0.0).transpose(1, 2, 0)
        found = self._filter[..., :-1] @ parts
        white, mean = found[:, :, :-1], found[:, :, -1]
        for i in range(1, len(parts)):
            mean[:, i] += self._filter[:, i, -1, -1:] * mean[:, i - 1]
        white[:, 1:] += self._filter[:, 1:, :-1, -1:] * mean[:, :-1, None]
        return white


def absorbed(gram: FloatArray, j: int, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Products once column j may be off by a Gaussian of this variance, and what ln p gains.

    Sherman & Morrison's formula; ``gram`` has shape (..., c, c) and ``variance`` (...).
    """
    column = gram[..., :, j]
    total = 1 + variance * column[..., j]
    factor = (variance / total)[..., None, None]
    return gram - factor * column[..., :, None] * column[..., None, :], -0.5 * np.log(total)


def _in_blocks(rows: FloatArray, fill: float) -> FloatArray:
    """Numbers of all epochs, shape (..., n), by blocks, the last of which is filled up."""
    *shape, n = rows.shape
    blocks = -(-n // BLOCK)
    found = np.full((*shape, blocks * BLOCK), fill)
    found[..., :n] = rows
    return found.reshape(*shape, blocks, BLOCK)


def _known(
    kept: FloatArray, fresh: FloatArray, weight: FloatArray, start: FloatArray
) -> FloatArray:
    """Variance of the red noise once each epoch is known, shape (M, n).

    Parameters
    ----------
    kept, fresh, weight : ndarray, shape (M, n), float64
        What is left of the variance since the epoch before, and what is new; the inverse variance
        of an epoch's own error.
    start : ndarray, shape (M, 1), float64
        Variance before the first epoch.

    Notes
    -----
    ``x' = 1 / (1 / (kept x + fresh) + weight)`` is linear in numerator and denominator of x, so a
    block that is known for two starts is known for all.
    """
    n = kept.shape[1]
    kept, fresh, weight = _in_blocks(kept, 1.0), _in_blocks(fresh, 0.0), _in_blocks(weight, 0.0)
    over, under = (np.empty((2, *kept.shape)) for _ in range(2))
    p, q = np.zeros((2, 2, *kept.shape[:2]))
    p[0], q[1] = 1, 1
    for j in range(BLOCK):
        p = kept[:, :, j] * p + fresh[:, :, j] * q
        q = q + weight[:, :, j] * p
        over[..., j], under[..., j] = p, q
    found = np.empty_like(kept)
    for i in range(kept.shape[1]):
        found[:, i] = over[0, :, i] * start + over[1, :, i]
        found[:, i] /= under[0, :, i] * start + under[1, :, i]
        start = found[:, i, -1:]
    return found.reshape(len(found), -1)[:, :n]


def _filter(decay: FloatArray, gain: FloatArray, inverse_root: FloatArray) -> FloatArray:
    """The filter of each block as a matrix, shape (M, blocks, BLOCK + 1, BLOCK + 1).

    It turns a column, and the mean of the red noise before it, into innovations and the mean after
    it. Epochs that fill up the last block leave that mean as it is.

    Parameters
    ----------
    decay, gain, inverse_root : ndarray, shape (M, n), float64
        Of the mean since the epoch before; weight of an epoch; inverse root of the variance of its
        innovation.
    """
    decay, gain = _in_blocks(decay, 1.0), _in_blocks(gain, 0.0)
    inverse_root = _in_blocks(inverse_root, 0.0)
    found = np.empty((*decay.shape[:2], BLOCK + 1, BLOCK + 1))
    mean = np.zeros((*decay.shape[:2], BLOCK + 1))
    mean[..., -1] = 1
    for j in range(BLOCK):
        mean *= decay[:, :, j, None]
        np.multiply(mean, -inverse_root[:, :, j, None], out=found[:, :, j])
        found[:, :, j, j] = inverse_root[:, :, j]
        mean *= 1 - gain[:, :, j, None]
        mean[:, :, j] = gain[:, :, j]
    found[:, :, -1] = mean
    return found
