"""How exact a fit is, and how well its best curve meets the epochs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from broker_filter.inference.evidence import LN_10
from broker_filter.inference.lens_coordinates import LENS
from broker_filter.inference.likelihood import BestCurve, Likelihood
from broker_filter.types import SourceFit, StarEpochs

__all__ = ["autocorrelation", "chi2_tail", "error_dex", "free_parameters", "source_fits"]

FEW_SAMPLES = 20
"""Effective samples from which on their scatter gives the error of the estimate of K."""


def error_dex(effective_n: float, n: int) -> float:
    """Standard error of the mean of n weights, from their effective number, in dex.

    The scatter of few effective samples does not show what they missed. With fewer than
    `FEW_SAMPLES` the error is at least log10 of the factor by which an unbiased estimate is too
    high with a probability of at most 1 in `FEW_SAMPLES` (Markov).
    """
    error = math.sqrt(max(1 / effective_n - 1 / n, 0.0)) / LN_10
    return error if effective_n >= FEW_SAMPLES else max(error, math.log10(FEW_SAMPLES))


def free_parameters(likelihood: Likelihood) -> int:
    """Number of free parameters: the lens's four, an f_s a source, and part of each baseline.

    A baseline counts by how much its epochs decide it rather than its stated error.
    """
    weight = likelihood.own_weights.sum(0) * likelihood.variance
    return LENS + likelihood.sources + round(float((weight / (1 + weight)).sum()))


def source_fits(
    likelihood: Likelihood, epochs: StarEpochs, curve: BestCurve
) -> tuple[SourceFit, ...]:
    """How the best curve meets the epochs of each source."""
    own = torch.nn.functional.one_hot(likelihood.source, likelihood.sources).double()
    chi2 = curve.residual.square() @ own
    columns = zip(epochs.sources, own.sum(0), curve.f_s, curve.baseline, chi2, strict=True)
    return tuple(
        SourceFit(band, name, int(n), float(f_s), float(g), float(c))
        for (band, name), n, f_s, g, c in columns
    )


def chi2_tail(chi2: float, freedom: int) -> float:
    """Probability of a larger chi2 with so many degrees of freedom."""
    half = torch.tensor([freedom / 2, chi2 / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def autocorrelation(residual: Tensor, source: Tensor) -> float:
    """Autocorrelation of neighbouring residuals of the same source; both have shape (L,)."""
    pairs = (residual[1:] * residual[:-1])[source[1:] == source[:-1]]
    square = float(residual.square().mean())
    return float(pairs.mean()) / square if len(pairs) and square > 0 else 0.0
