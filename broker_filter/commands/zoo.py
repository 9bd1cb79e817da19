"""``broker-filter zoo``: list, show and verify models."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from broker_filter.observe.text import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``broker-filter zoo``."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, act, summary, example in (
        ("list", _list, "name the models that came with the package", ""),
        ("show", _show, "print the card of a model as JSON", " fspl-roman-1.0.0"),
        ("verify", _verify, "check sums and self-test of a model", " fspl-roman-1.0.0"),
    ):
        action = actions.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example: broker-filter zoo {name}{example}",
        )
        action.set_defaults(act=act)
        if example:
            action.add_argument("model", help="name of a model, or folder of one")


def run(args: argparse.Namespace) -> int:
    """Carry out one of the actions.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ModelError
        A model is missing, damaged, or does not pass its self-test.
    """
    args.act(args)
    return 0


def _model_folder(model: str) -> Path:
    """A name has no separator, so that a folder beside us cannot stand in for a model."""
    from broker_filter.inference import zoo

    return Path(model) if os.sep in model else zoo.find(model)


def _list(_: argparse.Namespace) -> None:
    from broker_filter.inference import zoo

    for model_id in zoo.model_ids():
        print(model_id, printable(zoo.verify(zoo.find(model_id)).card.summary), sep="  ")


def _show(args: argparse.Namespace) -> None:
    from broker_filter.inference import zoo

    print(zoo.verify(_model_folder(args.model)).card.model_dump_json(indent=1))


def _verify(args: argparse.Namespace) -> None:
    from broker_filter.inference import zoo

    entry = zoo.verify(_model_folder(args.model))
    zoo.load(entry)
    print(f"{entry.model_id}: sums, weights and self-test are good; sha256 {entry.sha256}")
