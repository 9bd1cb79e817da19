"""``broker-filter check-config``: the settings as the service will use them, and whether it can."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from broker_filter.errors import ConfigError

if TYPE_CHECKING:
    from broker_filter.config import Settings

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter check-config``."""
    parser.description = (
        "Print the settings as the service will use them, with asterisks for secrets, and check"
        " that the model and all files that they name are there, that the Kafka client takes its"
        " part, and that the threshold makes sense. No broker is asked. What is wrong goes to"
        " stderr, and so do names of surveys that may be misspelt, and the line that all is well."
    )
    parser.epilog = "example: broker-filter check-config config.yaml"
    parser.add_argument("config", type=Path, nargs="?", metavar="FILE", help="settings (YAML)")
    parser.add_argument("--json", action="store_true", help="as JSON instead of YAML")
    parser.add_argument(
        "--allow-negative-threshold",
        action="store_true",
        help="take a threshold of log10 K below 0, from which constant stars are alerted, too",
    )


def run(args: argparse.Namespace) -> int:
    """Print the settings, and one line that all is well.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError
        As `load_settings`; or a file that they name cannot be used, the Kafka client refuses a
        property, or the threshold is below 0.
    ModelError, SchemaError
        The model, or a schema of the input, is not there, or damaged.
    """
    import yaml

    from broker_filter.config import load_settings, masked, unread_variables
    from broker_filter.service.decoding import unknown_surveys

    _warn(unread_variables())
    settings = load_settings(args.config)
    _warn(unknown_surveys(settings))
    resolved = masked(settings)
    text = (
        json.dumps(resolved, indent=1) if args.json else yaml.safe_dump(resolved, sort_keys=False)
    )
    print(text.rstrip(), flush=True)
    _check_files(settings)
    decision = _check_decision(settings, allow_negative=args.allow_negative_threshold)
    print(f"{args.config or 'environment'}: all is well: {decision}", file=sys.stderr)
    return 0


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"broker-filter: warning: {line}", file=sys.stderr)


def _check_files(settings: Settings) -> None:
    """Open what a start opens, short of models and brokers, or raise what is wrong."""
    from broker_filter.alerts.known_variables import read_known_variables
    from broker_filter.decode.registry import basic_login
    from broker_filter.kafka.client import check_clients
    from broker_filter.service.decoding import make_decoder

    make_decoder(settings.input)
    if settings.alert.known_variables is not None:
        read_known_variables(settings.alert.known_variables)
    if (login := settings.kafka.alert_schema_registry_login_file) is not None:
        basic_login(login, "alert_schema_registry_login_file")
    check_clients(settings.kafka)


def _check_decision(settings: Settings, *, allow_negative: bool) -> str:
    """Say which model decides, and from which log10 K on, or raise why none can."""
    from broker_filter.alerts.threshold import make_rule
    from broker_filter.service.entries import open_entry, survey_entries

    entry = open_entry(settings)
    others = survey_entries(settings, entry)
    rule = make_rule(settings.alert, card_threshold=entry.threshold, window_days=entry.window_days)
    first = rule.after(0)
    if first.threshold < 0 and not allow_negative:
        raise ConfigError(
            f"alert.log10_k: the threshold is log10 K = {first.threshold:g}, so that stars are"
            " alerted whose data favour a constant star: raise it, or give"
            " --allow-negative-threshold if that is meant"
        )
    what = "certified log10 K" if rule.certified_decides else "log10 K"
    models = "".join(f", {other.model_id} for {name}" for name, other in others.items())
    less = "" if rule.discovery is None else ", less after each event"
    return f"model {entry.model_id}{models}, alerts from {what} = {first.threshold:.3g} on{less}"
