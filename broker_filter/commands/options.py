"""Options that several commands have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from pathlib import Path

from broker_filter.alerts.verdict import VERDICTS
from broker_filter.types import ALERT_TOPIC, STATES

__all__ = [
    "add_alert_source",
    "add_client_config",
    "add_topic",
    "number",
    "positive_int",
    "some_of",
    "whole",
]


def add_client_config(parser: argparse._ActionsContainer, of: str = "") -> None:
    """Add ``--client-config``; ``of`` says of which client, where there may be others."""
    parser.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help=f"librdkafka properties{of}, one key=value a line (for SASL and TLS)",
    )


def number(least: float, most: float) -> Callable[[str], float]:
    """A number between two, or one of them, as an option's type; NaN is none."""

    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least:g} to {most:g}")
        return value

    read.__name__ = "number"
    return read


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """A whole number between two, or one of them, as an option's type."""

    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            upper = "or more" if most == math.inf else f"to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not {least} {upper}")
        return value

    read.__name__ = "whole number"
    return read


positive_int = whole(1)
"""A whole number of 1 or more, as an option's type."""


def add_topic(parser: argparse._ActionsContainer, topic: str = ALERT_TOPIC) -> None:
    """Add what says where alerts are, or what another topic holds."""
    parser.add_argument(
        "--bootstrap-servers",
        default="localhost:9092",
        metavar="HOST:PORT",
        help="default: %(default)s",
    )
    parser.add_argument("--topic", default=topic, help="default: %(default)s")


def add_alert_source(parser: argparse._ActionsContainer) -> None:
    """Add what says which alerts of which topic are read."""
    add_topic(parser)
    parser.add_argument(
        "--group-id", help="share the topic with this consumer group, and go on there"
    )
    parser.add_argument("--from-beginning", action="store_true", help="start at the oldest alert")
    parser.add_argument("--min-log10-k", type=number(-1e6, 1e6), metavar="X", help="lowest log10 K")
    parser.add_argument("--state", action="append", choices=STATES, help="may be given repeatedly")
    parser.add_argument(
        "--verdict",
        dest="verdicts",
        type=_verdicts,
        metavar="VERDICTS",
        help=f"only alerts with one of these, parted by commas: {', '.join(VERDICTS)}",
    )
    parser.add_argument("--max-alerts", type=positive_int, metavar="N", help="stop after N alerts")
    parser.add_argument(
        "--timeout", type=number(0, 1e9), metavar="S", help="stop after S seconds of silence"
    )
    add_client_config(parser)


def _verdicts(text: str) -> tuple[str, ...]:
    return some_of(VERDICTS, text)


def some_of(known: Collection[str], text: str) -> tuple[str, ...]:
    """Names parted by commas, as an option's type; all must be known."""
    names = tuple(text.split(","))
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))!r} is not of {', '.join(known)}"
        )
    return names
