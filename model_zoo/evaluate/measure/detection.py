"""Detection: what the network finds, what hard cuts find, and what can be found at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from broker_filter.inference.lens import excess
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import split_padding, thin
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import PARAMETERS
from model_zoo.evaluate.measure.cuts import (
    CUTS,
    Cut,
    CutStatistics,
    as_pattern,
    event_statistics,
    join_statistics,
    noise_statistics,
    tune,
)
from model_zoo.evaluate.measure.rates import (
    Bools,
    Floats,
    as_list,
    efficiency,
    known_template_roc,
    roc,
    share,
    upper_limit,
)
from model_zoo.evaluate.measure.rising import measure_rising
from model_zoo.evaluate.sets import SEEDS, Sizes, batches, score
from model_zoo.simulate.curves import Curves, Simulator
from model_zoo.simulate.prior import BLENDED_GATE, Gate

__all__ = ["PAPER_FPR", "PAPER_THRESHOLD", "gates_of", "measure_detection"]

PAPER_THRESHOLD, PAPER_FPR = 0.8, 2e-4
LARGE_SOURCE, SEEN_SNR2 = 5.0, 25.0
BANK = 500
GALLERY, GALLERY_POINTS = 12, 256
BINS = 12
SNR_EDGES = (0.0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 300)
PHASE_EDGES = (-20.0, -5, -3, -2, -1.5, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 1, 2, 3, 5, 20)
K_EDGES = (*range(-20, -4), *np.arange(-4, 4, 0.25).tolist(), *range(4, 61))
SHOWN = (
    "network_zero_fp",
    "johnson_2020",
    "sumi_2011",
    "mroz_2017",
    "johnson_2020_tuned",
    "mroz_2017_tuned",
    "snr2_ge_25",
)


@dataclass(frozen=True, slots=True)
class _Set:
    """One set of curves as the network and the cuts see it; ``last`` and ``bright`` of events.

    ``last`` is the last epoch in days, ``bright`` whether f_s (A_peak - 1) exceeds 5 sigma.
    """

    log10_k: Floats
    theta: Floats
    cuts: CutStatistics
    last: Floats
    bright: Bools


@dataclass(frozen=True, slots=True)
class _Rules:
    """What counts as found: the network's threshold, and each cut by name."""

    threshold: float
    cuts: dict[str, Cut]

    def found(self, curves: _Set) -> dict[str, Bools]:
        """By detector, which curves it finds."""
        k = curves.log10_k
        network = {"network_0.8": k > PAPER_THRESHOLD, "network_zero_fp": k > self.threshold}
        return network | {name: cut.passes(curves.cuts) for name, cut in self.cuts.items()}


def gates_of(simulator: Simulator) -> dict[str, Gate | None]:
    """Gates under which a simulator's events are measured, its own first."""
    gates = {"own": simulator.gate}
    if simulator.gate is not None:
        gates["ungated"] = None
    if simulator.gate not in (None, BLENDED_GATE):
        gates["blended"] = BLENDED_GATE
    return gates


def measure_detection(
    network: Network, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """Detection figures of one network.

    Parameters
    ----------
    network : Network
    simulator : Simulator
        With a gate, events are also drawn without it and with that of the blended light.
    sizes : Sizes
        ``events`` of each kind, ``noise`` for the test and as many for the thresholds.

    Returns
    -------
    dict
        ``rules`` (thresholds, all found on validation sets), ``false_alarms``, ``sets`` by gate
        (``detectors``, ``roc``, ``efficiency``), ``k_distribution``, ``gallery``, and without a
        gate ``rising``. Detectors: ``network_0.8`` (the paper's threshold), ``network_zero_fp``,
        cuts as published, ``_tuned`` (no false alarm) and ``_tuned_2e-4``, and the ceilings
        ``snr2_ge_25`` (share whose matched-filter signal-to-noise reaches 5) and
        ``known_template`` (see `known_template_roc`).
    """
    network.eval()
    measure = _Measure(network, simulator, sizes, quiet)
    bank = _bank(simulator)
    quiet_stars = measure.noise("noise", bank)
    validation = measure.noise("validation_noise", bank)
    rules = _choose(measure.events("validation_events", simulator.gate), validation)
    seeds = {"own": "events", "ungated": "ungated_events", "blended": "blended_events"}
    events = {name: measure.events(seeds[name], gate) for name, gate in gates_of(simulator).items()}
    result: dict[str, Any] = {
        "n_noise": len(quiet_stars.log10_k),
        "n_validation": len(validation.log10_k),
        "rules": _rules_as_dict(rules),
        "false_alarms": _false_alarms(rules, quiet_stars),
        "sets": {
            name: {"gate": _gate_name(gate)} | _figures(events[name], quiet_stars, rules, simulator)
            for name, gate in gates_of(simulator).items()
        },
        "k_distribution": _k_distribution(events, quiet_stars),
        "gallery": _gallery(events["own"], rules, simulator),
    }
    if simulator.gate is None:
        result["rising"] = measure_rising(
            network, simulator, sizes.events, rules.threshold, quiet=quiet
        )
    return result


@dataclass(frozen=True, slots=True)
class _Measure:
    """Draws the frozen sets twice: thinned for the network, with every epoch for the cuts."""

    network: Network
    simulator: Simulator
    sizes: Sizes
    quiet: bool

    def events(self, name: str, gate: Gate | None) -> _Set:
        n, simulator = self.sizes.events, replace(self.simulator, gate=gate)
        scored = score(self.network, simulator.events, n, SEEDS[name], name, quiet=self.quiet)
        days, parts, sight = simulator.pattern.days, [], []
        for curves in batches(
            simulator.unthinned.events, n, SEEDS[name], f"{name}: cuts", quiet=self.quiet
        ):
            parts.append(event_statistics(curves, days=days))
            sight.append(_sight(curves, days))
        last, bright = (np.concatenate(column) for column in zip(*sight, strict=True))
        return _Set(scored.log10_k, scored.theta, join_statistics(parts), last, bright)

    def noise(self, name: str, bank: torch.Tensor) -> _Set:
        n, simulator = self.sizes.noise, self.simulator
        scored = score(self.network, simulator.noise, n, SEEDS[name], name, quiet=self.quiet)
        dense, days = simulator.unthinned.noise, simulator.pattern.days
        parts = [
            noise_statistics(curves, bank, days=days)
            for curves in batches(dense, n, SEEDS[name], f"{name}: cuts", quiet=self.quiet)
        ]
        none = np.zeros(0)
        return _Set(scored.log10_k, scored.theta, join_statistics(parts), none, none > 0)


def _bank(simulator: Simulator) -> torch.Tensor:
    """Parameters with which noise is searched: those of events of the validation set."""
    parts = batches(simulator.events, BANK, SEEDS["validation_events"], "bank", quiet=True)
    return torch.cat([curves.theta for curves in parts])


def _sight(curves: Curves, days: float) -> tuple[Floats, Bools]:
    """Last epoch of each event, and whether its peak would stand 5 sigma high."""
    pattern, theta = as_pattern(curves.x, days=days), curves.theta
    last = torch.where(pattern.valid, pattern.t, -torch.inf).amax(1)
    peak = theta[:, 4] * excess(theta[:, 1], 10 ** theta[:, 3])
    return last.double().numpy(), (peak > 5 * pattern.level).numpy()


def _choose(events: _Set, noise: _Set) -> _Rules:
    """Thresholds on the validation sets."""
    few = round(PAPER_FPR * len(noise.log10_k))
    tuned = {f"{name}_tuned": tune(cut, events.cuts, noise.cuts, 0) for name, cut in CUTS.items()}
    paper = {
        f"{name}_tuned_2e-4": tune(cut, events.cuts, noise.cuts, few) for name, cut in CUTS.items()
    }
    return _Rules(float(noise.log10_k.max()), CUTS | tuned | paper)


def _rules_as_dict(rules: _Rules) -> dict[str, Any]:
    network = {"network_0.8": PAPER_THRESHOLD, "network_zero_fp": rules.threshold}
    return {name: {"statistic": "log10_k", "threshold": k} for name, k in network.items()} | {
        name: {"statistic": cut.statistic, "threshold": cut.threshold, "run": cut.run}
        for name, cut in rules.cuts.items()
    }


def _false_alarms(rules: _Rules, noise: _Set) -> dict[str, Any]:
    return {
        name: {
            "false_alarms": int(hits.sum()),
            "of": len(hits),
            "rate_upper95": upper_limit(int(hits.sum()), len(hits)),
        }
        for name, hits in rules.found(noise).items()
    }


def _figures(events: _Set, noise: _Set, rules: _Rules, simulator: Simulator) -> dict[str, Any]:
    found = rules.found(events) | {"snr2_ge_25": events.cuts.snr**2 >= SEEN_SNR2}
    large = 10 ** events.theta[:, 3] >= LARGE_SOURCE
    detectors = {
        name: {"all": share(hits), "rho_ge_5": share(hits[large])} for name, hits in found.items()
    }
    n_noise = len(noise.log10_k)
    ceiling = known_template_roc(events.cuts.snr, n_noise)
    detectors["known_template"] = {"all": {"share": ceiling.pop("tpr_zero_fp")}}
    if large.any():
        at_zero = known_template_roc(events.cuts.snr[large], n_noise)["tpr_zero_fp"]
        detectors["known_template"]["rho_ge_5"] = {"share": at_zero}
    return {
        "n": len(events.log10_k),
        "n_rho_ge_5": int(large.sum()),
        "detectors": detectors,
        "roc": {"network": roc(events.log10_k, noise.log10_k), "known_template": ceiling},
        "efficiency": _efficiencies(events, {name: found[name] for name in SHOWN}, simulator),
    }


def _efficiencies(events: _Set, found: dict[str, Bools], simulator: Simulator) -> dict[str, Any]:
    prior = simulator.prior
    tables = {
        name: efficiency(events.theta[:, i], _edges(prior, i), found)
        for i, name in enumerate(PARAMETERS)
    }
    tables["snr"] = efficiency(events.cuts.snr, SNR_EDGES, found)
    if simulator.gate is None:
        phase = (events.last - events.theta[:, 0]) / 10 ** events.theta[:, 2]
        bright = {name: hits[events.bright] for name, hits in found.items()}
        tables["phase"] = efficiency(phase, PHASE_EDGES, found)
        tables["phase_bright"] = efficiency(phase[events.bright], PHASE_EDGES, bright)
    return tables


def _edges(prior: BoxPrior, i: int) -> list[float]:
    low, high = prior.low[i], prior.high[i]
    spaced = np.geomspace if PARAMETERS[i] == "f_s" and prior.log_f_s else np.linspace
    return as_list(spaced(low, high, BINS + 1))


def _k_distribution(events: dict[str, _Set], noise: _Set) -> dict[str, Any]:
    """Histograms of log10 K; the outer bins take what lies beyond."""

    def counts(log10_k: Floats) -> list[int]:
        inside = np.clip(log10_k, K_EDGES[0], K_EDGES[-1])
        return [int(n) for n in np.histogram(inside, K_EDGES)[0]]

    of_events = {name: counts(part.log10_k) for name, part in events.items()}
    return {"edges": list(map(float, K_EDGES)), "noise": counts(noise.log10_k)} | of_events


def _gallery(events: _Set, rules: _Rules, simulator: Simulator) -> dict[str, Any]:
    """Events that the network finds at its own threshold and every published cut misses."""
    missed = ~np.any([cut.passes(events.cuts) for cut in CUTS.values()], axis=0)
    index = np.flatnonzero(missed & (events.log10_k > rules.threshold))
    theta = events.theta[index]
    # Evenly from the weakest to the strongest, so that the choice favours no detector.
    ranked = index[np.argsort(events.log10_k[index], kind="stable")]
    some = ranked[np.linspace(0, len(ranked) - 1, min(GALLERY, len(ranked))).round().astype(int)]
    return {
        "n": len(index),
        "of": len(events.log10_k),
        "index": index.tolist(),
        "log10_k": as_list(events.log10_k[index], 4),
        "snr": as_list(events.cuts.snr[index], 4),
        "theta": {name: as_list(theta[:, i], 5) for i, name in enumerate(PARAMETERS)},
        "curves": _light_curves(some, events, simulator),
    }


def _light_curves(index: NDArray[np.int64], events: _Set, simulator: Simulator) -> list[Any]:
    """Some events' light curves, binned to at most `GALLERY_POINTS` points."""
    wanted, first, found = set(index.tolist()), 0, {}
    for curves in batches(simulator.events, len(events.theta), SEEDS["events"], "", quiet=True):
        for i in sorted(wanted & set(range(first, first + len(curves)))):
            found[i] = _light_curve(curves.x[i - first : i - first + 1], simulator.pattern.days)
        first += len(curves)
    return [
        {"index": int(i)}
        | found[int(i)]
        | {
            "theta": as_list(events.theta[i], 5),
            "log10_k": float(events.log10_k[i]),
            "snr": float(events.cuts.snr[i]),
            "delta_chi2": float(events.cuts.delta_chi2[i]),
            "run": int(events.cuts.run[i]),
        }
        for i in index
    ]


def _light_curve(x: torch.Tensor, days: float) -> dict[str, list[float]]:
    x, valid = split_padding(x)
    t = ((x[..., 0].double() + 1) * days / 2).where(valid, 0)
    t, flux, sigma, n = thin(t, x[..., 1], x[..., 2], valid.sum(1), GALLERY_POINTS, close=days)
    count = int(n)
    columns = {"t": t, "flux": flux, "sigma": sigma}
    return {name: as_list(column[0, :count].tolist(), 5) for name, column in columns.items()}


def _gate_name(gate: Gate | None) -> str:
    return "none" if gate is None else gate.name
