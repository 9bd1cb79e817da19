"""Epochs and nights of a lensed star that may be the wrong ones.

A lens has them as a constant star has: its density is a sum over all sets of wrong epochs and
nights, by their prior. Most terms are next to nothing, and any choice of terms makes the sum
smaller, never larger. So the data may choose them: the sets that matter are those that a good lens
leaves over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broker_filter.inference.noise_family import (
    GROSS_EPOCH,
    GROSS_NIGHT,
    NoiseFamily,
    SourceLight,
)
from broker_filter.types import FloatArray

__all__ = ["WrongSet", "far_off", "left_over"]

SIZES: Final = 4
"""Sizes that an offset has in the prior: each ten times the one before."""
NONE_WRONG: Final = 0.9
"""Prior probability that no epoch of a source is wrong; one, and two, have half of the rest. That
of no wrong night is the same."""
OUTLIER: Final = 7.0
"""Errors that an epoch is off at least to count as wrong: fewer save nothing."""
OFF_NIGHT: Final = 3.0
"""The same of a night's mean, in median errors of an epoch."""


@dataclass(frozen=True, slots=True)
class WrongSet:
    """Some epochs of a source, and a night, that are wrong.

    Parameters
    ----------
    epochs : tuple of (int, float)
        Each with the standard deviation of its offset, in the unit of flux.
    night : (int, int, float), optional
        First and last epoch, and the same.
    """

    epochs: tuple[tuple[int, float], ...] = ()
    night: tuple[int, int, float] | None = None

    def log_prior(self, light: SourceLight) -> float:
        """Natural log of the prior probability of this set and these sizes."""
        many = len(self.epochs)
        share = (1 - NONE_WRONG) / 2 if many else NONE_WRONG
        share /= math.comb(len(light), many) * SIZES**many
        night = NONE_WRONG if self.night is None else (1 - NONE_WRONG) / len(light.nights) / SIZES
        return math.log(share * night)

    def applied(self, light: SourceLight) -> SourceLight:
        """The source with errors that hold the offsets of the epochs."""
        sigma = light.sigma.copy()
        for epoch, size in self.epochs:
            sigma[epoch] = np.hypot(sigma[epoch], size)
        return replace(light, sigma=sigma)


def far_off(light: SourceLight, off: FloatArray, epochs: Iterable[int]) -> WrongSet:
    """Those of some epochs that are so far off that it saves something to count them as wrong.

    Parameters
    ----------
    light : SourceLight
    off : ndarray, shape (n,), float64
        What is left of the fluxes, in their unit.
    epochs : iterable of int
    """
    least = GROSS_EPOCH * light.median_error
    return WrongSet(
        tuple((i, _size(off[i], least)) for i in epochs if abs(off[i]) > OUTLIER * light.sigma[i])
    )


def left_over(
    light: SourceLight, family: NoiseFamily, signal: FloatArray, known: WrongSet
) -> WrongSet:
    """What one lens leaves over.

    Parameters
    ----------
    light : SourceLight
    family : NoiseFamily
        Says how many epochs and nights may be wrong.
    signal : ndarray, shape (n,), float64
        A - 1.
    known : WrongSet
        Does not count where the share of lensed light and the baseline are fitted.
    """
    weight = light.sigma**-2.0
    weight[[epoch for epoch, _ in known.epochs]] = 0
    if known.night is not None:
        weight[known.night[0] : known.night[1] + 1] = 0
    columns = np.stack([signal, np.ones(len(light))])
    normal = columns * weight @ columns.T + np.diag([1.0, light.baseline_error**-2.0])
    off = light.residual - np.linalg.solve(normal, columns @ (weight * light.residual)) @ columns
    worst = np.argsort(-np.abs(off / light.sigma), kind="stable")[: family.wrong_epochs]
    wrong = far_off(light, off, sorted(worst.tolist()))
    return replace(wrong, night=_night(light, off, wrong) if family.wrong_nights else None)


def _night(light: SourceLight, off: FloatArray, wrong: WrongSet) -> tuple[int, int, float] | None:
    """The night whose mean is furthest off, if it is far."""
    good = np.ones(len(light), np.bool_)
    good[[epoch for epoch, _ in wrong.epochs]] = False
    nights = [night for night in light.nights if good[night].any()]
    if not nights:
        return None
    means = [float(off[night][good[night]].mean()) for night in nights]
    which = int(np.abs(means).argmax())
    if abs(means[which]) < OFF_NIGHT * light.median_error:
        return None
    size = _size(means[which], GROSS_NIGHT * light.median_error)
    return int(nights[which][0]), int(nights[which][-1]), size


def _size(off: float, least: float) -> float:
    """The size, of those in the prior, that is nearest to an offset."""
    step = round(math.log10(max(abs(off) / least, 1.0)))
    return least * 10.0 ** min(step, SIZES - 1)
