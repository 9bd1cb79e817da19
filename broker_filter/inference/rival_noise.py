"""Noise under which a lens and its rivals are compared: the same for all of them.

Each source of a star has errors that are wrong by a factor k of unknown size, and red noise (an
Ornstein-Uhlenbeck process) on top, of one of a few amplitudes and times. The inverse covariance of
that process is tridiagonal, and with white noise of variances 1 / w beside it the inverse of the
whole is ``W - W (Q + W)^-1 W``: thousands of columns go through it in O(n) each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy.linalg.lapack import dpttrf, dpttrs

from broker_filter.inference.noise_family import SourceLight
from broker_filter.types import FloatArray

__all__ = ["Noise", "NoisePrior", "SourceNoise"]

SHORTEST: Final = 1e-7
"""Days between two epochs, at least: the same epoch twice has no inverse covariance."""


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

    def log_density(self, log_k: FloatArray) -> FloatArray:
        """Natural log of the density of ln k."""
        x = (log_k - math.log(self.scale)) / self.spread
        norm = math.log(2 / (math.pi * math.sqrt(3) * self.spread))
        return np.asarray(norm - 2 * np.log1p(x * x / 3))


@dataclass(frozen=True)
class Noise:
    """One covariance at the epochs of a source, times k^2.

    Parameters
    ----------
    light : SourceLight
    amplitude : float, units of the baseline
        Of the red noise; 0 for white noise.
    tau : float, days
    """

    light: SourceLight
    amplitude: float
    tau: float

    def whitened(self, columns: FloatArray) -> FloatArray:
        """The inverse covariance times columns, shape (n, m)."""
        weight = self._weight[:, None]
        weighted: FloatArray = columns * weight
        if self.amplitude <= 0:
            return weighted
        (diagonal, beside), _ = self._factors
        solved, _ = dpttrs(diagonal, beside, weighted)
        solved *= weight
        weighted -= solved
        return weighted

    @cached_property
    def log_determinant(self) -> float:
        """Natural log of the determinant of the covariance."""
        white = -float(np.log(self._weight).sum())
        return white + (self._factors[1] if self.amplitude > 0 else 0.0)

    @cached_property
    def _weight(self) -> FloatArray:
        return np.asarray(self.light.sigma**-2)

    @cached_property
    def _factors(self) -> tuple[tuple[FloatArray, FloatArray], float]:
        """L D L^T of Q + W, and what the red noise adds to the log determinant."""
        step = np.maximum(np.diff(self.light.t), SHORTEST) / self.tau
        with np.errstate(under="ignore"):
            kept, lost = np.exp(-step), -np.expm1(-2 * step)
        precision = self.amplitude**-2
        inner = precision * kept**2 / lost
        diagonal = self._weight + precision
        diagonal[1:] += inner
        diagonal[:-1] += inner
        beside = -precision * kept / lost if len(kept) else np.zeros(1)  # LAPACK takes none empty
        d, e, _ = dpttrf(diagonal, beside)
        process = len(d) * math.log(precision) - float(np.log(lost).sum())
        return (d, e), float(np.log(d).sum()) - process


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
        self.noises = [Noise(light, *process) for process in counted]
        self.log_share = np.log(np.array(list(counted.values())) / len(processes))
        self.log_determinant = np.array([noise.log_determinant for noise in self.noises])
        fixed = np.stack([light.residual, np.ones(len(light))], axis=1)
        self._solved = [noise.whitened(fixed) for noise in self.noises]
        self.fixed = np.stack([fixed.T @ solved for solved in self._solved])

    def __len__(self) -> int:
        return len(self.light)

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
        n, m, q = columns.shape
        flat = np.asfortranarray(columns.reshape(n, m * q))
        gram = np.empty((len(self.noises), m, q, q))
        mixed = np.empty((len(self.noises), m, q, 2))
        for j, (noise, solved) in enumerate(zip(self.noises, self._solved, strict=True)):
            times = noise.whitened(flat)
            if q == 1:
                gram[j, :, 0, 0] = np.einsum("nm,nm->m", flat, times)
            else:
                gram[j] = np.einsum("nmx,nmy->mxy", columns, times.reshape(n, m, q), optimize=True)
            mixed[j] = (flat.T @ solved).reshape(m, q, 2)
        return gram, mixed
