"""``broker-filter check-config``: the settings as the service will use them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter check-config``."""
    parser.description = "Show the settings, resolved."
    parser.epilog = "example: broker-filter check-config config.yaml"
    parser.add_argument("config", type=Path, nargs="?", metavar="FILE", help="settings (YAML)")
    parser.add_argument("--json", action="store_true", help="as JSON instead of YAML")


def run(args: argparse.Namespace) -> int:
    """Print the settings, secrets masked.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError
        As `load_settings`.
    """
    import yaml

    from broker_filter.config import load_settings, masked

    resolved = masked(load_settings(args.config))
    text = (
        json.dumps(resolved, indent=1) if args.json else yaml.safe_dump(resolved, sort_keys=False)
    )
    print(text.rstrip())
    return 0
