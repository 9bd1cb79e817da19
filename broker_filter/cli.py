"""Command line: ``broker-filter run | replay | subscribe | recovery | demo | check-config | zoo``.

What is heavy (torch) is imported by the commands that need it, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import yaml

from broker_filter.config import Kafka, load_settings, masked
from broker_filter.errors import BrokerFilterError
from broker_filter.extras import named_extras
from broker_filter.observe.text import printable, printable_lines
from broker_filter.service.worker import leave

__all__ = ["main"]

Commands = argparse._SubParsersAction  # noqa: SLF001  argparse has no public name for it
EXIT_ERROR, EXIT_INTERRUPTED = 2, 130
CONNECT_S = 10.0  # somebody waits at the terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns
    -------
    int
        Its exit status; 2 where settings, broker or model are wrong, with one message on stderr.
    """
    args = _parser().parse_args(argv)
    return leave(_status(args))


def _status(args: argparse.Namespace) -> int:
    try:
        with named_extras(f"broker-filter {args.command}"):
            return int(args.run(args))
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


def _parser() -> argparse.ArgumentParser:
    from broker_filter.client.subscribe import add_arguments as add_subscribe_arguments
    from broker_filter.commands.recovery import add_arguments as add_recovery_arguments
    from broker_filter.commands.replay_options import add_arguments as add_replay_arguments

    parser = argparse.ArgumentParser(
        prog="broker-filter", description="Streaming microlensing filter for alert brokers."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    run = _add(commands, "run", _run, "filter a stream until SIGTERM", "run --config config.yaml")
    run.add_argument("--config", type=Path, help="settings (YAML)")
    again = commands.add_parser("replay", help="publish an archive to a topic")
    add_replay_arguments(again)
    again.add_argument("--bootstrap-servers", default="127.0.0.1:9092", help="default: %(default)s")
    again.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help="librdkafka properties of the broker that is published to, one key=value a line"
        " (for SASL and TLS)",
    )
    again.set_defaults(run=_replay)
    listen = commands.add_parser("subscribe", help="print, save and plot alerts")
    add_subscribe_arguments(listen)
    listen.set_defaults(run=_subscribe)
    measure = commands.add_parser("recovery", help="tell what of an injection was found")
    add_recovery_arguments(measure)
    measure.set_defaults(run=_recovery)
    _add_demo(commands)
    check = _add(
        commands, "check-config", _check, "show the settings, resolved", "check-config config.yaml"
    )
    check.add_argument("config", type=Path, nargs="?", help="settings (YAML)")
    check.add_argument("--json", action="store_true", help="as JSON instead of YAML")
    _add_zoo(commands)
    return parser


def _add(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example: broker-filter {example}",
    )
    parser.set_defaults(run=run)
    return parser


def _add_demo(commands: Commands[argparse.ArgumentParser]) -> None:
    demo = _add(
        commands,
        "demo",
        _demo,
        "filter a simulated archive through a Kafka broker inside this process",
        "demo --out demo-out",
    )
    demo.add_argument("--out", type=Path, default=Path("demo-out"), help="default: %(default)s")
    demo.add_argument("--stars", type=int, default=2000, help="default: %(default)s")
    demo.add_argument("--injected", type=int, default=40, help="events (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    demo.add_argument("--model", default=None, help="zoo entry (default: the service's)")
    demo.add_argument("--no-plots", action="store_true", help="write no figures")
    demo.add_argument("--json", action="store_true", help="print summary.json, not the table")


def _add_zoo(commands: Commands[argparse.ArgumentParser]) -> None:
    zoo = commands.add_parser("zoo", help="list, show and verify models")
    actions = zoo.add_subparsers(required=True, metavar="ACTION")
    _add(actions, "list", _zoo_list, "name the models that came with the package", "zoo list")
    for name, run, summary in (
        ("show", _zoo_show, "print the card of a model as JSON"),
        ("verify", _zoo_verify, "check sums and self-test of a model"),
    ):
        action = _add(actions, name, run, summary, f"zoo {name} fspl-roman-1.0.0")
        action.add_argument("model", help="name of a model, or folder of one")


def _run(args: argparse.Namespace) -> int:
    from broker_filter.service.signals import exit_on_signals

    exit_on_signals()
    settings = load_settings(args.config)
    from broker_filter.observe.logs import configure_logging

    configure_logging(settings.log.level, settings.log.format)
    from broker_filter.service.assembly import run

    return run(settings)


def _replay(args: argparse.Namespace) -> int:
    from broker_filter.commands import replay as replay_command
    from broker_filter.kafka.properties import read_properties
    from broker_filter.kafka.sink import KafkaSink
    from broker_filter.service.signals import stop_on_signals

    kafka = Kafka(
        bootstrap_servers=args.bootstrap_servers,
        input_topics=(args.topic,),
        connect_timeout_s=CONNECT_S,
    )
    stop_on_signals(_interrupt)  # so that SIGTERM, too, leaves a position to go on from
    with closing(KafkaSink(kafka, read_properties(args.client_config))) as sink:
        return replay_command.run(args, sink)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _subscribe(args: argparse.Namespace) -> int:
    from broker_filter.client.subscribe import run

    return run(args)


def _recovery(args: argparse.Namespace) -> int:
    from broker_filter.commands.recovery import run

    return run(args)


def _demo(args: argparse.Namespace) -> int:
    from broker_filter.commands.demo import run

    return run(args)


def _check(args: argparse.Namespace) -> int:
    resolved = masked(load_settings(args.config))
    text = (
        json.dumps(resolved, indent=1) if args.json else yaml.safe_dump(resolved, sort_keys=False)
    )
    print(text.rstrip())
    return 0


def _zoo_list(_: argparse.Namespace) -> int:
    from broker_filter.inference import zoo

    for model_id in zoo.model_ids():
        print(model_id, printable(zoo.verify(zoo.find(model_id)).card.summary), sep="  ")
    return 0


def _zoo_show(args: argparse.Namespace) -> int:
    from broker_filter.inference import zoo

    print(zoo.verify(_model_folder(args.model)).card.model_dump_json(indent=1))
    return 0


def _zoo_verify(args: argparse.Namespace) -> int:
    from broker_filter.inference import zoo

    entry = zoo.verify(_model_folder(args.model))
    zoo.load(entry)
    print(f"{entry.model_id}: sums, weights and self-test are good; sha256 {entry.sha256}")
    return 0


def _model_folder(model: str) -> Path:
    """A name has no separator, so that a folder beside us cannot stand in for a model."""
    from broker_filter.inference import zoo

    return Path(model) if os.sep in model else zoo.find(model)


if __name__ == "__main__":
    sys.exit(main())
