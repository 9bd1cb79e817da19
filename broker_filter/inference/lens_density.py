"""Density of the data of a lensed star, averaged over a prior on the noise of each source."""

from __future__ import annotations

from typing import Final

import numpy as np

from broker_filter.inference.lens_loops import log_densities
from broker_filter.inference.noise_family import NoiseFamily, SourceLight
from broker_filter.types import FloatArray

__all__ = ["LensDensity"]

MIXED_SCALES: Final = 16
"""Scales in the lens's prior: a tenth of a nat is lost between two of them at 1,000 epochs."""
WHITE, LIKELY = 0.2, 0.6
"""Weights of white noise and of the red noise that a star's nights had, where these are known."""
LEAST: Final = 0.05
"""Of the bound, which a likely amplitude has at least."""
STEPS: Final = 5
"""Of a prior that is uniform in log f_s."""


class LensDensity:
    """ln q(fluxes of one source | the curve of a lens), averaged over a prior on the noise.

    Flux is ``g + f_s (A - 1)`` with a Gaussian baseline g and a share f_s of the light that is
    lensed, both integrated in closed form, plus noise. A few amplitudes, times and scales stand for
    all noise of the family. The likely scale has half of the weight. So has white noise, unless the
    star's nights have been seen: then most of the weight is at the red noise that they had. Any
    such density keeps the bound on E; one that is near the truth makes it large.

    Parameters
    ----------
    light : SourceLight
    family : NoiseFamily
    f_s : (float, float)
        Bounds of the prior of f_s.
    log_f_s : bool
        Whether it is uniform in log f_s (then by steps) and not in f_s.
    """

    def __init__(
        self,
        light: SourceLight,
        family: NoiseFamily,
        f_s: tuple[float, float] = (0.0, 1.0),
        *,
        log_f_s: bool = False,
    ) -> None:
        self._edges = np.geomspace(*f_s, STEPS + 1) if log_f_s else np.array(f_s)
        self._scale, scale_share = _mixed_scales(family)
        amplitude, tau, share = _mixed(family)
        self._log_share = np.log(scale_share[:, None] * share)
        self._noise = light.noise(amplitude, tau)
        self._fixed = np.stack([light.residual, np.ones(len(light))], axis=1)
        self._solved = self._noise.times(self._fixed)
        self._variance = light.baseline_error**2
        self._known: tuple[FloatArray, FloatArray, FloatArray] | None = None

    def __call__(
        self, signal: FloatArray, night: tuple[int, int, float] | None = None
    ) -> FloatArray:
        """Natural log of q, without the factor (2 pi)^(-n/2).

        Parameters
        ----------
        signal : ndarray, shape (n, m), float64
            A - 1 at the epochs for m curves.
        night : (int, int, float), optional
            First and last epoch of a night that is off as a whole, and the standard deviation of
            its offset.

        Returns
        -------
        ndarray, shape (m,), float64
        """
        squares, mixed = self._products(signal)
        few, variances = self._fixed.T @ self._solved, [self._variance]
        if night is not None:
            first, last, error = night
            own = np.zeros((len(signal), 1))
            own[first : last + 1] = 1
            solved = self._noise.times(own)[..., 0]
            column = solved @ np.concatenate([self._fixed, own], axis=1)
            few = np.block([[few, column[:, :2, None]], [column[:, None]]])
            mixed = np.concatenate([mixed, (solved @ signal)[:, None]], axis=1)
            variances.append(error**2)
        log_p = self._log_share - len(signal) * np.log(self._scale)[:, None]
        log_p -= 0.5 * self._noise.log_determinant
        found: FloatArray = log_densities(
            *(few, squares, mixed, log_p, np.square(self._scale), np.array(variances)),
            self._edges,
        )
        return found

    def _products(self, signal: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of the curves with themselves, shape (J, m), and with residuals and ones, (J, 2, m).

        Those of the last curves are kept, as they are wanted with a night and without.
        """
        if self._known is None or self._known[0] is not signal:
            squares, mixed = self._noise.products_in_groups(self._solved, signal[..., None])
            squares = np.ascontiguousarray(squares[:, :, 0, 0])
            self._known = signal, squares, np.ascontiguousarray(mixed[:, :, 0].transpose(0, 2, 1))
        return self._known[1:]


def _mixed_scales(family: NoiseFamily) -> tuple[FloatArray, FloatArray]:
    """Factors on the errors in the lens's prior on the noise, and the weight of each."""
    low, high = family.scale
    likely = min(max(family.likely_scale, low), high)
    scale = np.append(np.geomspace(low, high, MIXED_SCALES), likely)
    return scale, np.append(np.full(MIXED_SCALES, 0.5 / MIXED_SCALES), 0.5)


def _mixed(family: NoiseFamily) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Amplitudes and times of the lens's prior on the noise, and the weight of each."""
    low, high = family.tau_days
    times = np.geomspace(max(low, 0.1), min(high, 10.0), 3)
    bound, likely = family.red_noise, family.likely_red_noise
    if bound <= 0:
        return np.zeros(1), times[:1], np.ones(1)
    white, own = (0.5, 0.0) if likely is None else (WHITE, LIKELY)
    levels = [(share * bound, (1 - white - own) / 3) for share in (1 / 3, 2 / 3, 1.0)]
    if likely is not None:
        levels.append((min(max(likely, LEAST * bound), bound), own))
    noises = [(0.0, times[0], white)]
    noises += [(level, tau, share / len(times)) for level, share in levels for tau in times]
    amplitude, tau, share = np.array(noises).T
    return amplitude, tau, share
