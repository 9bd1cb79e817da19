"""The hard cuts of the literature on windows that a service has built."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.zoo import Entry
from broker_filter.types import WindowBatch
from model_zoo.evaluate.measure.cuts import CUTS, noise_statistics
from model_zoo.simulate.curves import Curves

__all__ = ["WindowCuts"]

BANK: Final = 256
"""Lenses that are tried on each window."""
SEED: Final = 20_261_129


class WindowCuts:
    """Which cuts a window passes, where the best of a bank of lenses counts.

    Parameters
    ----------
    entry : Entry
        From whose prior the lenses are.
    """

    def __init__(self, entry: Entry) -> None:
        self._days = entry.window_days
        prior = BoxPrior.from_config(entry.config["prior"])
        self._bank = prior.sample(BANK, torch.Generator().manual_seed(SEED))

    def __call__(self, batch: WindowBatch, row: int) -> tuple[str, ...]:
        """Names of the cuts that a window passes."""
        n = int(batch.n[row])
        t = (batch.mjd_tai[row, :n] - batch.t_start[row]) / (self._days / 2) - 1
        columns = np.stack([t, batch.flux[row, :n], batch.sigma[row, :n]], axis=1)
        nothing = torch.zeros(1)
        curve = Curves(
            torch.from_numpy(columns).float()[None],
            torch.from_numpy(batch.baseline_error[row : row + 1]).float(),
            torch.full((1, 5), torch.nan),
            nothing,
            torch.full((1, 3), torch.nan),
        )
        measured = noise_statistics(curve, self._bank, days=self._days)
        return tuple(name for name, cut in CUTS.items() if bool(cut.passes(measured)[0]))
