"""Files a trained network in the zoo, with a card of figures measured on it."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sbi
import torch
import zuko

from broker_filter.posterior import PARAMETERS
from broker_filter.zoo import Card, write_entry
from model_zoo.config import TrainConfig
from model_zoo.evaluate.suite import Sizes, evaluate, seconds_for_samples
from model_zoo.train import Trainer, network_config

__all__ = ["file_entry"]

SELF_TEST_SEED = 77
MIN_THRESHOLD = 3.0
LIMITS = [
    (
        "Gaussian noise with correct error bars only; error bars that are wrong by more than "
        "their scaling can mend, correlated noise and variable stars raise K."
    ),
    "Single lens, uniform source, no parallax.",
    (
        "The gate lets no event with tE > 6.67 d pass; longer ones are found by their slope, but "
        "their posteriors are cut off by the prior."
    ),
]


def file_entry(trainer: Trainer, path: Path, sizes: Sizes, *, quiet: bool = False) -> Card:
    """Evaluate the trained network on the frozen test set and write its entry.

    Parameters
    ----------
    trainer : Trainer
        After its run.
    path : Path
        Folder of the entry.
    sizes : Sizes
        How large the test set is.
    """
    config, network = trainer.config, trainer.network.cpu().eval()
    paper_like = config.make_simulator(stream_share=0.0)
    figures = evaluate(network, paper_like, sizes, quiet=quiet)
    figures["test_set"] = (
        f"prior {paper_like.prior.name}, gate {config.simulator.gate}, the paper's observing "
        f"patterns, baseline error {config.simulator.baseline_error}; frozen seeds"
    )
    with torch.inference_mode():
        figures["npe_10k_ms"] = round(1000 * seconds_for_samples(network))
    card = _card(trainer, config, figures)
    generator = torch.Generator().manual_seed(SELF_TEST_SEED)
    curves = [paper_like.events(2, generator), paper_like.noise(2, generator)]
    windows = torch.cat([c.x for c in curves])
    baseline_error = torch.cat([c.baseline_error for c in curves])
    write_entry(path, network, _entry_config(config), card, windows, baseline_error)
    return card


def _entry_config(config: TrainConfig) -> dict[str, Any]:
    window = {
        "days": config.window_days,
        "max_points": config.max_points,
        "buckets": list(config.buckets),
    }
    return {"window": window, **network_config(config)}


def _card(trainer: Trainer, config: TrainConfig, figures: dict[str, Any]) -> Card:
    prior = trainer.simulator.prior
    progress = trainer.progress
    return Card(
        model_id=config.model_id,
        summary=config.summary,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        inputs={
            "x": "(B, L, 3) float32: t_norm = 2 (t - t_start) / T - 1, F = flux / baseline, "
            "sigma = error / baseline; padding -2",
            "window_days": config.window_days,
            "max_points": config.max_points,
            "buckets": list(config.buckets),
            "schemas": ["photometry/1/0", "photometry_block/1/0"],
        },
        outputs={
            "ln_k": "natural log of the Bayes factor, microlensing : constant star",
            "posterior": dict(
                zip(PARAMETERS, zip(prior.low, prior.high, strict=True), strict=True)
            ),
        },
        training={
            "config": config.model_dump(mode="json"),
            "curves": progress.curves,
            "steps": progress.step,
            "minutes": round(progress.seconds / 60, 1),
            "precision": str(trainer.precision).removeprefix("torch."),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
            f"{trainer.device.type}",
        },
        evaluation=figures,
        limits=LIMITS,
        runtime={"torch": torch.__version__, "sbi": sbi.__version__, "zuko": zuko.__version__},
        gate=_gate(figures),
    )


def _gate(figures: dict[str, Any]) -> dict[str, Any]:
    """Alert threshold of a stream: past the noise of the test set, and never below log10 K = 3.

    A stream looks at every star many times, which the bound 1/k allows for and the test set does
    not show.
    """
    observed = max(entry["log10_k"] for entry in figures["tpr_zero_fp"].values())
    return {
        "log10_k": round(max(MIN_THRESHOLD, observed + 0.5), 2),
        "from": f"0.5 above the largest log10 K of {figures['n_noise']} noise curves, "
        f"at least {MIN_THRESHOLD:g}",
    }
