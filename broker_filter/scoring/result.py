"""What the filter says of one light curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.parts import Best, CertifiedK, Rival, Verdict
from broker_filter.alerts.words import in_words
from broker_filter.observe.text import printable
from broker_filter.types import FloatArray, StarId

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result"]


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """K of one star in each of its windows, and the alerts that the service would have sent.

    Parameters
    ----------
    star : str or int
    threshold : float
        log10 K from which on there is an alert: certified, or of the network without ``trigger``.
    trigger : float, optional
        log10 K of the network from which on certified K decides.
    last_epoch : ndarray, shape (n,), float64, MJD TAI
        Last epoch of each window that was evaluated, in order.
    window_start : ndarray, shape (n,), float64, MJD TAI
    log10_k_of_windows : ndarray, shape (n,), float64
        Of the network; NaN where the matched filter alone showed it to be below the threshold.
    alerts : sequence of Alert
        In order; all that follows is of the last one. Rivals and verdict of each are computed when
        it is looked at.
    epochs : int
        Given.
    rejected : mapping of str to int
        Epochs that were not used, by reason.
    """

    star: StarId
    threshold: float
    trigger: float | None
    last_epoch: FloatArray
    window_start: FloatArray
    log10_k_of_windows: FloatArray
    alerts: Sequence[Alert]
    epochs: int
    rejected: Mapping[str, int]

    @property
    def log10_k(self) -> float:
        """The largest log10 K of the network over the windows; NaN where it saw none."""
        return float(np.fmax.reduce(self.log10_k_of_windows, initial=np.nan))

    @property
    def log10_k_now(self) -> float:
        """log10 K of the last window; NaN where the network did not see it."""
        return float(self.log10_k_of_windows[-1]) if len(self.last_epoch) else np.nan

    @property
    def alert(self) -> Alert | None:
        """The last alert; None where K never passed the threshold."""
        return self.alerts[-1] if self.alerts else None

    @property
    def certified(self) -> CertifiedK | None:
        """The unbiased estimate of K, with its error in dex; alerts alone have one."""
        return None if self.alert is None else self.alert.certified

    @property
    def posterior(self) -> pd.DataFrame | None:
        """Samples of t0 (MJD TAI), u0, tE (d), rho and f_s; None without an alert."""
        return None if self.alert is None else self.alert.posterior

    @property
    def best(self) -> Best | None:
        """The most likely lens; None without a fit."""
        return None if self.alert is None or self.alert.fit is None else self.alert.fit.best

    @property
    def t_start(self) -> float:
        """Start of the window with the largest K, MJD TAI; NaN where the network saw none."""
        if np.isnan(self.log10_k):
            return np.nan
        return float(self.window_start[np.nanargmax(self.log10_k_of_windows)])

    @property
    def rivals(self) -> tuple[Rival, ...]:
        """Other kinds of light curve, fitted to the same photometry."""
        return () if self.alert is None else self.alert.rivals

    @property
    def verdict(self) -> Verdict | None:
        """What the event is in one word, where alerts say it."""
        return None if self.alert is None else self.alert.verdict

    @property
    def words(self) -> str:
        """What the event is, where it stands, and by how much the data say so; empty without."""
        return "" if self.alert is None else in_words(self.alert)

    def plot(self, path: Path | str) -> None:
        """Draw the last alert's light curve and fit.

        Raises
        ------
        ValueError
            There is no alert.
        ConfigError
            matplotlib is not installed.
        """
        from broker_filter.client.plot import plot_light_curve

        if self.alert is None:
            raise ValueError(f"no alert to draw: {self}")
        plot_light_curve(self.alert, path)

    def __repr__(self) -> str:
        return f"<Result {self}>"

    def __str__(self) -> str:
        rejected = "".join(f", {count} {why}" for why, count in sorted(self.rejected.items()))
        head = f"{printable(self.star)}: {self.epochs} epochs{rejected}; "
        if not len(self.last_epoch):
            return f"{head}no window has what K needs: 10 epochs, and a baseline above 0"
        if np.isnan(self.log10_k):
            least = self.threshold if self.trigger is None else self.trigger
            return f"{head}log10 K below {least:.2f} by the matched filter alone"
        if self.alert is not None:
            return f"{head}{self.alert.state}: {self.words}"
        which = "" if self.trigger is None else " of certified K"
        found = f"log10 K {self.log10_k:.2f} of the network"
        return f"{head}{found}, threshold {self.threshold:.2f}{which}, no alert"
