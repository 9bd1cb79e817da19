"""The report page of an evaluation: tables, the paper's figures beside ours, and the pictures.

It renders whatever parts are there. Parts that it knows get tables of their own; all others, and
all that those tables leave out, become plain tables.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from broker_filter.types import PARAMETERS
from model_zoo.evaluate.draw.figures import allowed_log10_k
from model_zoo.evaluate.report.fits import fit_tables, nested_tables, reach_tables
from model_zoo.evaluate.report.markdown import cell, render, table
from model_zoo.evaluate.report.sky import sky_tables
from model_zoo.evaluate.report.tables import (
    ancestor_tables,
    certified_tables,
    corner_tables,
    corner_tail_tables,
    efficiency_tables,
    exact_tables,
    season_tables,
    stream_tables,
    survey_tables,
    verdict_tables,
)
from model_zoo.evaluate.sets import SEEDS, Sizes

__all__ = ["PAPER", "about", "machine", "write_report"]

Part = Mapping[str, Any]

TITLES = {
    "training": "Training",
    "detection": "Detection",
    "calibration": "Calibration of K",
    "exact": "K against exact evidence",
    "streams": "K over time",
    "certified": "Certified K",
    "corners": "Certified K at the corners of the family of noise",
    "corner_tails": "How rarely certified K reaches k there",
    "efficiency": "What the family of noise finds",
    "verdicts": "Free-floating planets and flare stars",
    "sky": "Labelled stars of the real sky",
    "cascade": "Windows that the network need not see",
    "ancestors": "Beside the entries that it started from",
    "surveys": "Long events in the cadence of surveys, by the network alone",
    "seasons": "Long events in the cadence of surveys, on the service's own path",
    "posteriors": "Posteriors",
    "fit": "Fit and flow",
    "nested": "Fit against nested sampling",
    "reach": "Errors that any exact posterior has",
    "emcee": "Fit against emcee",
    "scale": "Scale of the network's K",
    "sharing": "Sharing the encoder",
    "toy": "Toy problem",
    "speed": "Speed",
}
PICTURES = {
    "posteriors": "posterior",
    "exact": "calibration_exact",
    "streams": "calibration_streams",
}
"""How the names of a part's pictures begin, where that is not the part's own name."""

PAPER: dict[str, Any] = {
    "detection": {
        "network_0.8": (0.9992, 0.95),
        "johnson_2020": (0.959, 0.65),
        "sumi_2011": (0.939, 0.65),
        "mroz_2017": (0.954, 0.65),
        "johnson_2020_tuned": (0.970, None),
        "sumi_2011_tuned_2e-4": (0.972, None),
        "mroz_2017_tuned_2e-4": (0.972, None),
    },
    "posteriors": {
        "bias": (0.010, 0.084, -0.018, 0.056, 0.029),
        "rmse": (0.445, 0.222, 0.064, 0.436, 0.131),
        "r": (0.997, 0.770, 0.994, 0.824, 0.881),
        "coverage68": (0.826, 0.636, 0.661, 0.553, 0.643),
        "coverage95": (0.972, 0.925, 0.931, 0.901, 0.916),
    },
    "sharing": [
        {"kind": "dedicated", "curves": 20_000, "log10_k": 18.2, "tpr": 0.930},
        {"kind": "transfer", "curves": 20_000, "log10_k": 1.20, "tpr": 0.999},
        {"kind": "dedicated", "curves": 100_000, "log10_k": 1.80, "tpr": 0.989},
        {"kind": "transfer", "curves": 100_000, "log10_k": 0.11, "tpr": 0.999},
    ],
    "toy": {"AUC": 0.725, "AUC of its oracle": 0.726, "AUC of the correct formula": 0.724},
    "speed": {
        "machine": "one NVIDIA H100",
        "10,000 samples of one posterior, median ms": 21,
        "the same, mean ms": 44,
        "emcee, median s an event": 346,
        "emcee over NPE": 16_400,
        "windows a second": 100,
    },
}
"""Figures of Smyth, Perreault-Levasseur and Hezaveh 2026. Detection: share of all events and of
those with rho >= 5 (read off a figure); posteriors in the order of the parameters."""

MEASURES = {
    "bias": "bias",
    "rmse": "RMSE",
    "r": "r",
    "coverage68": "68 % covers",
    "coverage95": "95 % covers",
}
EFFICIENCY = ("snr", "log10_tE", "phase", "phase_bright")
EFFICIENCY_OF = ("network_zero_fp", "johnson_2020", "snr2_ge_25")


def about(model_id: str, sizes: Sizes) -> dict[str, Any]:
    """What a report says of the run: entry, machine, date, sizes and seeds.

    Parameters
    ----------
    model_id : str
    sizes : Sizes
    """
    return {
        "model_id": model_id,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "software": f"broker-filter {version('broker-filter')}, torch {torch.__version__}",
        "sizes": asdict(sizes),
        "seeds": dict(SEEDS),
    }


def machine() -> str:
    """Processor, cores, and threads that torch computes with."""
    return f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def write_report(results: Mapping[str, Any], folder: Path) -> Path:
    """Write ``report.md`` with tables of all parts and links to the pictures in the folder.

    Parameters
    ----------
    results : mapping
        Parts by name, beside what `about` says.
    folder : Path
        Made if missing; its PNG files are linked, each in the section of its part.

    Returns
    -------
    Path
        Of the page, which appears when it is whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"# Evaluation of {cell(str(results.get('model_id', 'an entry')))}", ""]
    pictures = {path.name: _part_of(path.name, results) for path in folder.glob("*.png")}
    sections: list[str] = []
    for name in [*TITLES, *(key for key in results if key not in TITLES)]:
        if name not in TITLES and not _is_part(name, results):
            continue
        if name in results:
            own = sorted(picture for picture, part in pictures.items() if part == name)
            sections += _section(name, results[name], own)
    head = {key: results[key] for key in results if not _is_part(key, results)}
    lines += render(head, depth=2) + sections
    if others := sorted(picture for picture, part in pictures.items() if part is None):
        lines += ["## More pictures", "", *_links(others)]
    path, part = folder / "report.md", folder / ".report.md.part"
    part.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    part.replace(path)
    return path


def _part_of(picture: str, results: Mapping[str, Any]) -> str | None:
    """The part whose pictures' names begin like this one's, furthest if there are several."""
    begins = {PICTURES.get(name, name): name for name in [*TITLES, *results] if name in results}
    known = [begin for begin in begins if picture.startswith(begin)]
    return begins[max(known, key=len)] if known else None


def _is_part(name: str, results: Mapping[str, Any]) -> bool:
    """All that is nested is a part, but for sizes and seeds."""
    return isinstance(results[name], Mapping) and name not in ("sizes", "seeds")


def _section(name: str, part: Any, pictures: Sequence[str]) -> list[str]:  # noqa: ANN401  as JSON
    title = TITLES.get(name, name.replace("_", " ").capitalize())
    return [f"## {title}", "", *_body(name, part), *_links(pictures)]


def _body(name: str, part: Any) -> list[str]:  # noqa: ANN401  as JSON
    special = SPECIAL.get(name)
    if special is not None and isinstance(part, Mapping):
        try:
            return special(part)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            pass  # a part of another version still gets its plain tables
    return render(part) + _paper(name)


def _paper(name: str) -> list[str]:
    figures = PAPER.get(name)
    return [] if figures is None else ["### The paper's figures", "", *render(figures)]


def _links(pictures: Sequence[str]) -> list[str]:
    lines = []
    for picture in pictures:
        lines += [f"![{Path(picture).stem.replace('_', ' ')}]({picture})", ""]
    return lines


def _detection(part: Part) -> list[str]:
    lines = []
    for name, measured in part["sets"].items():
        lines += [f"### {name.capitalize()} gate: {measured['gate']}", ""]
        lines += _detectors(measured, part, with_paper=measured["gate"] == "paper-1")
    own = part["sets"]["own"]
    lines += ["### Efficiency of the own set", ""]
    for quantity in EFFICIENCY:
        if quantity in own["efficiency"]:
            lines += _efficiency(quantity, own["efficiency"][quantity])
    if "rising" in part:
        lines += _rising(part["rising"])
    lines += ["### Rules, chosen on validation sets", "", *_rules(part)]
    return lines + _gallery(part["gallery"])


def _detectors(measured: Part, part: Part, *, with_paper: bool) -> list[str]:
    """One row a detector: share of events found, alarms on noise, and the paper's share."""
    header = ["detector", f"of {measured['n']:,}", "68 %"]
    header += [f"rho >= 5, {measured['n_rho_ge_5']:,}", "68 %", f"alarms in {part['n_noise']:,}"]
    rows = []
    for name, found in measured["detectors"].items():
        alarms = part["false_alarms"].get(name, {}).get("false_alarms")
        shares = [_percent(found.get(key)) for key in ("all", "rho_ge_5")]
        paper = PAPER["detection"].get(name, (None, None)) if with_paper else ()
        rows.append([name, *shares[0], *shares[1], alarms, *map(_as_percent, paper)])
    header += ["paper", "paper, rho >= 5"] if with_paper else []
    areas = ", ".join(f"{name} {curve['auc']:.5f}" for name, curve in measured["roc"].items())
    return [*table(header, rows), f"Area below the ROC: {areas}.", ""]


def _rules(part: Part) -> list[str]:
    rows = [
        [name, rule["statistic"], rule["threshold"], rule.get("run"), alarms["rate_upper95"]]
        for name, rule in part["rules"].items()
        for alarms in [part["false_alarms"][name]]
    ]
    header = ["detector", "statistic", "threshold", "consecutive", "false alarm rate below (95 %)"]
    return table(header, rows)


def _efficiency(quantity: str, bins: Part) -> list[str]:
    edges = bins["edges"]
    rows = [
        [f"{cell(edges[i])} to {cell(edges[i + 1])}", n]
        + [text for name in EFFICIENCY_OF for text in _percent({k: bins[name][k][i] for k in KEYS})]
        for i, n in enumerate(bins["n"])
        if n
    ]
    header = [quantity, "events"] + [text for name in EFFICIENCY_OF for text in (name, "68 %")]
    return table(header, rows)


def _rising(rising: Part) -> list[str]:
    rows = [
        [
            f"{cell(row['tE_low'])} to {cell(row['tE_high'])}",
            row["before_peak"]["n"],
            *_percent(row["before_peak"]),
            row["median_lead_tE"],
            row["median_lead_days"],
        ]
        for row in rising["by_tE"]
    ]
    header = ["tE (days)", "bright events", "found before the peak", "68 %"]
    header += ["median lead (tE)", "median lead (days)"]
    by_phase = [
        [phase, *(_as_percent(rising[key]["share"][i]) for key in ("found", "snr2_ge_25"))]
        for i, phase in enumerate(rising["phase"])
    ]
    looked = ["(last epoch - t0) / tE", "found by then", "ceiling: signal-to-noise of 5"]
    return ["### Before the peak", "", *table(header, rows), *table(looked, by_phase)]


def _gallery(gallery: Part) -> list[str]:
    lines = ["### Found by the network alone", ""]
    lines += [f"{gallery['n']:,} of {gallery['of']:,} events, missed by every published cut.", ""]
    lines += ["log10 K is the network's, but no higher than delta chi2 / (2 ln 10) allows.", ""]
    keys = ("snr", "delta_chi2", "run")
    rows = [
        [curve["index"], allowed_log10_k(curve), *(curve[key] for key in keys), *curve["theta"]]
        for curve in gallery["curves"]
    ]
    return lines + table(["index", "log10_k", *keys, *PARAMETERS], rows)


def _posteriors(part: Part) -> list[str]:
    known = {key: part[key] for key in MEASURES}
    header = ["parameter"]
    for title in MEASURES.values():
        header += [title, "paper"]
    rows = [
        [name, *(v for key in MEASURES for v in (known[key][name], PAPER["posteriors"][key][i]))]
        for i, name in enumerate(PARAMETERS)
    ]
    rest = {key: value for key, value in part.items() if key not in MEASURES}
    return table(header, rows) + render(rest)


def _certified(part: Part) -> list[str]:
    """Certified K; with ``refined`` posteriors, which come of the same weights, their table."""
    lines = certified_tables(part)
    if "refined" in part:
        lines += ["### Refined posteriors", "", *_posteriors(part["refined"])]
    return lines


def _calibration(part: Part) -> list[str]:
    rows = [
        [row["k"], row["observed"], row["bound"], row["observed"] <= row["bound"]]
        for row in part["k_tail"]
    ]
    rest = {key: value for key, value in part.items() if key != "k_tail"}
    return table(["k", "P(K >= k) on noise", "bound 1 / k", "below"], rows) + render(rest)


def _percent(found: Part | None) -> list[str]:
    """A share and its interval in percent; empty where there is none."""
    if found is None or found.get("share") is None:
        return ["", ""]
    low, high = found.get("low68"), found.get("high68")
    interval = "" if low is None or high is None else f"{100 * low:.2f} to {100 * high:.2f}"
    return [f"{100 * found['share']:.2f} %", interval]


def _as_percent(share: float | None) -> str:
    return _percent({"share": share})[0]


def _processor() -> str:
    """Name of the processor, where the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


KEYS = ("share", "low68", "high68")
SPECIAL: dict[str, Callable[[Part], list[str]]] = {
    "detection": _detection,
    "calibration": _calibration,
    "posteriors": _posteriors,
    "fit": lambda part: fit_tables(part, PAPER["posteriors"]),
    "nested": nested_tables,
    "reach": reach_tables,
    "exact": exact_tables,
    "streams": stream_tables,
    "certified": _certified,
    "corners": corner_tables,
    "corner_tails": corner_tail_tables,
    "efficiency": efficiency_tables,
    "verdicts": verdict_tables,
    "ancestors": ancestor_tables,
    "surveys": survey_tables,
    "seasons": season_tables,
    "sky": sky_tables,
}
