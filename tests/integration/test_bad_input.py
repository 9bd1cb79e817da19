"""Everything that a sender can get wrong, among good messages, through the whole service."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_filter.config import DeadLetters, Kafka, Model, Settings
from broker_filter.decode.native import encode_block, encode_photometry
from broker_filter.inference import zoo
from broker_filter.kafka.consumer import KafkaSource
from broker_filter.kafka.delivery import AtLeastOnce
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.sink import KafkaSink
from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.schemas import decode_strict, encode, schema_header
from broker_filter.service.assembly import make_service
from broker_filter.types import Photometry
from tests import build

PATIENCE_S = 120.0
NAN, INF = float("nan"), float("inf")
TOPICS = {"epochs": 1, "alerts": 1, "dead": 1}


@dataclass(frozen=True)
class Sent:
    """A message: its schema (None to say none), its bytes, and what must become of it."""

    schema: str | None
    value: bytes | None
    dead: str | None = None
    inserted: int = 0
    rejected: tuple[tuple[str, int], ...] = ()


def photometry(stars: list[str], mjd: list[float], **columns: Any) -> Photometry:
    return build.photometry(mjd, stars, **{"ref_flux": 1000.0, "ref_flux_err": 1.0} | columns)


ONE = encode_photometry(photometry(["star"], [60_000.0]))
BLOCK = encode_block(photometry(["a", "b", "c"], [60_000.0] * 3))


def changed(schema: str, value: bytes, **changes: Any) -> bytes:
    return encode(schema, decode_strict(schema, value) | changes)


def shortened(name: str) -> bytes:
    """A block, one column of which lacks its last byte."""
    block = decode_strict("photometry_block", BLOCK)
    column = block[name]
    return encode("photometry_block", block | {name: {**column, "data": column["data"][:-1]}})


def ids(dtype: str, data: bytes) -> bytes:
    return changed("photometry_block", BLOCK, starId={"dtype": dtype, "data": data})


POISON = [
    Sent("photometry", ONE[:-3], "truncated"),
    Sent("photometry_block", BLOCK[: len(BLOCK) // 2], "truncated"),
    Sent("photometry", ONE[:1], "truncated"),
    Sent("photometry", b"", "empty"),
    Sent("photometry", b"\x01\x02\x03 no Avro", "undecodable"),
    Sent("photometry_block", b"\x01\x02\x03 no Avro", "truncated"),
    Sent("alert", ONE, "unknown_format"),
    Sent(None, ONE, "unknown_format"),
    Sent("photometry", bytes(10 << 20), "too_large"),
    Sent("photometry", ONE + b"\0", "trailing_bytes"),
    Sent("photometry_block", BLOCK + ONE, "trailing_bytes"),
    *(Sent("photometry_block", shortened(name), "column_length") for name in ("flux", "starId")),
    Sent("photometry_block", changed("photometry_block", BLOCK, nStars=4), "column_length"),
    Sent("photometry", changed("photometry", ONE, flux=b"\0\0\0"), "column_length"),
    Sent("photometry", changed("photometry", ONE, mjdTai=b"", flux=b"", fluxErr=b""), "no_epochs"),
    Sent("photometry_block", changed("photometry_block", BLOCK, nStars=0), "no_epochs"),
    Sent("photometry_block", changed("photometry_block", BLOCK, nStars=-1), "no_epochs"),
    Sent("photometry", changed("photometry", ONE, starId=""), "bad_star_id"),
    Sent("photometry", changed("photometry", ONE, starId="x" * 65), "bad_star_id"),
    Sent("photometry", changed("photometry", ONE, starId="ö" * 33), "bad_star_id"),
    Sent("photometry_block", ids("|S1", b"a\0c"), "bad_star_id"),
    Sent("photometry_block", ids("|S1", b"a\xffc"), "bad_star_id"),
    Sent("photometry_block", ids("|S65", b"x" * 195), "bad_star_id"),
    Sent("photometry_block", ids("|O8", b"x" * 24), "bad_dtype"),
    Sent("photometry", changed("photometry", ONE, band=""), "bad_name"),
]


TOMBSTONE = Sent("photometry", None)


def faulty(reason: str, **columns: Any) -> list[Sent]:
    """A good epoch beside a faulty one, as the epochs of a star and as the stars of a block."""
    mjd = columns.pop("mjd", [60_010.0, 60_010.5])
    star = photometry([f"star of {reason}"] * 2, mjd, **columns)
    pair = photometry([f"{reason} a", f"{reason} b"], mjd, **columns)
    rejected = ((reason, 1),)
    return [
        Sent("photometry", encode_photometry(star), inserted=1, rejected=rejected),
        Sent("photometry_block", encode_block(pair), inserted=1, rejected=rejected),
    ]


FAULTY = [
    # Each at a time of its own: a star's epoch that came before would be a duplicate.
    *faulty("nan_time", mjd=[60_010.0, NAN]),
    *faulty("time_out_of_range", mjd=[60_010.1, 2_460_010.5]),
    *faulty("time_out_of_range", mjd=[60_010.2, -1e300]),
    *faulty("time_out_of_range", mjd=[60_010.3, INF]),
    *faulty("nan_flux", mjd=[60_010.0, 60_011.0], flux=[1000.0, NAN]),
    *faulty("infinite_flux", mjd=[60_010.0, 60_011.0], flux=[1000.0, INF]),
    *faulty("infinite_flux", mjd=[60_010.1, 60_011.0], flux=[1000.0, -INF]),
    *faulty("bad_error", mjd=[60_010.0, 60_011.0], flux_err=[10.0, NAN]),
    *faulty("bad_error", mjd=[60_010.1, 60_011.0], flux_err=[10.0, INF]),
    *faulty("bad_error", mjd=[60_010.2, 60_011.0], flux_err=[10.0, -1.0]),
    *faulty("bad_error", mjd=[60_010.3, 60_011.0], flux_err=[10.0, 0.0]),
    *faulty("flagged", mjd=[60_010.0, 60_011.0], flags=np.array([0, 1], np.uint32)),
]


def good(i: int) -> Sent:
    """Names of 1 to 64 bytes, fluxes of zero and below: unusual, and right."""
    mjd = 60_000.0 + 0.01 * i
    name = ("y" * 64, "z", "ö" * 32, "star")[i % 4]
    flux = (1000.0, 0.0, -50.0)[i % 3]
    if i % 2:
        stars = photometry([name, f"{name[:32]}-b"], [mjd] * 2, flux=[flux] * 2)
        return Sent("photometry_block", encode_block(stars), inserted=2)
    return Sent("photometry", encode_photometry(photometry([name], [mjd], flux=[flux])), inserted=1)


def make_settings(broker: EmbeddedBroker, entry: Path) -> Settings:
    return Settings(
        kafka=Kafka(
            bootstrap_servers=broker.bootstrap_servers,
            input_topics=("epochs",),
            alert_topic="alerts",
            dead_letter_topic="dead",
            commit_interval_s=0.1,
            options={"message.max.bytes": 12 << 20},
        ),
        model=Model(path=entry),
        dead_letters=DeadLetters(max_ratio=1),
    )


def publish(messages: list[Sent], settings: Settings) -> None:
    with closing(KafkaSink(settings.kafka)) as sink:
        for message in messages:
            headers = () if message.schema is None else (schema_header(message.schema),)
            value: Any = message.value
            sink.produce("epochs", b"key", value, headers, 0)
            sink.flush()  # a batch of its own each


def filter_all(messages: list[Sent], settings: Settings, entry: Path, metrics: Metrics) -> None:
    """Run the service until it has taken the messages."""
    delivery = AtLeastOnce(KafkaSink(settings.kafka))
    service = make_service(settings, zoo.verify(entry), delivery, metrics, Health())
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while metrics.total("records_consumed_total") < len(messages):
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    service.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def dead_letters(settings: Settings, count: int) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = []
    kafka = settings.kafka.model_copy(update={"input_topics": ("dead",), "group_id": "reader"})
    with closing(KafkaSource(kafka)) as source:
        deadline = time.monotonic() + PATIENCE_S
        while len(letters) < count and time.monotonic() < deadline:
            values = [message.value or b"" for message in source.poll(1000, 0.2)]
            letters += [decode_strict("dead_letter", value) for value in values]
        assert source.poll(10, 0.3) == []
    return letters


@pytest.fixture(scope="module")
def outcome(tiny_entry: Path) -> tuple[list[Sent], Metrics, list[dict[str, Any]]]:
    """The messages in the order of their offsets, the metrics, and the dead letters."""
    messages = POISON + FAULTY + [good(i) for i in range(len(POISON) + len(FAULTY))]
    messages += [TOMBSTONE] * 3
    random.Random(1).shuffle(messages)  # noqa: S311  an order, no secret
    # The embedded broker forgets what came before a message of more than 5 MB.
    messages.sort(key=lambda sent: sent.dead != "too_large")
    metrics = Metrics()
    with EmbeddedBroker(TOPICS) as broker:
        settings = make_settings(broker, tiny_entry)
        publish(messages, settings)
        filter_all(messages, settings, tiny_entry, metrics)
        return messages, metrics, dead_letters(settings, len(POISON))


Outcome = tuple[list[Sent], Metrics, list[dict[str, Any]]]


def test_every_message_that_cannot_be_used_is_one_dead_letter_with_its_reason(
    outcome: Outcome,
) -> None:
    messages, metrics, letters = outcome
    wanted = {offset: sent.dead for offset, sent in enumerate(messages) if sent.dead}
    assert {letter["offset"]: letter["reason"] for letter in letters} == wanted
    assert len(letters) == len(wanted)
    counted = Counter(wanted.values())
    assert {reason: metrics.value("records_dead_total", reason=reason) for reason in counted} == (
        counted
    )


def test_a_dead_letter_holds_the_message_as_it_came(outcome: Outcome) -> None:
    messages, _, letters = outcome
    for letter in letters:
        value = messages[letter["offset"]].value
        assert (letter["topic"], letter["partition"], letter["key"]) == ("epochs", 0, b"key")
        assert letter["valueLength"] == len(value or b"")
        assert (letter["value"] or b"") == (value or b"")[:900_000]
        assert letter["detail"]


def test_every_good_epoch_is_inserted(outcome: Outcome) -> None:
    messages, metrics, _ = outcome
    good_epochs = sum(sent.inserted for sent in messages)
    assert metrics.value("points_inserted_total", outcome="inserted") == good_epochs


def test_every_faulty_epoch_is_counted_by_its_reason(outcome: Outcome) -> None:
    messages, metrics, _ = outcome
    counted: Counter[str] = Counter()
    for sent in messages:
        counted.update(dict(sent.rejected))
    for reason, count in counted.items():
        assert metrics.value("points_inserted_total", outcome=reason) == count
    all_epochs = sum(counted.values()) + sum(sent.inserted for sent in messages)
    assert metrics.total("points_inserted_total") == all_epochs


def test_a_tombstone_is_passed_over(outcome: Outcome) -> None:
    messages, metrics, _ = outcome
    assert metrics.value("records_tombstone_total") == messages.count(TOMBSTONE) == 3
