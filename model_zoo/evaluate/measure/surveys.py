"""How many events of stellar lenses are found in the cadence of real surveys, and how many in time.

The threshold is passed at one of the looks at a growing window; see `rising`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from broker_filter.inference.network import Network
from model_zoo.evaluate.measure.rates import share
from model_zoo.evaluate.measure.rising import PHASES, looks_at, peak_is_seen
from model_zoo.evaluate.sets import SEEDS, Sizes, batches
from model_zoo.simulate.curves import Curves, Simulator
from model_zoo.simulate.visits import LSST_VISITS, ZTF_VISITS, Visits

__all__ = ["measure_surveys"]

SURVEYS = {"ZTF": ZTF_VISITS, "LSST": LSST_VISITS}
LOG10_K = 3.0
TE_DAYS = (10.0, 60.0)
LEAST_SNR = 20.0
BASELINE_ERROR = (0.001, 0.02)
"""Of stars that a survey has seen for a season or more."""
DRAWN = 4
"""Events drawn for each event of the suite's sizes: few are as long, as bright and seen at peak."""


def measure_surveys(
    network: Network, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """Share of long events that are found before their peak, and at all.

    Of the frozen events, of stars whose baselines are known to 0.1 to 2 %, those count whose tE is
    10-60 d, whose matched-filter signal-to-noise in the whole window is at least 20, and whose peak
    stands 5 sigma high between the first epoch and the last.

    Parameters
    ----------
    network : Network
    simulator : Simulator
        Of visits; other simulators have no such events, and give no rows.
    sizes : Sizes
        ``events``, of which four times as many are drawn for each survey.

    Returns
    -------
    dict
        ``log10_k``, the threshold, and ``rows`` with ``survey``, ``visits`` (name and version), and
        the shares ``before_peak`` and ``at_all``, as of `rates.share`.
    """
    network.eval()
    known = SURVEYS if simulator.pattern.visits is not None else {}
    rows = [
        {"survey": name, "visits": visits.name}
        | _found(network, _with(simulator, visits), DRAWN * sizes.events, name, quiet=quiet)
        for name, visits in known.items()
    ]
    return {"log10_k": LOG10_K, "rows": rows}


def _with(simulator: Simulator, visits: Visits) -> Simulator:
    pattern = replace(simulator.pattern, visits=visits)
    return replace(simulator, pattern=pattern, baseline_error=BASELINE_ERROR)


def _found(
    network: Network, simulator: Simulator, n: int, name: str, *, quiet: bool
) -> dict[str, Any]:
    days = simulator.pattern.days
    before, found = [np.zeros(0, np.bool_)], [np.zeros(0, np.bool_)]
    for curves in batches(simulator.events, n, SEEDS["surveys"], name, quiet=quiet):
        chosen = curves[_counts(curves, days).nonzero()[:, 0]]
        if len(chosen):
            hits, _, _ = looks_at(network, chosen, days, LOG10_K)
            before.append(np.asarray(hits[:, : PHASES.index(0) + 1].any(1)))
            found.append(np.asarray(hits.any(1)))
    return {
        "before_peak": share(np.concatenate(before)),
        "at_all": share(np.concatenate(found)),
    }


def _counts(curves: Curves, days: float) -> torch.Tensor:
    tE = 10 ** curves.theta[:, 2]
    long = (tE >= TE_DAYS[0]) & (tE <= TE_DAYS[1])
    return long & (curves.snr >= LEAST_SNR) & peak_is_seen(curves, days)
