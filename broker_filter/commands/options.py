"""Options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_client_config", "positive_int"]


def add_client_config(parser: argparse._ActionsContainer, of: str = "") -> None:
    """Add ``--client-config``; ``of`` says of which client, where there may be others."""
    parser.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help=f"librdkafka properties{of}, one key=value a line (for SASL and TLS)",
    )


def positive_int(text: str) -> int:
    """A whole number of 1 or more, as an option's type."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value
