"""Noise under which a lens and its rivals are compared: the same for all of them.

Each source of a star has errors that are wrong by a factor k of unknown size, and red noise (an
Ornstein-Uhlenbeck process) on top, of one of a few amplitudes and times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.red_noise import Models, RedNoise
from broker_filter.types import FloatArray

__all__ = ["NoisePrior", "SourceNoise"]


@dataclass(frozen=True, slots=True)
class NoisePrior:
    """What is known of a star's noise before its event.

    Parameters
    ----------
    scale, spread : float
        Of the factor k on the errors: ln k is near ln ``scale``, within ``spread``, with the tails
        of Student's t of three degrees of freedom. The default is that of 26 quiet stars and sites
        (standard deviation in claimed errors .85 to 1.63, median 1.18).
    red_noise : float
        Amplitude of red noise, in median errors of the source; half of the prior is white noise.
        The default is the median of quiet stars on which white noise fails (.45).
    tau_days : tuple of float
        Its correlation times, of equal weight: a night, and a few days.
    baseline, drift : float
        Factor on the claimed error of a baseline, and what comes on top in units of the baseline.
        The means of quiet windows scatter by 1.6 claimed errors, up to 4.3, and seasons by 1 %.
    """

    scale: float = 1.15
    spread: float = 0.2
    red_noise: float = 0.45
    tau_days: tuple[float, ...] = (0.3, 5.0)
    baseline: float = 2.0
    drift: float = 0.01

    def baseline_error(self, light: SourceLight) -> float:
        """Of a source, in units of its baseline."""
        return math.hypot(self.baseline * light.baseline_error, self.drift)


class SourceNoise:
    """The noises that one source may have, with what is needed of its data again and again.

    Parameters
    ----------
    light : SourceLight
    prior : NoisePrior
    processes : sequence of (float, float), optional
        Amplitude (units of the baseline) and time (days) of the red noise of each, of equal shares;
        those of the prior if left out.
    """

    def __init__(
        self,
        light: SourceLight,
        prior: NoisePrior,
        processes: Sequence[tuple[float, float]] | None = None,
    ) -> None:
        self.light, self.prior = light, prior
        self.baseline_error = prior.baseline_error(light)
        if processes is None:
            red = prior.red_noise * light.median_error
            correlated = [(red, tau) for tau in prior.tau_days] if red > 0 else []
            processes = [(0.0, 1.0)] * max(len(correlated), 1) + correlated
        counted = Counter(processes)
        self.processes = list(counted)
        self.log_share = np.log(np.array(list(counted.values())) / len(processes))
        amplitude, tau = np.array(self.processes).T
        models = Models(np.ones(len(tau)), amplitude, tau)
        self._noise = RedNoise(light.t, light.sigma, models)
        self.log_determinant = self._noise.log_determinant
        self._columns = np.stack([light.residual, np.ones(len(light))], axis=1)
        self._solved = self._noise.times(self._columns)
        self.fixed = np.asarray(self._columns.T @ self._solved)

    def __len__(self) -> int:
        return len(self.light)

    def some(self, rows: Sequence[int]) -> SourceNoise:
        """Some of the noises, with the shares that they have among all."""
        if list(rows) == list(range(len(self.processes))):
            return self
        found = SourceNoise(self.light, self.prior, [self.processes[row] for row in rows])
        found.log_share = self.log_share[list(rows)]
        return found

    def innovations(self, columns: FloatArray) -> FloatArray:
        """Columns, shape (n, m), as independent numbers of unit variance under the first noise."""
        return self._noise.innovations(columns)

    def whitened(self, column: FloatArray) -> FloatArray:
        """The first noise's inverse covariance times a column, shape (n,)."""
        return self._noise.times(column[:, None])[0, :, 0]

    def products(self, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Products with the inverse covariance of each noise, k being 1.

        Parameters
        ----------
        columns : ndarray, shape (n, m, q), float64
            Columns that belong together in groups of q.

        Returns
        -------
        gram : ndarray, shape (J, m, q, q), float64
            Between the columns of each group.
        mixed : ndarray, shape (J, m, q, 2), float64
            With the residuals and with ones.
        """
        return self._noise.products_in_groups(self._solved, columns)
