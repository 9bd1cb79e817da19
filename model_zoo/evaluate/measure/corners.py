"""Constant stars at the corners of the family of noise: how often certified K ever reaches k.

The bound P(sup K >= k) <= 1/k holds at every member of the family. It is tried at the corners,
where it is easiest to break: errors that are too large or too small by the whole factor; no red
noise or all of it; a baseline that is off by its error, or wrong epochs and a wrong night. A stream
is one window of a star while it fills. The star is new to the filter, so that the family is that of
its survey and not one from its own history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from broker_filter.config import SurveyNoise
from broker_filter.inference.noise_family import GROSS_EPOCH, GROSS_NIGHT
from broker_filter.inference.zoo import Entry
from broker_filter.types import FloatArray, Photometry
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.rates import clopper_pearson, upper_limit
from model_zoo.evaluate.measure.service_path import ServicePath, one_star
from model_zoo.evaluate.sets import SEEDS

__all__ = [
    "CORNERS",
    "DAYS",
    "POWERS",
    "WINDOWS",
    "Corner",
    "SiteNoise",
    "corner_noise",
    "corner_star",
    "measure_corners",
    "streams_of",
]

SEED: Final = SEEDS["corners"]
FAMILY: Final = SurveyNoise()
TAU_DAYS: Final = (0.05, 40.0)
DAYS: Final = 20
WINDOWS: Final = 4
"""Streams of a star: a window begins every quarter of one."""
SITES: Final = 3
PER_NIGHT: Final = 12
CLEAR: Final = 0.6  # share of the nights
SIGMA: Final = (0.003, 0.03)
BASELINE: Final = 0.02
POWERS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)


@dataclass(frozen=True, slots=True)
class Corner:
    """One corner of the family.

    Parameters
    ----------
    scale : float
        Factor on the errors.
    red_noise : float
        Amplitude, in errors.
    wrong : bool
        Whether two epochs of each site and one night are wrong; if not, the baseline is poor.
    """

    scale: float
    red_noise: float
    wrong: bool

    @property
    def name(self) -> str:
        """In words."""
        rest = "wrong epochs and night" if self.wrong else "poor baseline"
        return f"errors x {self.scale:g}, red noise {self.red_noise:g}, {rest}"


CORNERS: Final = tuple(
    Corner(*each) for each in product(FAMILY.error_scale, (0.0, FAMILY.red_noise), (False, True))
)


@dataclass(frozen=True, slots=True)
class SiteNoise:
    """Noise of a constant star as one site sees it.

    Parameters
    ----------
    corner : Corner
    t : ndarray, shape (n,), days after the window's start
    noise : ndarray, shape (n,), float64
        In errors, as is all that is not said to be in other units.
    tau : float, days
        Of the red noise.
    wrong : list of ndarray of int
        Epochs that are wrong by one amount each: single ones, and those of a night.
    gross : list of float
        Standard deviations of these amounts.
    sigma : float
        Error of an epoch, relative to the baseline.
    catalogue : (float, float)
        The star's flux and its error, relative to the baseline.
    """

    corner: Corner
    t: FloatArray
    noise: FloatArray
    tau: float
    wrong: list[NDArray[np.int64]]
    gross: list[float]
    sigma: float
    catalogue: tuple[float, float]

    @property
    def covariance(self) -> FloatArray:
        """Of the noise, shape (n, n), once it is known which epochs are wrong."""
        apart = np.abs(self.t[:, None] - self.t)
        covariance = self.corner.red_noise**2 * np.exp(-apart / self.tau)
        np.fill_diagonal(covariance, covariance.diagonal() + self.corner.scale**2)
        for epochs, gross in zip(self.wrong, self.gross, strict=True):
            covariance[np.ix_(epochs, epochs)] += gross**2
        return np.asarray(covariance)

    def photometry(self, source: str, signal: FloatArray | float = 0.0) -> Photometry:
        """What the site publishes, with a signal, in errors, added."""
        flux = 1 + self.sigma * (self.noise + signal)
        sigmas = np.full(len(self.t), self.sigma)
        return one_star(self.t, flux, sigmas, self.catalogue, survey="ground", source=source)


def corner_noise(corner: Corner, rng: np.random.Generator) -> list[SiteNoise]:
    """A constant star, seen by one to three sites, each with noise of its own."""
    return [_site(corner, rng) for _ in range(int(rng.integers(1, SITES + 1)))]


def corner_star(corner: Corner, rng: np.random.Generator) -> list[Photometry]:
    """Photometry of such a star."""
    sites = corner_noise(corner, rng)
    return [site.photometry(str(i)) for i, site in enumerate(sites)]


def _site(corner: Corner, rng: np.random.Generator) -> SiteNoise:
    nights = np.flatnonzero(rng.random(DAYS) < CLEAR)
    hours = np.sort(rng.uniform(0.1, 0.45, (len(nights), PER_NIGHT)), axis=1)
    t = (nights[:, None] + hours).ravel()
    n, sigma = len(t), float(np.exp(rng.uniform(*np.log(SIGMA))))
    noise = corner.scale * rng.standard_normal(n)
    tau = float(np.exp(rng.uniform(*np.log(TAU_DAYS))))
    noise += corner.red_noise * _red_noise(t, tau, rng)
    wrong: list[NDArray[np.int64]] = []
    gross: list[float] = []
    if corner.wrong and n:
        chosen = rng.choice(n, min(2, n), replace=False)
        noise[chosen] += 2 * GROSS_EPOCH * rng.standard_normal(len(chosen))
        night = np.flatnonzero(np.floor(t) == rng.choice(nights))
        noise[night] += 2 * GROSS_NIGHT * rng.standard_normal()
        wrong = [*chosen[:, None], night]
        gross = [2 * GROSS_EPOCH] * len(chosen) + [2 * GROSS_NIGHT]
    error = 0.1 * sigma if corner.wrong else BASELINE
    catalogue = (1 + error * float(rng.standard_normal()), error)
    return SiteNoise(corner, t, noise, tau, wrong, gross, sigma, catalogue)


def _red_noise(t: FloatArray, tau: float, rng: np.random.Generator) -> FloatArray:
    """Ornstein-Uhlenbeck noise of variance 1."""
    kept = np.exp(-np.diff(t, prepend=-np.inf) / tau)
    kicks = np.sqrt(1 - np.square(kept)) * rng.standard_normal(len(t))
    for i in range(1, len(t)):
        kicks[i] += kept[i] * kicks[i - 1]
    return np.asarray(kicks)


def measure_corners(
    entry: Entry, streams: int, *, kept: Kept | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Send constant stars of each corner along the service's own path.

    Parameters
    ----------
    entry : Entry
    streams : int
        Of each corner, at least.
    kept : Kept, optional
        Of stars that need not be sent again.

    Returns
    -------
    dict
        ``rows``, one a corner: its ``name``, ``stars``, ``streams``, how many were looked at and
        how often, ``highest`` charged log10 K, mean of the largest charged K (``mean_k``), and
        ``tail``: by k how many streams reached it, and the 95 % upper limit of their share.
    """
    path, kept = ServicePath(entry, every_days=0.5), kept or Kept()
    # A star lives for as long as a window: it is in the four that begin up to then.
    stars = -(-streams // WINDOWS)
    rows = []
    for i, corner in enumerate(CORNERS):
        of_star = partial(_streams, path, corner)
        each = kept.each(corner.name, "stars", stars, (SEED, i), of_star, quiet=quiet)
        found = [stream for star in each for stream in star]
        rows.append(_corner_row(corner, stars, found))
    return {"streams": streams, "holds": all(row["holds"] for row in rows), "rows": rows}


def _streams(path: ServicePath, corner: Corner, rng: np.random.Generator) -> list[list[float]]:
    return streams_of(path, corner_star(corner, rng))


def streams_of(path: ServicePath, star: Sequence[Photometry]) -> list[list[float]]:
    """Highest charged log10 K of each window of a star that was looked at, and how many looks."""
    of_window: defaultdict[float, list[float]] = defaultdict(list)
    for look in path(star):
        of_window[look.window_start].append(look.family)
    return [[max(looks), len(looks)] for looks in of_window.values()]


def _corner_row(corner: Corner, stars: int, streams: list[list[float]]) -> dict[str, Any]:
    top = [highest for highest, _ in streams]
    n, found = stars * WINDOWS, np.array(top)
    tail = [_tail(int((found >= power).sum()), n, 10.0**power) for power in POWERS]
    return {
        "name": corner.name,
        "stars": stars,
        "streams": n,
        "looked_at": len(top),
        "looks": sum(int(looks) for _, looks in streams),
        "highest": float(found.max(initial=-np.inf)) if len(top) else None,
        "mean_k": float((10.0**found).sum() / n),
        "tail": tail,
        "holds": all(row["holds"] for row in tail),
    }


def _tail(count: int, n: int, k: float) -> dict[str, float]:
    """How many streams reached k; ``holds`` unless the bound is too low for that by any doubt."""
    low, _ = clopper_pearson(count, n)
    return {
        "k": round(k, 3),
        "count": count,
        "below": upper_limit(count, n),
        "bound": 1 / k,
        "holds": bool(low <= 1 / k),
    }
