"""Files a trained network in the zoo, with a card of figures measured on it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import zuko
from safetensors.torch import load_file

from broker_filter.errors import ConfigError
from broker_filter.inference.zoo import FILES, Card, Entry, load, verify, write_entry
from broker_filter.types import PARAMETERS
from model_zoo.evaluate.parts import CORE_PARTS, Subject
from model_zoo.evaluate.report.card import card_figures
from model_zoo.evaluate.report.report import about
from model_zoo.evaluate.sets import Sizes
from model_zoo.evaluate.suite import config_of, measure, simulator_of, write_results
from model_zoo.training.config import TrainConfig
from model_zoo.training.history import summary_of
from model_zoo.training.losses import Losses
from model_zoo.training.train import Trainer, network_config

__all__ = ["file_entry", "gate_of", "refile"]

SELF_TEST_SEED = 77
MIN_THRESHOLD = 3.0
RARE = 100_000
WHITE = (
    "Gaussian noise with correct error bars only; error bars that are wrong by more than "
    "their scaling can mend, correlated noise and variable stars raise K."
)
REAL = (
    "K is against constant stars of a simulated population of noise; noise that is worse than "
    "its worst stars raises K, and so do variable stars, for which there is the second head."
)
LIMITS = (
    "Single lens, uniform source, no parallax.",
    (
        "The network's log10 K is an estimate: the evaluation's comparison with exact evidence "
        "says how far it is off. Certified K is unbiased."
    ),
)
GATED = (
    "The gate lets no event with tE > 6.67 d pass; longer ones are found by their slope, but "
    "their posteriors are cut off by the prior."
)
UNGATED = (
    "Without a gate many events of the prior leave no trace in a window: the figures count them as "
    "missed, and their posterior is the prior."
)


def file_entry(
    trainer: Trainer, path: Path, sizes: Sizes, report: Path, *, quiet: bool = False
) -> Card:
    """Evaluate the trained network on the frozen test set, write its entry, and a report.

    Parameters
    ----------
    trainer : Trainer
        After its run.
    path : Path
        Folder of the entry.
    sizes : Sizes
        How large the test set is.
    report : Path
        Folder of results.json, pictures and report.md, to which `evaluate` can add.
    """
    config, network = trainer.config, trainer.network.cpu().eval()
    minutes = round(trainer.progress.seconds / 60, 1)  # before the evaluation
    simulator, entry_config = simulator_of(config), _entry_config(config)
    subject = Subject(network, entry_config, simulator, sizes, quiet)
    results = measure(subject, CORE_PARTS)
    gate = gate_of(results["calibration"])
    card = _card(trainer, minutes, _figures(config, results), gate)
    generator = torch.Generator().manual_seed(SELF_TEST_SEED)
    curves = [simulator.events(2, generator), simulator.noise(2, generator)]
    windows = torch.cat([c.x for c in curves])
    baseline_error = torch.cat([c.baseline_error for c in curves])
    write_entry(path, network, entry_config, card, windows, baseline_error)
    now = about(config.model_id, sizes) | {"sha256": verify(path).sha256}
    report.mkdir(parents=True, exist_ok=True)
    write_results(report, now | {"training": card.training} | results, ["training", *results])
    return card


def refile(entry: Entry, results: Mapping[str, Any]) -> Card:
    """Write an entry anew with the figures of an evaluation in its card, and its limits.

    Figures of parts that the evaluation leaves out stay as they are.

    Raises
    ------
    ConfigError
        If the results are of another entry.
    """
    if results["model_id"] != entry.model_id:
        raise ConfigError(f"results are of {results['model_id']}, not of {entry.model_id}")
    config = config_of(entry)
    figures = {**entry.card.evaluation, **_figures(config, results)}
    part = results.get("calibration")
    gate = entry.card.gate if part is None else gate_of(part)
    changes = {"evaluation": figures, "gate": gate, "limits": _limits(config)}
    if "scale" in results:
        scale = results["scale"]["scale"]
        changes["outputs"] = entry.card.outputs | {"log10_k_scale": scale}
    card = entry.card.model_copy(update=changes)
    stored = load_file(entry.path / FILES[1])
    write_entry(entry.path, load(entry), entry.config, card, stored["x"], stored["baseline_error"])
    return card


def _limits(config: TrainConfig) -> list[str]:
    noise = WHITE if config.simulator.noise is None else REAL
    return [noise, *LIMITS, UNGATED if config.simulator.gate is None else GATED]


def _figures(config: TrainConfig, results: Mapping[str, Any]) -> dict[str, Any]:
    simulator = simulator_of(config)
    gate = "no gate" if simulator.gate is None else f"gate {simulator.gate.name}"
    low, high = simulator.baseline_error
    baseline = f"baselines known to {low:.3%} to {high:.3%}" if high else "exact baselines"
    share = simulator.pattern.stream_share
    patterns = f"{share:.0%} streams' patterns" if share else "the paper's observing patterns"
    if simulator.pattern.visits is not None:
        patterns = f"visits {simulator.pattern.visits.name}"
    noise = "" if simulator.noise_model is None else f", noise {simulator.noise_model.name}"
    return {
        **card_figures(results),
        "test_set": f"prior {simulator.prior.name}, {gate}, {patterns}, {baseline}{noise}; "
        "frozen seeds",
    }


def _entry_config(config: TrainConfig) -> dict[str, Any]:
    window = {
        "days": config.window_days,
        "max_points": config.max_points,
        "buckets": list(config.buckets),
        "joins_bands": config.joins_bands,
    }
    return {"window": window, **network_config(config)}


def _card(trainer: Trainer, minutes: float, figures: dict[str, Any], gate: dict[str, Any]) -> Card:
    config = trainer.config
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
            **_second_output(config),
            "posterior": dict(
                zip(PARAMETERS, zip(prior.low, prior.high, strict=True), strict=True)
            ),
        },
        training={
            "config": config.model_dump(mode="json"),
            "curves": progress.curves,
            "steps": progress.step,
            "minutes": minutes,
            "started_from": trainer.origin,
            **_validation(trainer),
            "precision": str(trainer.precision).removeprefix("torch."),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
            f"{trainer.device.type}",
        },
        evaluation=figures,
        limits=_limits(config),
        runtime={"torch": torch.__version__, "zuko": zuko.__version__},
        gate=gate,
    )


def _second_output(config: TrainConfig) -> dict[str, str]:
    if not config.evidence.get("lookalikes"):
        return {}
    return {"ln_k_lookalikes": "natural log of the Bayes factor, microlensing : variable star"}


def _lookalikes(losses: Losses) -> dict[str, float]:
    return {"lookalikes": round(losses.lookalikes, 4)} if losses.lookalikes else {}


def _validation(trainer: Trainer) -> dict[str, Any]:
    """By what the weights were chosen, and how the losses fell; the nll relative to the prior."""
    if trainer.best is None or trainer.final is None:
        return {}
    return {
        "validation": {
            "events": trainer.config.training.validation,
            "best_step": trainer.best.step,
            "nll": round(trainer.final.nll, 4),
            "evidence": round(trainer.final.evidence, 4),
            **_lookalikes(trainer.final),
        },
        "history": summary_of(trainer.history.rows()),
    }


def gate_of(calibration: Mapping[str, Any]) -> dict[str, Any]:
    """Alert threshold of a stream: what one noise curve in `RARE` reaches, and never below 3.

    It does not move with the number of noise curves that were tried, from `RARE` on. A stream looks
    at every star many times, which the bound 1/k allows for and this does not.

    Parameters
    ----------
    calibration : mapping
        ``highest_log10_k``, in descending order, and ``n_tail``.
    """
    highest = calibration["highest_log10_k"]
    rank = min(max(1, calibration["n_tail"] // RARE), len(highest))
    return {
        "log10_k": round(max(MIN_THRESHOLD, highest[rank - 1]), 2),
        "from": f"what {rank} of {calibration['n_tail']:,} noise curves "
        f"{'reaches' if rank == 1 else 'reach'}, at least {MIN_THRESHOLD:g}",
    }
