"""What free-floating planets and flare stars are called in Roman's survey.

Flares are what looks most like a lens of hours. Both kinds are simulated with an epoch every 12.1
minutes, a signal-to-noise of 20 to 60 and white noise, and go along the service's own path; those
that alert have a verdict, the last of which counts. The same stars go along it once more with one
epoch that is far too bright, as a cosmic ray makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from broker_filter.alerts.verdict import LENSES, VERDICTS
from broker_filter.inference.magnification import magnification
from broker_filter.inference.zoo import Entry
from broker_filter.types import FloatArray, Photometry
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.rates import share
from model_zoo.evaluate.measure.service_path import ServicePath, one_star
from model_zoo.evaluate.sets import SEEDS
from model_zoo.simulate.lookalikes import SHAPES, Lookalikes, draw_lookalikes
from model_zoo.simulate.pattern import Pattern

__all__ = ["KINDS", "measure_verdicts"]

SEED: Final = SEEDS["verdicts"]
SNR: Final = (20.0, 60.0)
TE_DAYS: Final = (0.05, 1.0)
"""An Earth's to a Neptune's."""
DAYS: Final = 40.0
EPOCH: Final = 12.1 / 1440
QUIET: Final = 22.0
"""Days before the first event, in which the star shows its noise."""
FEWEST: Final = 3
"""Epochs above a tenth of the peak: fewer cannot be told from wrong epochs."""
WRONG: Final = (15.0, 60.0)
"""Errors by which an epoch is too bright."""
FLARES: Final = Lookalikes("flares", {name: float(name == "flare") for name in SHAPES})

Signal = Callable[[FloatArray, np.random.Generator], FloatArray]


def planet(t: FloatArray, rng: np.random.Generator) -> FloatArray:
    """F - 1 of a lens without a star, whose discs are as large as they may be; t in days."""
    t_einstein = float(np.exp(rng.uniform(*np.log(TE_DAYS))))
    t0 = rng.uniform(QUIET + 1, DAYS - 2)
    u = np.hypot(rng.uniform(0, 1), (t - t0) / t_einstein)
    rho = 10 ** rng.uniform(-2.0, 0.5)
    return np.asarray(rng.uniform(0.3, 1.0) * (magnification(u, rho) - 1))


def flares(t: FloatArray, rng: np.random.Generator) -> FloatArray:
    """F - 1 of a star with one to six flares; t in days."""
    late = t >= QUIET
    times = torch.from_numpy(t[late] - QUIET).float()[None]
    level = torch.full((1,), 0.01)
    pattern = Pattern.of(times, level.expand_as(times), torch.tensor([times.shape[1]]), level)
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 40)))
    signal = np.zeros(len(t))
    signal[late] = draw_lookalikes(FLARES, pattern, DAYS - QUIET, generator)[0].double().numpy()
    return signal


KINDS: Final[dict[str, tuple[Signal, tuple[str, ...]]]] = {
    "free-floating planet": (planet, LENSES),
    "flare star": (flares, ("flare",)),
}
"""Of each kind its light curve, and the verdicts that are right."""


def draw_star(signal: Signal, rng: np.random.Generator, *, wrong: bool = False) -> Photometry:
    """A star whose noise gives its events a signal-to-noise in `SNR`.

    ``wrong`` makes one epoch, after the star has shown its noise, too bright by `WRONG`.
    """
    t = np.arange(0, DAYS, EPOCH) + rng.uniform(0, EPOCH)
    while True:
        light = signal(t, rng)
        if light.max() > 0 and (light > 0.1 * light.max()).sum() >= FEWEST:
            break
    sigma = float(np.sqrt(np.square(light).sum()) / rng.uniform(*SNR))
    flux = 1 + light + sigma * rng.standard_normal(len(t))
    catalogue = (1 + 1e-3 * float(rng.standard_normal()), 1e-3)
    if wrong:
        late = np.flatnonzero(t >= QUIET)
        flux[rng.choice(late)] += sigma * np.exp(rng.uniform(*np.log(WRONG)))
    return one_star(t, flux, np.full(len(t), sigma), catalogue, survey="roman")


def measure_verdicts(
    entry: Entry, stars: int, *, kept: Kept | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Send stars of each kind along the service's own path.

    Parameters
    ----------
    entry : Entry
    stars : int
        Of each kind.
    kept : Kept, optional
        Of stars that need not be sent again.

    Returns
    -------
    dict
        ``rows``, one a kind without and one with a wrong epoch: of its stars those that alert
        (``alerted``); of these the share whose last verdict is right (``right``), those that are
        called a lens (``lens``), and how many are called what (``verdicts``).
    """
    path, kept = ServicePath(entry, every_days=0.25, verdicts=True), kept or Kept()
    rows = []
    for i, (name, (signal, right)) in enumerate(KINDS.items()):
        for wrong in (False, True):
            called = f"{name}, one epoch wrong" if wrong else name
            last = partial(_last_verdict, path, signal, wrong)
            said = kept.each(called, "stars", stars, (SEED, i), last, quiet=quiet)
            rows.append(_row(called, [one for one in said if one is not None], right))
    return {"stars": stars, "rows": rows}


def _last_verdict(
    path: ServicePath, signal: Signal, wrong: bool, rng: np.random.Generator
) -> str | None:
    """None of a star that does not alert."""
    path([draw_star(signal, rng, wrong=wrong)])
    said = [alert.verdict.verdict for alert in path.alerts if alert.verdict is not None]
    return said[-1] if said else None


def _row(name: str, said: list[str], right: tuple[str, ...]) -> dict[str, Any]:
    verdicts = np.array(said, dtype=object)
    counts = Counter(said)
    return {
        "name": name,
        "alerted": len(said),
        "right": share(np.isin(verdicts, right)),
        "lens": share(np.isin(verdicts, LENSES)),
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
    }
