from __future__ import annotations

import logging

import confluent_kafka as ck
import pytest

from broker_filter.config import Kafka, Security
from broker_filter.errors import ConfigError, StateError
from broker_filter.kafka.client import (
    client_config,
    consumer_config,
    message_of,
    messages_of,
    open_client,
    producer_config,
)
from broker_filter.kafka.errors import QUIET_S, ClientErrors, client_error
from broker_filter.types import Message

SECRET = "hunter2-in-clear"  # noqa: S105
PACKET = 600_000
SCRAM = Security(protocol="sasl_ssl", mechanism="SCRAM-SHA-512", username="filter", password=SECRET)
OAUTH = Security(
    protocol="sasl_ssl",
    mechanism="OAUTHBEARER",
    token_url="https://login.example/token",  # noqa: S106
    client_id="filter",
    client_secret=SECRET,
    scope="kafka",
)


def settings(security: Security | None = None, **keys: object) -> Kafka:
    return Kafka(
        bootstrap_servers="127.0.0.1:1",
        input_topics=("epochs", "bulge.epochs"),
        alert_topic="alerts",
        dead_letter_topic="dead",
        security=security or Security(),
        **keys,
    )


def test_a_password_and_a_client_secret_each_reach_the_client():
    scram, oauth = client_config(settings(SCRAM)), client_config(settings(OAUTH))
    assert (scram["sasl.username"], scram["sasl.password"]) == ("filter", SECRET)
    assert "sasl.oauthbearer.method" not in scram
    assert oauth["sasl.oauthbearer.method"] == "oidc"
    assert oauth["sasl.oauthbearer.client.secret"] == SECRET
    assert "sasl.password" not in oauth


@pytest.mark.parametrize("security", [SCRAM, OAUTH], ids=["SCRAM", "OAUTHBEARER"])
def test_librdkafka_takes_our_properties_and_logs_no_secret(security, caplog):
    caplog.set_level(logging.DEBUG)
    kafka = settings(security, options={"debug": "all"})
    for factory, config in ((ck.Consumer, consumer_config), (ck.Producer, producer_config)):
        client = open_client(factory, config(kafka))
        client.poll(0.2)
    assert "sasl.mechanism" in caplog.text
    assert SECRET not in caplog.text


def test_a_packet_of_the_largest_survey_fits_with_room_for_its_dead_letter():
    consumer, producer = consumer_config(settings()), producer_config(settings())
    assert producer["message.max.bytes"] > 2 * PACKET
    assert consumer["max.partition.fetch.bytes"] > 2 * PACKET
    # The queue and one answer on top of it.
    bound = consumer["queued.max.messages.kbytes"] * 1024 + consumer["fetch.max.bytes"]
    assert bound <= 32 << 20


def test_our_keys_go_to_the_partition_that_a_java_producer_would_choose():
    assert producer_config(settings())["partitioner"] == "murmur2_random"


@pytest.mark.parametrize(
    ("code", "text", "parts"),
    [
        (
            ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "Subscribed topic not available: bulge.epochs: denied",
            ["Read and Describe on topic bulge.epochs (kafka.input_topics)"],
        ),
        (
            ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "denied",
            ["Read and Describe on topic epochs", "Write and Describe on topic alerts"],
        ),
        (
            ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
            "denied",
            ["Read on group broker-filter (kafka.group_id)"],
        ),
        (
            ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            "denied",
            ["Write and Describe on topic dead (kafka.dead_letter_topic)"],
        ),
        (
            ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "denied",
            ["transactional ids that begin with broker-filter"],
        ),
        (
            ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
            "alerts[0]: Unknown topic",
            ["topic not found", "kafka.alert_topic"],
        ),
        (ck.KafkaError.UNKNOWN_TOPIC_OR_PART, "dead: gone", ["kafka.dead_letter_topic"]),
        (ck.KafkaError.UNKNOWN_TOPIC_OR_PART, "epochs: gone", ["kafka.input_topics"]),
        (
            ck.KafkaError.INCONSISTENT_GROUP_PROTOCOL,
            "JoinGroup failed",
            ["kafka.assignment_strategy = cooperative-sticky", "group broker-filter"],
        ),
        (ck.KafkaError._AUTHENTICATION, "denied", ["login to", "as user 'filter' was refused"]),
        (ck.KafkaError._SSL, "no handshake", ["no handshake", "kafka.security.ca_location"]),
    ],
)
def test_a_refusal_names_who_what_and_the_way_out(code, text, parts):
    error = client_error(ck.KafkaError(code, text), settings(SCRAM))
    assert isinstance(error, ConfigError)
    for part in parts:
        assert part in str(error)
    assert "127.0.0.1:1" in str(error) or "group" in str(error)
    assert SECRET not in str(error)


def test_only_the_topic_in_question_is_named():
    error = ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied")
    message = str(client_error(error, settings(SCRAM), "alerts[0]"))
    assert "Write and Describe on topic alerts" in message
    assert "epochs" not in message
    assert "dead" not in message


@pytest.mark.parametrize(
    ("text", "ends"),
    [("Could not connect to server", False), ('{"error": "invalid_client"}', True)],
)
def test_a_client_that_the_oauth_server_refuses_ends_and_an_outage_of_it_does_not(text, ends):
    error = ck.KafkaError(
        ck.KafkaError._AUTHENTICATION, f"Failed to acquire SASL OAUTHBEARER token: {text}"
    )
    end = client_error(error, settings(OAUTH))
    assert (end is not None) is ends
    assert not ends or "client 'filter'" in str(end)


def test_a_fatal_error_that_the_client_raises_becomes_ours():
    errors = ClientErrors(settings())
    fatal = ck.KafkaException(ck.KafkaError(ck.KafkaError._FENCED, "fenced", fatal=True))

    def poll(_: float) -> None:
        raise fatal

    def poll_with_another_callback(_: float) -> None:
        raise SystemError from fatal

    for function in (poll, poll_with_another_callback):
        with pytest.raises(StateError, match="another member runs as this one: fenced"):
            errors.call(function, 0.1)


def test_an_error_that_is_not_the_clients_passes():
    def poll() -> None:
        raise SystemError("of Python's own")

    with pytest.raises(SystemError, match="own"):
        ClientErrors(settings()).call(poll)


def test_an_outage_is_logged_once_and_not_at_every_attempt(caplog):
    errors = ClientErrors(settings())
    for attempt in range(100):
        for code in (ck.KafkaError._TRANSPORT, ck.KafkaError._ALL_BROKERS_DOWN):
            errors.note(ck.KafkaError(code, f"attempt {attempt}"))
    errors.check()
    assert [record.reason for record in caplog.records] == ["_TRANSPORT", "_ALL_BROKERS_DOWN"]
    assert errors.last == "attempt 99"


def test_what_the_client_says_again_and_again_is_said_once_with_its_number(caplog, monkeypatch):
    clock = 1000.0
    monkeypatch.setattr("broker_filter.kafka.errors.time.monotonic", lambda: clock)
    log = logging.getLogger("broker_filter.librdkafka")
    with caplog.at_level("INFO", logger=log.name):
        for attempt in range(240):
            clock += 0.125
            log.error("broker %d down (after %d ms)", attempt % 2, attempt)
            log.error("quite another matter")
        clock += QUIET_S
        log.error("broker 1 down (after 9 ms)")
    said = [record.getMessage() for record in caplog.records if record.name == log.name]
    assert said == [
        "broker 0 down (after 0 ms)",
        "quite another matter",
        "broker 1 down (after 9 ms) (239 like it in between)",
    ]


def test_what_ends_a_consumer_without_the_mark_of_a_fatal_error_ends_us_too():
    """A static member that is fenced gets a message of this code, and nothing after it."""
    errors = ClientErrors(settings())
    errors.note(ck.KafkaError(ck.KafkaError._FATAL, "Static consumer fenced"))
    with pytest.raises(StateError, match="cannot go on: Static consumer fenced: restart"):
        errors.check()


@pytest.mark.parametrize(
    "fault", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), SystemError()]
)
def test_header_names_that_are_no_text_leave_the_message_as_it_is(fault):
    class Raw:
        topic, partition, offset = (lambda _: "t"), (lambda _: 0), (lambda _: 7)
        key, value, timestamp = (lambda _: None), (lambda _: b"packet"), (lambda _: (1, 5))

        def headers(self):
            raise fault

    assert message_of(Raw()) == Message("t", 0, 7, None, b"packet", 5, ())


def test_messages_that_say_the_same_share_their_headers():
    raws = [
        ck.Message(topic="t", partition=0, offset=n, value=b"", headers=headers, timestamp=(1, n))
        for n, headers in enumerate(
            [[("a", b"1")], [("a", b"1")], [("a", b"2")], None, [("a", None)]]
        )
    ]
    messages = messages_of(raws)
    assert [message.headers for message in messages] == [
        (("a", b"1"),),
        (("a", b"1"),),
        (("a", b"2"),),
        (),
        (("a", b""),),
    ]
    assert messages[0].headers is messages[1].headers
