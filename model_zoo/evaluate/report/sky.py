"""Tables of the record on labelled stars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_filter.alerts.verdict import LENSES, VERDICTS
from model_zoo.evaluate.measure.cuts import CUTS
from model_zoo.evaluate.report.markdown import table
from model_zoo.evaluate.sky_summary import BRIGHT

__all__ = ["sky_tables", "write_sky_page"]

Part = Mapping[str, Any]

CUT_TITLES = {
    "johnson_2020": "Johnson 2020",
    "sumi_2011": "Sumi 2011",
    "mroz_2017": "Mroz 2017",
}
SEARCH_TITLES = {
    "point_lens": "point lens, delta chi2 > 500",
    "good_point_lens": "and chi2 < 2 per degree",
    "microwavelet": "MicroWavelet",
}


def write_sky_page(part: Part, folder: Path) -> Path:
    """Write ``report.md`` of a record in which each star went through its survey's entry."""
    models = [[survey, model] for survey, model in part["models"].items()]
    lines = [
        "# Labelled stars of the real sky",
        "",
        f"{part['date']}, {part['machine']}.",
        "",
        *sky_tables(part),
        "### Entries",
        "",
        *table(["survey", "entry"], models),
        "![sky record](sky_record.png)",
    ]
    path = folder / "report.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sky_tables(part: Part) -> list[str]:
    """Windows, verdicts, published events and false alarms.

    Parameters
    ----------
    part : mapping
        Of `model_zoo.evaluate.sky_summary.summary`.
    """
    head = f"{part['stars']} of the {part['of_stars']} stars of the half ({part['half']})"
    lines = [
        f"{head}, evaluated every {part['every_days']:g} days. K is after the charge for looks.",
        "The star of an event is quiet far from it. A window counts at each evaluation; windows",
        "begun are fewer, one in each quarter of a window's length.",
        "",
        "### Windows above the thresholds",
        "",
        *_windows(part),
        *_searches(part),
        "### What alerts are called",
        "",
        f"Bright stars: a point lens improves some window by a delta chi2 of {BRIGHT:g} or more.",
        "",
        *_verdicts(part),
        "### Published events",
        "",
        *_events(part),
    ]
    if causes := part.get("looked_at"):
        header = ["star", "class", "MJD", "log10 K", "called", "cause"]
        rows = [
            [row[key] for key in ("star", "class", "mjd", "log10_k", "verdict", "cause")]
            for row in causes
        ]
        lines += ["### False alarms, one by one", "", *table(header, rows)]
    return lines


def _windows(part: Part) -> list[str]:
    header = ["class", "survey", "stars", "windows", "begun", "star-years", "network triggers"]
    header += ["K > 3", "K > 6.6", "highest", "white K > 3", *(CUT_TITLES[name] for name in CUTS)]
    header += ["events a star-year", "below"]
    keys = ["class", "survey", "stars", "windows", "windows_begun", "star_years", "triggered"]
    keys += ["certified_above_3", "certified_above_6_6", "highest_certified", "white_above_3"]
    rows = [
        [
            *(row[key] for key in keys),
            *(row["cuts"][name] for name in CUTS),
            row["events_per_star_year"],
            row["events_per_star_year_below"],
        ]
        for row in part["classes"]
    ]
    return table(header, rows)


def _searches(part: Part) -> list[str]:
    """Windows that other searches pass; nothing of a record that is older than they are."""
    rows = [row for row in part["classes"] if "searches" in row]
    rows = [row for row in rows if row["searches"]["point_lens"]["of"]]
    if not rows:
        return []
    header = ["class", "survey", *SEARCH_TITLES.values()]
    body = [
        [row["class"], row["survey"], *(_passed(row["searches"][name]) for name in SEARCH_TITLES)]
        for row in rows
    ]
    words = "MicroWavelet takes longer than all else, and was shown some of them, if any."
    return ["### The same windows in other searches", "", words, "", *table(header, body)]


def _passed(found: Mapping[str, int]) -> str:
    return f"{found['passed']} of {found['of']}" if found["of"] else ""


def _verdicts(part: Part) -> list[str]:
    header = ["class", "survey", "alerts", *VERDICTS, "lens, of windows", "lens, of events"]
    header += ["lens, of stars", "lens at the end, of bright stars"]
    rows = []
    for row in part["classes"]:
        said, bright = row["verdicts"], row["bright_stars"]
        lens = sum(said.get(name, 0) for name in LENSES)
        rows.append(
            [
                *(row["class"], row["survey"], sum(said.values())),
                *(said.get(name, 0) for name in VERDICTS),
                _percent(lens, row["windows"]),
                _percent(row["events_called_lens"], row["events"]),
                _percent(row["stars_with_verdict_microlensing"], row["stars"]),
                _percent(sum(bright.get(name, 0) for name in LENSES), sum(bright.values())),
            ]
        )
    return table(header, rows)


def _events(part: Part) -> list[str]:
    header = ["event", "survey", "found", "first alert - t0 (d)", "t0 - published (d)"]
    header += ["16 to 84 % (d)", "tE (d)", "published", "verdict"]
    rows = []
    for row in part["events"]:
        t0, published = row["t0"], row["published_t0"]
        width = None if t0 is None else row["t0_p84"] - row["t0_p16"]
        first = row["first_alert_mjd"]
        rows.append(
            [
                *(row["name"], row["survey"], row["found"]),
                None if first is None else round(first - published, 2),
                None if t0 is None else round(t0 - published, 2),
                *(width, row["tE"], row["published_tE"], row["verdict"]),
            ]
        )
    return table(header, rows)


def _percent(count: int, of: int) -> str:
    return f"{count} ({100 * count / of:.1f} %)" if of else ""
