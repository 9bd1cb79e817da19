"""Which epochs of a star a fit takes, and how well it takes their baselines to be known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from broker_filter.photometry.usable import plausible
from broker_filter.types import StarEpochs

__all__ = ["NO_BASELINE", "usable_epochs", "usable_rows"]

NO_BASELINE = 1.0
"""Relative error of a baseline of which nothing is known."""


def usable_rows(epochs: StarEpochs) -> NDArray[np.bool_]:
    """Which epochs have a time, plausible flux and error, and a baseline; shape (n,), bool."""
    flux, sigma = epochs.flux.astype(np.float64), epochs.sigma.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        known = np.isfinite(epochs.error) & (epochs.error >= 0)
        good = np.isfinite(epochs.mjd_tai) & known[epochs.source] & (sigma > 0)
    return np.asarray(good & plausible(flux, sigma))


def usable_epochs(epochs: StarEpochs) -> StarEpochs:
    """The epochs of `usable_rows`, and the sources that have any.

    A source without history or catalogue flux, beside one that has a history, may have begun to
    observe the star because of its event. Its baseline may then be lensed light, so it counts as
    unknown (error `NO_BASELINE`).
    """
    good = usable_rows(epochs)
    present, source = np.unique(epochs.source[good], return_inverse=True)
    late = np.zeros(len(epochs.sources), np.bool_)
    if any(each.nights for each in epochs.history):
        late[:] = [not (each.nights or each.catalogue) for each in epochs.history]
    return StarEpochs(
        tuple(epochs.sources[i] for i in present.tolist()),
        epochs.level[present],
        np.where(late, np.maximum(epochs.error, NO_BASELINE), epochs.error)[present],
        epochs.mjd_tai[good],
        epochs.flux[good],
        epochs.sigma[good],
        source.astype(np.int16),
        tuple(epochs.history[i] for i in present.tolist() if epochs.history),
        epochs.survey,
    )
