"""What certified K finds of events, in white noise and in that of real stars.

A family of noise costs events that such noise explains as well. How many is measured on the
service's own path, on events of tE < 6 d and a signal-to-noise of 25 to 60. They are seen in white
noise from space, where the family is narrow, and in real noise from the ground, where stars have a
history. A night may be wrong as a whole, so on the ground the signal counts outside the night that
has most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from broker_filter.inference.magnification import magnification
from broker_filter.inference.zoo import Entry
from broker_filter.types import FloatArray, Photometry
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.rates import share
from model_zoo.evaluate.measure.service_path import ServicePath, one_star
from model_zoo.evaluate.sets import SEEDS
from model_zoo.simulate.noise import SKY_NOISE, draw_noise
from model_zoo.simulate.pattern import Pattern

__all__ = ["SKIES", "Sky", "draw_event", "measure_efficiency"]

SEED: Final = SEEDS["efficiency"]
SNR: Final = (25.0, 60.0)
TE_DAYS: Final = (0.1, 6.0)
WINDOW: Final = 20.0
MIN_EPOCHS: Final = 5
"""Within tE of the peak."""
THRESHOLDS: Final = (3.0, 6.6)
SPREAD: Final = 12.0
"""Signal-to-noise outside its best night from which on an event's light is in several nights."""
REAL: Final = replace(SKY_NOISE, share=1.0)


@dataclass(frozen=True, slots=True)
class Sky:
    """Where stars are seen from.

    Parameters
    ----------
    survey : str
        As the filter's configuration names it.
    history : float
        Days before the window.
    nights : bool
        Whether there are days, and clouds; if not, an epoch comes every 45 minutes.
    real : bool
        Whether the noise is that of real stars.
    """

    survey: str
    history: float
    nights: bool
    real: bool


SKIES: Final = {
    "white noise, from space": Sky("roman", 0.0, nights=False, real=False),
    "real noise, from the ground": Sky("ground", 40.0, nights=True, real=True),
    "real noise, 200 days of history": Sky("ground", 200.0, nights=True, real=True),
}


def draw_event(sky: Sky, rng: np.random.Generator) -> tuple[Photometry, float]:
    """An event in the last window of a star's history, with a signal-to-noise in `SNR`.

    Returns
    -------
    Photometry
    float
        Its signal-to-noise outside the night that has most of it.
    """
    while True:
        t = np.concatenate(list(_epochs(sky, rng)))
        t_einstein = float(np.exp(rng.uniform(*np.log(TE_DAYS))))
        t0 = float(sky.history + rng.uniform(2.0, WINDOW - 3.0))
        if (np.abs(t - t0) < t_einstein).sum() < MIN_EPOCHS:
            continue
        u = np.hypot(rng.uniform(0, 1), (t - t0) / t_einstein)
        f_s, rho = rng.uniform(0.3, 1.0), 10 ** rng.uniform(-3.0, -1.0)
        signal = f_s * (magnification(u, rho) - 1)
        inside = t >= sky.history
        snr = float(rng.uniform(*SNR))
        sigma = float(np.sqrt(np.square(signal[inside]).sum())) / snr
        flux = 1 + signal + _noise(sky, t, sigma, rng)
        catalogue = (1 + 1e-3 * float(rng.standard_normal()), 1e-3)
        star = one_star(t, flux, np.full(len(t), sigma), catalogue, survey=sky.survey)
        _, night = np.unique(np.floor(t[inside]), return_inverse=True)
        power = np.bincount(night, np.square(signal[inside]))
        return star, snr * float(np.sqrt(1 - power.max() / power.sum()))


def _epochs(sky: Sky, rng: np.random.Generator) -> Iterator[FloatArray]:
    days = int(sky.history + WINDOW)
    if not sky.nights:
        yield np.arange(0, days, 0.75 / 24) + rng.uniform(0, 0.02)
        return
    per_night, yielded = int(rng.integers(4, 24)), False
    for night in range(days):
        if rng.random() < 0.7 or (night == days - 1 and not yielded):
            yielded = True
            yield night + np.sort(rng.uniform(0.1, 0.45, per_night))


def _noise(sky: Sky, t: FloatArray, sigma: float, rng: np.random.Generator) -> FloatArray:
    if not sky.real:
        return sigma * rng.standard_normal(len(t))
    times = torch.from_numpy(t).float()[None]
    level = torch.full((1,), sigma)
    pattern = Pattern.of(times, level.expand_as(times), torch.tensor([len(t)]), level)
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 40)))
    return draw_noise(REAL, pattern, generator).flux[0].double().numpy()


def measure_efficiency(
    entry: Entry, events: int, *, kept: Kept | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Send events of each sky along the service's own path.

    Parameters
    ----------
    entry : Entry
    events : int
        Of each sky.
    kept : Kept, optional
        Of events that need not be sent again.

    Returns
    -------
    dict
        ``rows``, one a sky: shares of events whose charged log10 K of the family reaches 3 and 6.6
        (``found_3``, ``found_6_6``), the share of those that K of white noise finds at 6.6 and the
        family does not (``lost_6_6``), and the log10 K by which the family is lower, in quartiles;
        and ``spread``, the same shares of events with light in several nights.
    """
    path, kept = ServicePath(entry, every_days=0.25), kept or Kept()
    rows = []
    for i, (name, sky) in enumerate(SKIES.items()):
        of_event = partial(_highest, path, sky)
        highest = kept.each(name, "events", events, (SEED, i), of_event, quiet=quiet)
        rows.append(_row(name, np.array(highest, np.float64)))
    return {"events": events, "rows": rows}


def _highest(path: ServicePath, sky: Sky, rng: np.random.Generator) -> tuple[float | None, ...]:
    """Charged log10 K of white noise and of the family at their highest, None without a look.

    Beside them the signal-to-noise outside the best night.
    """
    star, outside = draw_event(sky, rng)
    looks = path([star])
    if not looks:
        return None, None, outside
    return max(look.white for look in looks), max(look.family for look in looks), outside


def _row(name: str, highest: FloatArray) -> dict[str, Any]:
    white, family, outside = np.where(np.isnan(highest), -np.inf, highest).T
    low, high = THRESHOLDS
    sure = white >= high
    cost = (white - family)[sure & np.isfinite(family)]
    spread = family[outside >= SPREAD]
    return {
        "name": name,
        "looked_at": int(np.isfinite(family).sum()),
        "found_3": share(family >= low),
        "found_6_6": share(family >= high),
        "lost_6_6": share(family[sure] < high),
        "spread": {"found_3": share(spread >= low), "found_6_6": share(spread >= high)},
        "cost_dex": np.quantile(cost, [0.25, 0.5, 0.75]).round(2).tolist() if len(cost) else None,
    }
