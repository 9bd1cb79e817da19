"""The options of ``broker-filter demo``."""

from __future__ import annotations

import argparse
from pathlib import Path

from broker_filter.commands.options import whole

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter demo``."""
    parser.description = "Filter a simulated archive through a Kafka broker inside this process."
    parser.epilog = "example: broker-filter demo --out demo-out"
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--stars", type=whole(1, 10**6), default=2000, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--injected", type=whole(0), default=40, metavar="N", help="events (default: %(default)s)"
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="default: %(default)s")
    parser.add_argument("--model", default=None, help="zoo entry (default: the service's)")
    parser.add_argument("--no-plots", action="store_true", help="write no figures")
    parser.add_argument("--json", action="store_true", help="print summary.json, not the table")
