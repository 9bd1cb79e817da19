"""``broker-filter score``: K of light-curve files, without a broker."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_filter.commands.lightcurve_options import add_lightcurve_options
from broker_filter.observe.text import json_line, printable
from broker_filter.photometry.times import TIME_SYSTEMS
from broker_filter.service.garbage import not_collecting

if TYPE_CHECKING:
    from broker_filter.replay.lightcurves.file import LightCurve
    from broker_filter.scoring.result import Result
    from broker_filter.types import Photometry, StarId

__all__ = ["add_arguments", "run"]

EXIT_UNREADABLE = 3
COLUMNS = {"log10 K": 8, "now": 8, "certified": 16, "epochs": 7, "verdict": 16}
"""Of the table, before the star's name, and how wide they are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter score``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Score light curves as the filter would in a stream, without a broker: one row a star,\n"
        "with log10 K of the network (largest of all windows, and now) and certified.\n"
        "Files are those that `broker-filter replay` reads as light curves."
    )
    parser.epilog = (
        "example:\n"
        "  broker-filter score phot.dat --baseline median --plots figures\n"
        "\n"
        "It exits 0; 2 for wrong settings; 3 where a file could not be read (all else is scored)."
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="light curves")
    parser.add_argument(
        "--star", help="star id of all files (default: as in the file, or its name)"
    )
    add_lightcurve_options(parser)
    parser.add_argument(
        "--baseline",
        choices=("history", "median"),
        default="history",
        help="from the epochs before each window, or the file's median (looks ahead)",
    )
    parser.add_argument(
        "--now", action="store_true", help="one look at each star's last window: quick"
    )
    parser.add_argument("--model", metavar="ID", help="entry of the model zoo, or its folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object a star")
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="save the alerts, a row each")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw each star's last alert")


def run(args: argparse.Namespace) -> int:
    """Score, print and save.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError, ModelError
        Two files are one and the same star, band and source; there is no such model; or a missing
        extra.
    """
    from broker_filter.client.save import parquet_file, plot_files
    from broker_filter.replay.lightcurves.stream import load

    curves, unreadable = load(args.files, lambda path: _read(args, path), _note)
    for line in unreadable:
        _note(line)
    folder = None if args.model is None else Path(args.model)
    with not_collecting():
        from broker_filter.scoring.star_scorer import scorer_of

        scorer = scorer_of(folder if folder is not None and folder.is_dir() else args.model)
    with ExitStack() as stack:
        keep = stack.enter_context(parquet_file(args.parquet)) if args.parquet else None
        draw = plot_files(args.plots) if args.plots else None
        if not args.json:
            print(*(name.rjust(width) for name, width in COLUMNS.items()), " star")
        for parts in _stars(curves, median=args.baseline == "median").values():
            result = scorer(parts, now=args.now)
            print(json_line(_record(result)) if args.json else _row(result), flush=True)
            if keep:
                for alert in result.alerts:
                    keep(alert)
            if draw and result.alert:
                draw(result.alert)
    return EXIT_UNREADABLE if unreadable else 0


def _read(args: argparse.Namespace, path: Path) -> LightCurve:
    from broker_filter.replay.lightcurves.file import read_lightcurve

    return read_lightcurve(
        path,
        star=args.star,
        band=args.band,
        survey=args.survey,
        zero_point=args.zero_point,
        time_system=TIME_SYSTEMS.get(args.time_system),
    )


def _note(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _stars(curves: Sequence[LightCurve], *, median: bool) -> Mapping[StarId, list[Photometry]]:
    """The light curves of each star, in order of appearance."""
    from broker_filter.replay.lightcurves.stream import with_median

    found: dict[StarId, list[Photometry]] = {}
    for curve in curves:
        for part in curve.parts:
            found.setdefault(part.star[0], []).append(with_median(part) if median else part)
    return found


def _row(result: Result) -> str:
    certified = result.certified
    exact = certified and f"{certified.log10_k:.2f} +-{certified.log10_k_error:.2f}"
    cells = (
        *(_shown(value) for value in (result.log10_k, result.log10_k_now)),
        exact or "-",
        str(result.epochs),
        result.verdict.verdict if result.verdict else ("-" if result.alert is None else "alert"),
    )
    row = " ".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True))
    return printable(f"{row}  {result.star}")


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _record(result: Result) -> dict[str, Any]:
    """One star as JSON: what the table has, and the last alert under the schema's names."""
    from broker_filter.alerts.codec import to_json_dict

    return {
        "star": result.star,
        "epochs": result.epochs,
        "rejected": dict(result.rejected),
        "log10K": _number(result.log10_k),
        "log10KNow": _number(result.log10_k_now),
        "alerts": len(result.alerts),
        "alert": result.alert and to_json_dict(result.alert),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
