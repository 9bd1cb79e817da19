"""Runs the parts of the evaluation on one entry, and writes what they find into a folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from model_zoo.evaluate.draw.calibration import draw_calibration, draw_exact, draw_streams
from model_zoo.evaluate.draw.figures import draw_detection
from model_zoo.evaluate.draw.fits import draw_fits, draw_nested
from model_zoo.evaluate.draw.posteriors import plot_posteriors, plot_toy
from model_zoo.evaluate.draw.sky import draw_sky
from model_zoo.evaluate.draw.training import draw_training
from model_zoo.evaluate.parts import PARTS, QUICK_PARTS, VISIT_PARTS, WHITE_PARTS, Subject
from model_zoo.evaluate.report.report import about, machine, write_report
from model_zoo.evaluate.sets import FULL, FULL_PROOF, QUICK, QUICK_PROOF, Proof, Sizes
from model_zoo.simulate.curves import Simulator
from model_zoo.training.config import TrainConfig

__all__ = [
    "add_part",
    "config_of",
    "evaluate",
    "measure",
    "report_of",
    "simulator_of",
    "write_results",
]

PAPER_LIKE = "paper-1"

PICTURES: dict[str, Callable[..., Any]] = {
    "detection": draw_detection,
    "calibration": draw_calibration,
    "exact": draw_exact,
    "streams": draw_streams,
    "posteriors": plot_posteriors,
    "fit": draw_fits,
    "nested": draw_nested,
    "sky": draw_sky,
    "toy": plot_toy,
    "training": draw_training,
}


def config_of(entry: zoo.Entry) -> TrainConfig:
    """The training configuration that an entry's card holds.

    Raises
    ------
    ConfigError
        If the card holds none, or one of another version.
    """
    try:
        return TrainConfig.model_validate(entry.card.training["config"])
    except (KeyError, ValidationError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(
            f"{entry.path / 'card.json'}: training.config is not one that this version reads, so "
            f"its simulator is unknown: {problem}"
        ) from error


def simulator_of(config: TrainConfig) -> Simulator:
    """The simulator of an entry's test sets: the paper's patterns for its prior, else its own."""
    paper_like = config.simulator.prior == PAPER_LIKE
    return config.make_simulator(stream_share=0.0 if paper_like else None)


def measure(subject: Subject, parts: Sequence[str]) -> dict[str, Any]:
    """Results of the named parts, each with the seconds that it took, and where.

    ``load`` is the machine's mean number of running programs over the last 15 minutes: on a
    machine that has other work, times are longer than they need be.
    """
    results: dict[str, Any] = {}
    for name in parts:
        began = time.perf_counter()
        results[name] = PARTS[name](subject)
        results[name] |= {
            "seconds": round(time.perf_counter() - began, 1),
            "machine": machine(),
            "load": round(os.getloadavg()[2], 1),
        }
    return results


def evaluate(
    entry: zoo.Entry,
    folder: Path,
    *,
    parts: Sequence[str] | None = None,
    quick: bool = False,
    tail: int | None = None,
    proof: Proof | None = None,
    redraw: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure an entry; writes results.json, pictures and report.md into a folder.

    Parameters
    ----------
    entry : Entry
    folder : Path
        Made if need be. Results of other parts that it holds of the same entry are kept.
    parts : sequence of str, optional
        Names in `PARTS`; all of them if left out (without those of many minutes, if ``quick``).
    quick : bool
        Small sets, for a look.
    tail : int, optional
        Noise windows for the tail of K, instead of the million of the full sets.
    proof : Proof, optional
        Events on which the fit is proved, instead of the usual numbers.
    redraw : bool
        Draw the pictures of all parts that the folder holds anew, and run no part but those named.

    Returns
    -------
    dict
        All that results.json holds.

    Raises
    ------
    ConfigError
        For an unknown part, one of white noise for an entry of other noise, a card without a
        training configuration, or a results.json of other weights or of other sizes.
    """
    simulator = simulator_of(config_of(entry))
    usual = () if redraw else _usual_parts(simulator, quick=quick)
    chosen = usual if parts is None else tuple(parts)
    if unknown := set(chosen) - set(PARTS):
        raise ConfigError(f"--parts: {sorted(unknown)} are not among {', '.join(PARTS)}")
    if simulator.noise_model is not None and (white := set(chosen) & set(WHITE_PARTS)):
        raise ConfigError(
            f"--parts: {', '.join(sorted(white))}: of white noise only, and {entry.model_id} is "
            "simulated with the noise of real stars; take efficiency, surveys or verdicts"
        )
    sizes = QUICK if quick else FULL
    sizes = sizes if tail is None else replace(sizes, tail=tail)
    now = about(entry.model_id, sizes) | {"sha256": entry.sha256}
    held = _earlier(folder / "results.json", now)
    results = held | now if chosen else now | held
    proof = proof or (QUICK_PROOF if quick else FULL_PROOF)
    subject = Subject(zoo.load(entry), entry.config, simulator, sizes, quiet, proof, entry, folder)
    folder.mkdir(parents=True, exist_ok=True)
    if "history" in entry.card.training:
        results["training"] = dict(entry.card.training)
        write_results(folder, results, ["training"])
    if redraw:
        write_results(folder, results, [name for name in PICTURES if name in results])
    for name in chosen:
        # Written after each part: an interrupt keeps what was measured.
        results |= measure(subject, [name])
        write_results(folder, results, [name])
    return results


def add_part(entry: zoo.Entry, folder: Path, name: str, part: Mapping[str, Any]) -> None:
    """Put into the report of an entry what was measured by other means than `evaluate`.

    Parameters
    ----------
    entry : Entry
    folder : Path
        Made if need be; other parts that it holds are kept.
    name : str
    part : mapping

    Raises
    ------
    ConfigError
        As `evaluate` has it.
    """
    results = report_of(entry, folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_results(folder, results | {name: part}, [name])


def report_of(entry: zoo.Entry, folder: Path) -> dict[str, Any]:
    """What the report of an entry in a folder holds so far.

    Raises
    ------
    ConfigError
        The folder has the report of another entry, or a damaged one.
    """
    path, sizes = folder / "results.json", asdict(FULL)
    try:
        sizes = json.loads(path.read_text())["sizes"] if path.exists() else sizes
        now = about(entry.model_id, Sizes(**sizes)) | {"sha256": entry.sha256}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error!r}); choose another --out") from error
    return now | _earlier(path, now)


def _usual_parts(simulator: Simulator, *, quick: bool) -> tuple[str, ...]:
    """All that say something of such curves."""
    not_here: set[str] = set()
    if simulator.pattern.visits is None:
        not_here.update(VISIT_PARTS)
    if simulator.noise_model is not None:
        not_here.update(WHITE_PARTS)
    return tuple(p for p in (QUICK_PARTS if quick else PARTS) if p not in not_here)


def write_results(folder: Path, results: Mapping[str, Any], drawn: Sequence[str]) -> None:
    """Write results.json, the pictures of some parts, and the report of all."""
    partial = folder / "results.json.partial"
    partial.write_text(json.dumps(results) + "\n")
    partial.replace(folder / "results.json")
    for name in drawn:
        if name in PICTURES:
            PICTURES[name](results[name], folder)
    write_report(results, folder)


def _earlier(path: Path, now: Mapping[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        before: dict[str, Any] = json.loads(path.read_text())
        same = all(before[key] == now[key] for key in ("model_id", "sha256", "sizes"))
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path}: cannot be read ({error!r}); choose another --out") from error
    if not same:
        raise ConfigError(f"{path}: of other weights or other sizes; choose another --out")
    return before
