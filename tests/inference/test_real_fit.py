"""Fits of real events: the peak is where a direct fit of the same epochs has it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from broker_filter.inference.fit import Fitter
from broker_filter.inference.magnification import excess
from broker_filter.inference.prior import BoxPrior
from broker_filter.replay.lightcurves.file import read_lightcurve
from broker_filter.types import Fit, Photometry, StarEpochs

Floats = NDArray[np.float64]

EVENTS = {
    "KMT-2019-BLG-2073": ("kmt_2019_blg_2073/*.pysis", 58708.098, 10.0, 0.27, 0.9),
    "MOA-2008-BLG-310": ("mulensmodel/MB08310/MOA_0300089_PLC_007.tbl", 54655.9, 40.0, 11.1, 0.005),
}
"""Files, about when the peak was, half of the window, and about what tE and rho are."""


def of_source(part: Photometry, t0: float, tE: float, half: float) -> tuple[Floats, float] | None:
    """Time, flux and error in baselines near the event, and the baseline's error."""
    t, flux, sigma = (np.asarray(c, float) for c in (part.mjd_tai, part.flux, part.flux_err))
    good = np.isfinite(flux) & (sigma > 0)
    t, flux, sigma = t[good], flux[good], sigma[good]
    quiet, near = np.abs(t - t0) > 4 * tE + 1, np.abs(t - t0) < half
    if quiet.sum() < 20 or near.sum() < 5:
        return None
    level = np.median(flux[quiet])
    off = (flux[quiet] - level) / sigma[quiet]
    scale = 1.4826 * np.median(np.abs(off - np.median(off)))
    error = 1.25 * np.std(flux[quiet]) / level / math.sqrt(quiet.sum())
    columns = np.stack([t, flux / level, scale * sigma / level])[:, near]
    return columns, max(float(error), 1e-3)


def epochs_of(parts: list[Photometry], t0: float, tE: float, half: float) -> StarEpochs:
    found = [one for part in parts if (one := of_source(part, t0, tE, half)) is not None]
    source = np.concatenate([np.full(c.shape[1], i) for i, (c, _) in enumerate(found)])
    t, flux, sigma = np.concatenate([c for c, _ in found], axis=1)
    order = np.argsort(t, kind="stable")
    return StarEpochs(
        tuple(("I", str(i)) for i in range(len(found))),
        np.ones(len(found)),
        np.array([error for _, error in found]),
        t[order],
        flux[order].astype(np.float32),
        sigma[order].astype(np.float32),
        source[order].astype(np.int16),
    )


def direct_t0(epochs: StarEpochs, t0: float, tE: float, rho: float) -> float:
    n = len(epochs.sources)

    def residuals(x: Floats) -> Floats:
        share, g = x[4 : 4 + n], x[4 + n :]
        e = excess(np.hypot(x[1], (epochs.mjd_tai - x[0]) / 10 ** x[2]), 10 ** x[3])
        model = g[epochs.source] * (1 + share[epochs.source] * e)
        return np.append((epochs.flux - model) / epochs.sigma, (g - 1) / epochs.error)

    low = [t0 - 1, 0.0, -1.3, -3.0, *[0.005] * n, *[0.5] * n]
    high = [t0 + 1, 1.5, 1.78, 1.0, *[1.0] * n, *[1.5] * n]
    start = [t0, 0.05, math.log10(tE), math.log10(rho), *[0.5] * n, *[1.0] * n]
    scale = [0.01 * tE, 0.1, 0.1, 0.3, *[0.1] * n, *[0.01] * n]
    return float(least_squares(residuals, start, bounds=(low, high), x_scale=scale).x[0])


@pytest.mark.parametrize("star", EVENTS)
def test_the_peak_is_that_of_a_direct_fit(star: str, shared_data: Path) -> None:
    pattern, t0, half, tE, rho = EVENTS[star]
    files = sorted((shared_data / "photometry").glob(pattern))
    parts = [part for file in files for part in read_lightcurve(file, star=star).parts]
    epochs = epochs_of(parts, t0, tE, half)
    prior = BoxPrior(
        "test", (-2.0, 0.0, -1.3, -3.0, 0.005), (2 * half + 5, 1.5, 1.78, 1, 1), log_f_s=True
    )
    fit = Fitter(prior)(epochs, t0 - half, torch.empty(0, 5), 1)
    assert isinstance(fit, Fit)
    assert fit.converged
    middle = t0 - half + float(np.median(fit.samples[:, 0]))
    assert middle == pytest.approx(direct_t0(epochs, t0, tE, rho), abs=0.02)
