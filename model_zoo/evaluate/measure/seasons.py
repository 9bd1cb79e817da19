"""How many events of stellar lenses the service finds in a survey's second season, and when.

A star is seen for seven months of a year, at the survey's visits and in its bands, with the noise
of real stars. The first season is its history, and in the second one is the peak of its event. It
goes along the service's own path, so that all counts that a service asks for: windows that begin
anew and overlap, the matched filter and the network, certified K against the family of noise, and
the charge of each look.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from broker_filter.alerts.verdict import LENSES, VERDICTS
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.zoo import Entry
from broker_filter.types import Photometry
from model_zoo.evaluate.measure.efficiency import REAL
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.rates import share
from model_zoo.evaluate.measure.rising import PHASES, peak_stands_out
from model_zoo.evaluate.measure.service_path import START, ServicePath, one_star
from model_zoo.evaluate.measure.surveys import BASELINE_ERROR, LEAST_SNR, SURVEYS, TE_DAYS
from model_zoo.evaluate.sets import SEEDS
from model_zoo.simulate.curves import Simulator, matched_filter_snr, signal_of
from model_zoo.simulate.draw import Draw
from model_zoo.simulate.noise import draw_noise
from model_zoo.simulate.pattern import Pattern, pack
from model_zoo.simulate.visits import Visits, draw_visits

__all__ = ["SEASON", "YEAR", "Event", "draw_event", "measure_seasons"]

SEED: Final = SEEDS["seasons"]
YEAR, SEASON = 365.0, 210.0
"""Days from one season to the next, and of each."""
AT_ONCE: Final = 64
"""Stars drawn at a time, of which some have an event that counts."""
BEGINS: Final = PHASES[0]
"""Phase from which on there is light of an event, for all that counts."""

Alerts = tuple[float | None, str | None, int]


@dataclass(frozen=True, slots=True)
class Event:
    """A star with an event.

    Parameters
    ----------
    bands : list of Photometry
        The star in each of its bands.
    t0, t_einstein : float, days
        The first after `START`.
    """

    bands: list[Photometry]
    t0: float
    t_einstein: float


def draw_event(simulator: Simulator, visits: Visits, rng: np.random.Generator) -> Event:
    """An event that counts.

    It is of the simulator's prior, but for a tE of 10-60 d and a peak in the second season. That
    stands 5 sigma high, after the season's first epoch and before its last, and the signal-to-noise
    is at least 20.

    Parameters
    ----------
    simulator : Simulator
        Of visits, in whose place come those of the survey.
    visits : Visits
    rng : Generator
    """
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 40)))
    prior = _of_second_season(simulator.prior)
    while True:
        pattern = _two_seasons(visits, simulator.pattern.stream_sigma, generator)
        theta = prior.sample(AT_ONCE, generator)
        signal = signal_of(theta, pattern)
        row = _counts(theta, signal, pattern).nonzero()[:1, 0]
        if len(row):
            t0, _, log_t_einstein, *_ = theta[row][0].tolist()
            bands = _photometry(pattern[row], signal[row], generator)
            return Event(bands, t0, 10**log_t_einstein)


def _of_second_season(prior: BoxPrior) -> BoxPrior:
    low, high = (math.log10(edge) for edge in TE_DAYS)
    return replace(
        prior,
        low=(YEAR, prior.low[1], low, *prior.low[3:]),
        high=(YEAR + SEASON, prior.high[1], high, *prior.high[3:]),
    )


def _two_seasons(visits: Visits, sigma: tuple[float, float], generator: torch.Generator) -> Pattern:
    t, error, keep, band = draw_visits(visits, YEAR + SEASON, sigma, Draw(AT_ONCE, generator))
    return pack(t, error, keep & (t % YEAR < SEASON), band)


def _counts(theta: Tensor, signal: Tensor, pattern: Pattern) -> Tensor:
    """Which events the figure is of, shape (B,), bool."""
    bright = matched_filter_snr(signal, pattern) >= LEAST_SNR
    begins = torch.where(pattern.t < YEAR, torch.inf, pattern.t).amin(1)
    return bright & peak_stands_out(theta, pattern) & (begins < theta[:, 0])


def _photometry(pattern: Pattern, signal: Tensor, generator: torch.Generator) -> list[Photometry]:
    """One star by band, with noise, and catalogue fluxes that are off by about what they say."""
    noise, draw = draw_noise(REAL, pattern, generator), Draw(1, generator)
    columns = pattern.t, 1 + signal + noise.flux, pattern.sigma, pattern.band
    t, flux, sigma, band = (column[pattern.valid].double().numpy() for column in columns)
    found = []
    for name in np.unique(band).astype(int).tolist():
        rows, error = band == name, draw.log_uniform(*BASELINE_ERROR)
        off = error * noise.baseline * draw.normal()
        catalogue = 1 + float(off), float(error)
        star = one_star(t[rows], flux[rows], sigma[rows], catalogue, survey="simulated")
        found.append(replace(star, band=str(name)))
    return found


def measure_seasons(
    entry: Entry,
    simulator: Simulator,
    events: int,
    *,
    kept: Kept | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Send events of each survey along the service's own path.

    Parameters
    ----------
    entry : Entry
    simulator : Simulator
        Of visits; other simulators have no such events, and give no rows.
    events : int
        Of each survey.
    kept : Kept, optional
        Of events that need not be sent again.

    Returns
    -------
    dict
        ``rows``, one a survey: shares of events that alert before their peak (``before_peak``) and
        ``at_all``; how long before it the former do, days, in quartiles (``lead_days``); the share
        whose last verdict is a lens (``lens``), and how many are called what (``verdicts``); and
        how many stars alert before there is any light of their event (``too_early``).
    """
    path = ServicePath(entry, every_days=0.25, verdicts=True)
    known = SURVEYS if simulator.pattern.visits is not None else {}
    rows, kept = [], kept or Kept()
    for i, (name, visits) in enumerate(known.items()):
        of_event = partial(_alerts, path, simulator, visits)
        said = kept.each(name, "events", events, (SEED, i), of_event, quiet=quiet)
        rows.append({"survey": name, "visits": visits.name} | _row(said))
    return {"events": events, "rows": rows}


def _alerts(
    path: ServicePath, simulator: Simulator, visits: Visits, rng: np.random.Generator
) -> Alerts:
    """When an event first alerts, in days after its peak; its last verdict; alerts before it."""
    event = draw_event(simulator, visits, rng)
    path(event.bands)
    days = np.array([alert.last_epoch_mjd_tai - START - event.t0 for alert in path.alerts])
    early = days < BEGINS * event.t_einstein
    said = [alert.verdict.verdict for alert in path.alerts if alert.verdict is not None]
    if early.all():
        return None, None, len(days)
    return float(days[~early].min()), said[-1] if said else None, int(early.sum())


def _row(events: Sequence[Alerts]) -> dict[str, Any]:
    first = np.array([math.inf if day is None else day for day, *_ in events])
    verdicts = np.array([verdict for _, verdict, _ in events], dtype=object)
    counts = Counter(verdicts.tolist())
    lead = -first[first < 0]
    return {
        "before_peak": share(first < 0),
        "at_all": share(first < math.inf),
        "lead_days": np.quantile(lead, [0.25, 0.5, 0.75]).round(1).tolist() if len(lead) else None,
        "lens": share(np.isin(verdicts, LENSES)),
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "too_early": sum(early > 0 for *_, early in events),
    }
