"""How rarely certified K reaches k at the corners of the family, by importance sampling.

Of constant stars hardly one in a billion reaches a log10 K of 3, so counting them shows no more
than how few were counted. Stars that do reach it have noise that looks like a lens. So lens curves
are added to a corner's noise, which makes such noise far more common than it is in truth. Each star
then counts for the ratio of two densities of its noise, without added curves over with them. Both
are known, since the noise of a corner is Gaussian and the curves are finitely many.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from broker_filter.inference.magnification import magnification
from broker_filter.inference.zoo import Entry
from broker_filter.types import FloatArray
from model_zoo.evaluate.measure.corners import (
    CORNERS,
    DAYS,
    POWERS,
    WINDOWS,
    Corner,
    SiteNoise,
    corner_noise,
    streams_of,
)
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.service_path import ServicePath
from model_zoo.evaluate.sets import SEEDS

__all__ = ["like_a_lens", "measure_corner_tails"]

SEED: Final = SEEDS["corner_tails"]
CURVES: Final = 200
"""Lens curves of which one is added."""
PLAIN: Final = 0.1
"""Share of the stars to which none is added: no star counts for more than one over that."""
TE_DAYS: Final = (0.1, 10.0)
SNR: Final = (0.0, 14.0)
"""Of an added curve, in the corner's noise."""


def like_a_lens(sites: list[SiteNoise], rng: np.random.Generator) -> tuple[list[FloatArray], float]:
    """A signal to be added to a star's noise, and what the star then counts for.

    Parameters
    ----------
    sites : list of SiteNoise
    rng : Generator

    Returns
    -------
    list of ndarray, shapes (n,)
        The signal at each site, in errors; 0 for a share `PLAIN` of the stars.
    float
        Density of the sum of noise and signal as noise alone, over its density as that sum. Its
        mean is 1, and the mean of its product with any function of the sum is that of the function
        over noise alone.

    Notes
    -----
    Importance sampling with a mixture of shifted densities that keeps a share of the true one
    (defensive: Hesterberg 1995, Technometrics 37, 185).
    """
    roots = [np.asarray(np.linalg.cholesky(site.covariance), np.float64) for site in sites]
    curves = _curves(sites, rng)
    white = [_whitened(root, each.T).T for root, each in zip(roots, curves, strict=True)]
    norm = np.sqrt(np.sum([np.square(each).sum(1) for each in white], axis=0))
    factors = np.divide(rng.uniform(*SNR, size=CURVES), norm, out=np.zeros(CURVES), where=norm > 0)
    added = np.zeros(CURVES)
    if rng.random() >= PLAIN:
        chosen = rng.integers(CURVES)
        added[chosen] = factors[chosen]
    match = np.zeros(CURVES)
    for root, site, each in zip(roots, sites, white, strict=True):
        match += each @ (_whitened(root, site.noise) + added @ each)
    log_ratios = factors * match - 0.5 * np.square(factors * norm)
    shifted = np.log((1 - PLAIN) / CURVES) + logsumexp(log_ratios)
    weight = float(np.exp(-np.logaddexp(np.log(PLAIN), shifted)))
    return [added @ each for each in curves], weight


def _whitened(root: FloatArray, values: FloatArray) -> FloatArray:
    return np.asarray(solve_triangular(root, values, lower=True))


def _curves(sites: list[SiteNoise], rng: np.random.Generator) -> list[FloatArray]:
    """Lens curves at each site, shapes (CURVES, n), in its errors but for one factor a curve."""
    t0 = rng.uniform(0, DAYS, CURVES)[:, None]
    shortest, longest = np.log(TE_DAYS)
    t_einstein = np.exp(rng.uniform(shortest, longest, CURVES))[:, None]
    u0 = rng.uniform(0, 1, CURVES)[:, None]
    return [
        (magnification(np.hypot(u0, (site.t - t0) / t_einstein), 1e-3) - 1) / site.sigma
        for site in sites
    ]


def measure_corner_tails(
    entry: Entry, stars: int, *, kept: Kept | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Send stars of each corner with noise like a lens along the service's own path.

    Parameters
    ----------
    entry : Entry
    stars : int
        Of each corner, each with as many streams as windows begin in one.
    kept : Kept, optional
        Of stars that need not be sent again.

    Returns
    -------
    dict
        ``rows``, one a corner: its ``name``, ``stars``, ``streams``, the mean weight of a star (1
        but for its error, ``weight`` and ``weight_error``), ``highest`` charged log10 K, and
        ``tail``: by k how many streams reached it (``count``), and which share of constant stars'
        streams that stands for (``share``, ``error``), beside the bound.
    """
    path, kept = ServicePath(entry, every_days=0.5), kept or Kept()
    rows = []
    for i, corner in enumerate(CORNERS):
        of_star = partial(_weighted, path, corner)
        found = kept.each(corner.name, "stars", stars, (SEED, i), of_star, quiet=quiet)
        rows.append(_row(corner, found))
    return {"stars": stars, "holds": all(row["holds"] for row in rows), "rows": rows}


def _weighted(
    path: ServicePath, corner: Corner, rng: np.random.Generator
) -> tuple[float, list[list[float]]]:
    """What a star counts for, and its streams as `streams_of` has them."""
    sites = corner_noise(corner, rng)
    signals, weight = like_a_lens(sites, rng)
    pairs = zip(sites, signals, strict=True)
    star = [site.photometry(str(i), signal) for i, (site, signal) in enumerate(pairs)]
    return weight, streams_of(path, star)


def _row(corner: Corner, stars: list[tuple[float, list[list[float]]]]) -> dict[str, Any]:
    weights = np.array([weight for weight, _ in stars])
    highest = np.full((len(stars), WINDOWS), -np.inf)
    for row, (_, streams) in zip(highest, stars, strict=True):
        row[: len(streams)] = [top for top, _ in streams]
    tail = [_tail(10.0**power, highest >= power, weights) for power in POWERS]
    mean, error = _mean(weights)
    top = float(highest.max())
    return {
        "name": corner.name,
        "stars": len(stars),
        "streams": highest.size,
        "weight": mean,
        "weight_error": error,
        "highest": top if np.isfinite(top) else None,
        "tail": tail,
        "holds": all(row["holds"] for row in tail),
    }


def _tail(k: float, reached: NDArray[np.bool_], weights: FloatArray) -> dict[str, Any]:
    """``holds`` unless the bound is too low for the share by any doubt."""
    share, error = _mean(weights * reached.mean(1))
    return {
        "k": round(k, 3),
        "count": int(reached.sum()),
        "share": share,
        "error": error,
        "bound": 1 / k,
        "holds": share - 2 * error <= 1 / k,
    }


def _mean(values: FloatArray) -> tuple[float, float]:
    """Mean of n values, and its standard error."""
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))
