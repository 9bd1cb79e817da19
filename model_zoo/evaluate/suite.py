"""Runs the parts of the evaluation on one entry, and takes the figures of its card from them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from broker_filter.inference.network import Network
from model_zoo.evaluate.draw.calibration import draw_calibration, draw_exact, draw_streams
from model_zoo.evaluate.draw.figures import draw_detection
from model_zoo.evaluate.draw.fits import draw_fits, draw_nested
from model_zoo.evaluate.draw.posteriors import plot_posteriors, plot_toy
from model_zoo.evaluate.draw.sky import draw_sky
from model_zoo.evaluate.draw.training import draw_training
from model_zoo.evaluate.measure.calibrate import measure_recalibration
from model_zoo.evaluate.measure.calibration import measure_calibration
from model_zoo.evaluate.measure.cascade import measure_cascade
from model_zoo.evaluate.measure.certified import measure_certified
from model_zoo.evaluate.measure.chains import measure_chains
from model_zoo.evaluate.measure.corner_tails import measure_corner_tails
from model_zoo.evaluate.measure.corners import measure_corners
from model_zoo.evaluate.measure.detection import measure_detection
from model_zoo.evaluate.measure.efficiency import measure_efficiency
from model_zoo.evaluate.measure.exact import measure_exact
from model_zoo.evaluate.measure.fits import measure_fits
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.nested import measure_nested
from model_zoo.evaluate.measure.posteriors import measure_posteriors
from model_zoo.evaluate.measure.reach import measure_reach
from model_zoo.evaluate.measure.scale import measure_scale
from model_zoo.evaluate.measure.seasons import measure_seasons
from model_zoo.evaluate.measure.sharing import FULL_SHARING, QUICK_SHARING, measure_sharing
from model_zoo.evaluate.measure.speed import FULL_SPEED, QUICK_SPEED, measure_speed
from model_zoo.evaluate.measure.streams import measure_streams
from model_zoo.evaluate.measure.surveys import measure_surveys
from model_zoo.evaluate.measure.toy import FULL_TOY, QUICK_TOY, measure_toy
from model_zoo.evaluate.measure.verdicts import measure_verdicts
from model_zoo.evaluate.report.report import about, machine, write_report
from model_zoo.evaluate.sets import FULL, FULL_PROOF, QUICK, QUICK_PROOF, Proof, Sizes
from model_zoo.simulate.curves import Simulator
from model_zoo.training.config import TrainConfig

__all__ = [
    "CORE_PARTS",
    "PARTS",
    "WHITE_PARTS",
    "Subject",
    "add_part",
    "card_figures",
    "config_of",
    "evaluate",
    "measure",
    "report_of",
    "simulator_of",
    "write_results",
]

PAPER_LIKE = "paper-1"
CASCADE = ("log10_k", "found", "lost", "lost_up_to_snr", "passed")
ACCURACY = ("bias", "rmse", "coverage68", "coverage95", "tarp_max_deviation")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: a network, its config.json, the simulator of its test sets, and sizes.

    ``folder`` is where parts of hours keep what they have.
    """

    network: Network
    config: Mapping[str, Any]
    simulator: Simulator
    sizes: Sizes
    quiet: bool = False
    proof: Proof = FULL_PROOF
    entry: zoo.Entry | None = None
    folder: Path | None = None

    def kept(self, name: str) -> Kept:
        """Stars that an earlier run of a part has measured, and a place for more."""
        path = None if self.folder is None else self.folder / f"{name}_stars.jsonl"
        return Kept(path, "" if self.entry is None else self.entry.sha256)

    @property
    def full(self) -> bool:
        """Whether sizes are those of a card, not of a quick look."""
        return self.sizes.events >= FULL.events


def _usual(part: Callable[..., dict[str, Any]]) -> Callable[[Subject], dict[str, Any]]:
    return lambda on: part(on.network, on.simulator, on.sizes, quiet=on.quiet)


def _calibration(on: Subject) -> dict[str, Any]:
    """With a map that mends K, where the raw one fails."""
    part = measure_calibration(on.network, on.simulator, on.sizes, quiet=on.quiet)
    if not (part["tail_holds"] and part["mean_k_holds"]):
        events, noise = 10 * on.sizes.events, on.sizes.tail // 10
        mended = measure_recalibration(on.network, on.simulator, events, noise, quiet=on.quiet)
        part["recalibration"] = mended.to_card()
    return part


def _certified(on: Subject) -> dict[str, Any]:
    return measure_certified(on.network, on.config, on.simulator, on.sizes, quiet=on.quiet)


def _fit(on: Subject) -> dict[str, Any]:
    return measure_fits(on.network, on.config, on.simulator, on.proof.fits, quiet=on.quiet)


def _nested(on: Subject) -> dict[str, Any]:
    return measure_nested(on.network, on.config, on.simulator, on.proof.nested, quiet=on.quiet)


def _reach(on: Subject) -> dict[str, Any]:
    return measure_reach(on.network, on.config, on.simulator, on.proof.reach, quiet=on.quiet)


def _emcee(on: Subject) -> dict[str, Any]:
    return measure_chains(on.network, on.config, on.simulator, on.proof.chains, quiet=on.quiet)


def _corners(on: Subject) -> dict[str, Any]:
    kept = on.kept("corners")
    return measure_corners(_filed(on), on.proof.corners, kept=kept, quiet=on.quiet)


def _corner_tails(on: Subject) -> dict[str, Any]:
    kept = on.kept("corner_tails")
    return measure_corner_tails(_filed(on), on.proof.skies, kept=kept, quiet=on.quiet)


def _efficiency(on: Subject) -> dict[str, Any]:
    kept = on.kept("efficiency")
    return measure_efficiency(_filed(on), on.proof.skies, kept=kept, quiet=on.quiet)


def _verdicts(on: Subject) -> dict[str, Any]:
    kept = on.kept("verdicts")
    return measure_verdicts(_filed(on), on.proof.skies, kept=kept, quiet=on.quiet)


def _seasons(on: Subject) -> dict[str, Any]:
    kept, events = on.kept("seasons"), on.proof.seasons
    return measure_seasons(_filed(on), on.simulator, events, kept=kept, quiet=on.quiet)


def _filed(on: Subject) -> zoo.Entry:
    """The entry as a service loads it; a network in training has none yet."""
    if on.entry is None:
        raise ConfigError("this part needs an entry that is filed")
    return on.entry


def _scale(on: Subject) -> dict[str, Any]:
    return measure_scale(on.network, on.config, on.simulator, on.proof.scale, quiet=on.quiet)


def _speed(on: Subject) -> dict[str, Any]:
    sizes = FULL_SPEED if on.full else QUICK_SPEED
    return measure_speed(on.network, on.simulator, on.config["encoder"], sizes, quiet=on.quiet)


def _sharing(on: Subject) -> dict[str, Any]:
    sizes = FULL_SHARING if on.full else QUICK_SHARING
    return measure_sharing(on.network, on.simulator, on.config["encoder"], sizes, quiet=on.quiet)


def _toy(on: Subject) -> dict[str, Any]:
    return measure_toy(FULL_TOY if on.full else QUICK_TOY, quiet=on.quiet)


PARTS: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "detection": _usual(measure_detection),
    "calibration": _calibration,
    "posteriors": _usual(measure_posteriors),
    "fit": _fit,
    "nested": _nested,
    "reach": _reach,
    "emcee": _emcee,
    "scale": _scale,
    "certified": _certified,
    "corners": _corners,
    "corner_tails": _corner_tails,
    "efficiency": _efficiency,
    "verdicts": _verdicts,
    "exact": _usual(measure_exact),
    "streams": _usual(measure_streams),
    "cascade": _usual(measure_cascade),
    "surveys": _usual(measure_surveys),
    "seasons": _seasons,
    "speed": _speed,
    "sharing": _sharing,
    "toy": _toy,
}
"""Each part of the evaluation by name; the last two train networks of their own."""

CORE_PARTS = ("detection", "calibration", "posteriors")
"""What no card does without."""

WHITE_PARTS = ("fit", "nested", "reach", "emcee", "scale", "certified", "exact")
"""Those that integrate the likelihood of white noise with correct errors, which must be the test
set's own. In other noise the parts on the service's own path measure what fits are worth."""

VISIT_PARTS = ("surveys", "seasons")
"""Those that say something of entries for sparse surveys alone."""

LONG_PARTS = (
    *("nested", "reach", "emcee", "corners", "corner_tails", "efficiency", "verdicts", "seasons"),
    *("sharing", "toy"),
)
QUICK_PARTS = tuple(name for name in PARTS if name not in LONG_PARTS)

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


def card_figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The ``evaluation`` section of a card; parts that were not run stay out."""
    figures: dict[str, Any] = {}
    if "detection" in results:
        figures |= _detection_figures(results["detection"])
    if "calibration" in results:
        part = results["calibration"]
        rows = [{key: row[key] for key in ("k", "observed", "bound")} for row in part["k_tail"]]
        figures |= {
            "n_tail": part["n_tail"],
            "k_tail": rows,
            "mean_k_noise": part["mean_k_noise"],
            "highest_log10_k": part["highest_log10_k"][0],
        }
        figures |= {key: part[key] for key in ("recalibration",) if key in part}
    if "posteriors" in results:
        part = results["posteriors"]
        names = ("n_posterior", *ACCURACY, "median_abs_error", "r")
        figures |= {name: part[name] for name in names}
    figures |= _fit_figures(results)
    if "scale" in results:
        part = results["scale"]
        figures["scale"] = {key: part[key] for key in ("n_events", "before", "after")}
    if "certified" in results:
        figures |= {
            "tpr_certified_6_6": results["certified"]["tpr_certified_6_6"],
            "n_certified": results["certified"]["n_events"],
            "refined": {name: results["certified"]["refined"][name] for name in ACCURACY},
        }
    if "cascade" in results:
        rows = results["cascade"]["rows"]
        figures["cascade"] = [{name: row[name] for name in CASCADE} for row in rows]
    if "surveys" in results:
        figures["surveys"] = [
            {
                "survey": row["survey"],
                "n": row["at_all"]["n"],
                "before_peak": row["before_peak"]["share"],
                "at_all": row["at_all"]["share"],
            }
            for row in results["surveys"]["rows"]
        ]
    if "speed" in results:
        figures["npe_10k_ms"] = round(results["speed"]["npe"]["event_ms"])
    return figures


FITTED = ("n", "rmse", "median_error", "coverage68", "coverage95", "seconds_median")


def _fit_figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """Sections ``fit`` and ``flow`` of the card: the same figures of both, and more of the fit."""
    if "fit" not in results:
        return {}
    part = results["fit"]
    fit, flow = ({key: part[name][key] for key in FITTED} for name in ("fit", "flow"))
    fit["converged"] = part["fit"]["converged"]
    if "nested" in results:
        nested = results["nested"]
        fit |= {"lnz_within_3": nested["within_3"], "lnz_events": nested["n"]}
        fit["width_over_nested"] = nested["width_ratio_median"]
    if "reach" in results:
        reach = results["reach"]
        fit["beside_nested"] = {"n": reach["n"], "fit": reach["fit"], "nested": reach["nested"]}
    if "emcee" in results:
        fit["emcee_over_fit"] = results["emcee"]["ratio_median"]
    return {"fit": fit, "flow": flow}


def _detection_figures(part: Mapping[str, Any]) -> dict[str, Any]:
    own = part["sets"]["own"]
    found = own["detectors"]["network_zero_fp"]
    figures = {
        "n_events": own["n"],
        "n_noise": part["n_noise"],
        "tpr_zero_fp": found["all"]["share"],
        "fp_noise": part["false_alarms"]["network_zero_fp"]["false_alarms"],
        "tpr_rho_ge_5": found["rho_ge_5"]["share"],
        "tpr_at_0_8": own["detectors"]["network_0.8"]["all"]["share"],
    }
    if "rising" in part:
        efficiency = own["efficiency"]
        figures |= {
            "efficiency_by_snr": _bins(efficiency["snr"], "snr"),
            "efficiency_by_tE": _bins(efficiency["log10_tE"], "log10_tE"),
            "rising": part["rising"],
        }
    return figures


def _bins(efficiency: Mapping[str, Any], quantity: str) -> list[dict[str, Any]]:
    """What the network finds at the threshold without false alarms, one row a bin with events."""
    found = efficiency["network_zero_fp"]
    return [
        {f"{quantity}_low": low, f"{quantity}_high": high, "n": n}
        | {key: found[key][i] for key in ("share", "low68", "high68")}
        for i, ((low, high), n) in enumerate(
            zip(pairwise(efficiency["edges"]), efficiency["n"], strict=True)
        )
        if n
    ]
