"""Fits of real events: the peak is where a direct fit of the same epochs has it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

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


class Event(NamedTuple):
    """Files, where to look, and tE of the fit and of least squares as model_zoo/README.md has them.

    Times are in days, t0 in MJD TAI; t0, tE and rho are rough, for least squares to start from.
    """

    files: str
    t0: float
    half: float
    tE: float  # noqa: N815
    rho: float
    n_epochs: int
    by_fit: float
    by_least_squares: float


EVENTS = {
    "KMT-2019-BLG-2073": Event(
        *("kmt_2019_blg_2073/*.pysis", 58708.098, 10.0, 0.27, 0.9), 1355, 0.320, 0.299
    ),
    "OGLE-2005-BLG-390": Event(
        *("mulensmodel/OB05390/OGLE_I.dat", 53582.2, 60.0, 11.0, 0.03), 64, 11.39, 11.19
    ),
    "MOA-2008-BLG-310": Event(
        *("mulensmodel/MB08310/MOA_0300089_PLC_007.tbl", 54655.9, 40.0, 11.1, 0.005),
        *(366, 10.09, 10.09),
    ),
}


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


def direct(epochs: StarEpochs, event: Event) -> tuple[float, float]:
    """t0 and tE by least squares, the best of several starts."""
    n = len(epochs.sources)

    def residuals(x: Floats) -> Floats:
        share, g = x[4 : 4 + n], x[4 + n :]
        e = excess(np.hypot(x[1], (epochs.mjd_tai - x[0]) / 10 ** x[2]), 10 ** x[3])
        model = g[epochs.source] * (1 + share[epochs.source] * e)
        return np.append((epochs.flux - model) / epochs.sigma, (g - 1) / epochs.error)

    t0, log10_tE, log10_rho = event.t0, math.log10(event.tE), math.log10(event.rho)
    low = [t0 - 1, 0.0, -1.3, -3.0, *[0.005] * n, *[0.5] * n]
    high = [t0 + 1, 1.5, 1.78, 1.0, *[1.0] * n, *[1.5] * n]
    scale = [0.01 * event.tE, 0.1, 0.1, 0.3, *[0.1] * n, *[0.01] * n]
    tried = (
        least_squares(
            residuals,
            [t0, u0, log10_tE, log10_rho - less, *[0.5] * n, *[1.0] * n],
            bounds=(low, high),
            x_scale=scale,
        )
        for u0 in (0.01, 0.05, 0.3)
        for less in (0.0, 0.5)
    )
    best = min(tried, key=lambda one: float(one.cost)).x
    return float(best[0]), float(10 ** best[2])


@pytest.mark.parametrize("star", EVENTS)
def test_peak_and_duration_are_those_of_least_squares(star: str, shared_data: Path) -> None:
    event = EVENTS[star]
    files = sorted((shared_data / "photometry").glob(event.files))
    parts = [part for file in files for part in read_lightcurve(file, star=star).parts]
    epochs = epochs_of(parts, event.t0, event.tE, event.half)
    ends = (2 * event.half + 5, 1.5, 1.78, 1, 1)
    prior = BoxPrior("test", (-2.0, 0.0, -1.3, -3.0, 0.005), ends, log_f_s=True)
    start = event.t0 - event.half
    fit = Fitter(prior)(epochs, start, torch.empty(0, 5), 1)
    assert isinstance(fit, Fit)
    assert fit.converged
    assert len(epochs.mjd_tai) == event.n_epochs
    t0, tE = direct(epochs, event)
    after, log10_tE = np.asarray(fit.samples, np.float64)[:, [0, 2]].T
    assert start + float(np.median(after)) == pytest.approx(t0, abs=float(after.std()))
    assert 10 ** float(np.median(log10_tE)) == pytest.approx(event.by_fit, rel=0.02)
    assert tE == pytest.approx(event.by_least_squares, rel=0.005)
