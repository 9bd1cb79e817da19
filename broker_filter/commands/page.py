"""``broker-filter page``: the alerts of the last weeks in a browser."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from broker_filter.commands.options import add_client_config, add_topic, number, positive_int, whole
from broker_filter.errors import ConfigError

if TYPE_CHECKING:
    from broker_filter.page.database import Database
    from broker_filter.page.intake import FolderIntake, TopicIntake

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter page``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Show the alerts of the last weeks in a browser, as they come."
    parser.epilog = (
        "example:\n"
        "  broker-filter page --bootstrap-servers localhost:9092\n"
        "  broker-filter page --archive demo-out/alerts      # without Kafka\n"
        "\n"
        "It runs until Ctrl-C or SIGTERM, and exits 0; 2 for wrong settings. Other machines are\n"
        "served with a password alone, from BROKER_FILTER_PAGE_PASSWORD or --password-file."
    )
    source = parser.add_argument_group("what to show")
    add_topic(source)
    add_client_config(source)
    source.add_argument(
        "--archive",
        type=Path,
        metavar="DIR",
        help="show the alerts of a folder, as `subscribe --avro` saves them, in place of a topic",
    )
    database = parser.add_argument_group("what to keep")
    database.add_argument(
        "--database",
        type=Path,
        metavar="FILE",
        help="default: broker-filter-page.sqlite here, or page.sqlite in the archive",
    )
    database.add_argument(
        "--keep-days",
        type=number(0.01, 1e5),
        default=30.0,
        metavar="N",
        help="default: %(default)g",
    )
    database.add_argument(
        "--keep-events", type=positive_int, default=20_000, metavar="N", help="default: %(default)s"
    )
    server = parser.add_argument_group("where to serve it")
    server.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    server.add_argument(
        "--port", type=whole(0, 65_535), default=8765, help="0 for a free one; default: %(default)s"
    )
    server.add_argument(
        "--password-file", type=Path, metavar="FILE", help="holds the password that is asked for"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError
        A setting or the database is wrong, or the brokers refuse the credentials.
    StateError
        The database is damaged.
    """
    from broker_filter.config.secret import read_secret
    from broker_filter.observe.logs import configure_logging
    from broker_filter.page.app import make_app
    from broker_filter.page.database import Database
    from broker_filter.page.guard import check_bind
    from broker_filter.page.server import PageServer
    from broker_filter.service.signals import stop_on_signals

    configure_logging("warning", "text")
    stop = threading.Event()
    password = read_secret("BROKER_FILTER_PAGE_PASSWORD", args.password_file) or ""
    check_bind(args.host, password)
    intake = _intake(args, Database(_database(args)))
    app = make_app(intake.database, intake.standing, password)
    with PageServer(app, args.host, args.port) as server:
        stop_on_signals(stop.set)
        print(f"{server.address}   (Ctrl-C ends it)", flush=True)
        intake.run(stop)
    return 0


def _database(args: argparse.Namespace) -> Path:
    """Where the database is; ConfigError where the folder to show does not exist."""
    if args.archive is not None and not args.archive.is_dir():
        raise ConfigError(f"{args.archive}: there is no such folder")
    if args.database is not None:
        return Path(args.database)
    here = Path("broker-filter-page.sqlite")
    return here if args.archive is None else args.archive / "page.sqlite"


def _intake(args: argparse.Namespace, database: Database) -> FolderIntake | TopicIntake:
    from broker_filter.page.intake import FolderIntake, TopicIntake
    from broker_filter.page.kept import Bounds

    bounds = Bounds(args.keep_days, args.keep_events)
    if args.archive is not None:
        return FolderIntake(database, args.archive, bounds)
    from broker_filter.kafka.properties import read_properties
    from broker_filter.kafka.reader import TopicReader

    config = read_properties(args.client_config)
    return TopicIntake(
        database,
        args.topic,
        lambda places: TopicReader(
            args.bootstrap_servers,
            args.topic,
            from_beginning=True,
            config=config,
            positions=places,
        ),
        bounds,
    )
