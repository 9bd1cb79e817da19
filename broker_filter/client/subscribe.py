"""Subscribe to the alert topic, from Python and from the shell.

>>> for alert in subscribe("localhost:9092", min_log10_k=5):  # doctest: +SKIP
...     print(alert.star_id, alert.log10_k, alert.posterior["tE"].median())
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, Self

from broker_filter.alerts.alert import Alert, Interval, mjd_to_datetime
from broker_filter.alerts.codec import from_message, to_json_dict
from broker_filter.client.save import Save, avro_files, parquet_file, plot_files
from broker_filter.errors import ConfigError, PoisonMessage
from broker_filter.kafka.properties import read_properties
from broker_filter.kafka.reader import TopicReader
from broker_filter.observe.text import printable
from broker_filter.types import AlertState, Message

__all__ = [
    "DEFAULT_TOPIC",
    "Reader",
    "Subscription",
    "add_arguments",
    "format_alert",
    "run",
    "subscribe",
]

DEFAULT_TOPIC = "microlensing-alerts"

_log = logging.getLogger(__name__)
_STATES: tuple[AlertState, ...] = ("new", "update", "retraction", "final")
_POLL_S = 0.5
SHOWN = 500
"""Characters of a broken message's fault that are logged."""


class Reader(Protocol):
    """Where a subscription gets its messages; `broker_filter.kafka.reader.TopicReader` is one."""

    def poll(self, timeout: float) -> Message | None:
        """Return the next message, or None after ``timeout`` seconds."""
        ...

    def mark_done(self) -> None:
        """Count the last message as handled."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


@dataclass(slots=True)
class Subscription:
    """An iterator over alerts, which counts what it passed over.

    It ends after ``timeout_s`` seconds without a message, by Ctrl-C while it waits, or by `close`.
    A message that cannot be read is logged and passed over; what the headers rule out, not decoded.

    Parameters
    ----------
    reader : Reader
    min_log10_k : float or None
        Lowest log10 K.
    states : collection of AlertState or None
        None for all.
    timeout_s : float or None, seconds
        None to wait for ever.
    received, unwanted, broken : int
        Messages so far: all, those ruled out, those that could not be read.
    """

    reader: Reader
    min_log10_k: float | None = None
    states: Collection[str] | None = None
    timeout_s: float | None = None
    received: int = 0
    unwanted: int = 0
    broken: int = 0
    _closed: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Alert]:
        return self

    def __next__(self) -> Alert:
        try:
            while (message := self._next_message()) is not None:
                if (alert := self._read(message)) is not None:
                    return alert
        except KeyboardInterrupt:
            _log.info("stopped by Ctrl-C")
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def mark_done(self) -> None:
        """Count the last alert as handled in its consumer group, as asking for the next does."""
        self.reader.mark_done()

    def close(self) -> None:
        """End the subscription; a second time does nothing."""
        if not self._closed:
            self._closed = True
            self.reader.close()

    def _next_message(self) -> Message | None:
        start = time.monotonic()
        while not self._closed:
            left = _POLL_S
            if self.timeout_s is not None:
                left = min(_POLL_S, start + self.timeout_s - time.monotonic())
                if left <= 0:
                    return None
            if (message := self.reader.poll(left)) is not None:
                self.received += 1
                return message
        return None

    def _read(self, message: Message) -> Alert | None:
        """Decode a message that is wanted; None for one that is not, or is broken."""
        try:
            if not self._wants(*_headers(message)):
                self.unwanted += 1
                return None
            alert = from_message(message)
        except PoisonMessage as error:
            self._count_broken(message, error)
            return None
        if not self._wants(alert.log10_k, alert.state):
            self.unwanted += 1
            return None
        return alert

    def _wants(self, log10_k: float | None, state: str | None) -> bool:
        """Tell whether an alert is wanted, as far as is known; None is not known."""
        too_low = (
            self.min_log10_k is not None and log10_k is not None and log10_k < self.min_log10_k
        )
        wrong_state = self.states is not None and state is not None and state not in self.states
        return not (too_low or wrong_state)

    def _count_broken(self, message: Message, error: PoisonMessage) -> None:
        self.broken += 1
        # A stream that is all broken must not fill a disk with log lines.
        if self.broken <= 10 or self.broken % 1000 == 0:
            _log.warning(
                "%s[%d] offset %d is not an alert (%s); passed over, %d so far",
                message.topic,
                message.partition,
                message.offset,
                printable(error, SHOWN),
                self.broken,
            )


def _headers(message: Message) -> tuple[float | None, str | None]:
    """Read log10 K and state from the headers; None where one is missing."""
    headers = dict(message.headers)
    try:
        log10_k, state = headers.get("log10K"), headers.get("state")
        return (
            None if log10_k is None else float(log10_k.decode()),
            None if state is None else state.decode(),
        )
    except ValueError as error:
        raise PoisonMessage("headers", f"log10K or state cannot be read: {error}") from None


def subscribe(
    bootstrap_servers: str,
    topic: str = DEFAULT_TOPIC,
    group_id: str | None = None,
    from_beginning: bool = False,
    min_log10_k: float | None = None,
    states: Collection[str] | None = None,
    timeout_s: float | None = None,
    config: Mapping[str, str | int | float | bool] | None = None,
) -> Subscription:
    """Subscribe to alerts.

    Parameters
    ----------
    bootstrap_servers : str
        ``host:port[,host:port...]``.
    topic : str
        The alert topic; it is waited for where it does not exist yet.
    group_id : str or None
        Without, every alert sent from now on comes, and nothing is remembered. With, the topic is
        shared among the group's members, each goes on where the group stopped, and an alert whose
        handling fails comes again.
    from_beginning : bool
        Begin with the oldest alert kept (with a group: only where it has no place yet).
    min_log10_k : float or None
        Only alerts of at least this log10 K. Retractions and finals have a low K, so that this
        leaves them out, too.
    states : collection of str or None
        Only alerts in these states: ``new``, ``update``, ``retraction``, ``final``.
    timeout_s : float or None
        End after so many seconds without a message; None waits for ever.
    config : mapping or None
        Further librdkafka properties, such as ``{"security.protocol": "SASL_SSL", ...}``.

    Returns
    -------
    Subscription
        An iterator over `Alert`, already connected and in place.

    Raises
    ------
    ConfigError
        An unknown state, a property that librdkafka refuses, or refused credentials.
    TransientError
        No broker answers.
    """
    if unknown := set(states or ()) - set(_STATES):
        raise ConfigError(
            f"unknown alert state {', '.join(sorted(unknown))}; the states are {', '.join(_STATES)}"
        )
    reader = TopicReader(bootstrap_servers, topic, group_id, from_beginning, config)
    return Subscription(reader, min_log10_k, states, timeout_s)


def format_alert(alert: Alert) -> str:
    """Write one line: time (TAI), state, star, log10 K, and parameters with 68 % intervals."""
    when = mjd_to_datetime(alert.last_epoch_mjd_tai).isoformat(timespec="seconds")
    parameters = "  ".join(_format_interval(entry) for entry in alert.summary if entry.name != "u0")
    return printable(
        f"{when} TAI  {alert.state:<10}  {alert.star_id} {alert.band}  "
        f"log10 K {alert.log10_k:.2f}  {parameters}"
    )


def _format_interval(entry: Interval) -> str:
    median, up, down = entry.rounded()
    return f"{entry.name} {median} +{up} -{down}" + (" d" if entry.unit == "d" else "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter subscribe``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Print or save the alerts of a topic, as they come."
    parser.epilog = (
        "example:\n"
        "  broker-filter subscribe --bootstrap-servers localhost:9092 --min-log10-k 5 --plot DIR\n"
        "\n"
        "It runs until Ctrl-C, --timeout or --max-alerts, and exits 0; 2 for wrong settings or an\n"
        "unreachable broker."
    )
    source = parser.add_argument_group("what to read")
    source.add_argument("--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT")
    source.add_argument("--topic", default=DEFAULT_TOPIC, help="default: %(default)s")
    source.add_argument(
        "--group-id", help="share the topic with this consumer group, and go on there"
    )
    source.add_argument("--from-beginning", action="store_true", help="start at the oldest alert")
    source.add_argument("--min-log10-k", type=float, metavar="X", help="lowest log10 K")
    source.add_argument("--state", action="append", choices=_STATES, help="may be given repeatedly")
    source.add_argument("--max-alerts", type=_positive_int, metavar="N", help="stop after N alerts")
    source.add_argument(
        "--timeout", type=float, metavar="S", help="stop after S seconds of silence"
    )
    source.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help="librdkafka properties, one key=value a line (for SASL and TLS)",
    )
    output = parser.add_argument_group("what to do with it")
    output.add_argument("--json", action="store_true", help="print one JSON object an alert")
    output.add_argument("--avro", type=Path, metavar="DIR", help="save each as DIR/<alertId>.avro")
    output.add_argument("--parquet", type=Path, metavar="FILE", help="save all, one row an alert")
    output.add_argument("--plot", type=Path, metavar="DIR", help="draw light curve and corner plot")


def _positive_int(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def run(args: argparse.Namespace) -> int:
    """Do ``broker-filter subscribe``.

    Returns
    -------
    int
        The exit status.

    Raises
    ------
    ConfigError, TransientError
        As `subscribe`; a missing extra for ``--plot`` or ``--parquet`` is a ConfigError, too.
    """
    with ExitStack() as stack:
        subscription = stack.enter_context(
            subscribe(
                args.bootstrap_servers,
                args.topic,
                args.group_id,
                args.from_beginning,
                args.min_log10_k,
                args.state,
                args.timeout,
                read_properties(args.client_config),
            )
        )
        saves = _saves(args, stack)
        try:
            for alert in islice(subscription, args.max_alerts):
                for save in saves:
                    save(alert)
                subscription.mark_done()
        except KeyboardInterrupt:
            _log.info("stopped by Ctrl-C")
        except BrokenPipeError:  # the reader of our output has left, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if subscription.broken:
            _log.warning("%d messages were not alerts, and passed over", subscription.broken)
    return 0


def _saves(args: argparse.Namespace, stack: ExitStack) -> list[Save]:
    """Make what each alert is handed to; what must be closed goes on the stack."""
    saves: list[Save] = [_print_json if args.json else _print_line]
    if args.avro:
        saves.append(avro_files(args.avro))
    if args.parquet:
        saves.append(stack.enter_context(parquet_file(args.parquet)))
    if args.plot:
        saves.append(plot_files(args.plot))
    return saves


def _print_line(alert: Alert) -> None:
    sys.stdout.write(format_alert(alert) + "\n")
    sys.stdout.flush()


def _print_json(alert: Alert) -> None:
    text = json.dumps(to_json_dict(alert), allow_nan=False)
    # JSON in ASCII escapes every control character but this one.
    sys.stdout.write(text.replace("\x7f", r"\u007f") + "\n")
    sys.stdout.flush()
