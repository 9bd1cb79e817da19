"""What the demo filters: an archive of made-up stars, of which the truth is known.

Most stars are constant, some are magnified by a lens drawn from the model's prior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_filter.inference.magnification import magnification
from broker_filter.types import FloatArray, IntArray, Photometry

__all__ = ["SHARDS", "SURVEY", "MadeUpField", "Truth"]

MJD_START, DAYS, CADENCE = 61_000.0, 30.0, 15 / 1440
SHARDS = 4
SURVEY = "demo"
CATALOGUE_ERROR = 0.001


@dataclass(frozen=True, slots=True)
class Truth:
    """The lens of one star; ``snr`` is the largest matched-filter value in any one window."""

    star: int
    t0: float
    u0: float
    tE: float  # noqa: N815  the field's own name for it
    rho: float
    f_s: float
    snr: float


class MadeUpField:
    """A season of exposures of one field, some stars magnified.

    Parameters
    ----------
    stars, injected : int
        Number of stars, and how many of them are magnified.
    seed : int
    prior : mapping
        ``low`` and ``high`` of the model's prior; tE is limited to 6 d and the peak must exceed 5
        sigma, as the gate of the training demands.
    window_days : float
    """

    def __init__(
        self, stars: int, injected: int, seed: int, prior: dict[str, Any], window_days: float
    ) -> None:
        rng = np.random.default_rng(seed)
        self._rng = rng
        self.times = _exposures(rng)
        self.star = np.arange(stars) + 1_000_000
        self.sigma = rng.uniform(0.001, 0.02, stars)
        self.flux = 10 ** rng.uniform(4.0, 6.0, stars)
        self.catalogue = self.flux * (1 + CATALOGUE_ERROR * rng.standard_normal(stars))
        chosen = rng.choice(stars, injected, replace=False)
        self.truth = {
            int(self.star[i]): _draw_lens(rng, int(self.star[i]), prior, self, i, window_days)
            for i in chosen
        }
        self._curves = np.ones((stars, len(self.times)), dtype=np.float32)
        for i in chosen:
            self._curves[i] = _curve(self.truth[int(self.star[i])], self.times)

    @property
    def messages(self) -> int:
        """How many blocks `exposures` gives."""
        return len(self.times) * min(SHARDS, len(self.star))

    def windows(self, window_days: float) -> int:
        """How many windows each star has: one begins every quarter of its length."""
        return len(_anchors(self.times, window_days / 4))

    def exposures(self) -> Iterator[tuple[int, Photometry]]:
        """Blocks in order of time: the shard and its photometry of one exposure."""
        shard_of = self.star % SHARDS
        for k, mjd in enumerate(self.times):
            seen = self._rng.random(len(self.star)) > 0.05
            for shard in range(SHARDS):
                rows = np.flatnonzero(seen & (shard_of == shard))
                if len(rows):
                    yield shard, self._block(k, float(mjd), rows)

    def _block(self, k: int, mjd: float, rows: IntArray) -> Photometry:
        error = self.sigma[rows] * self.flux[rows]
        mean = self._curves[rows, k] * self.flux[rows]
        n = len(rows)
        return Photometry(
            survey=SURVEY,
            band="F146",
            source="",
            star=self.star[rows].tolist(),
            mjd_tai=np.full(n, mjd),
            flux=mean + error * self._rng.standard_normal(n),
            flux_err=error,
            flags=np.zeros(n, dtype=np.uint32),
            ref_flux=self.catalogue[rows],
            ref_flux_err=CATALOGUE_ERROR * self.catalogue[rows],
        )


def _exposures(rng: np.random.Generator) -> FloatArray:
    """Times of the season's exposures: every 15 minutes, with one long gap and some short ones."""
    offset = np.arange(0, DAYS, CADENCE)
    kept = np.ones(len(offset), dtype=bool)
    for length in (2.0, 0.5, 0.5, 0.25):
        start = rng.uniform(3, DAYS - 3)
        kept &= (offset < start) | (offset > start + length)
    return MJD_START + offset[kept]


def _draw_lens(
    rng: np.random.Generator,
    star: int,
    prior: dict[str, Any],
    field: MadeUpField,
    row: int,
    window_days: float,
) -> Truth:
    """Draw from the prior until the peak is bright enough, as in the gate of the training."""
    low, high = np.array(prior["low"]), np.array(prior["high"])
    high[2] = min(high[2], np.log10(6.0))
    while True:
        _, u0, log10_tE, log10_rho, f_s = low + (high - low) * rng.random(5)
        t0 = MJD_START + rng.uniform(0, DAYS)
        lens = Truth(star, t0, u0, 10**log10_tE, 10**log10_rho, f_s, 0.0)
        peak = float(magnification(np.array([u0]), lens.rho)[0]) - 1
        near = np.abs(field.times - t0) < 1.5 * lens.tE
        if peak > 5 * field.sigma[row] and near.sum() >= 5:
            snr = _largest_snr(_curve(lens, field.times), field, row, window_days)
            return Truth(star, t0, u0, lens.tE, lens.rho, f_s, snr)


def _curve(lens: Truth, times: FloatArray) -> NDArray[np.float32]:
    u = np.hypot(lens.u0, (times - lens.t0) / lens.tE)
    return (1 + lens.f_s * (magnification(u, lens.rho) - 1)).astype(np.float32)


def _largest_snr(
    curve: NDArray[np.float32], field: MadeUpField, row: int, window_days: float
) -> float:
    """Largest matched-filter signal-to-noise in any of the windows of the star."""
    step = window_days / 4
    squares = ((curve - 1) / field.sigma[row]) ** 2
    anchors = _anchors(field.times, step)
    inside = [squares[(field.times >= a - 3 * step) & (field.times < a + step)] for a in anchors]
    return float(np.sqrt(max(part.sum() for part in inside)))


def _anchors(times: FloatArray, step: float) -> FloatArray:
    """Beginnings of the quarters in which there are exposures."""
    return np.unique(np.floor(times / step)) * step
