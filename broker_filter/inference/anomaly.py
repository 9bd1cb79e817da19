"""A lens that leaves out a stretch of its light curve, as planets and binary lenses need it.

The epochs of the stretch are described by light that varies smoothly in any way, on top of the
lens, and the choice of the stretch is paid for. So such a lens is no better than a smooth variable
unless the rest of the light curve is that of a lens. The rivals may leave out the same stretch, at
the same price: the rest of a dwarf nova's light curve is that of an outburst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.noise_family import SourceLight
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.rival_amplitude import source_best
from broker_filter.inference.rival_grids import Found, smooth
from broker_filter.inference.rival_noise import NoisePrior, SourceNoise
from broker_filter.inference.rival_shapes import CURVED, CurvedShape, Span
from broker_filter.inference.rivals import Comparison, LensFound, curved, lens_marginal
from broker_filter.inference.robust import source_lights
from broker_filter.types import Fit, FloatArray, NotFitted, StarEpochs

__all__ = ["anomalous", "worst_stretch"]

TURNS: Final = 2
LONGEST: Final = 0.3
"""Of the time for which the lens lifts the light by a tenth of its peak."""
EXPECTED, MOST = 4.0, 100.0
"""Squares of residuals, in errors: below the first an epoch need not be left out; above the second
it counts no more."""
FEWEST: Final = 6
AFTER: Final = 3
"""Epochs that have to follow a stretch, to show that the light goes on as the lens has it."""

Refit = Callable[[StarEpochs], Fit | NotFitted]
Mask = NDArray[np.bool_]


def anomalous(
    epochs: StarEpochs,
    t_start: float,
    prior: BoxPrior,
    compared: Comparison,
    refit: Refit,
    noise: NoisePrior,
    seed: int,
) -> dict[str, Found]:
    """The lens ("anomalous") and the best of its rivals, each with the same stretch left out.

    Parameters
    ----------
    epochs : StarEpochs
        Usable ones.
    t_start : float, MJD TAI
        Zero of t0.
    prior : BoxPrior
    compared : Comparison
        Of all epochs.
    refit : callable
        Fits a lens to some epochs.
    noise : NoisePrior
    seed : int

    Returns
    -------
    dict of str to Found
        Empty where there is no such stretch; of the lens alone where it is no better than what
        describes all epochs.
    """
    whole = Likelihood(epochs, t_start, prior)
    order = epochs.by_source
    scale = max(compared.least_scale, 1.0)
    lens, best = compared.lens, None
    out: Mask | None = None
    for turn in range(TURNS):
        stretch = _stretch(whole, _curve(whole, lens), scale)
        if stretch is None or (out is not None and np.array_equal(stretch, out)):
            break
        out = stretch
        kept = epochs.take(np.sort(order[~out]))
        if len(np.unique(kept.source)) < len(epochs.sources) or len(kept) < FEWEST:
            break
        fit = refit(kept)
        if not isinstance(fit, Fit) or fit.lenses is None:
            break
        rest = Likelihood(kept, t_start, prior)
        draw = np.random.default_rng(seed + turn)
        noises = [SourceNoise(light, noise) for light in source_lights(rest)]
        lens = lens_marginal(rest, fit.lenses, noises, draw)
        part = _Part(whole, out, noises, noise)
        found = part.joined(lens.found, _curve(whole, lens))
        if best is None or found.log_p > best[0].log_p:
            best = found, part
    if best is None:
        return {}
    found, part = best
    if found.log_p <= compared.best_rival:
        return {"anomalous": found}
    name, rival = _best_rival(part, np.random.default_rng(seed))
    return {"anomalous": found, name: rival}


def _best_rival(part: _Part, draw: np.random.Generator) -> tuple[str, Found]:
    """The rival that describes the rest best, with the same stretch left out."""
    t = part.whole.days.numpy()
    span = Span(float(t.min()), float(t.max()))
    found = {shape: curved(shape, part.noises, span, draw) for shape in CURVED}
    shape = max(found, key=lambda one: found[one].log_p)
    return shape.name, part.joined(found[shape], part.curve_of(shape, found[shape]))


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
    """Epochs of the stretch that a curve misses most; None where it misses none, or the last ones.

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
    return out if end <= len(t) - AFTER else None


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A light curve with a stretch left out, shape (n,), and the noise of the rest by source."""

    whole: Likelihood
    out: Mask
    noises: Sequence[SourceNoise]
    prior: NoisePrior

    def joined(self, rest: Found, curve: FloatArray) -> Found:
        """A model of the rest, whose curve this is, with smooth light on top in the stretch."""
        t, sigma = self.whole.days.numpy(), self.whole.weight.rsqrt().numpy()
        source, off = self.whole.source.numpy(), self.whole.residual.numpy() - curve
        lights = [
            SourceLight(t[mine], off[mine], sigma[mine], 1e-6)
            for mine in (self.out & (source == i) for i in range(self.whole.sources))
            if mine.any()
        ]
        inside = smooth(lights, replace(self.prior, drift=0.0))  # baselines are of the model
        curve = curve.copy()
        curve[self.out] += inside.curve
        choices = math.log(len(t)) + math.log(max(int(self.out.sum()), 2))
        where = {"first": float(t[self.out].min()), "last": float(t[self.out].max())}
        log_p = rest.log_p + inside.log_p - choices
        return Found(log_p, rest.error, {**rest.parameters, **where}, curve, rest.scale)

    def curve_of(self, shape: CurvedShape, rest: Found) -> FloatArray:
        """The curve of a shape at all epochs, from its best parameters for the rest."""
        theta = np.array([[rest.parameters[name] for name in shape.parameters]])
        source, t = self.whole.source.numpy(), self.whole.days.numpy()
        columns = shape.shape(t, theta)[:, 0]
        curve = np.zeros(len(t))
        for i, noise in enumerate(self.noises):
            mine = source == i
            best = source_best(noise, columns[mine & ~self.out], shape.amplitude)
            curve[mine] = best.offset + columns[mine] @ best.amplitude
        return curve
