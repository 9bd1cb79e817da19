"""A lens that leaves out a stretch of its light curve, as planets and binary lenses need it.

The epochs of the stretch are described by light that varies smoothly in any way, on top of the
lens, and the choice of the stretch is paid for. So such a lens is no better than a smooth variable
unless the rest of the light curve is that of a lens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.rival_grids import Found, smooth
from broker_filter.inference.rival_noise import NoisePrior, SourceNoise
from broker_filter.inference.rivals import LensFound, lens_marginal
from broker_filter.inference.robust import source_lights
from broker_filter.types import Fit, FloatArray, NotFitted, StarEpochs

__all__ = ["anomalous_lens", "worst_stretch"]

TURNS: Final = 2
LONGEST: Final = 0.3
"""Of the time for which the lens lifts the light by a tenth of its peak."""
EXPECTED, MOST = 4.0, 100.0
"""Squares of residuals, in errors: below the first an epoch need not be left out; above the second
it counts no more."""
FEWEST: Final = 6

Refit = Callable[[StarEpochs], Fit | NotFitted]
Mask = NDArray[np.bool_]


def anomalous_lens(
    epochs: StarEpochs,
    t_start: float,
    prior: BoxPrior,
    lens: LensFound,
    scale: float,
    refit: Refit,
    noise: NoisePrior,
    seed: int,
) -> Found | None:
    """The marginal likelihood of a lens with a stretch left out; None where there is none.

    Parameters
    ----------
    epochs : StarEpochs
        Usable ones.
    t_start : float, MJD TAI
        Zero of t0.
    prior : BoxPrior
    lens : LensFound
        Of all epochs.
    scale : float
        Factor on the errors that the best rival needs.
    refit : callable
        Fits a lens to some epochs.
    noise : NoisePrior
    seed : int
    """
    whole = Likelihood(epochs, t_start, prior)
    order = np.argsort(epochs.source, kind="stable")
    found: Found | None = None
    out: Mask | None = None
    for turn in range(TURNS):
        curve = _curve(whole, lens)
        stretch = _stretch(whole, curve, scale)
        if stretch is None or (out is not None and np.array_equal(stretch, out)):
            break
        out = stretch
        kept = _take(epochs, np.sort(order[~out]))
        if len(np.unique(kept.source)) < len(epochs.sources) or len(kept) < FEWEST:
            break
        fit = refit(kept)
        if not isinstance(fit, Fit) or fit.lenses is None:
            break
        rest = Likelihood(kept, t_start, prior)
        draw = np.random.default_rng(seed + turn)
        noises = [SourceNoise(light, noise) for light in source_lights(rest)]
        lens = lens_marginal(rest, fit.lenses, noises, draw)
        new = _joined(whole, lens, out, noise)
        found = new if found is None or new.log_p > found.log_p else found
    return found


def _take(epochs: StarEpochs, rows: NDArray[np.int64]) -> StarEpochs:
    return replace(
        epochs,
        mjd_tai=epochs.mjd_tai[rows],
        flux=epochs.flux[rows],
        sigma=epochs.sigma[rows],
        source=epochs.source[rows],
    )


def _curve(likelihood: Likelihood, lens: LensFound) -> FloatArray:
    """Flux less 1 of a lens at all epochs, source by source."""
    excess = likelihood.excess(torch.from_numpy(lens.theta)[None]).numpy()[0]
    source = likelihood.source.numpy()
    return np.asarray(lens.offset[source] + lens.f_s[source] * excess)


def _stretch(likelihood: Likelihood, curve: FloatArray, scale: float) -> Mask | None:
    t = likelihood.days.numpy()
    off = (likelihood.residual.numpy() - curve) * likelihood.weight.sqrt().numpy()
    lifted = t[curve > 0.1 * curve.max()]
    if not len(lifted):
        return None
    return worst_stretch(t, off / scale, LONGEST * float(lifted.max() - lifted.min()))


def worst_stretch(t: FloatArray, off: FloatArray, longest: float) -> Mask | None:
    """Epochs of the stretch that a curve misses most; None where it misses none.

    Parameters
    ----------
    t, off : ndarray, shape (n,), float64
        Days, and residuals in errors.
    longest : float, days

    Returns
    -------
    ndarray, shape (n,), bool
    """
    order = np.argsort(t, kind="stable")
    gain = np.minimum(off[order] ** 2, MOST) - EXPECTED
    total = np.concatenate([[0.0], np.cumsum(gain)])
    last = np.searchsorted(t[order], t[order] + longest, side="right")
    best, first, end = 0.0, 0, 0
    for i, j in enumerate(last.tolist()):
        k = i + 1 + int(total[i + 1 : j + 1].argmax())
        if total[k] - total[i] > best:
            best, first, end = float(total[k] - total[i]), i, k
    if not best:
        return None
    out = np.zeros(len(t), bool)
    out[order[first:end]] = True
    return out


def _joined(likelihood: Likelihood, lens: LensFound, out: Mask, noise: NoisePrior) -> Found:
    """The lens of the rest, and smooth light on top of it in the stretch."""
    t, sigma = likelihood.days.numpy(), likelihood.weight.rsqrt().numpy()
    source, curve = likelihood.source.numpy(), _curve(likelihood, lens)
    off = likelihood.residual.numpy() - curve
    lights = [
        SourceLight(t[mine], off[mine], sigma[mine], 1e-6)
        for mine in (out & (source == i) for i in range(likelihood.sources))
        if mine.any()
    ]
    inside = smooth(lights, replace(noise, drift=0.0))  # the lens has its baselines already
    curve = curve.copy()
    curve[out] += inside.curve
    n = len(t)
    choices = math.log(n) + math.log(max(int(out.sum()), 2))
    parameters = {"first": float(t[out].min()), "last": float(t[out].max())}
    return Found(
        lens.found.log_p + inside.log_p - choices,
        lens.found.error,
        parameters,
        curve,
        lens.found.scale,
    )
