"""``broker-filter dead-letters``: what could not be used, and why."""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from broker_filter.commands.options import add_client_config, add_topic, positive_int
from broker_filter.errors import PoisonMessage
from broker_filter.observe.text import json_line, printable
from broker_filter.types import DEAD_LETTER_TOPIC

if TYPE_CHECKING:
    from broker_filter.client.dead_letters import StoredLetter

__all__ = ["add_arguments", "run"]

LIMIT = 100
MAX_DETAIL, MAX_NAME = 300, 80  # characters shown
MAX_REASONS = 20  # counted by name; they come from the topic, so that there may be any number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter dead-letters``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Print the newest letters of a dead-letter topic, oldest first: when each was set aside\n"
        "and why, where the message stood, its key and length, and the detail; on stderr how many\n"
        "letters there are of each reason. Nothing is committed, no group is joined."
    )
    parser.epilog = (
        "example:\n"
        "  broker-filter dead-letters --bootstrap-servers localhost:9092 --reason truncated\n"
        "  broker-filter dead-letters --from 2026-03-10T12:00 --json"
    )
    add_topic(parser, DEAD_LETTER_TOPIC)
    parser.add_argument(
        "--reason", action="append", metavar="WORD", help="only these; may be given repeatedly"
    )
    parser.add_argument(
        "--from",
        dest="since_ms",
        type=_time_ms,
        metavar="TIME",
        help="only letters sent since then: ISO 8601, UTC where no zone is named (default: all)",
    )
    parser.add_argument(
        "--limit",
        type=positive_int,
        default=LIMIT,
        metavar="N",
        help="print no more than the newest N (default: %(default)s)",
    )
    add_client_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object a letter")


def _time_ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, such as 2026-03-10T12:00") from None
    return int(1000 * (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def run(args: argparse.Namespace) -> int:
    """Print letters, and on stderr how many there are of each reason.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError, TransientError
        As `read_dead_letters`.
    """
    from broker_filter.client.dead_letters import read_dead_letters
    from broker_filter.kafka.properties import read_properties

    config = read_properties(args.client_config)
    letters = read_dead_letters(args.bootstrap_servers, args.topic, args.since_ms, config)
    counts = Counter[str]()
    wanted = _wanted(letters, args.reason, counts)
    newest = heapq.nlargest(args.limit, wanted, key=_age)
    for letter in reversed(newest):
        print(json_line(_as_json(letter)) if args.json else _as_line(letter))
    print(_summary(counts, len(newest), args.topic), file=sys.stderr)
    return 0


def _wanted(
    letters: Iterable[StoredLetter | PoisonMessage],
    reasons: list[str] | None,
    counts: Counter[str],
) -> Iterable[StoredLetter]:
    """Those of the reasons; all are counted."""
    for letter in letters:
        if isinstance(letter, PoisonMessage):
            counts["(not a dead letter)"] += 1
            continue
        reason = printable(letter.reason, MAX_NAME)
        counts[reason if reason in counts or len(counts) < MAX_REASONS else "(others)"] += 1
        if reasons is None or letter.reason in reasons:
            yield letter


def _age(letter: StoredLetter) -> tuple[int, str, int, int]:
    return letter.failed_ms, letter.topic, letter.partition, letter.offset


def _as_line(letter: StoredLetter) -> str:
    key = "-" if letter.key is None else letter.key.decode(errors="backslashreplace")
    topic, reason = printable(letter.topic, MAX_NAME), printable(letter.reason, MAX_NAME)
    return (
        f"{_utc(letter.failed_ms)}  {reason}  {topic}[{letter.partition}] offset {letter.offset}"
        f"  key {printable(key, MAX_NAME)}  {letter.value_length} bytes"
        f"  {printable(letter.detail, MAX_DETAIL)}"
    )


def _as_json(letter: StoredLetter) -> dict[str, Any]:
    """The schema's names, without value and headers; JSON escapes what does not print."""
    return {
        "reason": letter.reason,
        "detail": letter.detail,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "key": None if letter.key is None else letter.key.decode(errors="backslashreplace"),
        "timestampMs": letter.timestamp_ms,
        "failedAtMs": letter.failed_ms,
        "valueLength": letter.value_length,
        "valueSha256": letter.value_sha256,
        "softwareVersion": letter.software_version,
    }


def _utc(ms: int) -> str:
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):  # any number may stand in a topic
        return f"{ms} ms"
    return f"{when:%Y-%m-%dT%H:%M:%S}Z"


def _summary(counts: Counter[str], shown: int, topic: str) -> str:
    each = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    return f"{topic}: {counts.total()} dead letters, {shown} shown" + (f" ({each})" if each else "")
