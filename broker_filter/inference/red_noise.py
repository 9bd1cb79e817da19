"""Gaussian noise whose red part is an Ornstein-Uhlenbeck process: inverse covariances in O(n).

A Kalman filter turns any column of numbers, one for each epoch, into independent innovations. The
product of two columns with the inverse covariance between them is a sum over their innovations,
and so are likelihoods (Durbin & Koopman 2012, Time Series Analysis by State Space Methods, ch. 4).
Models and columns go through it side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from broker_filter.inference import red_noise_loops as loops
from broker_filter.types import FloatArray

__all__ = ["Models", "RedNoise", "by_place"]


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
        self.models, self._n = models, len(t)
        of = models.scale, models.amplitude, models.tau
        self._filter, self.log_determinant = loops.filters_of(
            t, sigma, *map(np.ascontiguousarray, of)
        )

    @cached_property
    def _by_model(self) -> FloatArray:
        found: FloatArray = loops.by_model(self._filter, len(self.models))
        return found

    def products(self, columns: FloatArray) -> FloatArray:
        """Products of columns with the inverse covariance between them.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64

        Returns
        -------
        ndarray, shape (M, m, m), float64
        """
        found: FloatArray = loops.grams(
            self._filter, np.ascontiguousarray(columns), len(self.models)
        )
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
        found: tuple[FloatArray, FloatArray] = loops.products_in_groups(
            self._by_model, solved, by_place(columns)
        )
        return found

    def times(self, columns: FloatArray) -> FloatArray:
        """The inverse covariance times columns, shape (M, n, m), float64.

        Parameters
        ----------
        columns : ndarray, shape (n, m), float64
        """
        shape = len(self.models), *columns.shape
        found: FloatArray = loops.times(self._filter, np.ascontiguousarray(columns), shape)
        return found

    def innovations(self, columns: FloatArray) -> FloatArray:
        """Columns, shape (n, m), as independent numbers of unit variance under the first model."""
        found: FloatArray = loops.innovations(self._by_model, np.ascontiguousarray(columns))
        return found

    @property
    def diagonal(self) -> FloatArray:
        """Of the inverse covariances, shape (M, n)."""
        found: FloatArray = loops.diagonal(self._filter, (len(self.models), self._n))
        return found


def by_place(columns: FloatArray) -> FloatArray:
    """Columns in groups, shape (n, m, q), by their place in a group, shape (q, n, m)."""
    return np.ascontiguousarray(columns.transpose(2, 0, 1))
