"""MicroWavelet, a detector by wavelets of lenses, on windows that a service has built.

It is a package of its own (`pip install microwavelet`, MIT licence) that nothing here needs: where
it is not installed no window is shown to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from broker_filter.types import FloatArray, WindowBatch

__all__ = ["Wavelet", "find_wavelet"]

STEPS: Final = 1000
"""Of its grid of time in a window: its own default, .02 d, in 20 days."""
COARSEST: Final = 0.1
"""Days of such a step at most: its shortest lens, of .02 d, needs three of them."""
FEWEST: Final = 5
"""Epochs of a band that it can use."""

Bands = Mapping[str, Mapping[str, FloatArray]]


class Wavelet:
    """Whether a window has a peak, with the detector's own settings but for the step of its grid.

    Parameters
    ----------
    analyze : callable
        ``microwavelet.analyze_lightcurve``.
    days : float
        Length of a window.
    """

    def __init__(self, analyze: Callable[..., dict[str, Any]], days: float) -> None:
        self._analyze, self._step = analyze, min(days / STEPS, COARSEST)

    def __call__(self, batch: WindowBatch, row: int) -> bool | None:
        """None where it fails, or there is too little to look at."""
        bands = _bands(batch, row)
        if not bands:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = self._analyze(bands, dt=self._step)
            except (ValueError, IndexError, ArithmeticError, np.linalg.LinAlgError):
                return None
        return any(anomaly["type"] == "peak" for anomaly in found["anomalies"])


def find_wavelet(days: float) -> Wavelet | None:
    """The detector for windows of so many days, if it is installed."""
    if find_spec("microwavelet") is None:
        return None
    return Wavelet(import_module("microwavelet").analyze_lightcurve, days)


def _bands(batch: WindowBatch, row: int) -> Bands:
    """The epochs of each band, all of its sites together, in units of their baselines."""
    n, sources = int(batch.n[row]), batch.sources[row]
    band = np.array([name for name, _ in sources])[batch.source[row, :n]]
    t = batch.mjd_tai[row, :n] - batch.t_start[row]
    columns = {"t": t, "y": batch.flux[row, :n], "y_err": batch.sigma[row, :n]}
    return {
        str(name): {key: column[band == name].astype(np.float64) for key, column in columns.items()}
        for name in np.unique(band)
        if (band == name).sum() >= FEWEST
    }
