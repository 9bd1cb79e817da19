"""All real packets at hand and many light curves, mixed in one topic of a real Kafka.

What each packet loses stands file by file in ``tests/decode/test_surveys_packets.py``: here the
same must come out of the whole filter, whatever else passes through it. Alerts of the light curves,
none of which is microlensing, are printed by star, not judged.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import numpy as np
import pytest
from confluent_kafka.admin import AdminClient

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_avro
from broker_filter.config import (
    AlertSettings,
    Batch,
    Input,
    Kafka,
    MetricsSettings,
    Model,
    Packets,
    ScheduleSettings,
    Settings,
)
from broker_filter.decode.surveys.roman import NOMINAL_ZERO_POINTS
from broker_filter.errors import TransientError
from broker_filter.kafka.progress import GroupProgress
from broker_filter.kafka.sink import KafkaSink
from broker_filter.kafka.transaction import open_delivery
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.reading import MessageReader, Piece
from broker_filter.replay.files import is_packets
from broker_filter.replay.lightcurves.stream import LightCurves, load
from broker_filter.replay.parquet import rows
from broker_filter.replay.stream import Record
from broker_filter.schemas import decode_strict
from broker_filter.service.assembly import make_service, open_entry
from broker_filter.types import StarId
from tests.decode.test_surveys_packets import COUNTS
from tests.kafka_broker import make_topic

pytestmark = [pytest.mark.kafka, pytest.mark.shared_data, pytest.mark.slow]

PATIENCE_S = 600.0
MAX_BYTES = 8 << 20

CURVES = (
    "kepler_flares",
    "tess_flares",
    "ogle_dwarf_novae",
    "ogle_lpv",
    "ogle2/ogle2_variables_shared.zip",
)
EPOCHS_PER_MESSAGE = 50
RETURN = 2000  # messages of light curves that come again

# Survey to messages with usable epochs, and stars; Fink's packets are ZTF's.
SURVEYS = {
    "archive": (47_800, 74),
    "elasticc": (90, 90),
    "lsst": (16, 14),
    "roman": (2, 2),
    "ztf": (10, 68),
}
WITHOUT_EPOCHS = 3  # two fakes with impossible times, and a body of the Solar system

# The damaged block; WINTER, which nobody knows, and a schema that is no packet.
DEAD = {"truncated": 1, "unknown_survey": 2}

# What became of the epochs, and the windows that could not be read for want of a reference.
REFUSED = {"difference_without_reference": 6}
EPOCHS = {
    "inserted": 74_581,
    "thinned": 21_868,  # the two-minute cadence of TESS
    "duplicate": 5346,
    "flagged": 520,
    "nbad": 2,
    "not_measured": 20,
    "pixelFlags_bad": 24,
    "pixelFlags_cr": 11,
    "pixelFlags_saturated": 6,
    "pixelFlags_streak": 14,
    "psfFlux_flag": 145,
    "solar_system": 5,
    "time_out_of_range": 6,
    "upper_limit": 827,
}


@dataclass(frozen=True)
class State:
    """What the filter has counted, and the alerts that it has sent."""

    consumed: int
    dead: dict[str, int]
    epochs: dict[str, int]
    windows: float
    alerts: list[Alert]
    dead_letters: dict[str, int]
    surveys: dict[str, tuple[int, int]]


def packet_files(folder: Path) -> list[Path]:
    """All files but the schemas and what describes them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if path.suffix not in (".avsc", ".md")]


def packets(folder: Path) -> Iterator[Record]:
    """Files byte for byte; rows of Parquet as a replay makes packets of them."""
    for path in packet_files(folder):
        if path.suffix == ".parquet":
            yield from (Record(0.0, value) for _, value, _ in rows(path, lambda _: None))
        else:
            assert is_packets(path)
            yield Record(0.0, path.read_bytes())


def light_curves(folder: Path) -> list[Record]:
    """Light curves in order of time."""
    files = chain.from_iterable(
        [path] if path.is_file() else sorted(path.iterdir())
        for path in (folder / name for name in CURVES)
    )
    curves, unreadable = load(list(files))
    assert unreadable == []
    parts = [part for curve in curves for part in curve.parts]
    stream = LightCurves(parts, epochs_per_message=EPOCHS_PER_MESSAGE)
    return list(stream.read(pytest.fail))


def spread(few: Sequence[Record], many: Sequence[Record]) -> list[Record]:
    """Put the few between the many, at equal distances."""
    step = len(many) // len(few)
    pieces = ([one, *many[n * step : (n + 1) * step]] for n, one in enumerate(few))
    return [*chain.from_iterable(pieces), *many[len(few) * step :]]


class Spy:
    """Sees the packets that the filter reads."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.stars: defaultdict[str, set[StarId]] = defaultdict(set)

    def note(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            for survey in {part.survey for part in piece.parts}:
                self.messages[survey] += len(piece.messages)
            for part in piece.parts:
                self.stars[part.survey].update(part.star)

    def counts(self) -> dict[str, tuple[int, int]]:
        return {survey: (n, len(self.stars[survey])) for survey, n in self.messages.items()}


class Filter:
    """The whole filter in a thread, on topics of its own."""

    def __init__(self, servers: str, schemas: Path) -> None:
        name = f"survey-packets-{uuid.uuid4().hex[:10]}"
        self.settings = Settings(
            kafka=Kafka(
                bootstrap_servers=servers,
                group_id=name,
                input_topics=(f"{name}-in",),
                alert_topic=f"{name}-alerts",
                dead_letter_topic=f"{name}-dead",
                auto_offset_reset="earliest",
                commit_interval_s=0.2,
                options={"message.max.bytes": MAX_BYTES},
            ),
            input=Input(
                schema_folder=schemas,
                packets=Packets(roman_zero_points=dict(NOMINAL_ZERO_POINTS)),
            ),
            model=Model(threads=1),
            # Hundreds of alerts of variable stars: what they carry is tested elsewhere.
            alert=AlertSettings(decide_on="network", certified=False),
            schedule=ScheduleSettings(every_days=10),
            batch=Batch(max_wait_s=0.2),
            metrics=MetricsSettings(enabled=False),
        )
        kafka = self.kafka = self.settings.kafka
        self.topics = (*kafka.input_topics, kafka.alert_topic, kafka.dead_letter_topic)
        for topic in self.topics:
            make_topic(servers, topic, 1, {"max.message.bytes": str(MAX_BYTES)})
        self.metrics, self.spy, self.sent = Metrics(), Spy(), 0
        delivery = open_delivery(self.kafka, self.metrics)
        entry = open_entry(self.settings)
        self._service = make_service(self.settings, entry, delivery, self.metrics, Health())
        self._thread = threading.Thread(target=self._service.run, name="filter", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it; it must not have ended by itself."""
        read = MessageReader.read

        def spied(reader: MessageReader, *polled: Any) -> list[Piece]:
            pieces = read(reader, *polled)
            self.spy.note(pieces)
            return pieces

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MessageReader, "read", spied)
            self._thread.start()
            try:
                yield
                assert self._thread.is_alive()
            finally:
                self._service.stop()
                self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def take(self, records: Sequence[Record]) -> State:
        """Publish, wait until all is settled, and read the counters."""
        topic = self.kafka.input_topics[0]
        with closing(KafkaSink(self.kafka)) as sink:
            for record in records:
                sink.produce(topic, record.key, record.value, record.headers, 0)
            sink.flush()
        self.sent += len(records)
        self._until_settled((topic, 0))
        return State(
            consumed=int(self.metrics.total("records_consumed_total")),
            dead=self._counts("records_dead_total", "reason"),
            epochs=self._counts("points_inserted_total", "outcome"),
            windows=self._windows(),
            alerts=[from_avro(value) for value in self._content(self.kafka.alert_topic)],
            dead_letters=Counter(map(_reason, self._content(self.kafka.dead_letter_topic))),
            surveys=self.spy.counts(),
        )

    def _until_settled(self, partition: tuple[str, int]) -> None:
        with closing(GroupProgress(self.kafka)) as progress:
            self._until(lambda: _committed(progress, partition) == self.sent)

    def _windows(self) -> float:
        """Number of windows, as the filter reports it anew: it does so every two seconds."""
        self.metrics.set("windows", -1.0)
        self._until(lambda: self.metrics.value("windows") >= 0)
        return self.metrics.value("windows")

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _counts(self, metric: str, label: str) -> dict[str, int]:
        samples = (one for family in self.metrics.registry.collect() for one in family.samples)
        return {
            one.labels[label]: int(one.value)
            for one in samples
            if one.name == f"broker_filter_{metric}" and one.value
        }

    def _content(self, topic: str) -> list[bytes]:
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
        values: list[bytes] = []
        with closing(consumer):
            while (message := consumer.poll(PATIENCE_S)) and message.error() is None:
                values.append(message.value())
        assert message.error().code() == ck.KafkaError._PARTITION_EOF
        return values


def _reason(dead_letter: bytes) -> str:
    return str(decode_strict("dead_letter", dead_letter)["reason"])


def _committed(progress: GroupProgress, partition: tuple[str, int]) -> int:
    try:
        return progress(partition)
    except TransientError:  # a transaction is under way
        return 0


@pytest.fixture(scope="module")
def curves(shared_data: Path) -> list[Record]:
    return light_curves(shared_data / "photometry")


@pytest.fixture(scope="module")
def states(
    kafka: str, kafka_admin: AdminClient, shared_data: Path, curves: list[Record]
) -> Iterator[tuple[State, State]]:
    """After all has come once in order of time; and after much of it has come again, backwards."""
    few = list(packets(shared_data / "alerts"))
    filter_ = Filter(kafka, shared_data / "alerts" / "avsc")
    try:
        with filter_.running():
            first = filter_.take(spread(few, curves))
            again = [*reversed(few), *reversed(curves[:RETURN])]
            second = filter_.take([one for one in again for _ in range(2)])
        yield first, second
    finally:
        for done in kafka_admin.delete_topics(list(filter_.topics)).values():
            done.result(timeout=30)


def test_nothing_is_lost_and_the_dead_letters_say_why(states: tuple[State, State]) -> None:
    once, _ = states
    with_epochs = sum(n for n, _ in SURVEYS.values())
    assert once.consumed == with_epochs + WITHOUT_EPOCHS + sum(DEAD.values())
    assert once.surveys == SURVEYS
    assert once.dead == once.dead_letters == DEAD


def test_every_epoch_has_one_outcome(states: tuple[State, State], curves: list[Record]) -> None:
    once, _ = states
    assert once.epochs == EPOCHS | REFUSED
    in_packets = sum(
        total + difference + sum(rejected.values())
        for _, total, difference, rejected in COUNTS.values()
    )
    assert sum(EPOCHS.values()) == in_packets + sum(record.epochs for record in curves)


def test_packets_lose_the_same_epochs_as_alone(states: tuple[State, State]) -> None:
    alone: Counter[str] = Counter()
    for *_, rejected in COUNTS.values():
        alone.update(rejected)
    del alone["duplicate"]  # light curves and repeated stars have some, too
    once, _ = states
    assert {reason: once.epochs[reason] for reason in alone} == alone


def test_what_comes_again_changes_no_window_and_gives_no_alert(
    states: tuple[State, State],
) -> None:
    once, thrice = states
    assert thrice.consumed > once.consumed
    assert thrice.windows == once.windows
    for outcome in ("inserted", "thinned"):
        assert thrice.epochs[outcome] == EPOCHS[outcome]
    told = [alert.alert_id for alert in once.alerts]
    assert told
    assert len(set(told)) == len(told)
    assert [alert.alert_id for alert in thrice.alerts] == told
    assert thrice.dead_letters == {reason: 3 * n for reason, n in DEAD.items()}
    stars = {survey: n for survey, (_, n) in SURVEYS.items()}
    assert {survey: n for survey, (_, n) in thrice.surveys.items()} == stars
    packets = {survey: 3 * n for survey, (n, _) in SURVEYS.items() if survey != "archive"}
    assert packets.items() <= {survey: n for survey, (n, _) in thrice.surveys.items()}.items()


def test_alerts_of_variables_flares_and_dwarf_novae_are_reported(
    states: tuple[State, State], capsys: pytest.CaptureFixture[str]
) -> None:
    once, _ = states
    new = [alert for alert in once.alerts if alert.state == "new"]
    false = Counter(str(alert.star_id) for alert in new if alert.survey == "archive")
    with capsys.disabled():
        print("\nNew alerts of stars that are no microlensing events:")
        for star, count in sorted(false.items()):
            print(f"  {star:36}{count:4}")
    assert all(np.isfinite(alert.log10_k) for alert in once.alerts)
