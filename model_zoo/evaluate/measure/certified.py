"""Certified K: how many events it finds, and how large it becomes on noise.

On noise the mean of certified K cannot exceed one, whatever the network; windows under the trigger
count as zero. The trigger here is lower than a service's, so that more of the noise is put to the
test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broker_filter.alerts.threshold import budget_threshold
from broker_filter.inference.evidence import LN_10
from broker_filter.inference.fit import Fitter
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import PADDING, split_padding
from broker_filter.inference.prior import BoxPrior
from broker_filter.types import Fit, NotFitted, StarEpochs
from model_zoo.evaluate.measure.posteriors import posterior_figures
from model_zoo.evaluate.measure.streams import look_at, stream_looks
from model_zoo.evaluate.sets import SEEDS, Sizes, batches, curves, progress, score_curves
from model_zoo.simulate.curves import Curves, Simulator

__all__ = ["FLOW_SAMPLES", "budget_table", "measure_certified", "star_of"]

Floats = NDArray[np.float64]

FLOW_SAMPLES = 256  # from which a fit starts
MOST_SUSPECTS = 300
NOISE_SHARE, STREAM_SHARE = 5, 20  # of the sizes of the suite one in so many
NOISE_TRIGGER, EVENT_TRIGGER = 0.0, 1.0
BUDGET = 10.0  # false alarms a night
STARS = (10_000, 1_000_000, 200_000_000)


@dataclass(frozen=True, slots=True)
class _Certifier:
    """Fits curves of one source from the flow's samples."""

    sampler: FlowSampler
    fitter: Fitter
    days: float

    @torch.inference_mode()
    def __call__(self, x: Tensor, baseline_error: float, s: Tensor, seed: int) -> Fit | NotFitted:
        starts = self.sampler(s, FLOW_SAMPLES, [seed])[0][0]
        return self.fitter(star_of(x, baseline_error, self.days), 0.0, starts, seed)


def star_of(x: Tensor, baseline_error: float, days: float) -> StarEpochs:
    """The epochs of network input ``x``, shape (L, 3), in days after the window's start."""
    rows, valid = split_padding(x)
    t_norm, flux, sigma = rows[valid].numpy().T
    return StarEpochs(
        sources=(("", ""),),
        level=np.ones(1),
        error=np.array([baseline_error]),
        mjd_tai=(t_norm.astype(np.float64) + 1) / 2 * days,
        flux=flux,
        sigma=sigma,
        source=np.zeros(len(flux), np.int16),
    )


def _log10_k(found: Fit | NotFitted) -> float:
    """Epochs that cannot be fitted leave the odds as they are."""
    return found.log10_k if isinstance(found, Fit) else 0.0


def measure_certified(
    network: Network,
    entry_config: Mapping[str, Any],
    simulator: Simulator,
    sizes: Sizes,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Efficiency and false alarms of certified K.

    Parameters
    ----------
    network : Network
    entry_config : mapping
        The entry's config.json, for its prior and window.
    simulator : Simulator
    sizes : Sizes
        The first ``posterior_events`` of the events; a fifth of ``tail`` noise windows; a
        twentieth of ``streams``.

    Returns
    -------
    dict
        ``tpr_certified_6_6`` and ``n_events``; ``budgets``, the table of `budget_table`;
        ``error_dex`` and ``effective_samples``, quartiles over events; ``refined``, the figures of
        `posterior_figures` for the samples behind K; ``noise`` and ``streams``,
        how many windows were drawn and certified, the highest certified log10 K, and the mean of K
        with windows under the trigger as zero; ``wide_prior`` says that the gate is not part of
        the certified prior.
    """
    certifier = _Certifier(
        FlowSampler(network.estimator),
        Fitter(BoxPrior.from_config(entry_config["prior"])),
        float(entry_config["window"]["days"]),
    )
    n = sizes.posterior_events
    events = curves(simulator.events, n, SEEDS["events"], "events", quiet=quiet)
    scored = score_curves(network, events, "network", quiet=quiet)
    whole = curves(simulator.unthinned.events, n, SEEDS["events"], "all epochs", quiet=quiet)
    found = [
        certifier(whole.x[i], float(events.baseline_error[i]), scored.summary[i : i + 1], i)
        for i in _each(n, "certified events", quiet)
    ]
    fitted = np.array([isinstance(c, Fit) for c in found])
    fits = [c for c in found if isinstance(c, Fit)]
    log10_k = np.array([_log10_k(c) for c in found])
    return {
        "n_events": n,
        "tpr_certified_6_6": float(((log10_k >= 6.6) & (scored.log10_k >= EVENT_TRIGGER)).mean()),
        "budgets": budget_table(scored.log10_k, log10_k, simulator.pattern.days),
        "error_dex": _quartiles([c.log10_k_error for c in fits]),
        "effective_samples": _quartiles([c.effective_sample_size for c in fits]),
        "refined": posterior_figures(np.stack([c.samples for c in fits]), scored.theta[fitted]),
        "noise": _noise(network, certifier, simulator, sizes.tail // NOISE_SHARE, quiet),
        "streams": _streams(network, certifier, simulator, sizes.streams // STREAM_SHARE, quiet),
        "wide_prior": simulator.gate is not None,
    }


def budget_table(network: Floats, certified: Floats, days: float) -> list[dict[str, float]]:
    """Budget -> threshold -> efficiency, for several numbers of stars.

    Parameters
    ----------
    network, certified : ndarray, shape (n,), float64
        log10 K of the same events.
    days : float
        Length of the window.
    """
    rows = []
    for stars in STARS:
        threshold = budget_threshold(stars, BUDGET, days)
        # The first look is charged by the factor 1 (1 + 1).
        charged = certified - np.log10(2)
        rows.append(
            {
                "stars": float(stars),
                "false_alarms_per_night": BUDGET,
                "threshold": round(threshold, 3),
                "efficiency_network": float((network >= threshold).mean()),
                "efficiency_certified": float(
                    ((charged >= threshold) & (network >= EVENT_TRIGGER)).mean()
                ),
            }
        )
    return rows


@torch.inference_mode()
def _noise(
    network: Network, certifier: _Certifier, simulator: Simulator, n: int, quiet: bool
) -> dict[str, Any]:
    """Certify the noise windows that look most like events."""
    suspects: list[tuple[Tensor, float, Tensor]] = []
    for batch in batches(simulator.noise, n, SEEDS["certified"], "certified noise", quiet=quiet):
        with torch.autocast("cpu", torch.bfloat16):
            ln_k, s = network(batch.x, batch.baseline_error, batch.star_noise)
        suspects += [
            (batch.x[i], float(batch.baseline_error[i]), s[i : i + 1])
            for i in (ln_k >= NOISE_TRIGGER * LN_10).nonzero()[:, 0].tolist()
        ]
    return _claims(certifier, suspects, n, quiet)


@torch.inference_mode()
def _streams(
    network: Network, certifier: _Certifier, simulator: Simulator, n: int, quiet: bool
) -> dict[str, Any]:
    """Certify streams of noise at the very exposure that triggers."""
    suspects: list[tuple[Tensor, float, Tensor]] = []
    days = simulator.pattern.days
    for batch in batches(
        simulator.unthinned.noise, n, SEEDS["streams"], "certified streams", quiet=quiet
    ):
        looks = look_at(network, batch, stream_looks(batch, days), simulator)
        passed = looks[looks.log10_k >= NOISE_TRIGGER]
        for stream in np.unique(passed.stream).tolist():
            epochs = int(passed.epochs[passed.stream == stream][0])
            x = _until(batch, stream, epochs)
            error = batch.baseline_error[stream : stream + 1]
            suspects.append((x[0], float(error), network(x, error)[1]))
    return _claims(certifier, suspects, n, quiet)


def _until(batch: Curves, row: int, epochs: int) -> Tensor:
    """One curve with nothing after its first so many epochs, shape (1, L, 3)."""
    x = batch.x[row : row + 1].clone()
    x[:, epochs:] = PADDING
    return x[:, : max(epochs, 1)]


def _claims(
    certifier: _Certifier, suspects: list[tuple[Tensor, float, Tensor]], n: int, quiet: bool
) -> dict[str, Any]:
    """Mean of certified K over ``n`` windows, of which only the suspects count."""
    chosen = suspects[:MOST_SUSPECTS]
    log10_k = np.array(
        [_log10_k(certifier(*chosen[i], i)) for i in _each(len(chosen), "suspects", quiet)]
    )
    share = len(suspects) / max(len(chosen), 1)
    return {
        "n": n,
        "trigger": NOISE_TRIGGER,
        "triggered": len(suspects),
        "certified": len(chosen),
        "highest_log10_k": float(log10_k.max(initial=-np.inf)) if len(chosen) else None,
        "mean_k": float((10.0**log10_k).sum()) * share / n,
    }


def _each(n: int, name: str, quiet: bool) -> Iterator[int]:
    yield from (i for i, _ in enumerate(progress(n, name, quiet=quiet, batch=1)))


def _quartiles(values: list[float]) -> list[float]:
    return [round(float(v), 4) for v in np.quantile(values, [0.25, 0.5, 0.75])]
