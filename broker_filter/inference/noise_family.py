"""K against a whole family of constant stars, so that it holds on noise that is not white.

For any density q(x) fixed before the data, E = q(x) / sup over the family of p(x | noise) has an
expectation of at most 1 under every member, since the supremum is at least p(x | the true one). So
P(E >= k) <= 1/k for every star of the family by Markov's inequality (universal inference:
Wasserman, Ramdas & Balakrishnan 2020, PNAS 117, 16880). Here q is a lens, averaged over a prior on
the noise, and a member of the family is a constant star of which

- the errors are too small or too large by a factor k within bounds,
- red noise lies on top, of amplitude a up to a bound and any correlation time within bounds,
- the baseline is wrong by a Gaussian error of known size,
- up to two epochs, and one night as a whole, are wrong by as much as they like: by a Gaussian
  offset of any size that is gross. (Small ones are noise that scale and red noise describe. Were
  they free as well, the largest of a thousand good epochs would be excused as wrong.)

Each source (site, camera) of a star has its own noise, so both parts are sums over sources. Where
a window joins bands, each band of a camera is a source, and they share the camera's wrong epochs
(`broker_filter.inference.robust`). The unit of flux is the baseline throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from broker_filter.inference.red_noise import Models, RedNoise
from broker_filter.types import FloatArray, IntArray

__all__ = ["GROSS_EPOCH", "GROSS_NIGHT", "NoiseFamily", "SourceLight"]

NIGHT_GAP: Final = 0.3
"""Days without an epoch that part two nights."""

LONGEST_NIGHT: Final = 1.0
"""Days; what is observed for longer without such a gap is no night that could be wrong as one."""

GROSS_EPOCH, GROSS_NIGHT = 30.0, 3.0
"""Least standard deviation of the offset of a wrong epoch, and of a wrong night, in median errors
of the source."""


@dataclass(frozen=True, slots=True)
class NoiseFamily:
    """Which noise a constant star may have.

    Parameters
    ----------
    scale : (float, float)
        Bounds of the factor k on the errors.
    red_noise : float
        Largest amplitude a of red noise, in units of the median error of a source.
    tau_days : (float, float)
        Bounds of its correlation time.
    wrong_epochs, wrong_nights : int
        At most 2 and 1.
    likely_scale : float
        Factor on the errors to which the lens's prior on the noise gives half of its weight.
    likely_red_noise : float, optional
        Amplitude of the red noise to which that prior gives most of its weight: what the star's
        nights had so far.
    nights : int
        Of the star's history behind these bounds.
    """

    scale: tuple[float, float] = (0.7, 1.5)
    red_noise: float = 1.0
    tau_days: tuple[float, float] = (0.05, 40.0)
    wrong_epochs: int = 2
    wrong_nights: int = 1
    likely_scale: float = 1.0
    likely_red_noise: float | None = None
    nights: int = 0


@dataclass(frozen=True)
class SourceLight:
    """Epochs of one source, in units of its baseline.

    Parameters
    ----------
    t : ndarray, shape (n,), float64, days
        In order of time.
    residual, sigma : ndarray, shape (n,), float64
        Flux - 1, and its quoted error.
    baseline_error : float
        1-sigma.
    unit : float, optional
        Median error of the epochs that these are a part of.
    """

    t: FloatArray
    residual: FloatArray
    sigma: FloatArray
    baseline_error: float
    unit: float | None = None

    def __len__(self) -> int:
        return len(self.t)

    @cached_property
    def median_error(self) -> float:
        """Unit of the red noise's amplitude."""
        return float(np.median(self.sigma)) if self.unit is None else self.unit

    @cached_property
    def nights(self) -> list[IntArray]:
        """Epochs of each night; those of two epochs at least."""
        gaps = np.flatnonzero(np.diff(self.t) > NIGHT_GAP) + 1
        nights = np.split(np.arange(len(self)), gaps)
        lasts = [float(self.t[night[-1]] - self.t[night[0]]) for night in nights]
        return [
            night
            for night, length in zip(nights, lasts, strict=True)
            if len(night) > 1 and length <= LONGEST_NIGHT
        ]

    def since(self, start: float) -> SourceLight:
        """The epochs from a time on, days; the unit of the noise stays what it is."""
        late = self.t >= start
        columns = self.t[late], self.residual[late], self.sigma[late]
        return SourceLight(*columns, self.baseline_error, self.median_error)

    def noise(self, amplitude: FloatArray, tau: FloatArray) -> RedNoise:
        """Models of scale 1 and amplitudes in units of the median error."""
        models = Models(np.ones(len(tau)), amplitude * self.median_error, tau)
        return RedNoise(self.t, self.sigma, models)
