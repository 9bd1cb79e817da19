"""Gaussian noise with memory: white noise on top of an Ornstein-Uhlenbeck process, in O(n).

The covariance of two epochs is ``a^2 exp(-|dt| / tau)``, and ``(k sigma)^2`` more for an epoch with
itself. A Kalman filter turns any column of numbers, one for each epoch, into independent
innovations; products of such columns with the inverse covariance between them are sums over
innovations, and so are likelihoods (Durbin & Koopman 2012, Time Series Analysis by State Space
Methods, ch. 4). All models and columns go through the epochs together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from broker_filter.types import FloatArray

__all__ = ["Models", "RedNoise", "absorbed"]


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
        self.models = models
        variance = models.amplitude**2
        white = np.square(sigma[:, None] * models.scale)
        step = np.diff(t, prepend=t[:1])
        with np.errstate(under="ignore"):
            self._decay = np.exp(-step[:, None] / models.tau)
        self._total = np.empty_like(white)  # variance of each innovation, (n, M)
        self._gain = np.empty_like(white)
        known = variance.copy()
        for i, decay in enumerate(self._decay):
            known = variance + decay**2 * (known - variance)
            total = self._total[i] = known + white[i]
            gain = self._gain[i] = known / total
            known = known * (1 - gain)

    @property
    def log_determinant(self) -> FloatArray:
        """Natural log of the determinant of each model's covariance, shape (M,)."""
        return np.asarray(np.log(self._total).sum(axis=0))

    def products(self, columns: FloatArray) -> FloatArray:
        """Products of columns with the inverse covariance between them.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64

        Returns
        -------
        ndarray, shape (M, m, m), float64
        """
        white = self.innovations(columns)
        return np.asarray(np.einsum("nMi,nMj->Mij", white, white, optimize=True))

    def innovations(self, columns: FloatArray) -> FloatArray:
        """Columns as independent numbers of unit variance, shape (n, M, m)."""
        found = np.empty((*self._gain.shape, columns.shape[1]))
        mean = np.zeros(found.shape[1:])
        root = np.sqrt(self._total)
        for i, column in enumerate(columns):
            mean *= self._decay[i, :, None]
            new = column - mean
            np.divide(new, root[i, :, None], out=found[i])
            new *= self._gain[i, :, None]
            mean += new
        return found

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
        few = self.innovations(fixed)
        shape = (len(self.models), columns.shape[1])
        squares, mean = np.zeros(shape), np.zeros(shape)
        mixed = np.zeros((shape[0], fixed.shape[1], shape[1]))
        for i, column in enumerate(columns):
            mean *= self._decay[i, :, None]
            new = column - mean
            mean += self._gain[i, :, None] * new
            new /= np.sqrt(self._total[i])[:, None]
            squares += new * new
            for j in range(fixed.shape[1]):
                mixed[:, j] += few[i, :, j, None] * new
        return squares, mixed

    def smoothed(self, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The inverse covariance times columns, and its diagonal.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64

        Returns
        -------
        times : ndarray, shape (n, M, m), float64
        diagonal : ndarray, shape (n, M), float64

        Notes
        -----
        The smoothing errors of de Jong (1989, J. Am. Stat. Assoc. 84, 1085).
        """
        white = self.innovations(columns)
        root = np.sqrt(self._total)
        times, diagonal = np.empty_like(white), np.empty_like(root)
        later = np.zeros(white.shape[1:])
        later_square = np.zeros(root.shape[1])
        for i in range(len(root) - 1, -1, -1):
            after = self._decay[i + 1] if i + 1 < len(root) else 0.0 * root[i]
            gain = after * self._gain[i]
            times[i] = white[i] / root[i, :, None] - gain[:, None] * later
            diagonal[i] = 1 / self._total[i] + gain**2 * later_square
            later = times[i] + after[:, None] * later
            kept = after - gain
            later_square = 1 / self._total[i] + kept**2 * later_square
        return times, diagonal


def absorbed(gram: FloatArray, j: int, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Products once column j may be off by a Gaussian of this variance, and what ln p gains.

    Sherman & Morrison's formula; ``gram`` has shape (..., c, c) and ``variance`` (...).
    """
    column = gram[..., :, j]
    total = 1 + variance * column[..., j]
    factor = (variance / total)[..., None, None]
    return gram - factor * column[..., :, None] * column[..., None, :], -0.5 * np.log(total)
