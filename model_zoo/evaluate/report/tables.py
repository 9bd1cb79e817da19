"""Tables of a report on K: against exact evidence, over time, certified, on the service's path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_zoo.evaluate.report.markdown import render, table

__all__ = [
    "ancestor_tables",
    "certified_tables",
    "corner_tables",
    "corner_tail_tables",
    "efficiency_tables",
    "exact_tables",
    "season_tables",
    "stream_tables",
    "survey_tables",
    "verdict_tables",
]

Part = Mapping[str, Any]

SUBSETS = {
    "small_k": "|log10 K| < 3",
    "large_k": "log10 K >= 3",
    "negative_k": "log10 K <= -3",
    "events": "all events",
    "noise": "all noise",
}
OFF = ("n", "bias", "bias_error", "scatter", "median")
OFF_TITLES = ("curves", "bias (dex)", "its error", "scatter", "median")


def exact_tables(part: Part) -> list[str]:
    """Network minus exact log10 K, of ``measure_exact``."""
    rows = [[title, *(part[name][key] for key in OFF)] for name, title in SUBSETS.items()]
    by_snr = [[row["snr_low"], row["snr_high"], *(row[k] for k in OFF)] for row in part["by_snr"]]
    rest = {key: part[key] for key in part if key not in (*SUBSETS, "by_snr", "curves")}
    return [
        *table(["network - exact", *OFF_TITLES], rows),
        "Events by matched-filter signal-to-noise:",
        "",
        *table(["from", "to", *OFF_TITLES], by_snr),
        *render(rest),
    ]


def stream_tables(part: Part) -> list[str]:
    """The largest K over time beside its bound, and false alarms, of ``measure_streams``."""
    keys = ("k", "count", "observed", "low", "high", "bound", "holds")
    titles = ["k", "streams", "P(sup K >= k)", "95 % from", "to", "bound 1 / k", "holds"]
    alarms = ["k", "false alarms a star-day", "95 % from", "to", "bound 1 / (k T / 4)", "holds"]
    left_out = ("sup_tail", "false_alarms", "over_time", "paths")
    return [
        *table(titles, [[row[key] for key in keys] for row in part["sup_tail"]]),
        *table(alarms, [[row[k] for k in keys if k != "count"] for row in part["false_alarms"]]),
        *render({key: part[key] for key in part if key not in left_out}),
    ]


def certified_tables(part: Part) -> list[str]:
    """Budget -> threshold -> efficiency, and what noise reached, of ``measure_certified``."""
    budgets = [
        [
            int(row["stars"]),
            row["false_alarms_per_night"],
            row["threshold"],
            *(f"{100 * row[key]:.2f} %" for key in ("efficiency_network", "efficiency_certified")),
        ]
        for row in part["budgets"]
    ]
    header = ["stars", "false alarms a night", "log10 K >=", "network finds", "certified finds"]
    rest = {key: part[key] for key in part if key not in ("budgets", "refined")}
    return [*table(header, budgets), *render(rest)]


def corner_tables(part: Part) -> list[str]:
    """Constant stars at the corners of the family, of ``measure_corners``."""
    ks = [row["k"] for row in part["rows"][0]["tail"]]
    header = ["constant stars with", "streams", "looked at", "highest log10 K", "mean K"]
    header += [f"K >= {k:g}" for k in ks]
    keys = ("name", "streams", "looked_at", "highest", "mean_k")
    rows = [
        [
            *(row[key] for key in keys),
            *(f"{t['count']} (below {t['below']:.2g})" for t in row["tail"]),
        ]
        for row in part["rows"]
    ]
    bounds = ["bound 1 / k", "", "", "", "1", *(f"{1 / k:.2g}" for k in ks)]
    words = "Streams whose largest charged K reached k, and the 95 % upper limit of their share."
    return [*table(header, [*rows, bounds]), words, ""]


def corner_tail_tables(part: Part) -> list[str]:
    """Stars whose noise is like a lens, of ``measure_corner_tails``."""
    ks = [row["k"] for row in part["rows"][0]["tail"]]
    header = ["constant stars with", "streams", "mean weight", "highest log10 K"]
    header += [f"K >= {k:g}" for k in ks]
    rows = [
        [
            row["name"],
            row["streams"],
            f"{row['weight']:.2f} +- {row['weight_error']:.2f}",
            row["highest"],
            *(f"{t['share']:.1g} +- {t['error']:.1g} ({t['count']})" for t in row["tail"]),
        ]
        for row in part["rows"]
    ]
    bounds = ["bound 1 / k", "", "1", "", *(f"{1 / k:.2g}" for k in ks)]
    words = (
        "Share of constant stars' streams whose largest charged K reaches k, by importance"
        " sampling: lens curves are added to the noise, and each star counts for as much as such"
        " noise is rarer in truth. In brackets how many of the streams sent reached k."
    )
    return [*table(header, [*rows, bounds]), words, ""]


def efficiency_tables(part: Part) -> list[str]:
    """What the family finds of events, of ``measure_efficiency``."""
    header = ["events in", "looked at", "K > 3", "68 %", "K > 6.6", "68 %"]
    header += ["lost of white K > 6.6", "68 %", "in several nights, K > 3", "68 %"]
    header += ["K > 6.6", "68 %", "cost (dex, quartiles)"]
    rows = []
    for row in part["rows"]:
        shares = [row[name] for name in ("found_3", "found_6_6", "lost_6_6")]
        shares += [row["spread"][name] for name in ("found_3", "found_6_6")]
        cells = [text for found in shares for text in _percent(found)]
        rows.append([row["name"], row["looked_at"], *cells, row["cost_dex"]])
    return table(header, rows)


def verdict_tables(part: Part) -> list[str]:
    """What stars of each kind are called, of ``measure_verdicts``."""
    header = ["kind", "stars", "alert", "right", "68 %", "called a lens", "68 %", "verdicts"]
    rows = []
    for row in part["rows"]:
        cells = [text for name in ("right", "lens") for text in _percent(row[name])]
        said = _counted(row["verdicts"])
        rows.append([row["name"], part["stars"], row["alerted"], *cells, said])
    return table(header, rows)


def survey_tables(part: Part) -> list[str]:
    """What the network alone finds of long events, of ``measure_surveys``."""
    header = ["survey", "before the peak", "68 %", "at all", "68 %"]
    rows = [
        [row["survey"], *_percent(row["before_peak"]), *_percent(row["at_all"])]
        for row in part["rows"]
    ]
    words = f"Of one window an event, by the network's log10 K > {part['log10_k']:g}."
    return [*table(header, rows), words, ""]


def ancestor_tables(part: Part) -> list[str]:
    """An entry beside those that it started from, of ``measure_ancestors``."""
    trigger, passing = f"log10 K > {part['trigger']:g}", f"{100 * part['passing']:g} % pass"
    header = ["noise", "entry", f"constant stars, {trigger}", "68 %", f"events, {trigger}", "68 %"]
    header += [f"log10 K that {passing}", f"events where {passing}", "68 %"]
    header += [f"with a signal-to-noise of {part['bright']:g} and more", "68 %"]
    rows = []
    for row in part["rows"]:
        false, found = _percent(row["false"]), _percent(row["found"])
        at_passing = *_percent(row["found_passing"]), *_percent(row["found_bright"])
        rows.append([row["noise"], row["model_id"], *false, *found, row["threshold"], *at_passing])
    return table(header, rows)


def season_tables(part: Part) -> list[str]:
    """When events alert, and what they are called in the end, of ``measure_seasons``."""
    header = ["survey", "alert before the peak", "68 %", "by (days, quartiles)", "alert at all"]
    header += ["68 %", "end as a lens", "68 %", "last verdicts", "alert before any light"]
    rows = []
    for row in part["rows"]:
        before, at_all, lens = (_percent(row[key]) for key in ("before_peak", "at_all", "lens"))
        called = _counted(row["verdicts"]), row["too_early"]
        rows.append([row["survey"], *before, row["lead_days"], *at_all, *lens, *called])
    return table(header, rows)


def _counted(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in verdicts.items())


def _percent(found: Part) -> tuple[str, str]:
    if found["share"] is None:
        return "", ""
    interval = f"{100 * found['low68']:.1f} to {100 * found['high68']:.1f}"
    return f"{100 * found['share']:.1f} % of {found['n']}", interval
