"""``broker-filter plot``: draw alerts that were saved."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter plot``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Draw saved alerts: the light curve with the models that fit it, and the corner plot."
    )
    parser.epilog = (
        "example:\n"
        "  broker-filter subscribe --avro alerts\n"
        "  broker-filter plot alerts/*.avro --out figures"
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE.avro",
        help="alerts as `broker-filter subscribe --avro` saves them",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the figures go (default: beside each file)"
    )


def run(args: argparse.Namespace) -> int:
    """Draw, and print the names of the figures.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError
        As `read_alert`, or matplotlib is not installed.
    """
    from broker_filter.client.read import read_alert
    from broker_filter.client.save import figure_paths, plot_files

    for file in args.files:
        alert = read_alert(file)
        folder = args.out or file.parent
        plot_files(folder)(alert)
        print(*figure_paths(alert, folder), sep="\n")
    return 0
