"""Sending photometry: what arrives, under which key, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from broker_filter import ConfigError, Photometry, SchemaError, publish
from broker_filter.client import publish as module
from broker_filter.decode.decoder import Decoder
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.ranges import TopicRange, messages_of, offsets_of
from broker_filter.kafka.sink import MemorySink
from broker_filter.types import Message, StarId
from tests import build


def photometry(stars: list[StarId], **columns: object) -> Photometry:
    n = len(stars)
    return build.photometry(
        61_000.0 + np.arange(n),
        stars,
        survey="roman",
        band="F146",
        flux=np.arange(1.0, n + 1),
        flux_err=0.5,
        **columns,
    )


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic() -> str:
    return f"photometry-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> MemorySink:
    """Messages kept in memory in place of a broker."""
    memory = MemorySink()
    memory.require = lambda _: None  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "open_sink", lambda *_: memory)
    return memory


def received(sink: MemorySink) -> list[Photometry]:
    decoder, got = Decoder(), []
    for one in sink.messages:
        message = Message(one.topic, 0, 0, one.key, one.value, headers=one.headers)
        got += decoder.decode(message).photometry
    return got


def test_what_is_sent_arrives_keyed_by_star(servers: str, topic: str) -> None:
    sent = photometry(["a", "b", "a"], coordinates={"a": (270.5, -29.25)})
    assert publish(sent, servers, topic) == 2
    parts = offsets_of(TopicRange(servers, topic))
    by_key = {m.key: m for part in parts for m in messages_of(part)}
    got = {key: Decoder().decode(message).photometry[0] for key, message in by_key.items()}
    assert got.keys() == {b"a", b"b"}
    assert got[b"a"].star == ["a", "a"]
    assert got[b"a"].flux.tolist() == [1, 3]
    assert got[b"a"].mjd_tai.tolist() == [61_000, 61_002]
    assert got[b"a"].coordinates == {"a": (270.5, -29.25)}
    assert got[b"b"].flux.tolist() == [2]


def test_an_iterable_is_sent_item_by_item(sink: MemorySink) -> None:
    assert publish(photometry([star]) for star in (1, 2, 3)) == 3
    assert [one.key for one in sink.messages] == [b"1", b"2", b"3"]
    assert {one.topic for one in sink.messages} == {"photometry"}
    assert publish([]) == 0


def test_each_reference_flux_of_a_star_has_a_message_of_its_own(sink: MemorySink) -> None:
    references = np.array([10.0, 20.0, 10.0, np.nan, np.nan])
    assert publish(replace(photometry([1] * 5), ref_flux=references)) == 3
    assert [one.ref_flux.tolist()[0] for one in received(sink)[:2]] == [10, 20]
    assert [one.flux.tolist() for one in received(sink)] == [[1, 3], [2], [4, 5]]


def test_many_epochs_of_a_star_are_parted(sink: MemorySink) -> None:
    n = module.EPOCHS_PER_MESSAGE
    assert publish(photometry([1] * (n + 1))) == 2
    assert [len(one) for one in received(sink)] == [n, 1]
    assert max(len(one.value) for one in sink.messages) < 500_000


def test_columns_of_another_length_are_named(sink: MemorySink) -> None:
    one = replace(photometry([1, 2]), flux_err=np.ones(3))
    with pytest.raises(SchemaError, match=r"roman F146: star has 2 entries, flux_err .* \(3,\)"):
        publish(one)
    with pytest.raises(SchemaError, match="there is no epoch"):
        publish(photometry([]))
    assert sink.messages == []


def test_a_star_without_a_name_is_refused(sink: MemorySink) -> None:
    with pytest.raises(SchemaError, match="star id has 0 bytes"):
        publish([photometry([1]), photometry([""])])
    assert [one.key for one in sink.messages] == [b"1"]


def test_no_broker_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_filter.kafka.sink.CONNECT_S", 0.5)
    with pytest.raises(ConfigError, match=r"no broker reached at .*127\.0\.0\.1:1 "):
        publish(photometry([1]), "127.0.0.1:1")


@pytest.mark.parametrize(
    ("servers", "topic", "named"),
    [("localhost", "x", "is not host:port"), ("localhost:9092", "a b", "input_topics")],
)
def test_wrong_servers_or_topic_are_named(servers: str, topic: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        publish(photometry([1]), servers, topic)


def test_client_properties_reach_the_client(servers: str, topic: str) -> None:
    assert publish(photometry([1]), servers, topic, {"client.id": "me"}) == 1
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        publish(photometry([1]), servers, topic, {"no.such.setting": 1})
