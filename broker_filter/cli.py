"""Command line: ``broker-filter COMMAND``, where each command is a module in ``commands/``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from broker_filter.errors import BrokerFilterError
from broker_filter.extras import named_extras
from broker_filter.observe.text import printable_lines

__all__ = ["main"]

COMMANDS = {
    "run": "filter a stream until SIGTERM",
    "score": "score light curves, without a broker",
    "replay": "publish an archive to a topic",
    "subscribe": "print, save and plot alerts",
    "forward": "hand alerts over to another system",
    "plot": "draw alerts that were saved",
    "page": "show the alerts of the last weeks in a browser",
    "dead-letters": "print what could not be used, and why",
    "recovery": "say what of an injection was found",
    "demo": "filter a simulated archive through a Kafka broker inside this process",
    "check-config": "show the settings, resolved",
    "zoo": "list, show and verify models",
}
_OPTIONS = {"replay": "replay_options", "demo": "demo_options"}
"""Modules of options, where they are not in the command's own, which is heavy to import."""

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns
    -------
    int
        Its exit status; 2 where settings, broker or model are wrong, with one message on stderr.
    """
    from broker_filter.service.worker import leave

    return leave(_status(_parser().parse_args(argv)))


def _status(args: argparse.Namespace) -> int:
    try:
        with named_extras(f"broker-filter {args.command}"):
            return int(_module(args.command).run(args))
    except BrokerFilterError as error:
        print(f"broker-filter: {printable_lines(error)}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("broker-filter: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, say) has gone; that is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if args.command == "run":  # where the service does not expect one, it is a fault of ours
            raise
        print(f"broker-filter: {printable_lines(error)}", file=sys.stderr)
        return EXIT_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="broker-filter", description="Streaming microlensing filter for alert brokers."
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print version and default model"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        _module(_OPTIONS.get(name, name)).add_arguments(command)
    return parser


def _module(name: str) -> ModuleType:
    return import_module(f"broker_filter.commands.{name.replace('-', '_')}")


class _Version(argparse.Action):
    """Prints version and default model, which are looked up only when they are printed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print, and leave."""
        from broker_filter.config import Model
        from broker_filter.schemas import software_version

        print(f"broker-filter {software_version()} (default model: {Model().id})")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
