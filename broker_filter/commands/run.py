"""``broker-filter run``: the filter, until it is stopped."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter run``."""
    parser.description = "Filter a stream until SIGTERM."
    parser.epilog = "example: broker-filter run --config config.yaml"
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML)")


def run(args: argparse.Namespace) -> int:
    """Filter until a signal comes.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError, ModelError, StateError
        Settings, model or state are wrong.
    """
    from broker_filter.service.signals import exit_on_signals

    exit_on_signals()
    from broker_filter.config import load_settings

    settings = load_settings(args.config)
    from broker_filter.observe.logs import configure_logging

    configure_logging(settings.log.level, settings.log.format)
    from broker_filter.service import assembly

    return assembly.run(settings)
