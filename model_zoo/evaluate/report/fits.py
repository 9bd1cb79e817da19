"""Tables of a report on the fit: beside the flow, and beside nested sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from broker_filter.types import PARAMETERS
from model_zoo.evaluate.report.markdown import render, table

__all__ = ["at_equal_error", "fit_tables", "nested_tables", "reach_tables"]

Part = Mapping[str, Any]

MEASURES = {
    "bias": "bias",
    "rmse": "RMSE",
    "rmse_of_means": "RMSE of means",
    "median_error": "median error",
    "coverage68": "in 68 %",
    "coverage95": "in 95 %",
}
SIDES = ("fit", "flow")


def fit_tables(part: Part, paper: Mapping[str, Sequence[float]]) -> list[str]:
    """Errors and coverage of fit and flow, by parameter and by signal-to-noise.

    Parameters
    ----------
    part : mapping
        What `model_zoo.evaluate.measure.fits.measure_fits` gave.
    paper : mapping
        The paper's figures by measure, in the order of the parameters.
    """
    header, columns = ["parameter"], []
    for key, title in MEASURES.items():
        if key not in part["fit"]:  # results of an earlier version
            continue
        header += [f"{title}, {side}" for side in SIDES]
        columns += [[part[side][key][name] for name in PARAMETERS] for side in SIDES]
        if key in paper:
            header.append("paper")
            columns.append(list(paper[key]))
    rows = list(zip(PARAMETERS, *columns, strict=True))
    plain = {key: part[key] for key in part if key not in (*SIDES, "by_snr")}
    plain |= {f"{side}, {key}": value for side in SIDES for key, value in _scalars(part[side])}
    return [
        *table(header, rows),
        *render(plain),
        *_ranks(part),
        *_by_snr(part, peak=True),
        *_by_snr(part, peak=False),
    ]


def nested_tables(part: Part) -> list[str]:
    """What came out, and every event."""
    names = list(part["width_ratio"])
    header = ["event", "S/N", "ln Z, fit", "error", "nested", "error", "off / error"]
    header += ["effective samples", *(f"width, {name}" for name in names)]
    keys = ("event", "snr", "lnz_fit", "error_fit", "lnz_nested", "error_nested", "off")
    rows = [
        [
            *(row[key] for key in keys),
            row["effective_samples"],
            *(row["width_ratio"][name] for name in names),
        ]
        for row in part["events"]
    ]
    rest = {key: part[key] for key in part if key != "events"}
    rest["times slower at equal error"] = round(at_equal_error(part), 1)
    return [*render(rest), "Widths of the central 68 %, fit over nested:", "", *table(header, rows)]


def reach_tables(part: Part) -> list[str]:
    """Errors of the medians of fit and nested sampling, of the same events."""
    sides = ("fit", "nested")
    measures = ("rmse", "median_error")
    header = ["parameter", *(f"{MEASURES[m]}, {side}" for m in measures for side in sides)]
    header += ["RMSE, fit over nested", "error of that"]
    rows = [
        [
            name,
            *(part[side][m][name] for m in measures for side in sides),
            part["rmse_ratio"][name],
            part["rmse_ratio_error"][name],
        ]
        for name in PARAMETERS
    ]
    kept = (*sides, "rmse_ratio", "rmse_ratio_error")
    rest = {key: part[key] for key in part if key not in kept}
    words = "Of the same events, the first of the frozen set, with the same likelihood:"
    return [*render(rest), words, "", *table(header, rows)]


def at_equal_error(part: Part) -> float:
    """How many times longer nested sampling takes to an error of ln Z as small as the fit's.

    Median over the events. Its time goes with its live points, and these with the inverse square
    of its error.
    """
    times: list[float] = [
        row["nested_seconds"] / row["fit_seconds"] * (row["error_nested"] / row["error_fit"]) ** 2
        for row in part["events"]
    ]
    return median(times)


def _scalars(side: Part) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in side.items() if not isinstance(value, Mapping)]


def _ranks(part: Part) -> list[str]:
    """How likely uniform ranks of the truth are to look like these."""
    header = ["ranks of the truth, p"]
    header += [f"{test}, {side}" for side in SIDES for test in ("KS", "chi2")]
    rows = [
        [
            name,
            *(part[side]["ranks"][name][key] for side in SIDES for key in ("ks_p", "chi2_p")),
        ]
        for name in PARAMETERS
    ]
    return table(header, rows)


def _by_snr(part: Part, *, peak: bool) -> list[str]:
    """Convergence and coverage in each bin; 68 % and 95 % of each parameter in one cell."""
    rows = [row for row in part["by_snr"] if row["peak_in_data"] == peak]
    if not rows:
        return []
    header = ["signal-to-noise", "events", "converged", "effective samples", "of"]
    lines = [
        [
            f"{row['snr_low']:g} to {row['snr_high']:g}",
            row["n"],
            row["converged"],
            row["effective_samples"],
            side,
            *(_levels(row[side], name) for name in PARAMETERS),
        ]
        for row in rows
        for side in SIDES
    ]
    title = "Peak in the data" if peak else "Peak outside of the data"
    words = f"{title}; truths in the central 68 % / 95 %:"
    return [words, "", *table([*header, *PARAMETERS], lines)]


def _levels(side: Part, name: str) -> str:
    return f"{side['coverage68'][name]:.2f} / {side['coverage95'][name]:.2f}"
