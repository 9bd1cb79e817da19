"""The number of the alert's schema, from the settings or a registry that may be away."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from pydantic import ValidationError

from broker_filter.alerts.codec import to_message
from broker_filter.alerts.framing import Framing
from broker_filter.config import Kafka
from broker_filter.errors import ConfigError, TransientError
from broker_filter.kafka.delivery import Parcel
from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.assessment import Outputs
from broker_filter.service.alert_schema import make_framing
from broker_filter.service.outgoing import Outgoing
from broker_filter.service.report import Reporter
from tests import build

SUBJECT = "/subjects/microlensing-alerts-value/versions"


class StandIn(HTTPServer):
    """A schema registry: it numbers schemas, and gives them back by number."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[str] = []
        self.failures: list[tuple[int, bytes]] = []
        self.logins: list[str | None] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.logins.append(self.headers["Authorization"])
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.failures:
            self._answer(*self.server.failures.pop(0))
            return
        schemas = self.server.schemas
        if body["schema"] not in schemas:
            schemas.append(body["schema"])
        self._answer(200, json.dumps({"id": 7 + schemas.index(body["schema"])}).encode())

    def do_GET(self) -> None:
        asked, _, number = self.path.partition("?")[0].rpartition("/")
        if asked != "/schemas/ids":
            self._answer(404, b'{"error_code": 40401, "message": "not found"}')
            return
        schema = self.server.schemas[int(number) - 7]
        self._answer(200, json.dumps({"schema": schema}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def registry() -> Iterator[StandIn]:
    with StandIn() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def kafka(**changes: Any) -> Kafka:
    plain = {"bootstrap_servers": "127.0.0.1:1", "input_topics": ["epochs"]}
    return Kafka.model_validate(plain | changes)


def of(registry: StandIn, **changes: Any) -> Kafka:
    return kafka(alert_framing="confluent", alert_schema_registry=registry.url, **changes)


def test_a_fixed_number_needs_no_registry() -> None:
    assert make_framing(kafka(alert_framing="confluent", alert_schema_id=3)) == Framing(
        "confluent", 3
    )
    assert make_framing(kafka()) == Framing()


def test_a_registry_gives_the_number_and_keeps_it(registry: StandIn) -> None:
    first, second = (make_framing(of(registry)) for _ in range(2))
    assert first == second == Framing("confluent", 7)
    assert registry.paths == [SUBJECT, SUBJECT]
    assert len(registry.schemas) == 1


def test_a_registry_that_is_away_for_a_while(registry: StandIn, tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("me:secret\n")
    registry.failures = [(503, b""), (200, b"<html>"), (200, b'{"id": "x"}')]
    pauses: list[float] = []
    settings = of(registry, alert_schema_registry_login_file=login)
    assert make_framing(settings, pauses.append).schema_id == 7
    assert len(pauses) == 3
    assert registry.logins == ["Basic bWU6c2VjcmV0"] * 4


@pytest.mark.parametrize(
    ("status", "said"), [(401, "login"), (404, "404"), (409, "fit"), (422, "fit")]
)
def test_a_refusal_is_final(registry: StandIn, status: int, said: str) -> None:
    registry.failures = [(status, b'{"message": "no"}')]
    with pytest.raises(ConfigError, match=said):
        make_framing(of(registry))


def test_a_registry_that_stays_away_ends_the_start() -> None:
    settings = kafka(
        alert_framing="confluent",
        alert_schema_registry="http://127.0.0.1:1",
        connect_timeout_s=0.01,
    )
    with pytest.raises(TransientError, match="cannot be reached"):
        make_framing(settings)


@pytest.mark.parametrize(
    "changes",
    [
        {"alert_framing": "confluent"},
        {"alert_framing": "confluent", "alert_schema_id": 1, "alert_schema_registry": "https://r"},
        {"alert_framing": "container", "alert_schema_id": 1},
        {"alert_framing": "confluent", "alert_schema_registry": "http://elsewhere"},
        {"alert_framing": "confluent", "alert_schema_id": -1},
        {"alert_framing": "xml"},
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kafka(**changes)


def test_the_service_sends_alerts_in_their_framing() -> None:
    parcels: list[Parcel] = []
    delivery: Any = SimpleNamespace(deliver=lambda parcel, *_, **__: parcels.append(parcel))
    outgoing = Outgoing(kafka(), delivery, Reporter(Metrics()), Framing("container"))
    take = outgoing.receiver(lambda _: None)
    take(Outputs(alerts=[build.alert()], offsets={("epochs", 0): 1}))
    source: Any = None
    outgoing.deliver(source, last=True)
    ((message,),) = (parcel.messages for parcel in parcels)
    (record,) = fastavro.reader(io.BytesIO(message.value))
    assert record["alertId"] == str(build.alert().alert_id)


def test_confluents_own_client_reads_what_the_service_sends(registry: StandIn) -> None:
    pytest.importorskip("authlib")
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    alert = build.alert()
    message = to_message(alert, "microlensing-alerts", make_framing(of(registry)))
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    record = read(message.value, SerializationContext(message.topic, MessageField.VALUE))
    assert record["alertId"] == str(alert.alert_id)
    assert record["t0MjdTai"] == alert.t0_mjd_tai
