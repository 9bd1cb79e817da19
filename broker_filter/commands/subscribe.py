"""``broker-filter subscribe``: print and save the alerts of a topic, as they come."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from broker_filter.client.text import format_alert
from broker_filter.commands.options import add_alert_source, some_of
from broker_filter.observe.text import json_line

if TYPE_CHECKING:
    from broker_filter.alerts.alert import Alert
    from broker_filter.client.save import Save

__all__ = ["add_arguments", "run"]

_log = logging.getLogger(__name__)

COLUMNS = ("light-curve", "samples")
"""What ``--with`` adds to JSON."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter subscribe``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Print or save the alerts of a topic, as they come."
    parser.epilog = (
        "example:\n"
        "  broker-filter subscribe --bootstrap-servers localhost:9092 --min-log10-k 5 --plot DIR\n"
        "\n"
        "It runs until Ctrl-C, --timeout or --max-alerts, and exits 0; 2 for wrong settings or an\n"
        "unreachable broker."
    )
    add_alert_source(parser.add_argument_group("what to read"))
    output = parser.add_argument_group("what to do with it")
    output.add_argument("--json", action="store_true", help="print one JSON object an alert")
    output.add_argument(
        "--with",
        dest="columns",
        type=_columns,
        default=(),
        metavar="COLUMNS",
        help="in --json also light-curve, samples, or both, parted by a comma",
    )
    output.add_argument("--avro", type=Path, metavar="DIR", help="save each as DIR/<alertId>.avro")
    output.add_argument("--parquet", type=Path, metavar="FILE", help="save all, one row an alert")
    output.add_argument("--plot", type=Path, metavar="DIR", help="draw light curve and corner plot")


def _columns(text: str) -> tuple[str, ...]:
    return some_of(COLUMNS, text)


def run(args: argparse.Namespace) -> int:
    """Do ``broker-filter subscribe``.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError, TransientError
        As `subscribe`; a missing extra for ``--plot`` or ``--parquet`` is a ConfigError, too.
    """
    from broker_filter.client.subscribe import subscribe
    from broker_filter.kafka.properties import read_properties

    with ExitStack() as stack:
        subscription = stack.enter_context(
            subscribe(
                args.bootstrap_servers,
                args.topic,
                args.group_id,
                args.from_beginning,
                args.min_log10_k,
                args.state,
                args.timeout,
                read_properties(args.client_config),
                args.verdicts,
            )
        )
        saves = _saves(args, stack)
        try:
            for alert in islice(subscription, args.max_alerts):
                for save in saves:
                    save(alert)
                subscription.mark_done()
        except KeyboardInterrupt:
            _log.info("stopped by Ctrl-C")
        except BrokenPipeError:  # the reader of our output has left, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if subscription.broken:
            _log.warning("%d messages were not alerts, and passed over", subscription.broken)
    return 0


def _saves(args: argparse.Namespace, stack: ExitStack) -> list[Save]:
    """Make what each alert is handed to; what must be closed goes on the stack."""
    from broker_filter.client.save import avro_files, parquet_file, plot_files

    saves: list[Save] = [partial(_print_json, args.columns) if args.json else _print_line]
    if args.avro:
        saves.append(avro_files(args.avro))
    if args.parquet:
        saves.append(stack.enter_context(parquet_file(args.parquet)))
    if args.plot:
        saves.append(plot_files(args.plot))
    return saves


def _print_line(alert: Alert) -> None:
    sys.stdout.write(format_alert(alert) + "\n")
    sys.stdout.flush()


def _print_json(columns: Collection[str], alert: Alert) -> None:
    from broker_filter.alerts.codec import to_json_dict

    light_curve, samples = (name in columns for name in COLUMNS)
    record = to_json_dict(alert, light_curve=light_curve, samples=samples)
    sys.stdout.write(json_line(record) + "\n")
    sys.stdout.flush()
