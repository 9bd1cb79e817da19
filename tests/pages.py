"""The pages, and what their marked blocks hold: tables and figures, made from code and JSON.

``python -m tests.pages`` makes the blocks anew. ``python -m tests.pages --picture FILE`` takes a
light curve of ``broker-filter demo`` as the README's picture, in few colours.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from broker_filter.config import Model
from broker_filter.observe.table import METRICS, PREFIX, PROCESS_METRICS
from broker_filter.observe.text import markdown_table
from broker_filter.schemas import current_version, schema_folder
from model_zoo.evaluate.parts import WHITE_PARTS
from model_zoo.evaluate.report.fits import at_equal_error
from tests.bench.figures import shown

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "broker_filter"
README = ROOT / "README.md"
DEPLOY = ROOT / "deploy" / "README.md"
SCHEMAS = ROOT / "schemas" / "README.md"
ZOO = ROOT / "model_zoo" / "README.md"
CODE = PACKAGE / "README.md"
REPLAY = PACKAGE / "replay" / "README.md"
PAGE = PACKAGE / "page" / "README.md"
FORWARD = PACKAGE / "forward" / "README.md"
ADAPTERS = PACKAGE / "adapters" / "README.md"
BENCH = ROOT / "tests" / "bench" / "README.md"
TESTS = ROOT / "tests" / "README.md"
PICTURE = ROOT / "deploy" / "alert.png"

WEIGHTS = ROOT / "model_zoo" / "weights"
REPORTS = ROOT / "model_zoo" / "reports"
SPEEDS = ROOT / "tests" / "bench" / "results.json"
SERVICE = ROOT / "tests" / "bench" / "service.json"
RECOVERY = ROOT / "tests" / "bench" / "recovery.json"
DEMO = ROOT / "tests" / "demo_summary.json"
NIGHT_PAGE = ROOT / "tests" / "page" / "figures.json"
CHAOS = ROOT / "tests" / "chaos" / "results.json"
CASES = ROOT / "tests" / "cases.json"
FUZZ = ROOT / "tests" / "laws" / "fuzz.json"

ROOMS = (
    *("kafka", "decode", "photometry", "windows", "pipeline", "inference", "alerts"),
    *(
        "state",
        "observe",
        "service",
        "replay",
        "recovery",
        "client",
        "forward",
        "page",
        "scoring",
        "adapters",
        "commands",
        "config",
    ),
)
"""In the order in which a message, and then a reader, meets them."""


# The code


def rooms() -> str:
    """Each room of the package, in one line."""
    rows = ((f"[`{name}/`](broker_filter/{name})", _about(PACKAGE / name)) for name in ROOMS)
    return markdown_table(("room", "what is in it"), rows)


def modules() -> str:
    """Each room with its modules, folders in it as rows of their own."""
    folders = [PACKAGE]
    for name in ROOMS:
        inner = sorted(path.parent for path in (PACKAGE / name).glob("*/__init__.py"))
        folders += [PACKAGE / name, *inner]
    return markdown_table(("room", "what is in it", "modules"), map(_room, folders))


def _room(folder: Path) -> tuple[str, str, str]:
    name = folder.relative_to(PACKAGE).as_posix()
    paths = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    links = [f"[{path.stem}]({path.relative_to(PACKAGE).as_posix()})" for path in paths]
    where = "here" if folder == PACKAGE else f"`{name}/`"
    return where, _about(folder), ", ".join(links)


def _about(folder: Path) -> str:
    """The first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return text.split("\n\n")[0].replace("``", "`").replace("\n", " ").rstrip(".")


def floors() -> str:
    """The order of imports, as import-linter checks it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (part["layers"] for part in settings["contracts"] if part["type"] == "layers")
    return "```text\n" + "\n".join(layers) + "\n```"


# Formats and metrics


def fields_table(schema: str) -> str:
    """One row a field of a schema, nested ones with dots."""
    path = schema_folder() / schema / current_version(schema) / f"{schema}.avsc"
    return markdown_table(
        ("field", "type", "meaning"), _fields(json.loads(path.read_text())["fields"])
    )


def _fields(fields: list[dict[str, Any]], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for field in fields:
        doc = field["doc"].replace("|", "\\|").replace("<", "&lt;")
        yield f"`{prefix}{field['name']}`", _kind(field["type"]), doc
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for kind in kinds:
            inner = kind.get("items", kind) if isinstance(kind, dict) else {}
            if isinstance(inner, dict) and inner.get("type") == "record":
                yield from _fields(inner["fields"], f"{prefix}{field['name']}.")


def _kind(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(map(_kind, kind))
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"list of {_kind(kind['items'])}"
    if kind["type"] == "map":
        return f"map of {_kind(kind['values'])}"
    return " \\| ".join(kind["symbols"]) if kind["type"] == "enum" else str(kind["name"])


def metrics() -> str:
    """Every metric, and what to do about it."""
    named = [(PREFIX + metric.name, metric) for metric in METRICS]
    named += [(metric.name, metric) for metric in PROCESS_METRICS]
    rows = ((f"`{name}`", m.kind, ", ".join(m.labels), m.meaning, m.action) for name, m in named)
    return markdown_table(("metric", "type", "labels", "meaning", "what to do"), rows)


def unfed() -> str:
    """Metrics that nothing in the package sets yet."""
    modules = PACKAGE.glob("*/*.py")
    sources = "".join(path.read_text() for path in modules if path.name != "table.py")
    names = [f"`{metric.name}`" for metric in METRICS if f'"{metric.name}"' not in sources]
    return f"Not measured yet, so without a value or at zero: {', '.join(names) or 'none'}."


# The models

RULES = {
    "network_zero_fp": "network, log10 K >= {threshold:.2f}, reached by none of {n_validation:,}"
    " other noise curves",
    "network_0.8": "network, log10 K >= 0.8, the paper's threshold",
    "johnson_2020": "delta chi2 >= 300, 6 epochs above 3 sigma (Johnson et al. 2020)",
    "johnson_2020_tuned": "the same statistic, thresholds chosen on those other noise curves",
    "snr2_ge_25": "matched filter with the true curve, signal-to-noise >= 5",
    "known_template": "best possible, the true curve of each event known",
}
"""Rows of the table of detection, with numbers from the evaluation."""


def models() -> str:
    """One row a model."""
    cards = [json.loads(path.read_text()) for path in sorted(WEIGHTS.glob("*/card.json"))]
    rows = (
        (
            f"`{card['model_id']}`",
            card["summary"],
            card["evaluation"]["test_set"].removesuffix("; frozen seeds"),
            f"{card['gate']['log10_k']:g}, {card['gate']['from']}",
        )
        for card in cards
    )
    return markdown_table(
        ("model", "for what", "simulated with", "alert threshold in log10 K"), rows
    )


def figures() -> str:
    """The evaluated models, the default one first and open."""
    default = Model().id
    evaluated = sorted(path.parent.name for path in REPORTS.glob("*/results.json"))
    others = [name for name in evaluated if name != default]
    parts = [f"### {default}, the default\n\n{_model(default)}"]
    for name in others:
        head = f"<details><summary><b>{name}</b></summary>"
        parts.append(f"{head}\n\n{_model(name)}\n\n</details>")
    return "\n\n".join(parts)


def _model(name: str) -> str:
    card = json.loads((WEIGHTS / name / "card.json").read_text())
    results = json.loads((REPORTS / name / "results.json").read_text())
    training, measured = card["training"], card["evaluation"]
    head = (
        f"Trained on {training['curves']:,} simulated curves in {training['minutes']:g} minutes"
        f" ({training['machine']}). Test set: {measured['test_set']}."
        f" Report: [reports/{name}](reports/{name}/report.md)."
    )
    limits = "\n".join(f"- {limit}" for limit in card["limits"])
    tables = {
        "detection": _detection,
        "calibration": lambda part: _noise(part, results.get("streams")),
        "exact": _exact,
        "certified": _certified,
        "posteriors": _posteriors,
        "fit": lambda part: _fit(part, *(results.get(n) for n in ("nested", "reach", "emcee"))),
    }
    parts = [table(results[name]) for name, table in tables.items() if name in results]
    missing = [name for name in (*tables, "streams") if name not in results]
    if training["config"]["simulator"].get("noise") is not None:
        white = [name for name in missing if name in WHITE_PARTS]
        missing = [name for name in missing if name not in white]
        parts.append(f"Of white noise alone, so not of this entry: {', '.join(white)}.")
    if missing:
        parts.append(f"Not measured: {', '.join(missing)}.")
    return "\n\n".join([head, *parts, f"Limits, from the card:\n\n{limits}"])


def _detection(found: Mapping[str, Any]) -> str:
    own, alarms = found["sets"]["own"], found["false_alarms"]
    n_noise, network = found["n_noise"], found["rules"]["network_zero_fp"]
    head = (
        "rule",
        f"events found, of {own['n']:,}",
        f"with rho >= 5, of {own['n_rho_ge_5']:,}",
        f"alarms in {n_noise:,} noise curves",
    )
    rows = []
    for name, words in RULES.items():
        detector = own["detectors"][name]
        label = words.format(threshold=network["threshold"], n_validation=found["n_validation"])
        shares = (_percent(detector.get(part, {}).get("share")) for part in ("all", "rho_ge_5"))
        rows.append((label, *shares, str(alarms.get(name, {}).get("false_alarms", "-"))))
    return markdown_table(head, rows)


def _noise(single: Mapping[str, Any], streams: Mapping[str, Any] | None) -> str:
    """How often noise reaches k, in one evaluation and in any while a window fills."""
    lives = {f"{row['k']:.4g}": row for row in streams["sup_tail"]} if streams else {}
    n_streams = f"{streams['n_streams']:,}" if streams else "no"
    head = (
        "k",
        f"one evaluation, {single['n_tail']:,} windows",
        f"any evaluation while a window fills, {n_streams} windows",
        "bound 1/k",
    )
    rows = []
    for row in single["k_tail"]:
        life = lives.get(f"{row['k']:.4g}")
        rows.append(
            (
                f"{row['k']:,.4g}",
                _rate(row, single["n_tail"]),
                _rate(life, streams["n_streams"]) if streams and life else "not measured",
                f"{row['bound']:.2g}",
            )
        )
    mean = (
        f"Mean K of the {single['n_tail']:,} noise curves (at most 1 for an exact K):"
        f" {single['mean_k_noise']:.2g} +- {single['mean_k_noise_error']:.2g};"
        f" their highest log10 K: {max(single['highest_log10_k']):.1f}."
    )
    if streams:
        days = streams["star_days"] / streams["n_streams"]
        mean = f"A star begins a new window every {days:g} days. {mean}"
    return f"{markdown_table(head, rows)}\n\n{mean}"


def _rate(row: Mapping[str, Any], n: int) -> str:
    if not row["count"]:
        return f"0 (below {3 / n:.2g} at 95 %)"
    return f"{row['observed']:.2g} ({row['low']:.2g} to {row['high']:.2g})"


def _exact(exact: Mapping[str, Any]) -> str:
    names = {
        "small_k": "exact log10 K between -3 and 3",
        "large_k": "exact log10 K of 3 and more",
        "negative_k": "exact log10 K of -3 and less",
        "noise": "all noise curves",
    }
    rows = [
        (words, f"{part['n']}", f"{part['bias']:+.2f}", f"{part['scatter']:.2f}")
        for name, words in names.items()
        if (part := exact[name])["n"]
    ]
    table = markdown_table(
        ("network's log10 K minus exact", "curves", "bias (dex)", "scatter (dex)"), rows
    )
    left_out = exact["not_converged"]
    note = f"\n\nLeft out: {left_out} curves whose integral did not converge." if left_out else ""
    return table + note


def _certified(certified: Mapping[str, Any]) -> str:
    head = (
        "stars",
        "false alarms a night",
        "log10 K needed",
        "found by the network's K",
        "found by certified K (white noise), first charge included",
    )
    rows = (
        (
            f"{row['stars']:,.0f}",
            f"{row['false_alarms_per_night']:g}",
            f"{row['threshold']:.2f}",
            _percent(row["efficiency_network"]),
            _percent(row["efficiency_certified"]),
        )
        for row in certified["budgets"]
    )
    plain = certified["tpr_certified_6_6"]
    return (
        f"{markdown_table(head, rows)}\n\nOf {certified['n_events']:,} events."
        f" {_percent(plain)} have a certified log10 K >= 6.6 before the charge;"
        " the filter decides after it."
    )


def _posteriors(measured: Mapping[str, Any]) -> str:
    columns = {
        "bias": "bias",
        "RMSE": "rmse",
        "median error": "median_abs_error",
        "r": "r",
        "in 68 %": "coverage68",
        "in 95 %": "coverage95",
    }
    rows = (
        (name, *(f"{measured[key][name]:.3f}" for key in columns.values()))
        for name in measured["rmse"]
    )
    title = f"posterior medians of {measured['n_posterior']:,} events"
    return markdown_table((title, *columns), rows)


def _fit(
    measured: Mapping[str, Any],
    nested: Mapping[str, Any] | None,
    reach: Mapping[str, Any] | None,
    emcee: Mapping[str, Any] | None,
) -> str:
    """Fit and flow side by side, where the fit converges, and how it compares with samplers."""
    sides = ("fit", "flow")
    columns = {
        "RMSE": "rmse",
        "median error": "median_error",
        "in 68 %": "coverage68",
        "in 95 %": "coverage95",
    }
    rows = (
        (
            name,
            *(f"{measured[side][key][name]:.3f}" for key in columns.values() for side in sides),
        )
        for name in measured["fit"]["rmse"]
    )
    head = (f"{title}, {side}" for title in columns for side in sides)
    title = f"medians of {measured['fit']['n']:,} events"
    bins = (
        (
            f"{row['snr_low']:g} and more"
            if row["snr_high"] > 1e5
            else f"{row['snr_low']:g} to {row['snr_high']:g}",
            f"{row['n']:,}",
            _percent(row["converged"], 0),
            *(_worst(row, side, level) for level in ("coverage68", "coverage95") for side in sides),
        )
        for row in measured["by_snr"]
        if row["peak_in_data"]
    )
    by_snr = (
        *("signal-to-noise, peak in the data", "events", "fit converged"),
        *(f"in {level} %, {side}" for level in (68, 95) for side in sides),
    )
    load = measured.get("load", 1.0)
    shared = f", with {load:.0f} programs running on the machine" if load > 2 else ""
    notes = (
        f"Fit of an event: {measured['fit']['seconds_median']:.2f} s of one thread in the median"
        f"{shared}. A range is that of the five parameters."
    )
    if means := measured["fit"].get("rmse_of_means"):
        notes += (
            f" The RMSE of its means is {', '.join(f'{value:.3f}' for value in means.values())}:"
            " of an exact posterior no estimate has a smaller one."
        )
    if nested:
        notes += (
            " Against nested sampling of the same likelihood: ln Z within 3 errors on"
            f" {nested['within_3']} of {nested['n']} events, widths"
            f" {nested['width_ratio_median']:.2f} times as large in the median; nested sampling"
            f" takes {nested['times_slower']:.0f} times as long, and"
            f" {at_equal_error(nested):.0f} times to an equal error of ln Z."
        )
    if reach:
        ratios = reach["rmse_ratio"].values()
        errors = (f"{reach[side]['median_error']['f_s']:.3f}" for side in ("fit", "nested"))
        notes += (
            f" On the first {reach['n']:,} events the fit's RMSE is {min(ratios):.2f} to"
            f" {max(ratios):.2f} times nested sampling's, by parameter; the median errors of f_s"
            f" are {' and '.join(errors)}: what both miss no exact posterior would find."
        )
    if emcee:
        notes += (
            f" emcee with the paper's settings takes {emcee['ratio_median']:.0f} times as long to"
            f" as many independent samples, in the median of {emcee['n']} events{_with_k(emcee)};"
            f" {_percent(emcee['lost_walkers'], 0)} of its walkers are lost."
        )
    return "\n\n".join([markdown_table((title, *head), rows), markdown_table(by_snr, bins), notes])


def _with_k(emcee: Mapping[str, Any]) -> str:
    """What it takes emcee to find K, where that was measured."""
    if "with_k_ratio_median" not in emcee:
        return ", and gives no K"
    return (
        f", and {emcee['with_k_ratio_median']:.0f} times with K, by chains at powers of the"
        f" likelihood, whose ln K is off by {emcee['with_k_off_median']:.1f}"
    )


def _worst(row: Mapping[str, Any], side: str, level: str) -> str:
    """Lowest and highest share of the five parameters."""
    shares = row[side][level].values()
    return f"{min(shares):.2f} to {max(shares):.2f}"


def night_page() -> str:
    """How quick the page is with many events, and what a browser takes."""
    run = json.loads(NIGHT_PAGE.read_text())
    rows = (
        (
            name,
            f"{one['median_ms']:.0f}",
            f"{one['processor_ms']:.0f}",
            f"{one['bytes_packed'] / 1000:.1f}",
        )
        for name, one in run["answers"].items()
    )
    head = ("request", "time (ms, median)", "of it processor (ms)", "kB, packed")
    notes = [
        f"{name}: {one['bytes'] / 1000:.0f} kB in {one['files']} files, violations of axe-core"
        f" {one['axe_violations']} ({one['axe_passes']} rules passed)"
        for name, one in run["browser"].items()
    ]
    busy = f" while {run['load']:.0f} programs ran" if run["load"] > run["cores"] else ""
    return (
        f"{markdown_table(head, rows)}\n\n{run['events']:,} events with {run['alerts']:,} alerts,"
        f" {run['database_mb']:.0f} MB, on {run['cores']} cores{busy}. In Chromium,"
        f" {'; '.join(notes)}."
    )


def recovery() -> str:
    """What was found of events injected into real light curves, and what else alerted."""
    runs = json.loads(RECOVERY.read_text())
    head = (
        *("entry", "detectable events found", "injected events found"),
        *("untouched star-days", "new alerts of known events", "of variables"),
        "bound for constant stars",
    )
    table = markdown_table(head, map(_recovered, runs))
    snr = runs[0]["report"]["events"]["detectable_snr"]
    dates, machines = (sorted({run[key] for run in runs}) for key in ("date", "machine"))
    return (
        f"{table}\n\nDetectable means a signal-to-noise of {snr:g} or more. New alerts are of"
        f" untouched stars.\n\n`python -m tests.bench.bench_recovery --model ENTRY`,"
        f" {dates[-1][:10]}, {'; '.join(machines)}."
    )


def _recovered(run: Mapping[str, Any]) -> tuple[str, ...]:
    events, alarms = run["report"]["events"], run["report"]["false_alarms"]
    found = (
        f"{part['found']} of {part['n']} ({_percent(part['share'], 0)})"
        for part in (events["detectable"], events["injected"])
    )
    strangers = run["new alerts of untouched stars"]
    variables = strangers.get("ogle2_variables_shared", 0)
    known = sum(strangers.values()) - variables
    counts = (f"{alarms['star_days']:,.0f}", f"{known}", f"{variables}")
    return f"`{run['model']}`", *found, *counts, f"{alarms['bound_alerts']:.1f}"


# Speeds


def bench() -> str:
    """Every figure of the benchmark."""
    result = json.loads(SPEEDS.read_text())
    machine = ", ".join(result["machine"].values())
    return f"{_figures(result['figures'])}\n\n`make bench`, {result['date'][:10]}, {machine}."


def _figures(rows: Iterable[Mapping[str, Any]]) -> str:
    return markdown_table(
        ("what", "figure", "compared with", "ratio, above 1 is better"),
        (
            (
                row["label"],
                f"{shown(row['value'])} {row['unit']}".strip(),
                _rival(row),
                "" if row["ratio"] is None else shown(row["ratio"]),
            )
            for row in rows
        ),
    )


def _rival(row: Mapping[str, Any]) -> str:
    if row["rival_value"] is None:
        return ""
    return f"{row['rival']}: {shown(row['rival_value'])} {row['unit']}"


def demo() -> str:
    """The demo's summary."""
    run = json.loads(DEMO.read_text())
    return (
        f"{run['stars']:,} stars with {run['epochs']:,} epochs, {run['injected']} stars lensed:"
        f" {run['detectable_alerted']} of {run['detectable']} detectable events alerted, and"
        f" {run['false_alert_stars']} of {run['stars'] - run['injected']:,} constant stars"
        f" (at most {run['false_alert_stars_expected']:g} expected,"
        f" {run['false_alert_stars_allowed']} allowed)."
        f" {run['windows_evaluated']:,} windows were evaluated and {run['alerts']} alerts published"
        f" in {run['seconds']:.0f} s, with at most {run['peak_rss_mb']:,} MB of memory.\n\n"
        f"`make demo`, {run['model_id']}, {run['date']}, {run['machine']}."
    )


def service() -> str:
    """Figures of the whole service on a real Kafka."""
    parts = json.loads(SERVICE.read_text())
    rows = [
        (row["label"], _beside_its_rival(row)) for part in parts.values() for row in part["figures"]
    ]
    dates = ", ".join(sorted({part["date"][:10] for part in parts.values()}))
    machines = ", ".join(sorted({part["machine"]["processor"] for part in parts.values()}))
    loads = ", ".join(f"{name} {part['load']}" for name, part in parts.items() if "load" in part)
    return (
        f"{markdown_table(('what', 'figure'), rows)}\n\n"
        f"`python -m tests.bench.bench_service`, {dates}, {machines}, 2 cores. Load averages, the"
        f" filter and the broker included: {loads}."
    )


def _beside_its_rival(row: Mapping[str, Any]) -> str:
    figure = f"{shown(row['value'])} {row['unit']}".strip()
    return f"{figure} ({row['rival']}: {shown(row['rival_value'])})" if row["rival"] else figure


def sizing() -> str:
    """What one machine takes, from the benchmark."""
    result = json.loads(SPEEDS.read_text())
    value = {row["name"]: row["value"] for row in result["figures"]}
    snapshot = 1e6 * value["snapshot_size"] / (100_000 * 500)
    rows = [
        ("one core, intake of one-star messages", f"{shown(value['star_ingest'])} messages/s"),
        ("one core, intake of block messages", f"{shown(value['block_ingest'])} epochs/s"),
        (
            "two cores, network, windows of 835 epochs",
            f"{shown(value['score_compact_835'])} windows/s",
        ),
        ("snapshot", f"{snapshot:.0f} bytes an epoch"),
        (
            "snapshot of 50 million epochs, read and restored",
            f"{shown(value['snapshot_restored'])} s",
        ),
    ]
    machine = ", ".join(result["machine"].values())
    return f"{markdown_table(('what', 'figure'), rows)}\n\n`make bench`, {machine}."


STARS, MINUTES, DAYS = 2e8, 15, 20
"""Stars of the sheet, minutes between their exposures, days of a window."""
NODE_GB, NODE_CORES, PARTITION_STARS = 256, 16, 1e6
LOOKS = 0.072
"""Looks at a constant star for each of its exposures, with the settings that are the default."""
WIRE_BYTES = 20
"""Of one epoch in a block message."""


def scale_out() -> str:
    """What 200 million stars take, from the figures of one machine."""
    value = {row["name"]: row["value"] for row in json.loads(SPEEDS.read_text())["figures"]}
    points = DAYS * 1440 / MINUTES
    epoch_bytes = (value["bytes_per_star_512"] - value["bytes_per_star_1"]) / 511
    star_bytes = value["bytes_per_star_1"] + epoch_bytes * points
    memory_tb = STARS * star_bytes / 1e12
    nodes = math.ceil(memory_tb * 1e3 / (0.7 * NODE_GB))
    epochs = STARS / (60 * MINUTES)
    looks = LOOKS * epochs
    look_s = 1 / value["read_catalogue"] + 1 / value["scan_835"]
    snapshot_tb = STARS * points * value["snapshot_size"] * 1e6 / (100_000 * 500) / 1e12
    write_s = snapshot_tb * 1e6 / nodes / (value["snapshot_size"] / value["snapshot_written"])
    read_s = STARS * points / nodes / (100_000 * 500 / value["snapshot_restored"])
    rows = [
        ("epochs", f"{shown(epochs)} epochs/s, {epochs * WIRE_BYTES / 1e6:.2g} MB/s of blocks"),
        ("memory of the windows", f"{star_bytes / 1e3:.3g} kB a star, {memory_tb:.2g} TB in all"),
        (f"nodes of {NODE_GB} GB, filled to 70 %", f"{nodes}"),
        (f"partitions of {PARTITION_STARS:,.0f} stars", f"{STARS / PARTITION_STARS:.0f}"),
        ("intake", f"{epochs / value['block_ingest']:.2g} cores"),
        ("windows read and scanned", f"{shown(looks)} windows/s, {looks * look_s:.2g} cores"),
        (
            "the network, if one window in a hundred is not settled",
            f"{looks / 100 / (value['score_compact_835'] / 2):.2g} cores",
        ),
        ("snapshots of all partitions", f"{snapshot_tb:.2g} TB"),
        ("a node writes its share, one thread", f"{write_s / 60:.2g} min"),
        ("a node reads the share of another that is gone", f"{read_s / 60:.2g} min"),
    ]
    return markdown_table(("what", "figure"), rows)


def faults() -> str:
    """What was lost, doubled or changed in each case, and what the controls had to show."""
    runs = json.loads(CHAOS.read_text())
    rows = (
        (run["case"], *(f"{run[key]}" for key in _COUNTS), _what(run), run["commit"])
        for run in runs
    )
    table = markdown_table(("case", *_COUNTS, "what happened", "code"), rows)
    machines, dates = (sorted({run[key] for run in runs}) for key in ("machine", "date"))
    return f"{table}\n\n`make chaos`, up to {dates[-1][:10]}, {'; '.join(machines)}."


def _what(run: Mapping[str, Any]) -> str:
    must = f"**must show {run['must']}**; " if run["must"] else ""
    return f"{must}{run['note']}"


_COUNTS = ("runs", "failed", "lost", "doubled", "changed")


def cases() -> str:
    """Faults that were met: what happened, what happens now, and which test holds it."""
    rows = (
        (row["case"], row["before"], row["after"], "<br>".join(map(_named, row["tests"])))
        for row in json.loads(CASES.read_text())
    )
    return markdown_table(("case", "before", "now", "test"), rows)


def _named(test: str) -> str:
    """A test by its name, with a link to its file."""
    path, _, name = test.rpartition("::")
    return f"[{name}]({path})"


def fuzz() -> str:
    """How many inputs the laws were tried with at once."""
    run = json.loads(FUZZ.read_text())
    rows = (
        (row["what"], f"{row['inputs']:,}", f"{row['failed']}", f"{row['seconds']:,.0f}")
        for row in run["rows"]
    )
    table = markdown_table(("inputs", "tried", "failed", "seconds"), rows)
    return (
        f"{table}\n\n`{run['command']}`, {run['date']}, {run['machine']}, code of {run['commit']}."
    )


def _percent(share: float | None, digits: int = 2) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


# Writing

BLOCKS: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    README: {"rooms": rooms},
    CODE: {"modules": modules, "floors": floors},
    SCHEMAS: {
        name: lambda name=name: fields_table(name)
        for name in ("photometry", "photometry_block", "alert", "dead_letter")
    },
    ZOO: {"models": models, "figures": figures, "recovery": recovery},
    DEPLOY: {
        "sizing": sizing,
        "scale-out": scale_out,
        "faults": faults,
        "service": service,
        "metrics": metrics,
        "unfed": unfed,
    },
    BENCH: {"bench": bench, "demo": demo},
    TESTS: {"cases": cases, "fuzz": fuzz},
    REPLAY: {},
    PAGE: {"page": night_page},
    FORWARD: {},
    ADAPTERS: {},
}
PAGES = tuple(BLOCKS)


def rendered(page: Path, text: str) -> str:
    """The page with every marked block made anew."""
    for name, render in BLOCKS[page].items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} lacks the lines {begin.strip()} and {end}")
        text = f"{before}{begin}{render()}\n{end}{after}"
    return text


def shrink(picture: Path) -> None:
    """Store a picture as the README's, in 48 colours."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(48, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


def main() -> None:
    """Write the pages, or the picture."""
    parser = argparse.ArgumentParser(prog="python -m tests.pages", description=__doc__)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="a light curve of the demo")
    picture = parser.parse_args().picture
    if picture is not None:
        shrink(picture)
        print(f"{PICTURE} has {PICTURE.stat().st_size:,} bytes")
        return
    for page in PAGES:
        page.write_text(rendered(page, page.read_text()))
        print(f"{page} is fresh")


if __name__ == "__main__":
    main()
