"""``broker-filter forward``: hand alerts over to another system, each once."""

from __future__ import annotations

import argparse
import hashlib
import logging
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from broker_filter.commands.options import add_alert_source, number, positive_int
from broker_filter.forward.target import SECRET_VARIABLE

if TYPE_CHECKING:
    from broker_filter.forward.letters import Letters
    from broker_filter.forward.target import Options

__all__ = ["add_arguments", "run"]

_log = logging.getLogger(__name__)

TARGETS = {
    "rogue-db": "folder that rogue_db's ingest_alerts reads",
    "hermes": "https://hermes.lco.global",
    "hopskotch": "HOST:PORT of a Kafka",
    "lasair": "https://api.lasair.lsst.ac.uk/api",
    "tom": "https:// address of a TOM, such as MOP",
    "voevent": "vtp://HOST:8098",
    "slack": "none: the webhook's address is the secret",
    "webhook": "https:// address that takes JSON",
}
"""What ``--url`` is, target by target."""
PATIENCE_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter forward``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Hand alerts over to another system, each once, across restarts too."
    parser.epilog = (
        "addresses:\n"
        + "".join(f"  {name:<10} {url}\n" for name, url in TARGETS.items())
        + "\nexample:\n"
        "  broker-filter forward --to tom --url https://mop.example.org --secret-file token \\\n"
        "    --verdict microlensing,anomalous-lens --min-log10-k 6 --max-a-day 10\n"
        "\n"
        f"A token comes from the variable {SECRET_VARIABLE} or from --secret-file.\n"
        "It runs until SIGTERM, Ctrl-C, --timeout or --max-alerts, and exits 0; 2 for wrong\n"
        "settings, a refused login or an unreachable broker. A second signal ends it at once."
    )
    target = parser.add_argument_group("where to")
    target.add_argument("--to", required=True, choices=tuple(TARGETS), help="the target")
    target.add_argument("--url", default="", help="its address, see below")
    target.add_argument(
        "--target-topic",
        default="",
        metavar="TOPIC",
        help="topic of hermes, hopskotch or lasair; authority of voevent",
    )
    target.add_argument("--submitter", default="", metavar="NAME", help="who submits, for hermes")
    target.add_argument("--secret-file", type=Path, metavar="FILE", help="holds token or address")
    target.add_argument(
        "--target-config",
        type=Path,
        metavar="FILE",
        help="librdkafka properties of hopskotch, one key=value a line (for SASL and TLS)",
    )
    target.add_argument(
        "--target-timeout",
        type=number(0.01, 1e5),
        default=30.0,
        metavar="S",
        help="for one attempt; default: %(default)g",
    )
    add_alert_source(parser.add_argument_group("what to hand over"))
    kept = parser.add_argument_group("bookkeeping")
    kept.add_argument(
        "--max-a-day",
        type=positive_int,
        metavar="N",
        help="at most N alerts a day (UTC) beside retractions and finals of what was handed over",
    )
    kept.add_argument(
        "--journal",
        type=Path,
        default=Path("forward.sqlite3"),
        metavar="FILE",
        help="what was handed over; default: %(default)s",
    )
    kept.add_argument(
        "--patience",
        type=number(0, 1e7),
        default=PATIENCE_S,
        metavar="S",
        help="how long the target may be away before an alert is set aside; default: %(default)g",
    )
    kept.add_argument(
        "--dead-letters",
        type=Path,
        default=Path("forward-dead-letters.jsonl"),
        metavar="FILE",
        help="what the target did not take; default: %(default)s",
    )
    kept.add_argument(
        "--dead-letter-topic", metavar="TOPIC", help="a topic for it, in place of the file"
    )


def run(args: argparse.Namespace) -> int:
    """Hand alerts over until the subscription ends.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError
        Options do not suffice, or the target refuses the login.
    StateError
        Journal or dead letters cannot be written.
    TransientError
        No Kafka broker answers.
    """
    from broker_filter.client.subscribe import subscribe
    from broker_filter.forward.forwarder import Forwarder
    from broker_filter.forward.journal import Journal
    from broker_filter.forward.targets import TARGETS as MAKERS
    from broker_filter.kafka.properties import read_properties
    from broker_filter.service.signals import stop_on_signals

    options = _options(args)
    name = _name(args, options)
    with ExitStack() as stack:
        target = stack.enter_context(closing(MAKERS[args.to](options)))
        journal = stack.enter_context(Journal(args.journal, name))
        letters = _letters(args, name, stack)
        forwarder = Forwarder(
            target, journal, letters, max_a_day=args.max_a_day, patience_s=args.patience
        )
        config = {"max.poll.interval.ms": _longest_pause_ms(args)}
        subscription = stack.enter_context(
            subscribe(
                args.bootstrap_servers,
                args.topic,
                args.group_id or f"broker-filter-forward-{args.to}-{_digest(name)}",
                args.from_beginning,
                args.min_log10_k,
                args.state,
                args.timeout,
                config | read_properties(args.client_config),
                args.verdicts,
            )
        )
        stop_on_signals(subscription.stop)  # what is under way is handed over first
        for alert in islice(subscription, args.max_alerts):
            forwarder.take(alert)
            subscription.mark_done()
    _log.info("%s", dict(forwarder.outcomes), extra={"event": "forwarded"})
    print(", ".join(f"{n} {what}" for what, n in forwarder.outcomes.items()) or "no alert")
    return 0


def _name(args: argparse.Namespace, options: Options) -> str:
    """What the journal calls the target: as long as it is the same, so is the name."""
    parts = [args.to, args.url, args.target_topic]
    if not args.url and options.secret is not None:  # the address is the secret
        parts.append(_digest(options.secret))
    return " ".join(filter(None, parts))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _options(args: argparse.Namespace) -> Options:
    from broker_filter.config.secret import read_secret
    from broker_filter.forward.target import Options
    from broker_filter.kafka.properties import read_properties

    return Options(
        url=args.url,
        topic=args.target_topic,
        submitter=args.submitter,
        secret=read_secret(SECRET_VARIABLE, args.secret_file),
        timeout_s=args.target_timeout,
        properties=read_properties(args.target_config),
    )


def _letters(args: argparse.Namespace, target: str, stack: ExitStack) -> Letters:
    from broker_filter.forward.letters import letters_file, letters_topic
    from broker_filter.kafka.properties import read_properties
    from broker_filter.kafka.sink import open_sink

    topic = args.dead_letter_topic
    if topic is None:
        return letters_file(args.dead_letters, target)
    sink = open_sink(args.bootstrap_servers, topic, read_properties(args.client_config))
    stack.enter_context(closing(sink))
    sink.require({topic: "--dead-letter-topic"})
    return letters_topic(sink, topic, target)


def _longest_pause_ms(args: argparse.Namespace) -> int:
    """Time between two polls that a target which is away may take, and as long again."""
    longest = 2000 * (args.patience + args.target_timeout) + 300_000
    return int(min(longest, 86_400_000))
