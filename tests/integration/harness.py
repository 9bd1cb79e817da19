"""What fault tests share: a simulated archive whose alerts are known, and the filter as a process.

A `Trial` has topics, a group and a snapshot folder of its own on a real Kafka. It publishes the
archive, runs any number of filter processes, and at the end says which alerts were lost or
doubled against an undisturbed run (`tests.integration.outcome`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import yaml
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_message
from broker_filter.commands import demo_archive
from broker_filter.config import Batch, Kafka, MetricsSettings, Model, ScheduleSettings, Settings
from broker_filter.decode.native import encode_block
from broker_filter.errors import TransientError
from broker_filter.kafka.client import message_of
from broker_filter.kafka.progress import GroupProgress
from broker_filter.schemas import decode_strict, schema_header
from broker_filter.service.assembly import open_entry
from broker_filter.types import Message
from tests.integration.forked import Forked
from tests.integration.outcome import Outcome, Verdict, compare
from tests.kafka_broker import make_topic

__all__ = [
    "Archive",
    "Filter",
    "Trial",
    "light_curve_settings",
    "make_archive",
    "messages_of",
    "settings_of",
    "trial",
    "version",
]

PATIENCE_S = 300.0
MJD_UNIX_EPOCH = 40_587.0
DAY_MS = 86_400_000

FILTER = ("broker_filter.cli",)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}

# The archive ends before this; a night's work for the filter, seconds for a test.
DAYS = 8.0
WHITE = {"error_scale": [0.85, 1.25], "red_noise": 0.05}
FEED_S = 0.1


def light_curve_settings(address: str) -> Settings:
    """A service on an embedded broker that evaluates every quarter of a day of event time."""
    return Settings(
        kafka=Kafka(
            bootstrap_servers=address,
            input_topics=("photometry",),
            auto_offset_reset="earliest",
            commit_interval_s=0.2,
            session_timeout_ms=6000,
        ),
        model=Model(),
        schedule=ScheduleSettings(every_days=0.25),
        batch=Batch(flush_windows=512, max_wait_s=0.5),
        metrics=MetricsSettings(enabled=False),
    )


@dataclass(frozen=True, slots=True)
class Archive:
    """Block messages in order of time, for so many partitions."""

    partitions: int
    messages: tuple[Message, ...]
    settings: Settings

    @property
    def ends(self) -> dict[int, int]:
        """Number of messages of each partition."""
        return dict(Counter(message.partition for message in self.messages))

    def until(self, place: int) -> Archive:
        """The archive up to a place."""
        return replace(self, messages=self.messages[:place])


def make_archive(
    *, stars: int = 24, injected: int = 12, seed: int = 5, days: float = DAYS, every: int = 1
) -> Archive:
    """Simulate the archive of the demo, cut short: the same bytes for the same arguments.

    Parameters
    ----------
    stars, injected, seed : int
        See `demo_archive.MadeUpField`.
    days : float, days
        Length of the archive; the demo's ends after 30.
    every : int
        Only every so many-th exposure is kept.
    """
    settings = settings_of({})
    entry = open_entry(settings)
    archive = demo_archive.MadeUpField(
        stars, injected, seed, entry.config["prior"], entry.window_days
    )
    offsets: Counter[int] = Counter()
    messages = []
    kept = set(archive.times[::every].tolist())
    for shard, block in archive.exposures():
        mjd = float(block.mjd_tai[0])
        if mjd > demo_archive.MJD_START + days:
            break
        if mjd not in kept:
            continue
        message = Message(
            topic="epochs",
            partition=shard,
            offset=offsets[shard],
            key=None,
            value=encode_block(block),
            timestamp_ms=round((mjd - MJD_UNIX_EPOCH) * DAY_MS),
            headers=(schema_header("photometry_block"),),
        )
        messages.append(message)
        offsets[shard] += 1
    return Archive(demo_archive.SHARDS, tuple(messages), settings)


class Filter:
    """One filter process and its log.

    Parameters
    ----------
    config, log : Path
    environment : mapping
        Further environment variables.
    module : sequence of str
        Module that runs the filter, and its own arguments.
    code : Path, optional
        Folder of another version of the code.
    forks : bool
        Whether it may be a fork of a process that has imported everything; see `Forked`.
    """

    def __init__(
        self,
        config: Path,
        log: Path,
        environment: dict[str, str],
        module: Sequence[str] = FILTER,
        code: Path | None = None,
        *,
        forks: bool = False,
    ) -> None:
        self._log = log
        log.touch()
        command = [*module, "run", "--config", str(config)]
        self.process: subprocess.Popen[bytes] | Forked
        if forks and not environment and code is None:
            self.process = Forked(command, log, ENVIRONMENT)
            return
        variables = {**os.environ, **ENVIRONMENT, **environment}
        if code is not None:
            variables["PYTHONPATH"] = str(code)
        with log.open("a") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stderr=stream,
                stdout=stream,
                env=variables,
                cwd=code,
            )

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged, line by line; what is no JSON (a traceback) under ``text``."""
        return [_line(text) for text in self.log().splitlines(keepends=True) if text[-1] == "\n"]

    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text()

    def logged(self, event: str) -> dict[str, Any] | None:
        """Return the last line of an event."""
        found = [line for line in self.lines() if line.get("event") == event]
        return found[-1] if found else None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def abort(self) -> None:
        """End it, with the stacks of its threads in the log."""
        if self.running():
            self.send(signal.SIGABRT)
            self.process.wait()

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """Ask it to end, once it has started; gives its exit status.

        Before it has set up what SIGTERM means, that would just kill it.
        """
        end = time.monotonic() + timeout_s
        while self.running() and not self.logged("started") and time.monotonic() < end:
            time.sleep(0.05)
        self.send(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def running(self) -> bool:
        """Whether the process lives."""
        return self.process.poll() is None


def _line(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    return line if isinstance(line, dict) else {"text": text}


class Trial:
    """Topics, group and snapshots of one test, and its filter processes.

    Parameters
    ----------
    servers : str
        Bootstrap servers of a real Kafka.
    archive : Archive
    folder : Path
        For configurations, logs and snapshots.
    sections : dict
        Settings that differ from those of the harness, by section.
    topic_config : mapping, optional
        Configuration of the alert topic.
    environment : mapping, optional
        Further environment variables of the processes.
    forks : bool
        See `Filter`.
    """

    def __init__(
        self,
        servers: str,
        archive: Archive,
        folder: Path,
        *,
        alert_topic_config: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        forks: bool = False,
        **sections: dict[str, Any],
    ) -> None:
        self.servers, self.archive, self.folder = servers, archive, folder
        self.name = f"trial-{uuid.uuid4().hex[:10]}"
        self.input, self.alerts = f"{self.name}-epochs", f"{self.name}-alerts"
        self.dead = f"{self.name}-dead"
        # The archive's timestamps are those of its exposures, long past any retention.
        make_topic(servers, self.input, archive.partitions, {"retention.ms": "-1"})
        make_topic(servers, self.alerts, 1, alert_topic_config)
        make_topic(servers, self.dead, 1)
        self.sections = sections
        self.environment, self._forks = environment or {}, forks
        self.filters: list[Filter] = []
        self._producer = ck.Producer({"bootstrap.servers": servers, "log_level": 0})
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._progress = GroupProgress(
            Kafka(bootstrap_servers=servers, group_id=self.name, input_topics=(self.input,))
        )

    def settings(self, member: str | None = None, **kafka: Any) -> dict[str, Any]:
        """Return the tree of settings of a member."""
        ours = {
            "bootstrap_servers": self.servers,
            "group_id": self.name,
            "input_topics": [self.input],
            "alert_topic": self.alerts,
            "dead_letter_topic": self.dead,
            "group_instance_id": member,
            "commit_interval_s": 0.25,
            "session_timeout_ms": 6_000,
            "options": {"heartbeat.interval.ms": 300},
        }
        snapshot = {"url": str((self.folder / "snapshots").absolute()), "interval_s": 1}
        tree = _tree({"kafka": ours, "snapshot": snapshot, "metrics": {"enabled": False}})
        for section, keys in (*self.sections.items(), ("kafka", kafka)):
            tree[section] = {**tree.get(section, {}), **keys}
        return tree

    def start(
        self,
        member: str | None = None,
        *,
        module: Sequence[str] = FILTER,
        code: Path | None = None,
        environment: dict[str, str] | None = None,
        **kafka: Any,
    ) -> Filter:
        """Start a filter process (see `Filter`); a ``member`` has a fixed name in the group."""
        config = (self.folder / f"{self.name}-{len(self.filters)}.yaml").absolute()
        config.write_text(yaml.safe_dump(self.settings(member, **kafka)))
        log = config.with_suffix(".log")
        variables = {**self.environment, **(environment or {})}
        made = Filter(config, log, variables, module, code, forks=self._forks)
        self.filters.append(made)
        return self.filters[-1]

    def publish(self, first: int = 0, last: int | None = None) -> None:
        """Publish messages of the archive, by their place in it."""
        for message in self.archive.messages[first:last]:
            self._producer.produce(
                self.input,
                value=message.value,
                partition=message.partition,
                timestamp=message.timestamp_ms,
                headers=list(message.headers),
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def feed(self, seconds: float, last: int | None = None) -> threading.Thread:
        """Publish the archive, up to a place in it, in the background, over so many seconds."""
        count = len(self.archive.messages[:last])
        slices = max(1, round(seconds / FEED_S))
        edges = [count * n // slices for n in range(slices + 1)]

        def run() -> None:
            for first, last in pairwise(edges):
                self.publish(first, last)
                time.sleep(FEED_S)

        thread = threading.Thread(target=run, name="feed", daemon=True)
        thread.start()
        return thread

    def share_done(self) -> float:
        """Share of the archive that the group has committed."""
        done = sum(self.committed().values())
        return done / len(self.archive.messages)

    def committed(self) -> dict[int, int]:
        """Committed offset of each partition, in transactions that are done; empty if unknown."""
        try:
            return {n: self._progress((self.input, n)) for n in range(self.archive.partitions)}
        except TransientError:  # the broker, or its coordinator, is not up
            return {}

    def until(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait for a condition; if it does not come, fails with the logs and stacks of all."""
        end = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > end:
                for filter_ in self.filters:
                    filter_.abort()
                raise AssertionError(self.logs())
            time.sleep(0.05)

    def until_done(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the group has committed the whole archive; fails once no filter runs."""

        def done() -> bool:
            runs = any(filter_.running() for filter_ in self.filters)
            complete = self.committed() == self.archive.ends
            assert complete or runs, self.logs()
            return complete

        self.until(done, patience_s)

    def logs(self) -> str:
        """Return the logs of all filters, each cut to its end."""
        logs = [filter_.log() for filter_ in self.filters]
        return "\n\n".join(f"{log[:4000]}\n...\n{log[-4000:]}" for log in logs)

    def read(self, isolation: str = "read_committed") -> list[Alert]:
        """Alerts of the topic from beginning to end."""
        return [from_message(message) for message in self._messages(self.alerts, isolation)]

    def outcome(self) -> Outcome:
        """What readers of committed messages see: alerts and dead letters.

        The transaction of a process that was killed lasts until its timeout, and hides all that
        others have committed since; that is waited for.
        """
        self.until(self._no_transaction_is_open)
        values = (message.value or b"" for message in self._messages(self.dead))
        letters = [decode_strict("dead_letter", value) for value in values]
        about = [(each["partition"], each["offset"], each["reason"]) for each in letters]
        return Outcome(tuple(self.read()), tuple(about))

    def _no_transaction_is_open(self) -> bool:
        topics = [ck.TopicPartition(topic, 0) for topic in (self.alerts, self.dead)]
        ends = [
            [
                future.result().offset
                for future in self._admin.list_offsets(
                    {topic: OffsetSpec.latest() for topic in topics}, isolation_level=level
                ).values()
            ]
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        return ends[0] == ends[1]

    def verdict(self, expected: Outcome) -> Verdict:
        """Compare what readers of committed messages see with the undisturbed run."""
        return compare(expected, self.outcome())

    def _messages(self, topic: str, isolation: str = "read_committed") -> Iterator[Message]:
        return messages_of(self.servers, topic, isolation)

    def close(self) -> None:
        """End what still runs."""
        for filter_ in self.filters:
            if filter_.running():
                filter_.kill()
        self._progress.close()


def messages_of(servers: str, topic: str, isolation: str = "read_committed") -> Iterator[Message]:
    """Messages of a topic of one partition from beginning to end."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    with closing(consumer):
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, topic
            if message.error() is not None:
                assert message.error().code() == ck.KafkaError._PARTITION_EOF
                return
            yield message_of(message)


@contextmanager
def trial(*arguments: Any, **keywords: Any) -> Iterator[Trial]:
    """Make a `Trial` whose processes end with the block."""
    made = Trial(*arguments, **keywords)
    try:
        yield made
    finally:
        made.close()


def _tree(sections: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"threads": 1},
        # The demo's stars have the noise of their errors; so much is allowed for.
        "alert": {"posterior_samples": 50, "noise": {"surveys": {demo_archive.SURVEY: WHITE}}},
        "batch": {"flush_windows": 64, "max_wait_s": 0.1},
        "schedule": {"every_days": 0.5},
        **sections,
    }


def version() -> str:
    """Commit of the code, marked where files differ from it; empty outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def settings_of(sections: dict[str, Any]) -> Settings:
    """Settings of the harness, for use without Kafka."""
    kafka = {"bootstrap_servers": "127.0.0.1:1", "input_topics": ["epochs"]}
    return Settings.model_validate(_tree({"kafka": kafka, **sections}))
