"""An entry beside those that it started from, on its own test set and on the same in white noise.

Entries of other noise are not comparable by their own test sets, nor at one log10 K: where noise
is worse, K can say less. What compares them is the share of events that each finds where an equal
share of the constant stars passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from torch import Tensor

from broker_filter.inference import zoo
from broker_filter.inference.zoo import Entry
from broker_filter.types import FloatArray
from model_zoo.evaluate.measure.rates import share
from model_zoo.evaluate.sets import SEEDS, Sizes, curves, score_curves
from model_zoo.simulate.curves import Curves, Simulator

__all__ = ["lineage", "measure_ancestors"]

TRIGGER: Final = 2.0
"""log10 K at which a service has a window certified."""
PASS: Final = 1e-3
"""Share of the constant stars that pass the threshold at which events are counted."""
BRIGHT: Final = 8.0
"""Signal-to-noise."""


def lineage(entry: Entry) -> Iterator[Entry]:
    """The entry, that which it started from, and so on, while all have one prior."""
    first = entry
    while entry.config["prior"] == first.config["prior"]:
        yield entry
        former = entry.card.training.get("config", {}).get("start_from")
        if former is None:
            return
        entry = zoo.verify(zoo.find(former))


def measure_ancestors(
    entry: Entry, simulator: Simulator, sizes: Sizes, *, quiet: bool = False
) -> dict[str, Any]:
    """What entries of one line find of the same events, and how many constant stars pass.

    Parameters
    ----------
    entry : Entry
        The last of the line.
    simulator : Simulator
        Of its test set.
    sizes : Sizes
        ``events`` and ``noise`` of each noise.

    Returns
    -------
    dict
        ``trigger`` (log10 K), ``passing`` (share of the constant stars), ``bright``
        (signal-to-noise); and ``rows``, one a noise and entry: ``noise``, ``model_id``, the share
        of constant stars above the trigger (``false``) and of events (``found``); ``threshold``,
        the log10 K that the share ``passing`` reaches, and the shares of events
        (``found_passing``) and of bright ones (``found_bright``) above it.
    """
    entries = list(lineage(entry))
    skies = {"white": replace(simulator, noise_model=None)}
    if simulator.noise_model is not None:
        skies = {simulator.noise_model.name: simulator, **skies}
    rows = []
    for name, sky in skies.items():
        events = curves(sky.events, sizes.events, SEEDS["events"], "events", quiet=quiet)
        noise = curves(sky.noise, sizes.noise, SEEDS["noise"], "noise", quiet=quiet)
        rows += [
            {"noise": name, "model_id": each.model_id}
            | _row(events.snr, *(_log10_k(each, part, quiet) for part in (events, noise)))
            for each in entries
        ]
    return {"trigger": TRIGGER, "passing": PASS, "bright": BRIGHT, "rows": rows}


def _log10_k(entry: Entry, part: Curves, quiet: bool) -> FloatArray:
    network = zoo.load(entry).eval()
    return score_curves(network, part, entry.model_id, quiet=quiet).log10_k


def _row(snr: Tensor, events: FloatArray, noise: FloatArray) -> dict[str, Any]:
    threshold = float(np.quantile(noise, 1 - PASS, method="higher"))
    bright = snr.numpy() >= BRIGHT
    return {
        "false": share(noise > TRIGGER),
        "found": share(events > TRIGGER),
        "threshold": threshold,
        "found_passing": share(events > threshold),
        "found_bright": share(events[bright] > threshold),
    }
