"""Each target against a stand-in of it: what arrives, and what becomes of a refusal."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from broker_filter.alerts.alert import Alert
from broker_filter.alerts.codec import from_message, to_avro
from broker_filter.alerts.parts import Verdict
from broker_filter.client.voevent import ivorn, voevent
from broker_filter.errors import ConfigError, PoisonMessage, TransientError
from broker_filter.forward import hermes, hopskotch, lasair, rogue_db, slack, tom, webhook
from broker_filter.forward.model_fields import chi2_gain, jd_utc, target_fields
from broker_filter.forward.target import Options, Target
from broker_filter.forward.targets import TARGETS
from broker_filter.kafka.embedded import EmbeddedBroker
from broker_filter.kafka.ranges import TopicRange, messages_of, offsets_of
from tests import build
from tests.forward.stand_in import Answer, Request, StandIn, stand_in

SECRET = "token"  # noqa: S105  of a stand-in
SAMPLE = build.alert()
ROMAN = build.alert(band="F146", ra=268.5, dec=-29.2, star_id=123456789)
HOSTILE = "<b>'\"; DROP TABLE\x1b[2J\n@channel <!here> \u202e&amp; \U0001f600"


def hostile(**changes: Any) -> Alert:
    said = Verdict("flare", {"flare": 1.0}, HOSTILE)
    changes = {"ra": 1.0, "dec": -2.0, "verdict": said, "survey": HOSTILE} | changes
    return build.alert(**{"star_id": HOSTILE} | changes)


def options(target: StandIn, **changes: Any) -> Options:
    given = {"topic": "topic", "submitter": "me", "secret": SECRET}
    return Options(target.url, **given | changes)


@pytest.fixture
def target() -> Iterator[StandIn]:
    with stand_in() as server:
        yield server


# What targets have in common


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_says_what_it_needs(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--url|secret"):
        TARGETS[name](Options())


MESSAGES: dict[str, Callable[[Alert], object]] = {
    "hermes": lambda alert: hermes.message(alert, "topic", "me"),
    "tom": tom.target,
    "slack": slack.message,
    "webhook": lambda alert: json.loads(json.dumps(webhook.message(alert))),
}


def texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for one in part.values():
            yield from texts(one)
    elif isinstance(part, list):
        for one in part:
            yield from texts(one)


@pytest.mark.parametrize("name", ["hermes", "tom", "slack"])
def test_a_hostile_name_has_no_control_characters(name: str) -> None:
    found = list(texts(MESSAGES[name](hostile())))
    assert found
    assert not [text for text in found if re.search("[\x00-\x09\x0b-\x1f\u202e]", text)]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_json_and_names_the_alert(name: str) -> None:
    alert = build.alert(ra=1.0, dec=2.0)
    assert str(alert.alert_id) in json.dumps(MESSAGES[name](alert), allow_nan=False)


@pytest.mark.parametrize(
    "make", [lambda a: hermes.message(a, "t", "me"), tom.target], ids=["hermes", "tom"]
)
def test_what_needs_a_position_is_refused_without(make: Callable[[Alert], object]) -> None:
    with pytest.raises(PoisonMessage, match="no_position"):
        make(build.alert(ra=None, dec=None))


# Fields of a model


def test_times_are_jd_in_utc() -> None:
    utc = datetime.fromisoformat("2017-01-01T00:00:00")  # TAI - UTC is 37 s from here on
    mjd = (utc - datetime.fromisoformat("1858-11-17T00:00:00")).total_seconds() / 86_400
    assert jd_utc(mjd + 37 / 86_400) == pytest.approx(2_457_754.5, abs=1e-9)
    before = jd_utc(np.array([mjd + 36.5 / 86_400 - 1]))
    assert before == pytest.approx(2_457_753.5 + 0.5 / 86_400, abs=1e-9)


def test_fields_of_a_target_are_those_of_the_alert() -> None:
    fields = target_fields(ROMAN)
    t0, tE = ROMAN.interval("t0"), ROMAN.interval("tE")
    assert fields["t0"] == pytest.approx(ROMAN.t0_jd_tai - 37 / 86_400)
    assert fields["t0_error"] == pytest.approx((t0.p84 - t0.p16) / 2)
    assert fields["tE"] == tE.median
    covariance = json.loads(fields["fit_covariance"]["covariance"])
    np.testing.assert_array_equal(covariance, ROMAN.covariance)
    assert fields["source_magnitude"] == ROMAN.source_magnitude
    assert fields["mag_now"] == ROMAN.magnitude_now
    assert fields["red_chi2"] == ROMAN.reduced_chi2
    assert "piEN" not in fields
    assert "tap_priority" not in fields


def test_what_is_not_known_is_left_out() -> None:
    relative = build.alert(
        baseline_magnitude=None, source_magnitude=None, magnitude_now=None, fit=None, verdict=None
    )
    fields = target_fields(relative)
    assert not {"source_magnitude", "mag_now", "chi2"} & fields.keys()
    assert fields["classification"] == "Microlensing PSPL"


def test_the_gain_in_chi2_is_over_a_constant() -> None:
    gain = chi2_gain(SAMPLE)
    assert gain is not None
    assert SAMPLE.fit is not None
    weight = SAMPLE.sigma.astype(float) ** -2
    mean = np.average(SAMPLE.flux, weights=weight)
    one_source = weight @ (SAMPLE.flux - mean) ** 2 - SAMPLE.fit.chi2
    assert gain <= one_source + 1e-6
    assert gain > 0


def test_the_gain_in_chi2_counts_no_epoch_that_the_fit_leaves_out() -> None:
    gain = chi2_gain(SAMPLE)
    assert SAMPLE.fit is not None
    flux = SAMPLE.flux.copy()
    flux[3] += 100
    wrong = replace(SAMPLE, flux=flux, fit=replace(SAMPLE.fit, left_out=(3,)))
    assert chi2_gain(replace(wrong, fit=SAMPLE.fit)) > 1e4
    assert chi2_gain(wrong) == pytest.approx(gain, abs=30)


# rogue_db


def test_rogue_db_gets_a_file_that_its_command_reads(tmp_path: Path) -> None:
    target = TARGETS["rogue-db"](Options(str(tmp_path)))
    assert target.send(ROMAN) == target.send(ROMAN)
    (path,) = tmp_path.iterdir()
    packet = json.loads(path.read_text())
    assert path.name == f"{ROMAN.alert_id}.json"
    assert packet["objname"] == "123456789"
    assert set(packet["light_curves"]) == {"F087", "F146", "F213"}
    main = packet["light_curves"]["F146"]
    assert len(main["time"]) == ROMAN.n_epochs
    quiet = ROMAN.sources[0].baseline_flux
    magnitude = 25 - 2.5 * np.log10(main["flux"][0])
    assert magnitude == pytest.approx(31.4 - 2.5 * np.log10(ROMAN.flux[0] * quiet), abs=1e-4)


def test_rogue_dbs_numbers_fit_its_columns() -> None:
    fields = rogue_db.rges_alert(ROMAN)
    assert 0 <= fields["alert_id"] < 1 << 31
    assert 0 <= fields["alert_neural_network_confidence"] <= 100
    assert 2_433_282.5 < fields["alert_t0"] < 2_470_000
    assert fields["alert_delta_chi2"] < 10**7
    assert datetime.fromisoformat(fields["alert_timestamp"]).tzinfo is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"band": "I"}, "not_roman"),
        ({"source_magnitude": None}, "no_magnitudes"),
        ({"ra": None}, "no_position"),
        ({"star_id": "x" * 50}, "long_name"),
        ({"mjd_tai": ROMAN.mjd_tai - 1000}, "no_epoch"),
    ],
)
def test_what_rogue_db_would_break_off_at(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PoisonMessage, match=reason):
        rogue_db.packet(build.alert(**{"band": "F146", "ra": 1.0, "dec": 2.0} | changes))


def test_a_folder_of_rogue_db_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        TARGETS["rogue-db"](Options(str(tmp_path / "nowhere")))


# HERMES, Lasair, Slack, webhook


def test_hermes_gets_a_message(target: StandIn) -> None:
    target.script = [Answer(200, b'{"uuid": "theirs"}')]
    assert TARGETS["hermes"](options(target)).send(ROMAN) == "theirs"
    (request,) = target.requests
    assert request.path == "/api/v0/submit_message/"
    assert request.headers["authorization"] == "Token token"
    data = request.body["data"]
    names = {one["name"] for one in data["targets"]}
    assert len(names) == len(data["targets"]) == 1
    assert {one["target_name"] for one in data["photometry"]} <= names
    assert request.body["topic"] == "topic"


def test_hermes_refuses_a_message(target: StandIn) -> None:
    target.script = [Answer(400, b'{"topic": ["may not be blank"]}')]
    with pytest.raises(PoisonMessage, match="may not be blank"):
        TARGETS["hermes"](options(target)).send(ROMAN)


def test_lasair_gets_an_annotation(target: StandIn) -> None:
    target.script = [Answer(200, b'{"status": "success"}')]
    TARGETS["lasair"](options(target)).send(ROMAN)
    (request,) = target.requests
    assert request.path == "/annotate/"
    assert request.body["objectId"] == 123456789
    assert len(request.body["version"]) <= 16
    assert json.loads(request.body["classdict"])["alertId"] == str(ROMAN.alert_id)


def test_lasair_gets_no_quote_into_its_sql() -> None:
    row = lasair.annotation(hostile(star_id=1), "topic")
    assert not re.search(r"""['"\\`\n;<>]""", row["explanation"].replace("; log10", ""))
    assert row["classification"] == "flare"


@pytest.mark.parametrize("star", ["ZTF18abc", -1, 1 << 63, "1e3", "\u0661"])
def test_lasair_knows_objects_by_number(star: str | int) -> None:
    with pytest.raises(PoisonMessage, match="no_object"):
        lasair.annotation(build.alert(star_id=star), "topic")


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Annotator error: topic x does not exist", ConfigError),
        ("Kafka production failed", TransientError),
        ("no such column", PoisonMessage),
    ],
)
def test_lasair_says_why_not(
    target: StandIn, status: int, said: str, error: type[Exception]
) -> None:
    target.script = [Answer(status, json.dumps({"error": said}).encode())]
    with pytest.raises(error, match=said):
        TARGETS["lasair"](options(target)).send(ROMAN)


def test_slack_gets_text_without_markup(target: StandIn) -> None:
    made = TARGETS["slack"](Options(secret=f"{target.url}/services/T/B/x"))
    target.script = [Answer(200, b"ok")]
    made.send(hostile())
    (request,) = target.requests
    assert request.path == "/services/T/B/x"
    (block,) = request.body["blocks"]
    assert block["text"]["type"] == "plain_text"
    assert len(block["text"]["text"]) <= 3000
    assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", request.body["text"])


def test_slacks_address_is_never_shown() -> None:
    address = "http://127.0.0.1:1/services/secret"
    with pytest.raises(TransientError) as caught:
        TARGETS["slack"](Options(secret=address)).send(ROMAN)
    assert "secret" not in str(caught.value)


def test_a_webhook_gets_the_alert_and_its_key(target: StandIn) -> None:
    made = TARGETS["webhook"](options(target))
    made.send(ROMAN)
    made.send(ROMAN)
    first, second = target.requests
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.headers["authorization"] == "Bearer token"
    assert first.body["alert"]["alertId"] == str(ROMAN.alert_id)
    assert len(first.body["alert"]["lightCurve"]["flux"]) == ROMAN.n_epochs


# A TOM


class Targets:
    """The table of targets of a TOM, behind its web interface."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def __call__(self, request: Request) -> Answer:
        if request.method == "GET":
            rows = [{"id": n, **row} for n, row in self.rows.items()]
            return Answer(200, json.dumps({"results": rows}).encode())
        number = len(self.rows) + 1
        if request.method == "PATCH":
            number = int(request.path.rstrip("/").rpartition("/")[2])
        elif request.body["name"] in {row["name"] for row in self.rows.values()}:
            return Answer(400, b'{"name": ["exists"]}')
        row = self.rows.setdefault(number, {})
        row.update(request.body)
        for i, extra in enumerate(row["targetextra_set"]):
            extra.setdefault("id", i)
        return Answer(201, json.dumps({"id": number}).encode())


def test_a_tom_gets_one_target_a_star() -> None:
    table = Targets()
    with stand_in(table) as server:
        made = TARGETS["tom"](options(server))
        assert [made.send(ROMAN), made.send(ROMAN)] == ["1", "1"]
        methods = [request.method for request in server.requests]
    assert methods == ["GET", "POST", "GET", "PATCH"]
    ((row),) = table.rows.values()
    assert row["t0"] == target_fields(ROMAN)["t0"]
    keys = [one["key"] for one in row["targetextra_set"]]
    assert len(set(keys)) == len(keys)
    assert all("id" in one for one in server.requests[-1].body["targetextra_set"])


def test_a_tom_whose_answer_was_lost_has_the_target_once() -> None:
    table = Targets()
    with stand_in(table) as server:
        made = TARGETS["tom"](options(server))
        server.script = [Answer(200, b'{"results": []}'), Answer(breaks=True)]
        with pytest.raises(TransientError):
            made.send(ROMAN)
        made.send(ROMAN)
    assert len(table.rows) == 1


def test_what_is_no_tom_is_tried_again(target: StandIn) -> None:
    target.script = [Answer(200, b"<html>")]
    with pytest.raises(TransientError, match="as a TOM does"):
        TARGETS["tom"](options(target)).send(ROMAN)


# VOEvent

RECEIPT = (
    '<trn:Transport role="{role}" version="1.0"'
    ' xmlns:trn="http://telescope-networks.org/xml/Transport/v1.1"><Origin>{origin}</Origin>'
    "<TimeStamp>2026-01-01T00:00:00</TimeStamp><Meta><Result>{result}</Result></Meta>"
    "</trn:Transport>"
)


@contextmanager
def broker(
    receipt: Callable[[bytes], bytes | None], length_of: Callable[[bytes], int] | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A broker of the VOEvent Transport Protocol, which answers with a receipt or hangs up."""
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    wire, _ = server.accept()
                except OSError:
                    return
                with closing(wire):
                    (length,) = struct.unpack(">I", wire.recv(4, socket.MSG_WAITALL))
                    came.append(wire.recv(length, socket.MSG_WAITALL))
                    if (answer := receipt(came[-1])) is not None:
                        first = len(answer) if length_of is None else length_of(came[-1])
                        wire.sendall(struct.pack(">I", first) + answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"vtp://127.0.0.1:{server.getsockname()[1]}", came
        server.shutdown(socket.SHUT_RDWR)


def saying(role: str, result: str = "") -> Callable[[bytes], bytes]:
    return lambda packet: RECEIPT.format(
        role=role, origin=parsed(packet).get("ivorn"), result=result
    ).encode()


def parsed(packet: bytes) -> ET.Element:
    return ET.fromstring(packet)  # noqa: S314  our own


def sent(url: str) -> str:
    return TARGETS["voevent"](Options(url, topic="org.example", timeout_s=5)).send(ROMAN)


def test_a_voevent_broker_gets_the_packet() -> None:
    with broker(saying("ack")) as (url, came):
        assert sent(url) == f"ivo://org.example/microlensing#{ROMAN.alert_id}"
    root = parsed(came[0])
    assert root.get("role") == "observation"
    assert float(root.findtext(".//C1", "")) == ROMAN.ra
    numbers = {one.get("name"): one.get("value") for one in root.iter("Param")}
    assert float(numbers["log10_K"] or "") == ROMAN.log10_k


@pytest.mark.parametrize(
    ("state", "cite"),
    [("update", "supersedes"), ("final", "supersedes"), ("retraction", "retraction")],
)
def test_a_packet_cites_those_of_its_event_that_were_published(state: Any, cite: str) -> None:
    names = ["ivo://org.example/microlensing#1", "ivo://org.example/microlensing#2"]
    root = parsed(voevent(replace(ROMAN, state=state), "org.example", names))
    cited = [(one.get("cite"), one.text) for one in root.iterfind("Citations/EventIVORN")]
    assert cited == [(cite, name) for name in names]
    assert root.find("Why/Description") is not None
    assert parsed(voevent(ROMAN)).find("Citations") is None


def test_a_packet_that_the_broker_has_seen_is_handed_over() -> None:
    with broker(saying("nak", "Previously seen by this broker")) as (url, _):
        sent(url)


def test_a_second_receipt_is_not_looked_at() -> None:
    def twice(packet: bytes) -> bytes:
        first, second = saying("ack")(packet), saying("nak", "not valid")(packet)
        return first + struct.pack(">I", len(second)) + second

    with broker(twice, lambda packet: len(saying("ack")(packet))) as (url, came):
        sent(url)
    assert len(came) == 1


def test_a_packet_that_the_broker_refuses() -> None:
    with broker(saying("nak", "not valid")) as (url, _), pytest.raises(PoisonMessage, match="not"):
        sent(url)


@pytest.mark.parametrize(
    "receipt",
    [None, b"", b"ok", b"<a role='iamalive'/>", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a role='ack'/>"],
    ids=str,
)
def test_what_is_no_receipt(receipt: bytes | None) -> None:
    with broker(lambda _: receipt) as (url, _), pytest.raises(TransientError):
        sent(url)


def test_a_broker_that_is_not_there() -> None:
    with pytest.raises(TransientError):
        sent("vtp://127.0.0.1:1")


@pytest.mark.parametrize("url", ["http://a", "vtp://", "vtp://a:b", "a:1"])
def test_an_address_of_no_broker(url: str) -> None:
    with pytest.raises(ConfigError, match="vtp"):
        sent(url)


def test_a_hostile_name_is_text_in_the_packet() -> None:
    root = parsed(voevent(hostile()))
    (star,) = (one for one in root.iter("Param") if one.get("name") == "star")
    assert "\x1b" not in (star.get("value") or "\x1b")
    assert "DROP TABLE" in (star.get("value") or "")


def test_an_authority_is_a_name() -> None:
    with pytest.raises(ConfigError, match="authority"):
        ivorn(ROMAN, "a/b#c")


# Hopskotch


def test_hopskotch_gets_a_container_and_its_id() -> None:
    with EmbeddedBroker({"topic": 1}) as kafka:
        given = Options(kafka.bootstrap_servers, topic="topic", timeout_s=10)
        made: Target
        with closing(TARGETS["hopskotch"](given)) as made:
            made.send(ROMAN)
        everything = TopicRange(kafka.bootstrap_servers, "topic")
        ((message,),) = (list(messages_of(part)) for part in offsets_of(everything))
    headers = dict(message.headers)
    assert headers["_id"] == ROMAN.alert_id.bytes
    assert headers["_format"] == b"avro"
    assert to_avro(from_message(message)) == to_avro(ROMAN)


def test_hopskotch_sends_once_what_waits_for_a_broker() -> None:
    with EmbeddedBroker({"topic": 1}) as kafka:
        given = Options(kafka.bootstrap_servers, topic="topic", timeout_s=0.01)
        with closing(TARGETS["hopskotch"](given)) as made:
            kafka.interrupt()
            for _ in range(3):
                with pytest.raises(TransientError):
                    made.send(ROMAN)
            kafka.restore()
        everything = TopicRange(kafka.bootstrap_servers, "topic")
        assert [len(list(messages_of(part))) for part in offsets_of(everything)] == [1]


def test_every_message_is_of_its_own_alert() -> None:
    first, second = hopskotch.message(SAMPLE, "t"), hopskotch.message(ROMAN, "t")
    assert first.key != second.key
