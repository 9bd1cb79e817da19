"""``broker-filter recovery``: its options, and its report as a table for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_filter.commands.options import add_client_config, number
from broker_filter.observe.text import aligned_table

__all__ = ["add_arguments", "format_report", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter recovery``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Compare alerts with the events that `broker-filter replay --inject` put in: efficiency\n"
        "against tE, rho, signal-to-noise and time from the peak, false alarms of untouched stars\n"
        "beside the bound that K gives, and latency."
    )
    parser.epilog = (
        "example:\n"
        "  broker-filter subscribe --json --from-beginning --timeout 60 > alerts.jsonl\n"
        "  broker-filter recovery inject.truth.jsonl alerts.jsonl --plot recovery.png"
    )
    parser.add_argument("truth", type=Path, metavar="TRUTH", help="what --inject wrote")
    parser.add_argument(
        "alerts", metavar="ALERTS", help="JSON lines, Avro file or folder, kafka://HOST:PORT/TOPIC"
    )
    parser.add_argument(
        "--log10-k",
        type=number(-1e6, 1e6),
        metavar="X",
        help="threshold for the bound on false alarms (default: the lowest in the alerts)",
    )
    add_client_config(parser, " for kafka://")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the efficiency (PNG)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Do ``broker-filter recovery``; the report goes to stdout.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError, TransientError
        As `read_truth` and `read_alerts`; matplotlib is missing for ``--plot``.
    """
    from broker_filter.kafka.properties import read_properties
    from broker_filter.recovery.efficiency import report
    from broker_filter.recovery.files import read_alerts, read_truth

    alerts = read_alerts(args.alerts, read_properties(args.client_config))
    found = report(read_truth(args.truth), alerts, args.log10_k)
    if args.plot:
        from broker_filter.recovery.plot import plot_recovery

        plot_recovery(found, args.plot)
    text = json.dumps(found, allow_nan=False) if args.json else format_report(found)
    sys.stdout.write(text + "\n")
    return 0


def format_report(found: Mapping[str, Any]) -> str:
    """Write a report as a table for people."""
    rows = [_row(f"{name} events", found["events"][name]) for name in ("injected", "detectable")]
    for name, bins in found["efficiency"].items():
        rows += [(f"by {name}",), *(_row(f"  {_bin(one)}", one) for one in bins)]
    rows.append(("detectable events known by, in tE after the peak",))
    rows += [_row(f"  {one['tE_after_peak']:+g}", one) for one in found["from_peak"]]
    table = aligned_table(("", "found", "of", "share", "68 % interval"), rows)
    return "\n".join([table, _false_line(found["false_alarms"]), _latency_line(found["latency"])])


def _row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    share = "-" if one["share"] is None else f"{100 * one['share']:.1f} %"
    interval = f"{100 * one['low68']:.1f} to {100 * one['high68']:.1f} %"
    return name, str(one["found"]), str(one["n"]), share, interval


def _bin(one: Mapping[str, Any]) -> str:
    return (
        f"{one['low']:g} and more" if one["high"] is None else f"{one['low']:g} to {one['high']:g}"
    )


def _false_line(one: Mapping[str, Any]) -> str:
    head = (
        f"false alarms: {one['alerts']} of {one['stars']} stars in {one['star_days']:g} star-days"
    )
    if one["log10_k"] is None or one["per_star_day"] is None:
        return head
    return (
        f"{head}: {one['per_star_day']:.2g} a star-day ({one['low68']:.2g} to {one['high68']:.2g});"
        f" a K of 10^{one['log10_k']:g} allows at most {one['bound_per_star_day']:.2g}"
        f" ({one['bound_alerts']:.2g} alerts)"
    )


def _latency_line(one: Mapping[str, Any]) -> str:
    days, seconds = one["days"], one["processing_s"]
    text = (
        "latency: no event found"
        if days is None
        else (
            f"latency from the first detectable epoch to the alert's: median {days['median']:.3g} d"
            f" ({days['p16']:.3g} to {days['p84']:.3g}), {one['before_detectable']} before it"
        )
    )
    if seconds is not None:
        text += (
            f"; from epoch to alert median {seconds['median']:.3g} s, p99 {seconds['p99']:.3g} s"
        )
    return text
